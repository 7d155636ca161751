"""How much memory there is, and errors that say what would take less, before an allocator gives up."""

from pathlib import Path
from typing import Any

import jax

LARGE = 2**28
"""Bytes from which on it is worth to ask."""
FEWER_ROWS = 'fewer rows per step (`batch_size`, points), or solver="cg", which needs no kernel, take less'


def available() -> int | None:
    """Free bytes of the device in use, or of the machine where that is a processor; None if unknown."""
    chosen: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    device = chosen if isinstance(chosen, jax.Device) else jax.local_devices(backend=chosen)[0]
    if device.platform == "cpu":
        return _machine()
    found = device.memory_stats()
    if not found or "bytes_limit" not in found:
        return None
    return int(found["bytes_limit"]) - int(found.get("bytes_in_use", 0))


def _machine(root: Path = Path("/")) -> int | None:
    """What Linux says is available, within the limits of the container or the job."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return min([free, *(left for group in _groups(root) if (left := _left(group)) is not None)])


def _groups(root: Path) -> list[Path]:
    """The control groups of this process, each within the next."""
    top = root / "sys/fs/cgroup"
    try:
        line = next(x for x in (root / "proc/self/cgroup").read_text().splitlines() if x.startswith("0::"))
        own = Path(line[3:].strip().lstrip("/"))
    except (OSError, StopIteration):
        own = Path()
    return [top / part for part in (own, *own.parents)] if own.parts else [top]


def _left(group: Path) -> int | None:
    """Bytes below a group's limit; files kept in memory that Linux would let go do not count as used."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        lines = (group / "memory.stat").read_text().splitlines() if (group / "memory.stat").exists() else []
        kept = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError):  # a group without a limit says "max"
        return None
    return max(0, limit - used + kept)


def require(needed: int, what: str, instead: str) -> None:
    """`MemoryError` if `what` certainly takes more bytes than there are; `instead` says what takes less."""
    if needed < LARGE:
        return
    free = available()
    if free is not None and needed > free:
        raise MemoryError(f"{what} takes {size(needed)}, and {size(free)} are free: {instead}.")


def size(number: int) -> str:
    """A number of bytes in words."""
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**exponent:
            return f"{number / 2**exponent:.3g} {unit}"
    return f"{number} B"
