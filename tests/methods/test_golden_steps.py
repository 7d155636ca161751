"""One step of every method against 20-digit reference values."""

import itertools
import json
from pathlib import Path
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import take

import snapgrad as sg
from snapgrad.methods import Iterate, accelerated_step, nesterov_step

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
STEPS = GOLDEN["steps"]
ETA, MU, ETA_TILDE = 0.7, 0.6, 1.3
LAMBDAS = [("lam=0", 0.0), ("lam=0.1", 0.1)]


def array(value):
    return jnp.asarray(np.array(value, dtype=float))


J, r, theta0, phi0 = (array(GOLDEN[name]) for name in ("J", "r0", "theta0", "phi0"))
S, S_prime = jnp.asarray(STEPS["S"]), jnp.asarray(STEPS["S_prime"])


def linearise(rows):
    return sg.Linearisation(residual=r[rows], jacobian=sg.DenseJacobian(J[rows]))


def close(value, reference):
    np.testing.assert_allclose(np.asarray(value), np.asarray(array(reference)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("solver", ["auto", "eigh", "qr"])
@pytest.mark.parametrize(("name", "lam"), LAMBDAS)
def test_sng(name, lam, solver):
    direction, _ = sg.SNG(damping=lam, solver=solver).direction(linearise(S), ())
    close(theta0 - ETA * direction, STEPS[name]["sng"])


@pytest.mark.parametrize(("name", "lam"), LAMBDAS)
def test_natural_gradient_on_all_rows(name, lam):
    direction, _ = sg.SNG(damping=lam).direction(linearise(jnp.arange(6)), ())
    close(theta0 - ETA * direction, STEPS[name]["ngd"])


@pytest.mark.parametrize(("name", "lam"), LAMBDAS)
def test_spring(name, lam):
    method = sg.Spring(damping=lam, momentum=MU)
    direction, state = method.direction(linearise(S), sg.methods.SpringState(phi0))
    close(state.increment, STEPS[name]["spring_phi"])
    close(theta0 - ETA * direction, STEPS[name]["spring_theta"])


@pytest.mark.parametrize(("name", "lam"), LAMBDAS)
def test_two_batch(name, lam):
    direction, _ = sg.TwoBatch(damping=lam).direction((linearise(S), linearise(S_prime)), ())
    close(theta0 - ETA * direction, STEPS[name]["two_batch"])


def test_sgd():
    direction, _ = sg.SGD().direction(linearise(S), ())
    close(theta0 - ETA * direction, STEPS["lam=0"]["sgd(theta-eta*J_S^T r_S)"])


@pytest.mark.parametrize(("name", "lam"), LAMBDAS)
def test_regularised_pseudoinverse(name, lam):
    columns = [
        sg.methods.pinv_apply(sg.DenseJacobian(J[S]), e, jnp.asarray(lam)) for e in jnp.eye(2, dtype=float)
    ]
    close(jnp.stack(columns, axis=1), STEPS[name]["reg_pinv_J_S"])


@pytest.mark.parametrize(("name", "lam"), LAMBDAS)
def test_accelerated_sketch_and_project(name, lam):
    omega = jnp.sin(2 * jnp.arange(2.0)[:, None] + jnp.arange(6.0)[None, :] + 1)
    A, b = omega @ J, omega @ jnp.cos(3 * jnp.arange(6.0))
    tilde = new = Iterate(theta0, jnp.zeros(4))
    for _ in range(3):
        tilde = nesterov_step(tilde, A, b, damping=lam, momentum=MU, step_size=ETA_TILDE)
        new = accelerated_step(new, A, b, damping=lam, momentum=MU, step_size=1 + MU * (ETA_TILDE - 1))
    close(tilde.theta, STEPS[name]["ark_3steps_theta_tilde"])
    close(tilde.increment, STEPS[name]["ark_3steps_phi_tilde"])
    close(new.theta, STEPS[name]["ark_new_3steps_theta(eta=1.18)"])
    close(new.increment, STEPS[name]["ark_new_3steps_phi"])


def test_block_kaczmarz_is_sng_on_least_squares():
    b = jnp.cos(3 * jnp.arange(6.0))
    lin = sg.Linearisation(residual=J[S] @ theta0 - b[S], jacobian=sg.DenseJacobian(J[S]))
    for lam in (0.0, 0.1):
        direction, _ = sg.SNG(damping=lam).direction(lin, ())
        step = sg.methods.kaczmarz_step(theta0, J[S], b[S], lam)
        np.testing.assert_allclose(step, theta0 - direction, rtol=1e-14)


class TestNetwork:
    """The paper's ResNet on a deterministic instance."""

    nn = GOLDEN["nn"]
    problem = sg.problems.DiscretePoisson()
    values = staticmethod(eqx.filter_jit(problem.values))
    metrics = staticmethod(eqx.filter_jit(problem.metrics))
    linearise = staticmethod(eqx.filter_jit(problem.linearise))
    params: ClassVar = [
        {
            "W": array(np.sin(1.0 + layer + 2 * np.arange(o)[:, None] + 3 * np.arange(i)) / np.sqrt(i)),
            "b": array(0.1 * np.cos(1.0 * layer + np.arange(o))),
        }
        for layer, (i, o) in enumerate(itertools.pairwise([2, 50, 50, 50, 50, 1]))
    ]

    def test_forward_and_metrics(self):
        v = np.asarray(self.values(self.params))
        np.testing.assert_allclose(v[:5], self.nn["v_first5"], rtol=1e-12)
        np.testing.assert_allclose(v.sum(), self.nn["v_sum"], rtol=1e-12)
        np.testing.assert_allclose(self.problem.loss(self.params), self.nn["loss"], rtol=1e-12)
        error = self.metrics(self.params)["relative_error"]
        np.testing.assert_allclose(error, self.nn["rel_err"], rtol=1e-12)
        np.testing.assert_allclose(self.problem.rhs[:5], self.nn["b_first5"], rtol=1e-12)
        np.testing.assert_allclose(self.problem.solution[:5], self.nn["vstar_first5"], rtol=1e-12)

    def test_linearisation(self):
        lin = self.linearise(self.params, jnp.arange(100))
        assert lin.jacobian.shape == (100, self.nn["n"])
        np.testing.assert_allclose(lin.residual[:5], self.nn["r_first5"], rtol=1e-12)
        kernel = np.asarray(lin.jacobian.gram())
        np.testing.assert_allclose(np.diagonal(kernel)[:3], self.nn["grad_sqnorm_first3"], rtol=1e-12)
        np.testing.assert_allclose(kernel[0, 1], self.nn["ntk_0_1"], rtol=1e-12)
        np.testing.assert_allclose(kernel[0, 50], self.nn["ntk_0_50"], rtol=1e-12)
        np.testing.assert_allclose(np.trace(kernel), self.nn["ntk_trace"], rtol=1e-12)
        eigenvalues = np.linalg.eigvalsh(kernel)[::-1][:5]
        np.testing.assert_allclose(eigenvalues, self.nn["ntk_top5_eigs"], rtol=1e-11)

    def step(self, method, lin):
        direction, _ = take(method, lin, method.init(self.params))
        update = jax.tree.map(lambda d: -1e-3 * np.asarray(d), direction)
        norm = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(update)))
        return norm, jax.tree.map(lambda p, u: jnp.asarray(p + u), self.params, update)

    def test_sng_step(self):
        lin = self.linearise(self.params, jnp.arange(0, 100, 10))
        norm, after = self.step(sg.SNG(damping=1e-2), lin)
        np.testing.assert_allclose(norm, self.nn["sng_step_norm"], rtol=1e-11)
        np.testing.assert_allclose(self.values(after)[:5], self.nn["sng_v_after_first5"], rtol=1e-11)
        error = self.metrics(after)["relative_error"]
        np.testing.assert_allclose(error, self.nn["sng_relerr_after"], rtol=1e-12)

    def test_two_batch_step(self):
        lin = self.linearise(self.params, jnp.arange(0, 100, 10))
        other = self.linearise(self.params, jnp.arange(5, 100, 10))
        norm, after = self.step(sg.TwoBatch(damping=1e-2), (lin, other))
        np.testing.assert_allclose(norm, self.nn["two_batch_step_norm"], rtol=1e-11)
        error = self.metrics(after)["relative_error"]
        np.testing.assert_allclose(error, self.nn["two_batch_relerr_after"], rtol=1e-12)
