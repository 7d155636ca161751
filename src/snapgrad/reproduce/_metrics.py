"""What a model's training recorded, one line of JSON for each record."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ._store import ResultsError, write_atomic

_FILE = "metrics.jsonl"


def as_records(history: Mapping[str, Any]) -> list[dict[str, float]]:
    """The history of a `Result` record by record, without what was not measured."""
    rows = [
        dict(zip(history, map(float, values), strict=True)) for values in zip(*history.values(), strict=True)
    ]
    return [{name: value for name, value in row.items() if not np.isnan(value)} for row in rows]


def write_metrics(folder: Path, records: list[dict[str, float]]) -> Path:
    """Stores the records of a run in its folder."""
    write_atomic(folder / _FILE, "".join(json.dumps(record) + "\n" for record in records).encode())
    return folder / _FILE


def read_metrics(home: Path) -> Iterator[tuple[Path, list[dict[str, float]]]]:
    """The folders of the runs in a folder, those without records left out, and what they recorded."""
    for metrics in sorted(home.glob(f"*/{_FILE}")):
        try:
            records = [dict(json.loads(line)) for line in metrics.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError, TypeError):
            raise ResultsError(f"{metrics} is damaged or cannot be read: delete that run.") from None
        if records:
            yield metrics.parent, records
