"""What the site takes from elsewhere in the repository, and how pages refer to each other.

Results, tutorials, changelog and the guide for contributors stay where they are; the site shows them, and
links that work in the repository work on the site. Names of the library in the text lead to the reference.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import tutorials  # noqa: E402

PLACES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Single files of the repository that have a page, and where it is."""
FOLDERS = {"docs/": "", "benchmarks/results/": "results/", "tutorials/": "tutorials/"}
"""Folders of the repository whose files are on the site, and where they lie there."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
HYPHENATED = re.compile(r"(?<![\w.-])[\w.]+(?:-\w+)*-\d\w*")
NAME = re.compile(r"(?<!<pre>)<code>((?:sg|sgn|pinn|molecules)\.[A-Za-z_][\w.]*)(\(.*?\))?</code>")
ROOMS = {
    "sg": "snapgrad",
    "sgn": "snapgrad.netket",
    "pinn": "snapgrad.pinn",
    "molecules": "snapgrad.molecules",
}

_origins: dict[str, str] = {}


def place(path: str) -> str | None:
    """Where a file of the repository is on the site, or None if it is not there."""
    if path in PLACES:
        return PLACES[path]
    for folder, at in FOLDERS.items():
        if path.startswith(folder):
            at = at + path.removeprefix(folder)
            return re.sub(r"^(tutorials/.*)\.py$", r"\1.md", at)
    return None


def on_config(config: Any) -> Any:
    """Lists the results and tutorials that `mkdocs.yml` does not name after those that it does."""
    found = sorted(path.name for path in (ROOT / "benchmarks/results").glob("*.md"))
    _append(config.nav, "Results", [f"results/{name}" for name in found])
    _append(config.nav, "Scripts", [f"tutorials/{name}.md" for name in tutorials.names()])
    return config


def _append(nav: list[Any], title: str, pages: list[str]) -> None:
    for entry in nav:
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if name == title:
                value += [page for page in pages if page not in str(value)]
            elif isinstance(value, list):
                _append(value, title, pages)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages and pictures that lie outside `docs/`."""
    _origins.clear()
    taken = [path for path in PLACES if path != "README.md"]
    for folder in ("benchmarks/results", "tutorials/output"):
        found = (path for path in (ROOT / folder).rglob("*") if path.suffix in {".md", ".svg", ".png"})
        taken += sorted(str(path.relative_to(ROOT)) for path in found)
    for path in taken:
        at = place(path)
        assert at is not None
        _origins[at] = path
        files.append(File.generated(config, at, abs_src_path=str(ROOT / path)))
    for name in tutorials.names():
        _origins[f"tutorials/{name}.md"] = f"tutorials/{name}.py"
        files.append(File.generated(config, f"tutorials/{name}.md", content=tutorials.page(name)))
    return files


def unlisted(room: str) -> list[str]:
    """Public names of a room that no page of the reference names."""
    source = (ROOT / "src/snapgrad" / room / "__init__.py").read_text()
    if room == "cli":  # commands, not functions
        return []
    names = re.findall(r"^from \..* import \w+ as ([a-z]\w*|[A-Z]\w*[a-z]\w*)$", source, re.MULTILINE)
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md")) + "\n"
    return [
        name
        for name in names
        if f"snapgrad.{room}.{name}\n" not in pages and f"snapgrad.{name}\n" not in pages
    ]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Completes the reference, and turns links between files of the repository into links between pages.

    Links to files that are not on the site become plain text.
    """
    del config, files
    at = page.file.src_uri
    room = Path(at).stem
    if at.startswith("reference/") and (ROOT / "src/snapgrad" / room).is_dir() and (more := unlisted(room)):
        markdown += "\n\n## More\n\n" + "".join(f"::: snapgrad.{room}.{name}\n" for name in more)
    origin = posixpath.dirname(_origins.get(at, f"docs/{at}"))

    def translate(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        goal = place(posixpath.normpath(posixpath.join(origin, target)))
        if goal is None:
            return text
        return f"{mark}[{text}]({posixpath.relpath(goal, posixpath.dirname(at) or '.')}{anchor or ''})"

    parts = FENCE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(translate, part) for i, part in enumerate(parts))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Lets names of the library lead to their place in the reference, where they have one.

    In tables, what a hyphen ties to a number (1e-6, poisson-5d) stays on one line.
    """
    del page, config, files

    def whole(cell: re.Match[str]) -> str:
        parts = re.split(r"(<[^>]*>)", cell[0])
        return "".join(
            part if i % 2 else HYPHENATED.sub(r'<span class="nowrap">\g<0></span>', part)
            for i, part in enumerate(parts)
        )

    def refer(match: re.Match[str]) -> str:
        room, _, name = match[1].partition(".")
        return f'<autoref optional identifier="{ROOMS[room]}.{name}">{match[0]}</autoref>'

    html = re.sub(r"<td.*?</td>", whole, html, flags=re.DOTALL)
    parts = re.split(r"(<pre.*?</pre>|<a .*?</a>|<h[1-6].*?</h[1-6]>)", html, flags=re.DOTALL)
    return "".join(part if i % 2 else NAME.sub(refer, part) for i, part in enumerate(parts))
