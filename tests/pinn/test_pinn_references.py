"""Reference solutions: refined by two they stay, and they conserve what the equation conserves."""

import numpy as np
import pytest

from snapgrad.pinn import _spectral as spectral
from snapgrad.pinn._references import (
    STORE,
    burgers_grid,
    cole_hopf,
    quiet_allen_cahn_grid,
    stored,
)

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
        ("kuramoto_sivashinsky", lambda n: spectral.kuramoto_sivashinsky(512, n)[:, ::2], 250, 4, 3e-8),
        ("allen_cahn", lambda n: spectral.allen_cahn(1024, n), 50, 3, 3e-11),
        ("gray_scott", lambda n: spectral.gray_scott(128, n), 100, 1, 1e-4),
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
