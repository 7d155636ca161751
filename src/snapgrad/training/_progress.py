"""The progress bar of `sg.fit`, loaded only when one is wanted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[dict[str, float], str], None]
"""Takes the latest record and the name of what is minimised."""


@contextmanager
def shown(wanted: bool, steps: float, seconds: float) -> Iterator[Show]:
    """A bar towards whichever limit is nearer, with the goal's value beside it; nothing if not wanted."""
    if not wanted:
        yield lambda record, goal: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("step {task.fields[step]:.0f}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("compiling", total=1.0, step=0)

        def show(record: dict[str, float], goal: str) -> None:
            done = min(1.0, max(record["step"] / steps, record["seconds"] / seconds))
            text = f"{goal} {record[goal]:.2e}" if goal in record else ""
            left = f", {int(record['rejected'])} rejected" if record.get("rejected") else ""
            bar.update(task, completed=done, description=text + left, step=record["step"])

        yield show
