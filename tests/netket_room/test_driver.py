"""The driver: NetKet's steps where it has them, the dense formula where it has not, and its manners."""

import inspect
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from chains import (
    CHAIN,
    HAMILTONIAN,
    HILBERT,
    MARKS,
    SAMPLES,
    L,
    dense,
    draw,
    flat,
    gap,
    nk,
    random_like,
    sampled,
    summed,
)
from flax import serialization

import snapgrad as sg
import snapgrad.netket as sgn

pytestmark = MARKS
CHOLESKY = nk.optimizer.solver.cholesky
SPRING, SNG = sg.Spring(1e-3, 0.8), sg.SNG(1e-3)
slow = pytest.mark.slow


# --------------------------------------------------------------- against NetKet on the same samples


@pytest.mark.parametrize(
    ("name", "mode", "momentum", "on_the_fly"),
    [
        ("real", "real", 0.8, False),
        ("phase", "complex", 0.8, True),
        pytest.param("real", "real", None, False, marks=slow),
        pytest.param("real", "real", 0.8, True, marks=slow),
        pytest.param("phase", "complex", 0.8, False, marks=slow),
        pytest.param("phase", "complex", None, True, marks=slow),
        pytest.param("phase", "real", 0.8, False, marks=slow),
        pytest.param("holomorphic", "complex", 0.8, False, marks=slow),
    ],
)
def test_steps_are_those_of_netket(name, mode, momentum, on_the_fly):
    vstate = sampled(name)
    ours = sgn.VMC(HAMILTONIAN, 0.05, vstate, method=SNG if momentum is None else SPRING, mode=mode)
    options = {"momentum": momentum, "mode": mode, "diag_shift": 1e-3, "linear_solver": CHOLESKY}
    options |= {"use_ntk": True, "on_the_fly": on_the_fly}
    theirs = nk.driver.VMC_SR(HAMILTONIAN, optax.sgd(0.05), variational_state=vstate, **options)
    for step in range(3):  # from the second step on φ is not zero
        draw(vstate, step)
        energy, direction = ours.compute_loss_and_update()
        wanted_energy, wanted = theirs.compute_loss_and_update()
        assert gap(direction, wanted) < 1e-10
        for field in ("mean", "error_of_mean", "variance"):
            np.testing.assert_allclose(
                getattr(energy, field), getattr(wanted_energy, field), rtol=1e-10, atol=1e-12
            )
        ours.update_parameters(direction)


def test_netkets_own_lift_gives_the_same_step():
    vstate = sampled("real")
    common = {"diag_shift": 1e-3, "variational_state": vstate, "use_ntk": True, "on_the_fly": False}
    theirs = nk.driver.VMC_SR(HAMILTONIAN, optax.sgd(0.1), proj_reg=1.0, **common)
    wanted = theirs.compute_loss_and_update()[1]
    for lift in (0.0, 1.0, 30.0):
        ours = sgn.VMC(HAMILTONIAN, 0.1, vstate, method=SPRING, lift=lift)  # φ = 0: SNG
        assert gap(ours.compute_loss_and_update()[1], wanted) < 1e-10


@slow
def test_full_summation_as_netket():
    vstate = summed("holomorphic")
    common = {"variational_state": vstate, "diag_shift": 1e-3, "linear_solver": CHOLESKY}
    theirs = nk.driver.VMC_SR(HAMILTONIAN, optax.sgd(0.1), **common)
    ours = sgn.VMC(HAMILTONIAN, 0.1, vstate, method=SNG)
    assert gap(ours.compute_loss_and_update()[1], theirs.compute_loss_and_update()[1]) < 1e-10


# ------------------------------------------------------------------------ against the dense formula


