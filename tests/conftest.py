"""Strict numerics for every test: float64, no silent rank promotion, run-time shape checks."""

import os
import signal
from importlib.metadata import version
from pathlib import Path

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# jaxlib runs batched LAPACK calls on its own thread pool and waits for them there: on two cores, two such
# calls at once wait for each other for ever. More threads than cores keep one free.
os.environ.setdefault("NPROC", "4")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Commands in processes of their own must not write to the user's cache.
os.environ["SNAPGRAD_COMPILATION_CACHE"] = "off"
# Nearly all of the time of these tests is compilation, and their arrays are tiny: the plainest machine code
# compiles three times faster. `XLA_FLAGS= pytest ...` compiles as users do; `make test-slow` does so too.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if version("jaxlib") < "0.12":  # later ones have no such switch, and refuse to start with it
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Most of the time of these tests is compilation: keep it between runs, a folder for each parallel worker.
CACHE = Path(__file__).parents[1] / ".pytest_cache" / "jax" / os.environ.get("PYTEST_XDIST_WORKER", "main")
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# The same examples in every run; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Checks every jaxtyping annotation of the library while the tests run.
install_import_hook("snapgrad", "strict.check")


MOST_MAPS = 20_000
"""Every compiled program takes memory maps, of which Linux gives a process 65,530: beyond them it crashes."""


@pytest.fixture(autouse=True, scope="module")
def _forget_old_programs():
    """Lets go of compiled programs before there are too many; those that come again are on the disk."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
    yield
