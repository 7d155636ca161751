"""Compiled programs, kept between runs of the command line."""

import hashlib
import os
import platform
import sys
import warnings
from pathlib import Path

LEAST_SECONDS = 0.1
"""Programs that took less to compile are not worth a file."""


def keep_compiled() -> None:
    """Switches on JAX's persistent compilation cache, here and in processes started from here.

    A cache that the user has chosen stays; where the folder cannot be written there is none.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"]:
        return
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    # A damaged entry, of a run that was killed, or a full disk: then the program is compiled as ever.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = str(LEAST_SECONDS)


def cache_folder() -> Path:
    """The folder for this processor within the user's cache: programs for another one may not run here."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "snapgrad" / "jax" / hashlib.sha256(_processor().encode()).hexdigest()[:8]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
