"""The paper's dynamic grid search, and a wider look to confirm what it finds."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

Point: TypeAlias = tuple[int, ...]
"""Whole-number coordinates on a logarithmic grid, such as (i, j) for η = 2^i, μ = 1 − 2^−j."""
Evaluate: TypeAlias = Callable[[Sequence[Point]], np.ndarray]
"""Scores [points, runs] of a list of points, larger is better, −∞ for a diverged run."""


class Optimum(NamedTuple):
    """For one run: where the search stopped, the best point of the wider look, and their scores."""

    found: Point
    found_score: float
    best: Point
    best_score: float


class Search:
    """Scores of the points seen so far, for all runs at once.

    - `evaluate`: called with new points only.
    - `ranges`: the allowed values of each coordinate.
    """

    def __init__(self, evaluate: Evaluate, runs: int, ranges: Sequence[range]):
        self.evaluate, self.runs, self.ranges = evaluate, runs, ranges
        self.scores: dict[Point, np.ndarray] = {}

    def look(self, centres: Sequence[Point], radius: int) -> None:
        """Evaluates in one call the new points within `radius` grid steps of a centre in each coordinate."""
        wanted = itertools.chain.from_iterable(self._window(centre, radius) for centre in centres)
        new = sorted(set(wanted) - self.scores.keys())
        if new:
            self.scores.update(zip(new, self.evaluate(new), strict=True))

    def walk(self, start: Point, radius: int = 2) -> list[Point]:
        """For each run, from `start` to a point that no other within `radius` steps beats."""
        here = [start] * self.runs
        while True:
            self.look(here, radius)
            there = [self._best(run, self._window(point, radius)) for run, point in enumerate(here)]
            moved = [
                self.scores[b][r] > self.scores[a][r]
                for r, (a, b) in enumerate(zip(here, there, strict=True))
            ]
            if not any(moved):
                return here
            here = [b if move else a for a, b, move in zip(here, there, moved, strict=True)]

    def optima(self, start: Point, radius: int = 2, wider: int = 4) -> list[Optimum]:
        """The walk's result for each run, and the best of all points seen after a wider look around it."""
        found = self.walk(start, radius)
        # The wider look may find a better place, around which there may be a better one still.
        best = found
        while True:
            self.look(best, wider)
            again = [self._best(run, self.scores) for run in range(self.runs)]
            if again == best:
                break
            best = again
        return [
            Optimum(a, float(self.scores[a][run]), b, float(self.scores[b][run]))
            for run, (a, b) in enumerate(zip(found, best, strict=True))
        ]

    def _window(self, centre: Point, radius: int) -> list[Point]:
        near = [
            [x for x in range(c - radius, c + radius + 1) if x in allowed]
            for c, allowed in zip(centre, self.ranges, strict=True)
        ]
        return list(itertools.product(*near))

    def _best(self, run: int, points: Sequence[Point] | dict[Point, np.ndarray]) -> Point:
        # Ties go to the smallest coordinates, so that the answer does not depend on the order of looking.
        return min(points, key=lambda point: (-self.scores[point][run], point))
