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
from snapgrad.reproduce import ResultsError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


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


SMALL = quantum.Training(
    4, alpha=1, samples=32, chains=8, steps=25, damping=(1e-2, 1e-3), step_size=0.05, final_samples=128
)


def quiet():
    return rich.console.Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small study without interruption: its folder, its outcomes, what it said."""
    out, console = tmp_path_factory.mktemp("whole"), quiet()
    with jax.numpy_rank_promotion("allow"):
        outcomes = quantum.run("heisenberg", SMALL, methods=("spring", "sr"), out=out, console=console)
    return out / "quantum" / "heisenberg", outcomes, console.file.getvalue()


def test_the_study_trains_draws_and_reports(whole):
    folder, outcomes, text = whole
    assert "exact ground state energy -8.000000000" in text and "V-score" in text
    for outcome in outcomes:
        assert [iteration.step for iteration in outcome.history] == list(range(25)) and outcome.rejected == 0
        assert abs(outcome.relative_error) < 0.1
        np.testing.assert_allclose(outcome.v_score, 4 * outcome.variance / outcome.energy**2)
    saved = json.loads((folder / "runs.json").read_text())
    assert [entry["method"] for entry in saved] == ["spring", "sr"]
    assert (folder / "energy.svg").read_text().startswith("<?xml")
    assert not list(folder.glob("*.snap"))  # what is finished needs no checkpoint
    with pytest.raises(ValueError, match="`size` must be an even number of at least 4 for heisenberg, got 5"):
        quantum.train("heisenberg", "spring", quantum.Training(5))


def energies(outcomes):
    return {o.method: (o.energy, *(iteration.energy for iteration in o.history)) for o in outcomes}


def test_an_interrupted_study_goes_on_to_the_same_numbers(whole, tmp_path, monkeypatch):
    """Ctrl-C in the middle of a method, once in each: finished methods are kept, the others go on."""
    options = {"methods": ("spring", "sr"), "out": tmp_path, "console": quiet()}
    real = quantum.describe
    for last in (13, 21):
        seen = []

        def interrupt(iteration, *args, last=last, seen=seen):
            seen.append(iteration.step)
            if iteration.step == last:
                raise KeyboardInterrupt
            return real(iteration, *args)

        monkeypatch.setattr(quantum, "describe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            quantum.run("heisenberg", SMALL, resume=last == 21, **options)
        if last == 21:
            assert seen[0] == 10  # not from the start: the first interruption stored ten steps
    monkeypatch.setattr(quantum, "describe", real)
    with pytest.raises(ResultsError, match=r"holds a run already. Add --resume .*--out"):
        quantum.run("heisenberg", SMALL, **options)
    with pytest.raises(ResultsError, match=r"other settings \(seed: 0, now 1\)"):
        quantum.run("heisenberg", dataclasses.replace(SMALL, seed=1), resume=True, **options)
    outcomes = quantum.run("heisenberg", SMALL, resume=True, **options)
    assert energies(outcomes) == energies(whole[1])
    again = quantum.run("heisenberg", SMALL, resume=True, **options)  # nothing left to train
    assert energies(again) == energies(outcomes)
    with pytest.raises(ResultsError, match="nothing to resume"):
        quantum.run("tfim", resume=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("method", ["default", "spring"])
def test_the_ising_chain_of_ten_sites(seed, method):
    """λ = 1e-3, μ = 0.8, 256 samples, 200 steps: the exact energy within two standard errors, σ² ≤ 1e-3."""
    outcome = quantum.train("tfim", method, dataclasses.replace(quantum.DEFAULTS["tfim"], seed=seed))
    assert abs(outcome.energy - outcome.exact) < 2 * outcome.error
    assert outcome.variance < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heisenberg", "j1j2"])
def test_longer_chains_to_four_digits(name):
    outcome = quantum.train(name, "spring")
    assert abs(outcome.relative_error) < 1e-4 and outcome.cpu_seconds < 2 * 600
