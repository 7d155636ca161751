"""Tutorials: scripts in cells, run with `make tutorials`, shown on the site with what they printed and drew.

    python docs/_site/tutorials.py [NAME ...]      # runs tutorials/NAME.py
    python docs/_site/tutorials.py                 # runs those whose code is not that of the stored output
    python docs/_site/tutorials.py all             # runs all of them

A cell begins with `# %%`, as editors know it; the comment lines after that are its text, in Markdown. What
precedes the first mark is a cell too, whose text is the docstring. Output lies beside the scripts, in
`tutorials/output/`: `NAME.txt` with what each cell printed, and the pictures that it wrote into the working
folder. Its first lines say which code that was, the text between it aside, and how many seconds it took.
"""

import ast
import contextlib
import hashlib
import io
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "tutorials"
MARK = "# %%"
PICTURES = (".svg", ".png")


class Cell(NamedTuple):
    """A piece of a script: what it says, what it does, and the line on which the code begins."""

    text: str
    code: str
    line: int


def cells(source: str) -> list[Cell]:
    """The cells of a script."""
    lines = source.splitlines()
    docstring = ast.get_docstring(ast.parse(source)) or ""
    first = ast.parse(source).body[0]
    begin = (first.end_lineno or 0) if docstring else 0
    marks = [i for i, line in enumerate(lines) if line.startswith(MARK)]
    found = [_cell(docstring, lines, begin, marks[0] if marks else len(lines))]
    for start, end in itertools.pairwise([*marks, len(lines)]):
        code = next((i for i in range(start + 1, end) if not lines[i].startswith("#")), end)
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[start + 1 : code])
        title = lines[start].removeprefix(MARK).strip()
        found.append(_cell(f"## {title}\n\n{text}" if title else text, lines, code, end))
    return found


def _cell(text: str, lines: list[str], begin: int, end: int) -> Cell:
    while begin < end and not lines[begin].strip():
        begin += 1
    return Cell(text, "\n".join(lines[begin:end]).rstrip(), begin)


def fingerprint(name: str) -> str:
    """Names the code of a tutorial; its text may change without another name."""
    code = "\0".join(cell.code for cell in cells((FOLDER / f"{name}.py").read_text()))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


class Stored(NamedTuple):
    """What is known of a run: which code it ran, how long that took, and what each cell printed."""

    code: str
    seconds: float
    printed: list[str]


def stored(name: str) -> Stored:
    """The last run of a tutorial; without a name where there is none."""
    file = FOLDER / "output" / f"{name}.txt"
    head, *printed = re.split(
        rf"^{MARK} \d+\n", file.read_text() if file.exists() else "", flags=re.MULTILINE
    )
    known = dict(line.split(": ") for line in head.splitlines() if ": " in line)
    return Stored(known.get("code", ""), float(known.get("seconds", "nan")), printed)


def run(name: str) -> None:
    """Runs a tutorial in this process, cell by cell, and stores what it printed and drew."""
    output = FOLDER / "output"
    output.mkdir(exist_ok=True)
    for old in output.glob(f"{name}-*"):
        old.unlink()
    os.environ.setdefault("MPLBACKEND", "agg")
    namespace = {"__name__": "__main__", "__file__": str(FOLDER / f"{name}.py")}
    printed = []
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(cells((FOLDER / f"{name}.py").read_text())):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                code = compile("\n" * cell.line + cell.code, namespace["__file__"], "exec")
                exec(code, namespace)
            printed.append(f"{MARK} {number}\n{out.getvalue().rstrip()}\n")
            for picture in sorted(path for path in Path().iterdir() if path.suffix in PICTURES):
                picture.replace(output / f"{name}-{number}-{picture.name}")
    about = f"code: {fingerprint(name)}\nseconds: {time.perf_counter() - begin:.0f}\n"
    (output / f"{name}.txt").write_text("\n".join([about, *printed]))


def page(name: str) -> str:
    """The tutorial as Markdown: text, code, output and pictures, cell by cell."""
    found = cells((FOLDER / f"{name}.py").read_text())
    parts = stored(name).printed
    title, _, rest = found[0].text.partition("\n")
    out = [f"# {title.rstrip('.')}", rest]
    for number, cell in enumerate(found):
        out += [cell.text] if number else []
        out += [f"```python\n{cell.code}\n```"] if cell.code else []
        if number < len(parts) and parts[number].strip():
            out.append(f"```{{ .text .output }}\n{parts[number].strip()}\n```")
        for picture in sorted((FOLDER / "output").glob(f"{name}-{number}-*")):
            out.append(f"![{picture.stem}](output/{picture.name})")
    source = f"The whole script is `tutorials/{name}.py`; `python tutorials/{name}.py` runs it."
    return "\n\n".join([*out, source]) + "\n"


def names() -> list[str]:
    """The tutorials there are."""
    return sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] != "all":
        name = sys.argv.pop()  # the script finds no arguments
        run(name)
    else:  # each in a process of its own, since some settle how JAX starts
        old = [name for name in names() if stored(name).code != fingerprint(name)]
        for name in names() if sys.argv[1:] == ["all"] else sys.argv[1:] or old:
            print(name, flush=True)
            subprocess.run([sys.executable, __file__, name], check=True)
