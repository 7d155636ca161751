"""The command line, one file for each command: the studies of the paper, advice, and models to train."""

import sys
from typing import Annotated, Any

import typer

from .. import __version__
from ..reproduce import ResultsError, settle_environment
from . import diagnose, molecule, pinn, quantum, report, reproduce, theory
from . import list as list_
from ._cache import keep_compiled
from ._shared import INTERRUPTED, USAGE, StoppedError, UserError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
for name, module in (
    ("reproduce", reproduce),
    ("list", list_),
    ("report", report),
    ("theory", theory),
    ("diagnose", diagnose),
    ("pinn", pinn),
    ("quantum", quantum),
    ("molecule", molecule),
):
    app.command(name)(module.command)
_CLICK_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"snapgrad {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    compilation_cache: Annotated[
        bool,
        typer.Option(
            envvar="SNAPGRAD_COMPILATION_CACHE",
            help="Keep compiled programs in the user's cache folder, which makes the next run start sooner.",
        ),
    ] = True,
) -> None:
    """Sketch-and-project natural gradients: reproduce the paper, train PINNs, spins and molecules."""
    del version
    if compilation_cache:
        keep_compiled()


def main() -> None:
    """The `snapgrad` command."""
    settle_environment()
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except (UserError, ResultsError) as error:
        code = _complain(str(error))
    except _CLICK_ERROR as error:
        code = _complain(f"{error.format_message()} See `snapgrad --help`.")
    except StoppedError as stop:
        print(f"snapgrad: stopped; {stop}", file=sys.stderr)
        code = INTERRUPTED
    except (typer.Abort, KeyboardInterrupt):
        code = _stopped()
    else:
        code = _stopped() if code == INTERRUPTED else code  # what typer makes of an interruption
    sys.exit(code or 0)


def _stopped() -> int:
    print("snapgrad: stopped; finished parts are kept, the same command goes on.", file=sys.stderr)
    return INTERRUPTED


def _complain(message: str) -> int:
    print(f"snapgrad: {message}", file=sys.stderr)
    return USAGE
