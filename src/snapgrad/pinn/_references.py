"""Reference solutions with errors far below what a network reaches, on grids.

Burgers' equation is solved by the formula of Cole and Hopf. The others are stored as `_spectral` computed
them: KdV to 1e-12, Allen–Cahn and Kuramoto–Sivashinsky to 1e-11 (the latter is chaotic: 80-bit numbers),
Gray–Scott to 1e-5; and the cavity as `_cavity` did: 2e-8 for the smooth lid, 1e-5 (Re 100) to 1e-4 (Re 1000)
for the sharp one. The tests refine them.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ._cavity import Cavity, Corner
from ._spectral import TIMES

Grid = tuple[Float[np.ndarray, "N d"], Float[np.ndarray, "N *o"]]
"""Points, time first, and the solution there."""
STORE = Path(__file__).parent / "references"
"""Where solutions are stored."""


@lru_cache
def burgers_grid(viscosity: float) -> Grid:
    """u_t + u u_x = ν u_xx, odd and periodic on [−1, 1], u = −sin πx at t = 0."""
    x = -1 + 2 * np.arange(256) / 256
    values = np.array([cole_hopf(viscosity, t, x) for t in TIMES])
    return _grid(values, TIMES, x)


def cole_hopf(
    viscosity: float, t: float, x: Float[np.ndarray, " N"], nodes: int = 801
) -> Float[np.ndarray, " N"]:
    """The mean of −sin π(x − y) with weight exp(−cos π(x − y)/2πν − y²/4νt), by the trapezoidal rule.

    For entire functions the rule converges faster than any power: 1e-14 and better for ν ≥ 0.003.
    """
    if t == 0:
        return -np.sin(np.pi * x)
    z = np.linspace(-20, 20, nodes)[None]
    y = np.pi * (x[:, None] - np.sqrt(4 * viscosity * t) * z)
    exponent = -np.cos(y) / (2 * np.pi * viscosity) - z**2
    weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return -np.sum(weight * np.sin(y), axis=1) / np.sum(weight, axis=1)


def korteweg_de_vries_grid() -> Grid:
    """On 256 points of [−1, 1] at 21 times."""
    return _grid(stored("korteweg_de_vries"), TIMES, -1 + 2 * np.arange(256) / 256)


def kuramoto_sivashinsky_grid() -> Grid:
    """On 256 points of [0, 2π] at 21 times."""
    return _grid(stored("kuramoto_sivashinsky"), TIMES, 2 * np.pi * np.arange(256) / 256)


def allen_cahn_grid() -> Grid:
    """On 257 points of [−1, 1] at 21 times; the solution is even, and half of it is stored."""
    half = stored("allen_cahn")
    return _grid(np.concatenate([half[:, :0:-1], half], axis=1), TIMES, np.linspace(-1, 1, 257))


def gray_scott_grid() -> Grid:
    """Both species on 16 × 16 points of [−1, 1]² at 11 times from 0 to 2."""
    side = -1 + 2 * np.arange(16) / 16
    return _grid(np.moveaxis(stored("gray_scott"), 1, -1), np.linspace(0, 2, 11), side, side)


def cavity_grid(name: str, corner: Corner) -> Grid:
    """Both velocities at 32 × 32 points of the unit square, the centres of cells."""
    side = (np.arange(32) + 0.5) / 32
    points = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    return points, Cavity(corner, stored(name)).velocity(points)


def stored(name: str) -> np.ndarray:
    """The values of a stored solution."""
    with np.load(STORE / f"{name}.npz") as file:
        return file["values"]


@lru_cache
def quiet_allen_cahn_grid(diffusion: float, reaction: float, steps: int = 20_000) -> Grid:
    """u_t = D u_xx + c(u − u³), u = −1 at ±1, x² cos πx at t = 0, on Chebyshev points.

    Crank–Nicolson for the diffusion, Adams–Bashforth for the reaction: second order in time.
    """
    h = 1 / steps
    order = 96
    nodes = np.cos(np.pi * np.arange(order + 1) / order)
    second = (chebyshev(nodes) @ chebyshev(nodes))[1:-1, 1:-1] * diffusion
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
    return _grid(np.array(found), np.array(times), nodes)


def chebyshev(nodes: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N N"]:
    """The differentiation matrix on Chebyshev points."""
    order = len(nodes) - 1
    c = np.ones(order + 1)
    c[[0, -1]] = 2
    c *= (-1.0) ** np.arange(order + 1)
    gaps = nodes[:, None] - nodes[None, :]
    D = np.outer(c, 1 / c) / (gaps + np.eye(order + 1))
    return D - np.diag(D.sum(axis=1))


def _grid(values: np.ndarray, *axes: np.ndarray) -> Grid:
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    return points, values.reshape(len(points), *values.shape[len(axes) :])
