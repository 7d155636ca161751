"""Files that appear whole or not at all."""

import contextlib
import os
from pathlib import Path


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
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
