"""Rehearsals: SNG and SPRING on the pool as a linear problem, many settings at once, in its few coordinates.

A step of the real method costs a Jacobian; here it costs products with k rows of e numbers, which all
settings share. What is rehearsed are the method's own equations on uniformly drawn batches, with the noise
and the curvature of the problem, so nothing is assumed about either; only that the model stays linear.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ._reduced import System

LOST = 1e3
"""A setting whose error has grown by this factor has diverged."""
BATCHES = 2048
"""Different batches of a rehearsal, which come again in random order; fewer where they are large."""
BATCH_NUMBERS = 2**23
"""All of their factorisations together have at most about this many numbers."""
LATE = 1.3
"""A race goes on until this many times the steps of the first setting that arrived."""


class Setting(NamedTuple):
    """λ, η and μ."""

    damping: float
    step_size: float
    momentum: float


class Race(NamedTuple):
    """What became of each setting.

    - `steps`: until the target, with a fraction; infinite where it was not reached.
    - `error`: [steps + 1, settings], relative to the start; NaN after a setting left the race.
    """

    steps: Float[np.ndarray, " G"]
    error: Float[np.ndarray, "T G"]


class Stage:
    """Batches of one size, factored once, on which settings race."""

    def __init__(self, system: System, points: int, seed: int):
        self.system, self.rng = system, np.random.default_rng([seed, points])
        rows = points * system.outputs
        count = int(np.clip(BATCH_NUMBERS // rows**2, 4, BATCHES)) if points < system.points else 1
        self.sets = np.stack([system.batch(self.rng, points) for _ in range(count)])
        kernels = np.stack([system.rows[S] @ system.rows[S].T for S in self.sets])
        w, self.vectors = np.linalg.eigh(kernels)
        tiny = 10 * rows * np.finfo(float).eps
        self.values = np.where(w > tiny * w[:, -1:], w, np.inf)  # the pseudoinverse, at λ = 0 too
        self.weights = self._weights()

    def _weights(self) -> Float[np.ndarray, "q e"] | Float[np.ndarray, " e"]:
        """The matrix whose product with e has the norm that counts; one axis means diagonal."""
        system = self.system
        if system.full:
            return np.ones(len(system.error))
        if system.action is system.rows:
            return np.sqrt(system.values)
        return np.asarray(np.linalg.qr(system.action, mode="r"))

    def _size(self, E: Float[np.ndarray, "e G"]) -> Float[np.ndarray, " G"]:
        W = self.weights
        return np.linalg.norm(W[:, None] * E if W.ndim == 1 else W @ E, axis=0)

    def race(
        self,
        settings: Sequence[Setting],
        *,
        target: float,
        most: int,
        deadline: float = np.inf,
    ) -> Race:
        """Steps until the error is `target` times the first one; ends a little after the first arrival.

        The `deadline` is in processor time: what a busy machine finds does not depend on how busy it is.
        """
        lam, eta, mu = np.array(settings, float).T
        G, system = len(settings), self.system
        E, phi = np.tile(system.error[:, None], (1, G)), np.zeros((len(system.error), G))
        start = float(self._size(system.error[:, None])[0])
        alive, steps = np.arange(G), np.full(G, np.inf)
        record = [np.ones(G)]
        order = self.rng.integers(len(self.sets), size=most)
        before = np.ones(G)
        for t in range(1, most + 1):
            index = order[t - 1]
            S, X, w = self.sets[index], self.vectors[index], self.values[index]
            Z = system.rows[S]
            residual = system.action[S] @ E + system.noise[S][:, None]
            inner = X.T @ (residual - mu[alive] * (Z @ phi))
            phi = mu[alive] * phi + Z.T @ (X @ (inner / (w[:, None] + lam[alive])))
            E = E - eta[alive] * phi
            now = self._size(E) / start
            line = np.full(G, np.nan)
            line[alive] = now
            record.append(line)
            there = now <= target
            if there.any():
                part = np.log(before[there] / target) / np.log(before[there] / np.maximum(now[there], 1e-300))
                steps[alive[there]] = t - 1 + np.clip(part, 0, 1)
            keep = ~there & (now < LOST)
            if not keep.all():
                alive, E, phi, now = alive[keep], E[:, keep], phi[:, keep], now[keep]
            before = now
            if not len(alive) or t >= LATE * steps.min():
                break
            if t % 16 == 0 and time.thread_time() > deadline:
                break
        return Race(steps, np.array(record))


def expected_steps(race: Race, target: float, noisy: bool) -> Float[np.ndarray, " G"]:
    """Steps to the target; where it was not reached, by going on at the pace of the last half.

    Not so where there is noise: what is above its floor now may stay there.
    """
    out = race.steps.copy()
    last, half = len(race.error) - 1, len(race.error) // 2
    if last < 4 or noisy:
        return out
    for g in np.flatnonzero(~np.isfinite(out) & np.isfinite(race.error[-1])):
        slope = np.polyfit(np.arange(half, last + 1), np.log(race.error[half:, g]), 1)[0]
        if slope * last < -0.05:  # less is standing still
            out[g] = last + np.log(target / race.error[-1, g]) / slope
    return out


def fitted_rate(error: Float[np.ndarray, " T"]) -> float:
    """−d log(error²)/dt by least squares; the average over one step or two."""
    error = error[np.isfinite(error)]
    t = np.arange(len(error))
    y = 2 * np.log(np.maximum(error, 1e-300))
    if len(error) < 3:
        return float(y[0] - y[-1]) / max(len(error) - 1, 1)
    return -float(np.polyfit(t, y, 1)[0])
