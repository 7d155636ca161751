"""FermiNet and Psiformer: antisymmetric, with exact cusps, harmless where determinants vanish."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import molecules

SMALL = {"determinants": 2, "dtype": jnp.float64}


def ferminet(name):
    return molecules.FermiNet(name, width=6, pair_width=3, layers=2, **SMALL)


def psiformer(name):
    return molecules.Psiformer(name, width=6, layers=1, heads=2, **SMALL)


@pytest.fixture(scope="module", params=[ferminet, psiformer], ids=["ferminet", "psiformer"])
def lithium_hydride(request):
    net = request.param("LiH")
    x = jax.random.normal(jax.random.key(3), (4, 3)) + jnp.array([[0, 0, 0.5]])
    return net, jax.jit(net.init)(jax.random.key(0)), x


def test_exchange_of_equal_electrons_changes_the_sign_alone(lithium_hydride):
    net, params, x = lithium_hydride
    evaluate = jax.jit(net.sign_log)
    sign, log = evaluate(params, x)
    for order, parity in (([1, 0, 2, 3], -1), ([0, 1, 3, 2], -1), ([1, 0, 3, 2], 1)):
        swapped = evaluate(params, x[jnp.array(order)])
        assert swapped[0] == parity * sign
        np.testing.assert_allclose(swapped[1], log, rtol=1e-12)
    assert not np.isclose(evaluate(params, x[jnp.array([2, 1, 0, 3])])[1], log)  # of another spin


def test_orbitals_are_what_the_determinants_are_taken_of(lithium_hydride):
    """What is left of log|ψ| beside them depends on the distances of the electrons alone."""
    net, params, x = lithium_hydride

    @jax.jit
    def rest(x):
        up, down = net.orbitals(params, x)
        return net(params, x) - jnp.log(jnp.abs(jnp.sum(jnp.linalg.det(up) * jnp.linalg.det(down))))

    moved = x[:, jnp.array([2, 0, 1])] + jnp.array([[0.3, -0.2, 1.1]])
    np.testing.assert_allclose(rest(moved), rest(x), rtol=1e-12)
    assert not np.isclose(rest(1.1 * x), rest(x))


def test_parameters_have_the_type_that_was_asked_for():
    net = molecules.FermiNet("He", width=4, pair_width=2, layers=1, determinants=1)
    params = jax.jit(net.init)(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert jax.eval_shape(net, params, jnp.ones((2, 3), jnp.float32)).dtype == jnp.float32


def slope(net, params, x, mover, target):
    """d log|ψ|/dr averaged over directions, as the electron `mover` leaves the point `target`."""
    directions = jnp.concatenate([jnp.eye(3), -jnp.eye(3)])
    at = lambda r, u: net(params, x.at[mover].set(target + r * u))  # noqa: E731
    along = jax.jit(jax.vmap(jax.vmap(jax.grad(at), (None, 0)), (0, None)))
    slopes = along(jnp.array([1e-3, 2e-3]), directions)
    first, second = jnp.mean(slopes, axis=1)
    return 2 * first - second  # extrapolated to r = 0


def test_cusps_hold_at_nuclei_and_between_electrons(lithium_hydride):
    net, params, x = lithium_hydride
    for nucleus, charge in zip(net.molecule.nuclei, net.molecule.charges, strict=True):
        np.testing.assert_allclose(slope(net, params, x, 1, jnp.asarray(nucleus)), -charge, atol=2e-4)
    np.testing.assert_allclose(slope(net, params, x, 0, x[2]), 0.5, atol=2e-4)


def test_electrons_of_equal_spin_meet_with_a_slope_of_a_quarter(lithium_hydride):
    net, params, x = lithium_hydride
    u = jnp.array([0.6, 0.0, 0.8])
    # ψ is odd in the distance there: log|ψ| = log r + r/4 + ..., once averaged over opposite directions.
    at = lambda r, side: net(params, x.at[0].set(x[1] + side * r * u))  # noqa: E731
    along = jax.jit(jax.grad(at))
    gain = lambda r: sum(along(r, side) - 1 / r for side in (1.0, -1.0)) / 2  # noqa: E731
    np.testing.assert_allclose(2 * gain(1e-3) - gain(2e-3), 0.25, atol=2e-3)


def test_hydrogen_is_exact_with_the_right_envelope():
    net = molecules.FermiNet("H", width=2, pair_width=2, layers=1, determinants=1, dtype=jnp.float64)
    params = jax.jit(net.init)(jax.random.key(0))
    up = params["orbitals"]["up"]
    up = {name: jnp.zeros_like(leaf) for name, leaf in up.items()}
    params["orbitals"]["up"] = up | {
        "b": jnp.ones(1),
        "decay": jnp.ones((1, 1, 1)),
        "part": jnp.ones((1, 1, 1)),
    }
    x = jax.random.normal(jax.random.key(1), (1, 3))
    np.testing.assert_allclose(jax.jit(net)(params, x), -jnp.linalg.norm(x), rtol=1e-9)


def test_a_determinant_that_vanishes_does_no_harm():
    net = ferminet("Li")
    params = jax.jit(net.init)(jax.random.key(0))
    up = params["orbitals"]["up"]
    zeroed = {
        "w": up["w"].at[:, :2].set(0),
        "linear": up["linear"].at[:, :2].set(0),
        "b": up["b"].at[:2].set(0),
    }
    params["orbitals"]["up"] = up | zeroed  # the first determinant is exactly zero
    x = jax.random.normal(jax.random.key(1), (3, 3))
    value, slopes = jax.jit(jax.value_and_grad(net))(params, x)
    assert jnp.isfinite(value) and all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slopes))
    energy = jax.jit(lambda x: molecules.local_energy(net, params, x, molecules.coulomb(net.molecule)))(x)
    assert jnp.isfinite(energy)


def test_equal_electrons_are_never_at_the_same_place(lithium_hydride):
    net, params, x = lithium_hydride
    evaluate = jax.jit(net)
    assert evaluate(params, x.at[0].set(x[1])) < evaluate(params, x) - 25  # zero, to rounding


def test_the_structure_of_the_kernel_is_found():
    net = molecules.FermiNet("LiH", width=32, pair_width=4, layers=2, **SMALL)
    x = molecules.starting_positions(jax.random.key(0), net.molecule, 6, jnp.float64)
    jac = sg.jacobian(net, net.init(jax.random.key(0)), x)
    text = str(jac.explain())
    assert text.count("outer") >= 8
    K, J = jac.centre().gram(), jac.centre().dense()
    np.testing.assert_allclose(K, J @ J.T, atol=1e-12 * float(jnp.abs(K).max()))


def test_settings_that_go_together_and_that_cannot_be():
    assert [molecules.FermiNet("He", width=width).pair_width for width in (256, 8)] == [16, 4]
    with pytest.raises(ValueError, match="`heads` must divide `width`"):
        molecules.Psiformer("He", width=6, heads=4)
    with pytest.raises(ValueError, match="`determinants` must be at least 1"):
        molecules.FermiNet("He", determinants=0)
