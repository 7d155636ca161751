"""Finished panels on disk: written whole or not at all, read back only if they are what was asked for."""

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _files


class ResultsError(Exception):
    """A results folder that cannot be used; the message is one line that says what to do."""


class FailedError(ResultsError):
    """Nothing was asked for wrongly, and yet it failed: a full disk, a process that was killed."""


def settings_hash(settings: Mapping[str, Any]) -> str:
    """A fingerprint of everything a result depends on."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomic(path: Path, content: bytes) -> None:
    """As `_files.write_atomic`, with a message for the user where the disk refuses."""
    try:
        _files.write_atomic(path, content)
    except OSError as error:
        raise FailedError(
            f"cannot write {path}: {error.strerror or error}. Free space or choose another folder with "
            f"--out; what was stored is kept."
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Readable JSON, written atomically."""
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ResultsError(
            f"{path} is damaged or cannot be read. Delete it and run again: only what it describes is redone."
        ) from None


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV file with the union of the rows' columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(path, text.getvalue().encode())


def save_panel(
    folder: Path, name: str, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any], about: Any
) -> None:
    """Stores `name.npz`, then `name.json` with its settings, their hash and the checksum of the arrays.

    The record comes last: arrays without one are an unfinished panel.
    """
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{key: np.asarray(value) for key, value in arrays.items()})
    content = buffer.getvalue()
    write_atomic(folder / f"{name}.npz", content)
    record = {
        "settings": settings,
        "hash": settings_hash(settings),
        "sha256": hashlib.sha256(content).hexdigest(),
        **about,
    }
    write_json(folder / f"{name}.json", record)


def load_panel(
    folder: Path, name: str, settings: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The arrays and record of a finished panel; None if there is none."""
    data, about = folder / f"{name}.npz", folder / f"{name}.json"
    if not about.exists():
        return None
    record = read_json(about)
    if not isinstance(record, dict) or not {"hash", "sha256", "settings"} <= record.keys():
        raise ResultsError(f"{about} is damaged. Delete it and run again: only that panel is redone.")
    if record["hash"] != settings_hash(settings):
        raise ResultsError(
            f"{folder.parent} holds results of other settings{_difference(record['settings'], settings)}. "
            f"Choose another folder with --out, or delete that one."
        )
    try:
        content = data.read_bytes()
    except OSError:
        content = b""
    if hashlib.sha256(content).hexdigest() != record["sha256"]:
        raise ResultsError(
            f"{data} is damaged: its checksum is not the stored one. Delete it and {about.name} and run "
            f"again: only that panel is redone."
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays), record


def _difference(stored: Any, wanted: Mapping[str, Any]) -> str:
    """The first setting that differs, for the message."""
    if not isinstance(stored, dict):
        return ""
    for name in ("seed", "size", *wanted):
        if stored.get(name) != wanted.get(name):
            return f" ({name}: {stored.get(name)!r}, now {wanted.get(name)!r})"
    return ""


def claim_folder(folder: Path, checkpoint: str, resume: bool) -> None:
    """Raises `ResultsError` unless a run may begin, or go on, in a folder; before the work, not after it.

    Below it a file of the name `checkpoint` is the mark of a run, which is never overwritten.
    """
    there = any(folder.rglob(checkpoint))
    if resume and not there:
        raise ResultsError(f"{folder} holds no checkpoint to resume from. Run without --resume first.")
    if there and not resume:
        raise ResultsError(
            f"{folder} holds a run already. Add --resume to go on from its checkpoint, choose another folder "
            f"with --out, or delete that one."
        )
    try:
        with _files.made(folder):
            write_atomic(folder / ".writable", b"")
            (folder / ".writable").unlink()
    except OSError as error:
        raise ResultsError(
            f"cannot write to {folder}: {error.strerror or error}. Choose another folder with --out."
        ) from None