@pytest.mark.parametrize(
    ("name", "method", "holomorphic"),
    [
        ("real", SNG, False),
        ("few, complex", SPRING, True),
        ("mixed", SPRING, False),
        ("mixed", sg.SGD(), False),
        pytest.param("holomorphic", SPRING, True, marks=slow),
        pytest.param("not holomorphic", SPRING, False, marks=slow),
        pytest.param("few, mixed", SNG, False, marks=slow),
    ],
)
def test_full_summation_is_the_dense_formula(name, method, holomorphic):
    vstate = summed(name)
    J, r, energy = dense(vstate, "real" if name == "real" else "complex")
    n = J.shape[1]
    driver = sgn.VMC(HAMILTONIAN, 0.1, vstate, method=method, holomorphic=holomorphic)
    phi = np.zeros(n)
    if method is SPRING:
        driver.method_state = type(driver.method_state)(random_like(vstate.parameters, 3))
        phi = 0.8 * flat(driver.method_state)
    found, direction = driver.compute_loss_and_update()
    wanted = phi + np.linalg.solve(J.T @ J + 1e-3 * np.eye(n), J.T @ (r - J @ phi))
    wanted = J.T @ r if isinstance(method, sg.SGD) else wanted
    assert np.linalg.norm(flat(direction) - wanted) < 1e-10 * np.linalg.norm(wanted)
    np.testing.assert_allclose(found.mean, energy, rtol=1e-12)
    if name != "real":
        np.testing.assert_allclose(found.variance, np.sum(r**2) / 4)


def test_conjugate_gradients_take_the_same_steps_without_a_kernel(monkeypatch):
    """And log how far they came; that centred rows have a null space, which `lift` fills, does not matter."""
    wanted = []
    for solver in ("auto", sg.CG(tolerance=1e-12, rank=8)):
        vstate = sampled("phase")
        driver = sgn.VMC(HAMILTONIAN, 0.05, vstate, method=sg.Spring(1e-3, 0.8, solver))
        if solver != "auto":
            monkeypatch.setattr(sgn._log_psi.LiftedJacobian, "gram", None)
            monkeypatch.setattr(sgn._log_psi.LiftedJacobian, "dense", None)
        for step in range(2):
            draw(vstate, step)
            _, direction = driver.compute_loss_and_update()
            driver.update_parameters(direction)
            wanted.append(direction)
    assert gap(wanted[2], wanted[0]) < 1e-9 and gap(wanted[3], wanted[1]) < 1e-9
    log = {}
    driver._log_additional_data(log)
    assert 0 < log["cg_residual"] < 1e-12 and log["cg_steps"] > 0 and log["cg_unconverged"] == 0
    assert "solver=CG(tolerance=1e-12, rank=8)" in repr(driver)


def test_full_summation_reaches_the_ground_state():
    vstate = summed("few, complex")
    # A step is one of imaginary time, 2η: it must be short against the inverse of the spectrum's width, 10.
    method = sg.Spring(1e-4, 0.5)
    driver = sgn.VMC(HAMILTONIAN, 0.05, vstate, method=method, holomorphic=True, max_norm=0.5)
    driver.run(200, show_progress=False)
    exact = np.linalg.eigvalsh(CHAIN.to_dense())[0]
    assert abs(float(vstate.expect(HAMILTONIAN).mean.real) - exact) < 1e-6 * abs(exact)


def test_a_deep_model_never_meets_its_jacobian():
    """The compiled step of a network with 69,000 parameters stays far below k × n numbers."""
    sampler = nk.sampler.MetropolisLocal(HILBERT, n_chains=16)
    model = nk.models.MLP(hidden_dims=(256, 256), param_dtype=float, output_activation=None)
    vstate = nk.vqs.MCState(sampler, model, n_samples=256, seed=1)
    samples = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (256, L)))
    found = sgn._local.Configurations(samples, jnp.ones(256), None)
    driver = sgn.VMC(HAMILTONIAN, 0.1, vstate)
    arguments = (vstate.parameters, vstate.model_state, found, driver._method(), driver.method_state, 1.0)
    lowered = sgn._step.propose.lower(*arguments, apply=vstate._apply_fun, settings=driver._settings)
    used = lowered.compile().memory_analysis().temp_size_in_bytes
    assert used < 256 * vstate.n_parameters * 8 / 5


# ----------------------------------------------------------------------------- runs and checkpoints


SAMPLER = nk.sampler.MetropolisLocal(HILBERT, n_chains=4, sweep_size=4)


