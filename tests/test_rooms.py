"""Imports go one way between rooms, and importing changes nothing outside."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "snapgrad"
BASE = {"_contracts", "_checks", "_files"}
PAGES = {"report", "reproduce"}
MAY_IMPORT = {
    "_checks": set(),
    "_contracts": set(),
    "_files": set(),
    "linalg": {"_checks"},
    "structure": {"linalg"},
    "operators": BASE | {"linalg", "structure"},
    "sampling": BASE | {"linalg"},
    "methods": BASE | {"linalg", "operators"},
    "problems": BASE | {"linalg", "operators"},
    "theory": BASE | {"linalg", "sampling", "operators"},
    "training": BASE | {"methods", "problems", "sampling", "operators"},
    "report": {"_checks"},
    "reproduce": BASE | {"report", "__version__"},
    "pinn": BASE | {"linalg", "structure", "operators", "sampling", "methods", "training"} | PAGES,
    "netket": BASE | {"linalg", "operators", "methods", "training"} | PAGES,
    "figures": BASE
    | {"linalg", "operators", "sampling", "methods", "problems", "theory", "training", "pinn", "netket"}
    | PAGES,
    "cli": BASE | {"problems", "theory", "pinn", "netket", "figures", "__version__"} | PAGES,
}
FILES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports, relative or absolute, at any depth of its code."""
    package = ("snapgrad", *path.relative_to(SOURCE).parent.parts)
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *filter(None, [node.module])))
            names |= {f"{stem}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("snapgrad.")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_direction_of_imports(path):
    room = room_of(path)
    if room == "__init__":
        return
    assert room in MAY_IMPORT, f"{room} is not a room that docs/architecture.md knows"
    wrong = imported_rooms(path) - MAY_IMPORT[room] - {room}
    assert not wrong, f"{path.relative_to(SOURCE)} ({room}) imports {sorted(wrong)}"


def test_the_walk_sees_a_violation(tmp_path):
    """The check itself can fail: a relative and an absolute import are both seen."""
    file = SOURCE / "linalg" / "_solve.py"
    assert imported_rooms(file) <= MAY_IMPORT["linalg"] | {"linalg"}
    assert imported_rooms(SOURCE / "methods" / "_sng.py") >= {"_contracts", "linalg"}


def test_import_leaves_jax_alone():
    code = (
        "import jax; before = dict(jax.config.values); import snapgrad; "
        "assert dict(jax.config.values) == before; "
        "import sys; assert not {'matplotlib', 'typer', 'rich', 'scipy.stats'} & set(sys.modules); "
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
