"""Sections of the page beside the paper's figures: what `snapgrad pinn` and `snapgrad quantum` trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._store import ResultsError, read_json, write_atomic, write_json

_FILE = "section.json"


def write_section(
    folder: Path,
    *,
    title: str,
    source: str,
    caption: str,
    table: Sequence[dict[str, str]],
    svgs: Sequence[str],
    links: dict[str, str],
) -> None:
    """Stores a section in `out/KIND/NAME`; `links` are texts and files in that folder."""
    for index, svg in enumerate(svgs):
        write_atomic(folder / "plots" / f"{index}.svg", svg.encode())
    here = f"{folder.parent.name}/{folder.name}"
    entry = {
        "name": here.replace("/", "-"),
        "title": title,
        "source": source,
        "caption": caption,
        "table": list(table),
        "plots": len(svgs),
        "links": {text: f"{here}/{file}" for text, file in links.items()},
    }
    write_json(folder / _FILE, entry)


def read_sections(out: Path) -> list[dict[str, Any]]:
    """All sections of a results folder, with their pictures under `svgs`."""
    sections = []
    for path in sorted(out.glob(f"*/*/{_FILE}")):
        entry = read_json(path)
        try:
            plots = [path.parent / "plots" / f"{index}.svg" for index in range(entry["plots"])]
            entry["svgs"] = [plot.read_text(encoding="utf-8") for plot in plots]
        except (OSError, KeyError, TypeError):
            raise ResultsError(f"{path.parent} is damaged. Delete {path} and run again.") from None
        sections.append(entry)
    return sections
