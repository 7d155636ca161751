"""The command line, one file for each command: the studies of the paper, advice, and models to train."""

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .. import __version__
from .._signals import TERMINATED, as_interruptions, interruptible
from ..reproduce import FailedError, ResultsError, settle_environment
from ..training import FirstProcessError
from . import diagnose, molecule, pinn, quantum, report, reproduce, theory
from . import list as list_
from ._cache import keep_compiled
from ._shared import FAILED, INTERRUPTED, USAGE, StoppedError, UserError

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
    code = INTERRUPTED
    with interruptible() as came:
        try:
            code = _run(sys.argv[1:] or ["--help"])
        except KeyboardInterrupt:
            _say("stopped; finished parts are kept, the same command goes on.")
    if came:  # the process ends: of what is left half made nobody need hear
        sys.unraisablehook = lambda what: None
    sys.exit(TERMINATED if signal.SIGTERM in came else code)


def _run(args: Sequence[str]) -> int:
    """The exit code of a command; what goes wrong is one line."""
    settle_environment()
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        # `app` itself would take sys.excepthook.
        with as_interruptions():
            code = typer.main.get_command(app)(args, standalone_mode=False)
    except (FailedError, FirstProcessError) as error:
        return _say(str(error), FAILED)
    except (UserError, ResultsError) as error:
        return _say(str(error), USAGE)
    except _CLICK_ERROR as error:
        return _say(f"{error.format_message()} See `snapgrad --help`.", USAGE)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return _say(f"cannot read or write{where}: {error.strerror or error}.", FAILED)
    except MemoryError as error:
        return _say(str(error) or "there is not enough memory: smaller sizes take less.", FAILED)
    except StoppedError as stop:
        return _say(f"stopped; {stop}", INTERRUPTED)
    except typer.Abort:
        raise KeyboardInterrupt from None
    if code == INTERRUPTED:  # what typer makes of an interruption
        raise KeyboardInterrupt
    return code or 0


def _say(message: str, code: int = INTERRUPTED) -> int:
    """One line on the error stream, whatever is in it; the code, for whoever returns it."""
    print(f"snapgrad: {' '.join(message.split())}", file=sys.stderr)
    return code
