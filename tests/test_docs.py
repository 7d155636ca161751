"""The documentation holds: examples run, links lead somewhere, figures were measured."""

import ast
import importlib.util
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import jax
import pytest
import typer

from snapgrad.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]
MARKDOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

# --------------------------------------------------------------------------------------- examples

BEFORE = {
    "jacobians.md": """
        x, y = jnp.ones((8, 5)), jnp.ones(8)
        inside, edge, weights = x / 2, x, jnp.ones(8)
        laplacian = lambda p, x: jnp.trace(jax.hessian(lambda x: model(p, x))(x))
        log_psi, samples = lambda p, x: model(p, x) * (1 + 2j), x
        key, damping, residual, guess = jax.random.key(0), 1e-2, jnp.ones(32), jnp.zeros(32)
    """,
    "netket.md": """
        import netket as nk
        hilbert = nk.hilbert.Spin(0.5, 4)
        hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(4), h=1.0)
        sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=4)
        vstate = nk.vqs.MCState(sampler, nk.models.RBM(alpha=1, param_dtype=float), n_samples=16)
    """,
    "start/molecule.md": """
        problem = sg.molecules.VMC(
            lambda p, x: -p * jnp.sum(jnp.linalg.norm(x, axis=-1)), "H", params=jnp.array(0.8), walkers=16
        )
    """,
    "studies.md": """
        from snapgrad.reproduce import Study
        from snapgrad.figures.superlinear import STUDY
        name, title, source, caption, panels, plots, claims, table, notes = vars(STUDY).values()
    """,
}
"""What the examples of a page take for granted, after the usual imports."""
SMALLER = {
    "jacobians.md": {"[5, 512, 512, 1]": "[5, 8, 8, 1]", "(1024, 5)": "(32, 5)", "rank=200": "rank=8"},
    "molecules.md": {
        '"H2", jax.random.key(0), steps=1000': "sg.molecules.VMC(lambda p, x: -p * jnp.sum(jnp.linalg.norm("
        "x, axis=-1)), 'H', params=jnp.array(0.8), walkers=16), jax.random.key(0), steps=2",
        "steps=200": "steps=5",
        "walkers=256": "walkers=16",
        "configurations=256, steps=20": "configurations=32, steps=2",
    },
    "netket.md": {"run(300": "run(3"},
    "pinn.md": {"tol=1e-7": "steps=5"},
    "start/hamiltonian.md": {"run(60": "run(5"},
    "start/molecule.md": {
        '"H2", jax.random.key(0), seconds=60': "problem, jax.random.key(0), steps=2",
        "walkers=256": "walkers=16",
        "steps=40": "steps=2",
    },
    "theory.md": {"100), 1000)": "20), 60)", "sample_size=10": "sample_size=2"},
}
"""Sizes at which a test need not run."""
NEEDS = {
    "jacobians.md": "flax",
    "molecules.md": "pyscf",
    "netket.md": "netket",
    "start/hamiltonian.md": "netket",
}
"""Packages that are not always there."""


