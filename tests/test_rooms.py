"""Imports go one way between rooms, and importing changes nothing outside."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "snapgrad"
BASE = {"_contracts", "_checks", "_files", "_memory", "_signals", "_threads"}
PAGES = {"report", "reproduce"}
MAY_IMPORT = {
    "_checks": set(),
    "_contracts": {"_checks"},
    "_files": set(),
    "_memory": set(),
    "_signals": set(),
    "_threads": set(),
    "linalg": {"_checks", "_memory"},
    "structure": {"linalg"},
    "operators": BASE | {"linalg", "structure"},
    "sampling": BASE | {"linalg"},
    "methods": BASE | {"linalg", "operators"},
    "problems": BASE | {"linalg", "operators"},
    "theory": BASE | {"linalg", "sampling", "operators"},
    "training": BASE | {"methods", "problems", "sampling", "operators"},
    "diagnosis": BASE | {"linalg", "operators", "sampling", "methods", "theory", "training", "report"},
    "report": {"_checks"},
    "reproduce": BASE | {"report", "__version__"},
    "pinn": BASE | {"linalg", "structure", "operators", "sampling", "methods", "training"} | PAGES,
    "netket": BASE | {"linalg", "operators", "methods", "training"} | PAGES,
    "molecules": BASE | {"linalg", "operators", "methods", "training", "pinn"} | PAGES,
    "figures": BASE
    | {"linalg", "operators", "sampling", "methods", "problems", "theory", "training", "pinn", "netket"}
    | {"diagnosis"}
    | PAGES,
    "cli": BASE
    | {"problems", "theory", "training", "diagnosis", "pinn", "netket", "molecules", "figures", "__version__"}
    | PAGES,
}


def imports(source: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Of each import within a package: the file, its room, and the parts of what it imports."""
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source)
        package = (source.name, *inside.parent.parts)
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                stem = ".".join((*base, *filter(None, [node.module])))
                names = [f"{stem}.{alias.name}" for alias in node.names]
            for name in names:
                if name.startswith(f"{source.name}."):
                    yield str(inside), inside.parts[0].removesuffix(".py"), name.split(".")[1:]


def forbidden_rooms(source: Path) -> list[str]:
    """Imports that go against the direction; an unknown room may import nothing."""
    return [
        f"{file} imports {'.'.join(parts)}"
        for file, room, parts in imports(source)
        if room != "__init__" and parts[0] not in MAY_IMPORT.get(room, set()) | {room}
    ]


def private_files(source: Path) -> list[str]:
    """Imports of a file, or of a name, that another room keeps to itself."""
    return [
        f"{file} imports {'.'.join(parts)}"
        for file, room, parts in imports(source)
        if parts[0] != room and any(part.startswith("_") for part in parts[1:])
    ]


def test_imports_go_one_way():
    assert {path.name.removesuffix(".py") for path in SOURCE.iterdir()} >= MAY_IMPORT.keys()
    assert forbidden_rooms(SOURCE) == []


def test_no_room_imports_a_private_file_of_another():
    assert private_files(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "code", "direction", "private"),
    [
        ("linalg/_a.py", "from ..theory import gamma", True, False),
        ("linalg/_a.py", "import snapgrad.theory", True, False),
        ("linalg/_a.py", "def f():\n    from ..theory._rates import Rate", True, True),
        ("theory/_a.py", "from ..linalg._solve import psd_solve", False, True),
        ("theory/_a.py", "from ..linalg import _solve", False, True),
        ("theory/_a.py", "from snapgrad.linalg import _solve", False, True),
        ("theory/_a.py", "import snapgrad.linalg._solve", False, True),
        ("theory/deep/_a.py", "from ...linalg._solve import psd_solve", False, True),
        ("nowhere/_a.py", "from ..linalg import psd_solve", True, False),
        (
            "theory/_a.py",
            "from ._b import x\nfrom ..linalg import solve\nimport numpy._core",
            False,
            False,
        ),
        ("theory/_a.py", "from .._checks import one_of\nfrom ..linalg import factors", False, False),
        ("theory/deep/_a.py", "from .._rates import Rate", False, False),
    ],
)
def test_a_planted_violation_is_caught(tmp_path, file, code, direction, private):
    path = tmp_path / "snapgrad" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert bool(forbidden_rooms(tmp_path / "snapgrad")) == direction
    assert bool(private_files(tmp_path / "snapgrad")) == private


def test_import_leaves_jax_alone():
    code = (
        "import jax; before = dict(jax.config.values); import snapgrad; "
        "assert dict(jax.config.values) == before; "
        "import sys; assert not {'matplotlib', 'typer', 'rich', 'scipy.stats'} & set(sys.modules); "
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
