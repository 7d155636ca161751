"""`snapgrad list`."""

from ..figures import NAMES, load


def command() -> None:
    """Lists the figures that `snapgrad reproduce` makes."""
    width = max(map(len, NAMES))
    for name in NAMES:
        study = load(name)
        print(f"{name:{width}}  {study.source:9}  {study.title}")