def blocks(text: str) -> list[str]:
    found = re.findall(r"^( *)```python\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks((DOCS / page).read_text())])
def test_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    text = (DOCS / page).read_text()
    for size, smaller in SMALLER.get(page, {}).items():
        text = text.replace(size, smaller)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    if page in BEFORE:
        exec("import jax, jax.numpy as jnp, snapgrad as sg\n" + textwrap.dedent(BEFORE[page]), names)
    with jax.numpy_rank_promotion("allow" if NEEDS.get(page) == "netket" else "raise"):
        for block in blocks(text):
            exec(compile(block, f"docs/{page}", "exec"), names)


@pytest.mark.parametrize("user", ["model", "pde", "hamiltonian", "molecule", "matrix"])
def test_the_first_page_leads_each_user_to_twenty_lines(user):
    """One click from the first page, and nothing to add: the program trains and prints what it found."""
    assert f"](start/{user}.md)" in (DOCS / "index.md").read_text()
    first = blocks((DOCS / "start" / f"{user}.md").read_text())[0]
    assert len(first.splitlines()) <= 20
    assert re.search(r"sg\.fit\(|\.solve\(|driver\.run\(|sg\.kaczmarz\(", first) and "print(" in first


COMMAND = re.compile(r"(?:^|[ \t])snapgrad .*$", re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """What follows `snapgrad` on the lines of shell blocks and in the text."""
    shell = re.findall(r"^ *```(?:sh|bash)\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in shell for line in COMMAND.findall(block.replace("\\\n", " "))]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += [line for line in re.findall(r"`(snapgrad [^`]+)`", prose) if not re.search(r"[…|]", line)]
    found = []
    for line in lines:
        line = re.sub(r"\$\([^)]* echo (--[\w-]+)\)", r"\1", line)  # $([ -e file ] && echo --resume)
        words = shlex.split(line, comments=True)[1:]
        ends = [i for i, word in enumerate(words) if word in {"&", "&&", "|", ">", ";"}]
        found.append(words[: ends[0]] if ends else words)
    return found


def options(command: Any) -> set[str]:
    return {"--help"} | {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def unknown(words: list[str], root: Any) -> list[str]:
    """The words of a command line that name no command or option; nothing of it is run."""
    command, bad = root, []
    for word in words:
        if word.startswith("-"):
            bad += [] if word.partition("=")[0] in options(command) else [word]
        elif command is root:  # the first word that is no option of `snapgrad` itself
            if word not in root.commands:
                return [*bad, word]
            command = root.commands[word]
    return bad


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_their_options_exist(path):
    root = typer.main.get_command(app)
    placeholders = (["..."], ["COMMAND", "--help"])
    bad = {" ".join(words): unknown(words, root) for words in commands(path.read_text())}
    assert not {line: found for line, found in bad.items() if found and line.split() not in placeholders}


def test_commands_are_found_and_read():
    block = "```sh\nA=1 snapgrad list & # now\nsrun snapgrad pinn a \\\n $([ -e b ] && echo --resume)\n```\n"
    found = commands(block + "and `snapgrad report FOLDER`")
    assert found == [["list"], ["pinn", "a", "--resume"], ["report", "FOLDER"]]
    root = typer.main.get_command(app)
    assert not [words for words in found if unknown(words, root)]
    assert unknown(["pin", "--seconds", "3"], root) == ["pin"]
    assert unknown(["pinn", "poisson-2d", "--second=3", "--resume"], root) == ["--second=3"]
    assert unknown(["--versions"], root) == ["--versions"]


def messages() -> str:
    """What the library says, an … for what it fills in, a line for each string."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "…"
                for part in parts
            )
            found.append(text.replace("\n", " "))
    return "\n".join(found)


def test_messages_in_the_faq_are_those_of_the_library():
    rows = [line for line in (DOCS / "faq.md").read_text().splitlines() if line.startswith('| "')]
    quoted = [
        words
        for row in rows
        if "Python's own" not in row
        for words in re.findall('"([^"]+)"', row.split(" | ")[0])
    ]
    said = messages()
    assert len(quoted) >= 15
    assert not [words for words in quoted if words not in said]


# ------------------------------------------------------------------------------------------ links


def heading_anchors(text: str) -> set[str]:
    """The anchors that Python-Markdown and GitHub agree on."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_internal_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)", text):
        goal = (path.parent / target).resolve() if target else path
        assert goal.exists(), f"{path.name}: {target}"
        if anchor and goal.suffix == ".md":
            assert anchor[1:] in heading_anchors(goal.read_text()), f"{path.name}: {target}{anchor}"


# ---------------------------------------------------------------------------------------- figures


def test_figures_in_the_table_of_results_were_measured():
    table = (DOCS / "results" / "index.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("|") and "](" in line]
    assert len(rows) >= 8
    for row in rows:
        link = re.findall(r"\]\(([^)]+)\)", row)[-1]
        measured = (DOCS / "results" / link).resolve().read_text()
        figures = re.findall(r"\*\*([\d.]+(?:e-?\d+)?)\*\*", row)
        assert figures, row
        for figure in figures:
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", measured), (
                f"{figure} is not in {link}"
            )


# ----------------------------------------------------------------------------------------- tutorials


def site_module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / "_site" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_of_a_script():
    source = (
        '"""Title.\n\nMore.\n"""\n\nx = 1\n\n# %% Heading\n# Text, *in\n# Markdown*.\ny = 2\n# more\nz = 3\n'
    )
    first, second = site_module("tutorials").cells(source)
    assert (first.text, first.code) == ("Title.\n\nMore.", "x = 1")
    assert second.text == "## Heading\n\nText, *in\nMarkdown*." and second.code == "y = 2\n# more\nz = 3"
    assert source.splitlines()[second.line] == "y = 2"


def test_every_tutorial_is_on_the_page_of_tutorials():
    page = (DOCS / "tutorials" / "index.md").read_text()
    assert not [name for name in site_module("tutorials").names() if f"tutorials/{name}.py)" not in page]


def test_stored_output_belongs_to_the_code_of_each_tutorial_and_took_less_than_two_minutes():
    tutorials = site_module("tutorials")
    stored = {name: tutorials.stored(name) for name in tutorials.names()}
    old = [name for name, run in stored.items() if run.code != tutorials.fingerprint(name)]
    assert not old, f"`make tutorials` was not run for {', '.join(old)}"
    for name, run in stored.items():
        assert len(run.printed) == len(tutorials.cells((ROOT / "tutorials" / f"{name}.py").read_text()))
        assert run.seconds < 120, name


def test_code_alone_tells_one_version_of_a_tutorial_from_another(tmp_path):
    tutorials = site_module("tutorials")
    tutorials.FOLDER = tmp_path
    names = []
    for source in ("# %% One\n# Text.\nx = 1\n", "# %% Two\n# Words.\nx = 1\n", "# %% One\n# Text.\nx = 2\n"):
        (tmp_path / "a.py").write_text(source)
        names.append(tutorials.fingerprint("a"))
    assert names[0] == names[1] != names[2]
    assert tutorials.stored("a").code == ""
    tutorials.run("a")
    assert tutorials.stored("a").code == names[2] and tutorials.stored("a").seconds < 1
