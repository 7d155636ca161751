"""The lid-driven cavity: its steady flow by Chebyshev series, with the singular corners taken out.

The stream function ψ (u = ψ_y, v = −ψ_x) on the unit square solves ψ_y Δψ_x − ψ_x Δψ_y = Δ²ψ/Re with ψ = 0
and no slip on the walls, and u = g(x) on the lid y = 1. In an upper corner it behaves like the Stokes flow
between a moving and a fixed plane, r^m F(θ), with m = 1 for the lid g = 1 and m = 2 for g = 4x(1 − x). That
part is subtracted; what is left is smooth enough for a Chebyshev series to converge. Its coefficients solve
the weak form of the equation, which asks for no derivatives that the corners do not have.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.polynomial import chebyshev

from ._domains import Box
from ._weak import Weak

PI = np.pi


class Corner(NamedTuple):
    """r^m F(θ) in a corner with the lid along θ = 0 and a wall along θ = π/2."""

    power: int
    shape: Callable[[Any, Any], tuple[Any, Any]]
    """F and F′ of θ, given the module of arrays."""
    bent: Callable[[Any, Any], tuple[Any, Any]]
    """G and G′, where the Laplacian is r^(m − 2) G(θ)."""


def _sharp(theta: Any, xp: Any) -> tuple[Any, Any]:
    c = 4 / (PI**2 - 4)
    b, d = -c * PI**2 / 4, c * PI / 2
    sin, cos = xp.sin(theta), xp.cos(theta)
    slope = b * cos + c * (cos - theta * sin) + d * (sin + theta * cos)
    return b * sin + c * theta * cos + d * theta * sin, slope


def _sharp_bent(theta: Any, xp: Any) -> tuple[Any, Any]:
    c = 4 / (PI**2 - 4)
    sin, cos = xp.sin(theta), xp.cos(theta)
    return -2 * c * sin + c * PI * cos, -2 * c * cos - c * PI * sin


def _smooth(theta: Any, xp: Any) -> tuple[Any, Any]:
    sin, cos = xp.sin(2 * theta), xp.cos(2 * theta)
    return PI / 2 * (1 - cos) - 2 * theta - sin, PI * sin - 2 - 2 * cos


def _smooth_bent(theta: Any, xp: Any) -> tuple[Any, Any]:
    return 2 * PI - 8 * theta, -8 + 0 * xp.cos(theta)


SHARP, SMOOTH = Corner(1, _sharp, _sharp_bent), Corner(2, _smooth, _smooth_bent)
"""The corners of the lids g = 1 and g = 4x(1 − x)."""


def corner_flow(corner: Corner, x: Any, y: Any, xp: Any = np) -> Any:
    """The singular part of ψ: r^m F(θ) in both upper corners."""
    total = 0
    for a in (x, 1 - x):
        r, theta = xp.sqrt(a**2 + (1 - y) ** 2), xp.arctan2(1 - y, a)
        total = total + r**corner.power * corner.shape(theta, xp)[0]
    return total


def corner_slopes(corner: Corner, x: Any, y: Any, bent: bool, xp: Any = np) -> tuple[Any, Any]:
    """∂/∂x and ∂/∂y of the singular part, or of its Laplacian."""
    power = corner.power - 2 * bent
    along_x, along_y = 0, 0
    for a, sign in ((x, 1), (1 - x, -1)):
        r, theta = xp.sqrt(a**2 + (1 - y) ** 2), xp.arctan2(1 - y, a)
        value, slope = (corner.bent if bent else corner.shape)(theta, xp)
        radial, turning = power * r ** (power - 1.0) * value, r ** (power - 1.0) * slope
        along_x = along_x + sign * (xp.cos(theta) * radial - xp.sin(theta) * turning)
        along_y = along_y - (xp.sin(theta) * radial + xp.cos(theta) * turning)
    return along_x, along_y


def _series(order: int, nodes: np.ndarray, derivative: int) -> np.ndarray:
    """A derivative of T_0, …, T_order (2x − 1) at nodes of [0, 1]."""
    coefficients = chebyshev.chebder(np.eye(order + 1), derivative, scl=2)
    return chebyshev.chebval(2 * nodes - 1, coefficients).T


class Cavity(NamedTuple):
    """A flow: the coefficients of the smooth part of ψ, and the corner that was taken out."""

    corner: Corner
    coefficients: Float[np.ndarray, "n n"]

    def velocity(self, points: Float[np.ndarray, "N 2"]) -> Float[np.ndarray, "N 2"]:
        """(u, v) at points."""
        order, (x, y) = self.coefficients.shape[0] - 1, points.T
        along_x, along_y = corner_slopes(self.corner, x, y, bent=False)

        def smooth(i: int, j: int) -> np.ndarray:
            left, right = _series(order, x, i), _series(order, y, j)
            return np.einsum("ni,ij,nj->n", left, self.coefficients, right)

        return np.stack([along_y + smooth(0, 1), -along_x - smooth(1, 0)], axis=1)


def _walls(order: int, corner: Corner) -> tuple[np.ndarray, np.ndarray]:
    """ψ and its normal derivative on the four sides: rows, and what the smooth part must be there."""
    edge = (1 + np.cos(PI * (np.arange(order + 1) + 0.5) / (order + 1))) / 2
    along, lid = _series(order, edge, 0), (1.0 if corner is SHARP else 4 * edge * (1 - edge))
    rows, goal = [], []
    for side in (0.0, 1.0):
        across = [_series(order, np.array([side]), k) for k in (0, 1)]
        for axis in (0, 1):
            x, y = (np.full_like(edge, side), edge) if axis == 0 else (edge, np.full_like(edge, side))
            moving = lid if (axis, side) == (1, 1.0) else 0.0
            known = corner_flow(corner, x, y), corner_slopes(corner, x, y, bent=False)[axis] - moving
            rows += [np.kron(a, along) if axis == 0 else np.kron(along, a) for a in across]
            goal += [-value for value in known]
    return np.concatenate(rows), np.concatenate(goal)


def cavity(
    reynolds: float, degree: int, corner: Corner, start: Cavity | None = None, steps: int = 12
) -> tuple[Cavity, float]:
    """Newton's method on the weak form; also how much u changed at last.

    From `start`, a flow of a smaller Reynolds number or degree, where rest is too far away.
    """
    weak = Weak(degree, order=2).over(Box([0, 0], [1, 1]))
    tests = np.asarray(weak.matrix) / weak.nodes  # its rows expect residuals divided by √N
    inner = np.polynomial.legendre.leggauss(weak.nodes)[0] / 2 + 0.5
    V = [_series(degree, inner, k) for k in range(5)]

    def operator(i: int, j: int) -> np.ndarray:
        return np.kron(V[i], V[j])

    dx, dy = operator(1, 0), operator(0, 1)
    bent_x, bent_y = operator(3, 0) + operator(1, 2), operator(2, 1) + operator(0, 3)
    biharmonic = tests @ (operator(4, 0) + 2 * operator(2, 2) + operator(0, 4))
    x, y = (part.reshape(-1) for part in np.meshgrid(inner, inner, indexing="ij"))
    first, bent = (corner_slopes(corner, x, y, bent=flag) for flag in (False, True))
    border, goal = _walls(degree, corner)

    c = np.zeros((degree + 1, degree + 1))
    if start is not None:
        old = start.coefficients.shape[0]
        c[:old, :old] = start.coefficients
    c, change = c.reshape(-1), np.inf
    for _ in range(steps):
        px, py, qx, qy = dx @ c + first[0], dy @ c + first[1], bent_x @ c + bent[0], bent_y @ c + bent[1]
        residual = biharmonic @ c - reynolds * (tests @ (py * qx - px * qy))
        moved = py[:, None] * bent_x + qx[:, None] * dy - px[:, None] * bent_y - qy[:, None] * dx
        q, r = np.linalg.qr(np.concatenate([biharmonic - reynolds * (tests @ moved), border]))
        step = np.linalg.solve(r, q.T @ np.concatenate([-residual, goal - border @ c]))
        c = c + step
        change = float(np.abs(dy @ step).max())
        if change < 1e-11:
            break
    return Cavity(corner, c.reshape(degree + 1, degree + 1)), change
