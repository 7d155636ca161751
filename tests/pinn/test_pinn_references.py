"""Reference solutions: refined by two they stay, and they conserve what the equation conserves."""

import numpy as np
import pytest

from snapgrad.pinn import _spectral as spectral
from snapgrad.pinn._cavity import SHARP, SMOOTH, Cavity, cavity, corner_flow, corner_slopes
from snapgrad.pinn._references import (
    STORE,
    burgers_grid,
    cole_hopf,
    quiet_allen_cahn_grid,
    stored,
)

PI = np.pi
EARLY = slice(0, 6)
"""Up to t = 0.25, where a coarse grid is enough."""


def test_stored_solutions_are_small_files():
    files = sorted(STORE.iterdir())
    assert files and all(file.suffix == ".npz" and file.stat().st_size < 50_000 for file in files)


@pytest.mark.parametrize("viscosity", [0.1 / np.pi, 0.01, 0.01 / np.pi])
def test_cole_and_hopf_by_a_finer_rule(viscosity):
    x = np.linspace(-1, 1, 101)
    for t in (0.01, 0.3, 1.0):
        fine = cole_hopf(viscosity, t, x, nodes=3201)
        np.testing.assert_allclose(cole_hopf(viscosity, t, x), fine, atol=1e-13)
        np.testing.assert_allclose(fine, -fine[::-1], atol=1e-13)  # odd


