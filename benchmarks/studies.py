"""What the studies of the reproduction claim and measure, at full size, as a page of results.

    .venv/bin/python benchmarks/studies.py            # tuning and diagnosis; half an hour on two cores
    .venv/bin/python benchmarks/studies.py --studies spring --results results

Each study is run by `snapgrad reproduce`, or taken from a folder of results that has it already, and its
claims with their numbers are written to `benchmarks/results/studies.md`. The baseline is in the study itself:
a grid of settings, the best of which is known in hindsight.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

PAGE = Path(__file__).parent / "results" / "studies.md"


def run(names: list[str], results: Path) -> None:
    """Computes the studies that are not there; claims that fail are for the page to show."""
    command = [sys.executable, "-m", "snapgrad.cli", "reproduce", *names, "--out", str(results)]
    ended = subprocess.run(command, check=False)
    if any(not (results / name / "claims.json").exists() for name in names):
        sys.exit(ended.returncode)


def section(folder: Path) -> list[str]:
    """The table of one study."""
    about = json.loads((folder / "study.json").read_text())
    claims = json.loads((folder / "claims.json").read_text())
    held = sum(claim["passed"] for claim in claims)
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [f"## `{about['name']}`: {about['title']}", "", about["caption"], ""]
    lines += [
        f"{held} of {len(claims)} claims hold. Seed {about['seed']}, size {about['size']}, "
        f"{about['seconds']:.0f} s of computing, {versions}.",
        "",
        "| claim | measured | wanted | holds |",
        "|---|---|---|---|",
    ]
    for claim in claims:
        value = claim["value"] if isinstance(claim["value"], str) else f"{claim['value']:.4g}"
        lines.append(
            f"| {claim['statement']} | {value} | {claim['wanted']} | {'yes' if claim['passed'] else 'no'} |"
        )
    return [*lines, "", *(f"- {note}" for note in about["notes"]), ""]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", nargs="+", default=["tuning", "diagnosis"])
    parser.add_argument("--results", type=Path, help="a results folder, which may hold them already")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = given.results or Path(folder)
        run(given.studies, results)
        parts = [section(results / name) for name in given.studies]
    head = [
        f"# Studies of self-tuning and diagnosis, {date.today()}",
        "",
        f"`benchmarks/studies.py` on {os.cpu_count()} cores: the claims of each with what was measured. "
        f"`snapgrad reproduce {' '.join(given.studies)}` draws the pictures.",
        "",
    ]
    PAGE.write_text("\n".join([*head, *(line for part in parts for line in part)]).rstrip() + "\n")
    print(PAGE)


if __name__ == "__main__":
    main()
