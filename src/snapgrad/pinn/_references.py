"""Reference solutions by spectral methods, with errors far below what a network reaches."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from jaxtyping import Float

Grid = tuple[Float[np.ndarray, "N 2"], Float[np.ndarray, " N"]]
"""Points (t, x) and the solution there."""


@lru_cache
def burgers_grid(viscosity: float) -> Grid:
    """u_t + u u_x = ν u_xx, odd and periodic on [−1, 1], u = −sin πx at t = 0."""
    modes = 256
    x = -1 + 2 * np.arange(modes) / modes
    wave = 1j * np.pi * np.fft.rfftfreq(modes, 1 / modes)

    def nonlinear(values: np.ndarray) -> np.ndarray:
        return -0.5 * wave * _dealiased(np.fft.irfft(values) ** 2)

    return _march(np.fft.rfft(-np.sin(np.pi * x)), viscosity * wave**2, nonlinear, x, np.fft.irfft)


@lru_cache
def allen_cahn_grid(diffusion: float, reaction: float, steps: int = 20_000) -> Grid:
    """u_t = D u_xx + c(u − u³), u = −1 at ±1, x² cos πx at t = 0, on Chebyshev points.

    Crank–Nicolson for the diffusion, Adams–Bashforth for the reaction: second order in time.
    """
    h = 1 / steps
    order = 96
    nodes = np.cos(np.pi * np.arange(order + 1) / order)
    second = (_chebyshev(nodes) @ _chebyshev(nodes))[1:-1, 1:-1] * diffusion
    start = (nodes**2 * np.cos(np.pi * nodes) + 1)[1:-1]
    growth = np.linalg.inv(np.eye(order - 1) - h / 2 * second)
    explicit = np.eye(order - 1) + h / 2 * second

    def react(w: np.ndarray) -> np.ndarray:
        u = w - 1
        return reaction * (u - u**3)

    w, before, times, found = start, react(start), [], []
    for step in range(steps + 1):
        if step % (steps // 20) == 0:
            times.append(step * h)
            found.append(np.concatenate([[-1], w - 1, [-1]]))
        now = react(w)
        w, before = growth @ (explicit @ w + h * (1.5 * now - 0.5 * before)), now
    return _grid(np.array(times), nodes, np.array(found))


def _march(
    values: np.ndarray, linear: np.ndarray, nonlinear: Callable, x: np.ndarray, back: Callable
) -> Grid:
    """Fourth-order Runge–Kutta on the integrating factor of the linear part."""
    steps, keep = 2000, 100
    h = 1 / steps
    half = np.exp(linear * h / 2)
    times, found = [], []
    for step in range(steps + 1):
        if step % keep == 0:
            times.append(step * h)
            found.append(back(values))
        a = nonlinear(values)
        b = nonlinear(half * (values + h / 2 * a))
        c = nonlinear(half * values + h / 2 * b)
        d = nonlinear(half**2 * values + h * half * c)
        values = half**2 * values + h / 6 * (half**2 * a + 2 * half * (b + c) + d)
    return _grid(np.array(times), x, np.array(found))


def _dealiased(values: np.ndarray) -> np.ndarray:
    found = np.fft.rfft(values)
    found[2 * len(found) // 3 :] = 0
    return found


def _grid(times: np.ndarray, x: np.ndarray, values: np.ndarray) -> Grid:
    points = np.stack(np.meshgrid(times, x, indexing="ij"), axis=-1).reshape(-1, 2)
    return points, values.reshape(-1)


def _chebyshev(nodes: np.ndarray) -> np.ndarray:
    """The differentiation matrix on Chebyshev points."""
    order = len(nodes) - 1
    c = np.ones(order + 1)
    c[[0, -1]] = 2
    c *= (-1.0) ** np.arange(order + 1)
    gaps = nodes[:, None] - nodes[None, :]
    D = np.outer(c, 1 / c) / (gaps + np.eye(order + 1))
    return D - np.diag(D.sum(axis=1))
