"""Files that appear whole or not at all, and folders that belong to one process at a time."""

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: there two runs in one folder are not noticed
    fcntl = None

PART = re.compile(r"\..+\.\d+\.part")
"""Files that are being written, and what a process that died has left of them."""
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""What file systems without locks answer, some of those that clusters share."""


def write_atomic(path: Path, content: bytes) -> None:
    """Writes beside `path` and renames, so that a kill at any moment leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # an interruption too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def made(folder: Path) -> Iterator[None]:
    """The folder, made if need be; those that were made and are still empty at the end are removed."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone; what an earlier one left unfinished is removed.

    `BlockingIOError` if another process has it, `OSError` if it cannot be written. A process that dies lets
    go of it.
    """
    with made(folder):
        handle = _lock(folder / ".lock")
        try:
            for left in folder.rglob(".*.part"):
                if PART.fullmatch(left.name) and not _taken(left.parent, folder):
                    left.unlink(missing_ok=True)
            yield
        finally:
            with contextlib.suppress(OSError):
                (folder / ".lock").unlink(missing_ok=True)
            os.close(handle)


def _taken(inner: Path, outer: Path) -> bool:
    """Whether another process has a folder, or one between it and that which is ours."""
    while inner != outer:
        if (inner / ".lock").exists():
            try:
                os.close(_lock(inner / ".lock"))
            except BlockingIOError:
                return True
        inner = inner.parent
    return False


def _lock(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _flock(handle, path)
            # Its last owner may have removed the file after it was opened here.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _flock(handle: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn(
            f"{path.parent} is on a file system without locks: that another process writes there goes "
            f"unnoticed.",
            stacklevel=2,
        )