def chain_state():
    options = {"n_samples": SAMPLES, "n_discard_per_chain": 0, "seed": 1, "sampler_seed": 2}
    return nk.vqs.MCState(SAMPLER, sampled("real").model, **options)


def new_driver(**options):
    damping = optax.exponential_decay(1e-2, 10, 0.5)
    options = {"method": lambda step: sg.Spring(damping(step), 0.7), **options}
    return sgn.VMC(HAMILTONIAN, optax.adam(0.01), chain_state(), **options)


def test_a_run_logs_calls_back_and_resumes_exactly(tmp_path, capsys):
    driver, log, seen = new_driver(), nk.logging.RuntimeLog(), []

    def note(step, data, driver):
        seen.append(step)
        return True

    magnetisation = nk.operator.spin.sigmax(HILBERT, 0).to_jax_operator()
    driver.run(3, out=log, obs={"x": magnetisation}, callback=note)  # with the progress bar
    assert seen == [0, 1, 2] and driver.step_count == 3
    assert len(log.data["Energy"]["Mean"]) == len(log.data["x"]["Mean"]) == 3
    assert list(log.data["rejected_steps"]["value"]) == [0, 0, 0]
    saved = serialization.to_bytes(driver)
    driver.run(3, out=str(tmp_path / "run"), show_progress=False)
    assert (tmp_path / "run.log").exists()
    other = serialization.from_bytes(new_driver(), saved)
    assert other.step_count == 3
    other.run(3, out=None, show_progress=False)
    assert gap(other.method_state, driver.method_state) == 0
    assert gap(other.state.parameters, driver.state.parameters) == 0
    with pytest.raises(ValueError, match="do not match"):
        serialization.from_bytes(new_driver(method=SNG), saved)


def test_netkets_chunk_size_callback_tunes_it(capsys):
    driver = new_driver()
    driver.run(1, callback=nk.callbacks.AutoChunkSize(chunk_size_bwd=8, chunk_size=8), show_progress=False)
    assert driver.chunk_size_bwd == 8 and driver.state.chunk_size == 8


def test_norm_of_a_step_is_bounded_and_the_increment_is_not():
    vstate = summed("mixed")
    driver = sgn.VMC(HAMILTONIAN, 5.0, vstate, method=SPRING, max_norm=0.01)
    before = vstate.parameters
    _, direction = driver.compute_loss_and_update()
    driver.update_parameters(direction)
    step = flat(vstate.parameters) - flat(before)
    np.testing.assert_allclose(np.linalg.norm(step), 0.01, rtol=1e-12)
    np.testing.assert_allclose(step / 0.01, -flat(direction) / np.linalg.norm(flat(direction)), atol=1e-12)
    assert gap(driver.method_state, direction) == 0


def test_the_optimizer_may_be_a_number_a_schedule_or_a_transformation():
    moves = []
    for optimizer in (0.1, optax.constant_schedule(0.1), optax.sgd(0.1)):
        vstate = summed("mixed")
        before = flat(vstate.parameters)
        driver = sgn.VMC(HAMILTONIAN, optimizer, vstate)
        driver.update_parameters(random_like(vstate.parameters, 1))
        moves.append(flat(vstate.parameters) - before)
    np.testing.assert_allclose(moves[0], -0.1 * flat(random_like(vstate.parameters, 1)), rtol=1e-12)
    np.testing.assert_allclose(moves[1:], [moves[0]] * 2, rtol=1e-12)


# ---------------------------------------------------------------------------------------- methods


def test_a_function_of_the_step_gives_each_step_its_own_method():
    driver = sgn.VMC(HAMILTONIAN, 0.1, summed("mixed"), method=lambda t: sg.Spring(0.1 / (t + 1), t / 9))
    driver._step_count = 4
    method = driver._method()
    np.testing.assert_allclose([method.damping, method.momentum], [0.02, 4 / 9])
    driver._step_count = 9
    with pytest.raises(ValueError, match=r"`momentum` must be in \[0, 1\), got 1.0"):
        driver._method()
    changing = sgn.VMC(HAMILTONIAN, 0.1, summed("mixed"), method=lambda t: SPRING if t < 4 else SNG)
    changing._step_count = 4
    with pytest.raises(ValueError, match=r"`method` must give a Spring at every step.*got a SNG at step 4"):
        changing.compute_loss_and_update()


