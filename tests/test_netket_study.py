"""The study of ground states: exact energies, what a run writes, and the accuracy it reaches."""

import dataclasses
import io
import itertools
import json

import jax
import numpy as np
import pytest
import rich.console

pytest.importorskip("netket", reason="needs NetKet: pip install 'snapgrad[netket]'")

from snapgrad.netket import study as quantum

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _netket_promotes_ranks():
    with jax.numpy_rank_promotion("allow"):
        yield


def test_exact_energies_of_chains():
    np.testing.assert_allclose(quantum.heisenberg_energy(22), -39.147522607, atol=1e-9)
    np.testing.assert_allclose(quantum.heisenberg_energy(4), -8)
    for name, size in (("tfim", 5), ("tfim", 6), ("j1j2", 6)):
        bonds = [("z", -1.0, 1)] if name == "tfim" else [("xyz", 1.0, 1), ("xyz", 0.3, 2)]
        H = np.zeros((2**size, 2**size))
        for axes, coupling, reach in bonds:
            for i, axis in itertools.product(range(size), axes):
                H += coupling * (pauli(axis, i, size) @ pauli(axis, (i + reach) % size, size)).real
        if name == "tfim":
            H -= 0.7 * sum(pauli("x", i, size) for i in range(size))
        wanted = np.linalg.eigvalsh(H)[0]
        np.testing.assert_allclose(
            quantum.exact_energy(name, quantum.Training(size, field=0.7, j2=0.3)), wanted
        )


def pauli(axis, site, size):
    matrix = {"x": [[0, 1], [1, 0]], "y": [[0, -1j], [1j, 0]], "z": [[1, 0], [0, -1]]}[axis]
    out = np.kron(np.kron(np.eye(2**site), matrix), np.eye(2 ** (size - site - 1)))
    return out if axis == "y" else out.real


def test_the_study_trains_draws_and_reports(tmp_path):
    training = quantum.Training(
        6, alpha=2, samples=64, chains=16, steps=30, damping=(1e-2, 1e-3), final_samples=256
    )
    console = rich.console.Console(file=io.StringIO(), width=200)
    outcomes = quantum.run("heisenberg", training, methods=("sng", "sr"), out=tmp_path, console=console)
    text = console.file.getvalue()
    assert "exact ground state energy -11.211102551" in text and "V-score" in text
    for outcome in outcomes:
        assert len(outcome.history) == 30 and outcome.rejected == 0
        assert abs(outcome.relative_error) < 0.02
        np.testing.assert_allclose(outcome.v_score, 6 * outcome.variance / outcome.energy**2)
    saved = json.loads((tmp_path / "quantum" / "heisenberg" / "runs.json").read_text())
    assert [entry["method"] for entry in saved] == ["sng", "sr"]
    assert (tmp_path / "quantum" / "heisenberg" / "energy.svg").read_text().startswith("<?xml")
    with pytest.raises(ValueError, match="`size` must be an even number of at least 4 for heisenberg, got 5"):
        quantum.train("heisenberg", "spring", quantum.Training(5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_ising_chain_of_ten_sites(seed):
    """λ = 1e-3, μ = 0.8, 256 samples, 200 steps: the exact energy within two standard errors, σ² ≤ 1e-3."""
    outcome = quantum.train("tfim", "spring", dataclasses.replace(quantum.DEFAULTS["tfim"], seed=seed))
    assert abs(outcome.energy - outcome.exact) < 2 * outcome.error
    assert outcome.variance < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heisenberg", "j1j2"])
def test_longer_chains_to_four_digits(name):
    outcome = quantum.train(name, "spring")
    assert abs(outcome.relative_error) < 1e-4 and outcome.cpu_seconds < 2 * 600
