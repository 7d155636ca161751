"""The README's examples run as printed, in order, in one namespace; its figures were measured."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import jax
import jax.numpy as jnp

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_examples_run_as_printed():
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict = {}
    outputs = []
    for block in blocks:
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(block, "README.md", "exec"), namespace)
        outputs.append(out.getvalue().split())
    assert float(outputs[0][1]) < 1e-5  # the loss of a curve between −1 and 1
    points = (namespace["x"], jnp.sin(3 * namespace["x"]))
    assert jax.vmap(namespace["residual"], (None, 0))(namespace["params"], points).shape == (200,)
    assert namespace["solution"].history["relative_l2"][-1] < 1e-5
    assert outputs[-1][0] == "tol" and 0 < float(outputs[-1][2]) < 1


def test_figures_were_measured():
    figures = re.findall(r"\[([\d.]+)\]\((benchmarks/[^)]+)\)", README)
    assert len(figures) >= 4
    for figure, file in figures:
        assert f"**{figure}**" in (ROOT / file).read_text(), f"{figure} is not in {file}"


def test_figures_of_molecules_and_pdes_were_measured():
    molecules = (ROOT / "benchmarks/results/molecules.md").read_text().replace("-", "−")
    energies = re.findall(r"\b([A-Z]\w?(?:H)?) ([+−]\d\.\d\d(?: ± \d\.\d\d)?)", README)
    assert len(energies) >= 5
    for system, above in energies:
        row = next(line for line in molecules.splitlines() if line.startswith(f"| {system} |"))
        assert f"| {above} " in row, (system, above)
    records = (ROOT / "benchmarks/results/pinn_records.md").read_text()
    claims = {
        "burgers": r"Burgers (\d+)",
        "helmholtz": r"Helmholtz (\d+)",
        "cavity-smooth": r"smooth-lid cavity (\d+)",
        "cavity-1000": r"Re = 1000 (\d+)",
        "inverse-poisson": r"noisy data ([\d.]+)",
        "kdv": r"KdV ([\d.]+)",
        "allen-cahn": r"Allen–Cahn ([\d.]+)",
        "kuramoto-sivashinsky": r"Kuramoto–Sivashinsky\s([\d.]+)",
    }
    for problem, pattern in claims.items():
        claimed = re.search(pattern, README)
        measured = re.search(rf"\| {problem} \| auto \|([^|]*)\|([^|]*)\|", records)
        assert claimed is not None and measured is not None, problem
        assert float(claimed[1]) <= float(measured[2]) / float(measured[1].split()[0]), problem


def test_problems_that_miss_their_record_are_named():
    above = {
        "gray-scott": "Gray–Scott\nfar above",
        "wave": "the wave ends at rounding, 25 times above",
    }
    records = (ROOT / "benchmarks/results/pinn_records.md").read_text()
    row = r"^\| ([\w-]+) \| auto \|[^|]*\|[^|]*\| ([^|]+) \|"
    best: dict[str, float] = {}
    for problem, ratio in re.findall(row, records, flags=re.MULTILINE):
        best[problem] = min(float(ratio), best.get(problem, float("inf")))
    assert {problem for problem, ratio in best.items() if ratio > 1} == set(above)
    assert not [name for name in above.values() if name not in README]


def test_figures_of_least_squares_were_measured():
    measured = (ROOT / "benchmarks/results/least_squares.md").read_text()
    ours, *scipys = map(int, re.findall(r"(\d+) of 78", measured))
    assert (
        f"{ours} of\n78 standard starts" in README and f"SciPy's best method solves {max(scipys)}" in README
    )


def test_both_commands_and_length():
    for command in ("make reproduce", "make test"):
        assert command in README
    assert len(README.splitlines()) <= 120  # a screen and a half