class Counting(sg.AbstractMethod):
    """Steepest descent by a method of the user's, which counts its steps and reports the count."""

    def init(self, params):
        return {"count": jnp.zeros(())}

    def propose(self, lin, state):
        return lin.jacobian.rmv(lin.residual), {"count": state["count"] + 1}

    def report(self, state):
        return {"counted": state["count"]}


def test_a_method_of_ones_own_runs_reports_itself_and_is_stored():
    vstate = summed("mixed")
    driver, log = sgn.VMC(HAMILTONIAN, 0.01, vstate, method=Counting()), nk.logging.RuntimeLog()
    driver.run(3, out=log, show_progress=False)
    assert [float(x) for x in log.data["counted"]["value"]] == [0, 1, 2]
    assert driver.method_state == {"count": 3}
    fresh = sgn.VMC(HAMILTONIAN, 0.01, vstate, method=Counting())
    assert serialization.from_bytes(fresh, serialization.to_bytes(driver)).method_state == {"count": 3}
    with pytest.raises(ValueError, match="`method_state` must have the structure"):
        driver.method_state = ()


def test_signature_and_info_say_what_there_is():
    names = list(inspect.signature(sgn.VMC).parameters)
    assert names[:4] == ["hamiltonian", "optimizer", "variational_state", "method"]
    assert not {"self", "args", "kwargs", "unknown"} & set(names)
    driver = sgn.VMC(HAMILTONIAN, 0.1, summed("mixed"), method=SPRING)
    first, *lines = driver.info().splitlines()
    assert first == repr(driver)
    assert first == "VMC(Spring(damping=0.001, momentum=0.8, solver='auto'), step_count=0, rejected_steps=0)"
    assert [line.split(":")[0] for line in lines if ":" in line] == ["   hamiltonian", "   state", "   rows"]
    assert "mode=complex" in lines[-1]
    assert driver.info(depth=1).splitlines()[-1] == "   " + lines[-1]


# --------------------------------------------------------------------------------- refused steps


def test_a_step_that_is_not_finite_is_refused_counted_and_reported(monkeypatch):
    vstate = summed("mixed")
    driver, log = sgn.VMC(HAMILTONIAN, optax.adam(0.01), vstate, method=SPRING), nk.logging.RuntimeLog()
    driver.run(1, show_progress=False)
    before = jax.tree.map(np.asarray, (vstate.parameters, driver.method_state, driver._optimizer_state))
    found = sgn._driver.configurations

    def broken(*args, **kwargs):
        good = found(*args, **kwargs)
        return good._replace(local=good.local.at[3].set(jnp.nan))

    with monkeypatch.context() as patch:
        patch.setattr(sgn._driver, "configurations", broken)
        with pytest.warns(RuntimeWarning, match="step 1 was not finite and was left out") as warned:
            driver.run(2, out=log, show_progress=False)
    assert len(warned) == 1
    after = (vstate.parameters, driver.method_state, driver._optimizer_state)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert driver.rejected_steps == 2 and list(log.data["rejected_steps"]["value"]) == [0, 1]
    driver.run(1, show_progress=False)
    assert gap(driver.method_state, before[1]) > 1e-3 and driver.rejected_steps == 2


def test_an_optimizer_that_overflows_is_refused_as_well():
    vstate = summed("mixed")
    driver = sgn.VMC(HAMILTONIAN, 1e308, vstate, method=SPRING)
    before = vstate.parameters, driver.method_state
    _, direction = driver.compute_loss_and_update()
    with pytest.warns(RuntimeWarning, match="step 0"):
        driver.update_parameters(jax.tree.map(lambda x: 1e10 * x, direction))
    jax.tree.map(np.testing.assert_array_equal, before, (vstate.parameters, driver.method_state))
    assert driver.rejected_steps == 1


# ---------------------------------------------------------------------------------------- errors


