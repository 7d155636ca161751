"""One self-contained HTML page from a folder of results."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ._figures import inline


def page(studies: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """The page: for each study its picture, caption, claims, settings and links to the data."""
    sections = "\n".join(_section(study, folder) for study in studies)
    head = "<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>snapgrad</title>"
    return f"{head}\n{sections}\n</html>\n"


def _section(study: Mapping[str, Any], folder: Path) -> str:
    name = study["name"]
    plots = "".join(
        inline((folder / name / "plots" / f"{i}.svg").read_text(), escape(study["title"]))
        for i in range(study["plots"])
    )
    return f"<section id='{name}'><h2>{escape(study['title'])}</h2>{plots}</section>"