def test_burgers_by_fourier_series():
    viscosity, modes = 0.1 / np.pi, 256
    wave = 1j * np.pi * np.arange(modes // 2 + 1)
    start = -np.sin(np.pi * (-1 + 2 * np.arange(modes) / modes))

    def run(steps):
        return spectral._convection(start, (viscosity * wave**2).real, wave, steps)

    found = spectral.extrapolated(run, 20, 3)
    np.testing.assert_allclose(burgers_grid(viscosity)[1], found.reshape(-1), atol=1e-9)


def test_korteweg_de_vries_conserves_mass_energy_and_hamiltonian():
    values = stored("korteweg_de_vries")
    modes = values.shape[1]
    slope = np.fft.irfft(1j * np.pi * np.arange(modes // 2 + 1) * np.fft.rfft(values, axis=1), axis=1)
    np.testing.assert_allclose(values.mean(axis=1), 0, atol=1e-14)
    np.testing.assert_allclose((values**2).mean(axis=1), 0.5, rtol=1e-12)
    hamiltonian = (values**3 / 6 - 0.022**2 / 2 * slope**2).mean(axis=1)
    np.testing.assert_allclose(hamiltonian, hamiltonian[0], atol=1e-12)


def test_stored_solutions_early_by_coarse_runs():
    waves = spectral.extrapolated(lambda n: spectral.korteweg_de_vries(256, n), 20, 3)
    np.testing.assert_allclose(stored("korteweg_de_vries")[EARLY], waves[EARLY], atol=1e-8)
    chaos = spectral.extrapolated(lambda n: spectral.kuramoto_sivashinsky(256, n), 50, 3)
    np.testing.assert_allclose(stored("kuramoto_sivashinsky")[:3], chaos[:3], atol=1e-6)
    wide = spectral.kuramoto_sivashinsky(256, 50, np.longdouble)
    assert wide.dtype == np.longdouble
    np.testing.assert_allclose(wide[:3], spectral.kuramoto_sivashinsky(256, 50)[:3], atol=1e-11)
    layers = spectral.extrapolated(lambda n: spectral.allen_cahn(512, n), 10, 2)
    np.testing.assert_allclose(stored("allen_cahn")[EARLY], layers[EARLY], atol=1e-7)


def test_extrapolation_is_of_the_orders_it_claims():
    """On v' = −v + v², whose solution is known."""

    def error(steps, levels):
        run = lambda n: spectral.march(  # noqa: E731
            np.array([0.5]), np.array([-1.0]), lambda v: v**2, np.array([0.0, 1.0]), n
        )
        return abs(spectral.extrapolated(run, steps, levels)[-1, 0] - 1 / (1 + np.e))

    for levels in (1, 2):
        order = np.log2(error(8, levels) / error(16, levels))
        assert order > 3 + levels - 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "run", "steps", "levels", "tolerance"),
    [
        ("korteweg_de_vries", lambda n: spectral.korteweg_de_vries(512, n)[:, ::2], 250, 3, 1e-11),
        pytest.param(
            "kuramoto_sivashinsky",
            lambda n: spectral.kuramoto_sivashinsky(512, n, np.longdouble)[:, ::2],
            250,
            4,
            2e-11,
            marks=pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no 80-bit numbers here"),
        ),
        ("allen_cahn", lambda n: spectral.allen_cahn(1024, n), 50, 3, 3e-11),
        ("gray_scott", lambda n: spectral.gray_scott(128, n), 100, 2, 1e-4),
    ],
)
def test_stored_solutions_by_runs_of_half_the_size(name, run, steps, levels, tolerance):
    """Those that are stored took twice as many steps, and have errors well below these differences."""
    np.testing.assert_allclose(stored(name), spectral.extrapolated(run, steps, levels), atol=tolerance)


def test_quiet_allen_cahn_is_of_second_order():
    coarse, fine = (quiet_allen_cahn_grid(0.01, 2.0, steps)[1] for steps in (2000, 4000))
    finest = quiet_allen_cahn_grid(0.01, 2.0)[1]
    assert np.abs(fine - finest).max() < 1e-6
    np.testing.assert_allclose(np.abs(coarse - finest).max() / np.abs(fine - finest).max(), 4, rtol=0.2)


@pytest.mark.parametrize("corner", [SHARP, SMOOTH])
def test_corner_flows_are_stokes_flows_of_their_lid(corner):
    """Slopes by differences, a biharmonic function, and velocities of lid and walls near the corner."""
    x, y, h = 0.2, 0.7, 1e-4

    def difference(f):
        return np.array([f(x + h, y) - f(x - h, y), f(x, y + h) - f(x, y - h)]) / (2 * h)

    def laplacian(f, x, y, h):
        return (f(x + h, y) + f(x - h, y) + f(x, y + h) + f(x, y - h) - 4 * f(x, y)) / h**2

    flow = lambda x, y: corner_flow(corner, x, y)  # noqa: E731
    np.testing.assert_allclose(corner_slopes(corner, x, y, bent=False), difference(flow), atol=1e-7)
    bent = difference(lambda x, y: laplacian(flow, x, y, 1e-3))
    np.testing.assert_allclose(corner_slopes(corner, x, y, bent=True), bent, rtol=1e-4)
    theta = np.linspace(0.1, 1.5, 5)  # r^(m − 2) G(θ) is harmonic where G″ = −(m − 2)² G
    second = (corner.bent(theta + h, np)[1] - corner.bent(theta - h, np)[1]) / (2 * h)
    np.testing.assert_allclose(second, -((corner.power - 2) ** 2) * corner.bent(theta, np)[0], atol=1e-7)
    wall, moving = corner.shape(np.array([PI / 2, 0.0]), np)
    np.testing.assert_allclose(wall, 0, atol=1e-15)  # no flow through wall or lid
    np.testing.assert_allclose(moving, [0, -1 if corner is SHARP else -4], atol=1e-15)  # nor along the wall


def test_cavities_by_a_smaller_series_and_the_tables_of_ghia():
    points = np.random.default_rng(0).uniform(0.1, 0.9, size=(200, 2))
    for corner, name, tolerance in ((SMOOTH, "cavity_smooth_100", 5e-6), (SHARP, "cavity_sharp_100", 5e-4)):
        found = Cavity(corner, stored(name)).velocity(points)
        again, change = cavity(100, 24, corner)
        assert change < 1e-10
        np.testing.assert_allclose(again.velocity(points), found, atol=tolerance)
    y = np.array([0.9531, 0.7344, 0.5, 0.2813, 0.1016])
    ghia = {
        "cavity_sharp_100": ([0.68717, 0.00332, -0.20581, -0.15662, -0.06434], 4e-3),
        "cavity_sharp_1000": ([0.46604, 0.18719, -0.06080, -0.27805, -0.29730], 7e-3),
        "cavity_sharp_400": ([0.55892, 0.16256, -0.11477, -0.32726, -0.14612], 4e-3),
    }
    middle = np.stack([np.full_like(y, 0.5), y], axis=1)
    for name, (table, tolerance) in ghia.items():
        found = Cavity(SHARP, stored(name)).velocity(middle)[:, 0]
        np.testing.assert_allclose(found, table, atol=tolerance)


def test_the_cavity_at_re_1000_has_the_extremes_of_botella_and_peyret():
    """Chebyshev collocation with the first two singular terms removed (Computers & Fluids 27, 1998)."""
    flow, middle = Cavity(SHARP, stored("cavity_sharp_1000")), np.linspace(0, 1, 4001)
    half = np.full_like(middle, 0.5)
    u, v = flow.velocity(np.stack([half, middle], 1))[:, 0], flow.velocity(np.stack([middle, half], 1))[:, 1]
    np.testing.assert_allclose([u.min(), v.max(), v.min()], [-0.3885698, 0.3769447, -0.5270771], atol=3e-6)
    places = [middle[i] for i in (u.argmin(), v.argmax(), v.argmin())]
    np.testing.assert_allclose(places, [0.1717, 1 - 0.8422, 1 - 0.0908], atol=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corner", "name", "path", "tolerance"),
    [
        (SMOOTH, "cavity_smooth_100", (100,), 5e-7),
        (SHARP, "cavity_sharp_100", (100,), 2e-4),
        (SHARP, "cavity_sharp_400", (100, 400), 6e-4),
        (SHARP, "cavity_sharp_1000", (100, 200, 400, 700, 1000), 2e-3),
    ],
)
def test_cavities_by_series_of_lower_degree(corner, name, path, tolerance):
    """Those that are stored have a degree of 48 (smooth) and 64."""
    flow = None
    for reynolds in path:
        flow, _ = cavity(reynolds, 24, corner, start=flow)
    flow, change = cavity(path[-1], 40 if corner is SMOOTH else 48, corner, start=flow)
    side = (np.arange(32) + 0.5) / 32
    points = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    assert change < 1e-10
    found = Cavity(corner, stored(name)).velocity(points)
    np.testing.assert_allclose(flow.velocity(points), found, atol=tolerance)