def test_errors_name_the_argument():
    vstate = summed("mixed")
    other = nk.operator.Ising(nk.hilbert.Spin(0.5, 3), nk.graph.Chain(3), h=1.0)
    lopsided = nk.operator.spin.sigmap(HILBERT, 0)

    def vmc(hamiltonian=HAMILTONIAN, optimizer=0.1, vstate=vstate, **options):
        return lambda: sgn.VMC(hamiltonian, optimizer, vstate, **options)

    def rows(vstate=vstate, hamiltonian=HAMILTONIAN, **options):
        return lambda: sgn.linearise(vstate, hamiltonian, **options)

    no_trial = "`method` must work on one linearisation without a loss.*use sg.Spring or sg.SNG"
    for error, match, make in [
        (TypeError, "`variational_state` must be", vmc(vstate=None)),
        (TypeError, "`hamiltonian` must be a NetKet operator, got float", rows(hamiltonian=1.0)),
        (ValueError, "`hamiltonian` must act on", vmc(other)),
        (ValueError, "`hamiltonian` must be Hermitian", vmc(lopsided)),
        (TypeError, "`optimizer` must be a learning rate, a schedule or an optax", vmc(optimizer="adam")),
        (ValueError, f"{no_trial}.*Auto says", vmc(method=sg.Auto())),
        (ValueError, f"{no_trial}.*Auto says", vmc(method=lambda step: sg.Auto())),
        (ValueError, f"{no_trial}.*TwoBatch says", vmc(method=sg.TwoBatch(1e-3))),
        (TypeError, "`method` must be a method such as.*got <class", vmc(method=sg.Spring)),
        (TypeError, "`method` must be a method such as.*got 0.9", vmc(method=lambda step: 0.9)),
        (TypeError, "no argument `diag_shift`: it is called `damping` here.*method", vmc(diag_shift=1e-3)),
        (TypeError, "no argument `momentum`: it belongs to the method", vmc(momentum=0.9)),
        (TypeError, "no argument `dumping`: see help", vmc(dumping=0.9)),
        (ValueError, "`max_norm` must be >= 0", vmc(max_norm=-1)),
        (ValueError, "`holomorphic` needs", vmc(holomorphic=True)),
        (ValueError, "log ψ is not holomorphic", rows(summed("not holomorphic"), holomorphic=True)),
        (ValueError, "`memory_limit` must be", rows(memory_limit="x")),
        (ValueError, "`weights` must be None", rows(weights=[1.0])),
        (ValueError, "`weights` must not be", rows(sampled("real"), weights=-np.ones(SAMPLES))),
        (ValueError, "`subselect` must be None", vmc(subselect=3)),
        (ValueError, "`subselect` must be at most", vmc(vstate=sampled("real"), subselect=SAMPLES + 1)),
    ]:
        with pytest.raises(error, match=match):
            make()


# ----------------------------------------------------------------------------------- subselection


def test_keeping_everything_is_no_selection():
    vstate = sampled("phase")
    plain = sgn.VMC(HAMILTONIAN, 0.1, vstate).compute_loss_and_update()
    every = sgn.VMC(HAMILTONIAN, 0.1, vstate, subselect=SAMPLES).compute_loss_and_update()
    assert gap(every[1], plain[1]) < 1e-9
    np.testing.assert_allclose(every[0].mean, plain[0].mean)


@slow
def test_a_run_on_selected_configurations():
    driver, log = new_driver(subselect=12), nk.logging.RuntimeLog()
    driver.run(30, out=log, show_progress=False)
    exact = np.linalg.eigvalsh(CHAIN.to_dense())[0]
    first, last = log.data["Energy"]["Mean"][0].real, log.data["Energy"]["Mean"][-1].real
    assert last < first and last > exact - 5 * log.data["Energy"]["Sigma"][-1]


# --------------------------------------------------------------------------------------- tutorial


def test_the_tutorial(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["netket_driver.py", "--small"])
    names = runpy.run_path(str(Path(__file__).parents[2] / "tutorials" / "netket_driver.py"))
    out = capsys.readouterr().out
    assert "steps refused: 0" in out and "outer product" in out
    assert abs(names["full_energy"] - names["exact"]) < 1e-4
    assert abs(names["found"].mean - names["exact"]) < 0.05
