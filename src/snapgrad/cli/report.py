"""`snapgrad report`."""

from pathlib import Path
from typing import Annotated

import typer

from ._shared import write_page


def command(folder: Annotated[Path, typer.Argument(help="A folder of results.")]) -> None:
    """Builds report.html anew from the results in a folder."""
    print(f"{write_page(folder)} written")
