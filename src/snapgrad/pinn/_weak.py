"""Weak forms: an equation asked against test functions instead of at points."""

import itertools
import math
from functools import reduce
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import legendre

from .._checks import positive_int
from ._domains import Box

MOST = 4096
"""More test functions than these take too long to make orthonormal."""


class Weak(eqx.Module):
    """Ask for ∫ r v = 0 against test functions v instead of r(x) = 0 at points: `Block(..., weak=Weak(...))`.

    The residual of a solution that is not resolved yet, or singular in a corner, can be large while the
    solution is nearly right, and small where it is wrong. Measured against smooth test functions it tells how
    far the solution is off: `order` m is half the order of the equation (1 for a Laplacian, 2 for a
    biharmonic), and rows are integrals against polynomials that vanish on the sides of the box with all
    derivatives below m, orthonormal in ∫|∇ᵐv|². What training then minimises is the error of u in the same
    norm, up to constants, where pointwise residuals would be those of its 2m-th derivatives.

    It is for solutions whose values on the sides come from other blocks or from the network; on the sides
    themselves the equation is not asked. Points are Gauss–Legendre nodes, always the same ones, so a network
    that could follow them should have no more parameters than there are test functions and other rows.

    **Arguments:**

    - `degree`: of the test functions in each coordinate, (degree + 1 − 2m)ᵈ of them: that of a
      `sg.pinn.Polynomial` for a network, or as fine as the solution is.
    - `order`: m. With 0 test functions do not vanish anywhere, and rows are those of the least-squares
      residual.
    - `nodes`: of the quadrature along each coordinate; by default half as many again as the degree, with
      which products of two such polynomials with a test function are integrated exactly.

    ```python
    box = sg.pinn.Box([0, 0], [1, 1])
    problem = sg.pinn.PINN(
        sg.pinn.Polynomial([0, 0], [1, 1], degree=8),
        [
            sg.pinn.Block("interior", lambda u, x: sg.pinn.laplacian(u, x) + 1, box, weak=sg.pinn.Weak(8)),
            sg.pinn.Block("boundary", lambda u, x: u(x), box.boundary(), points=80, weight=100),
        ],
    )
    sg.pinn.solve(problem, jax.random.key(0), steps=4)(jnp.array([0.5, 0.5]))           # 0.0737
    ```
    """

    degree: int = eqx.field(static=True)
    order: int = eqx.field(static=True)
    nodes: int = eqx.field(static=True)
    matrix: Float[Array, "q N"] | None
    """What takes the weighted residuals at the nodes to their integrals, once the domain is known."""

    def __init__(self, degree: int, order: int = 1, nodes: int | None = None):
        self.degree, self.matrix = positive_int("degree", degree), None
        if isinstance(order, bool) or not isinstance(order, int) or order < 0:
            raise ValueError(f"`order` must be 0, 1, …, got {order!r}.")
        self.order = order
        if self.degree < 2 * order:
            raise ValueError(f"`degree` must be at least {2 * order} for `order` = {order}, got {degree}.")
        least = self.degree + 1
        self.nodes = least + -(-self.degree // 2) if nodes is None else positive_int("nodes", nodes)
        if self.nodes < least:
            raise ValueError(f"`nodes` must be at least {least} for `degree` = {degree}, got {nodes}.")

    def over(self, domain: Any) -> "Weak":
        """Returns the same with the matrix of its integrals on a `sg.pinn.Box`; `ValueError` on others."""
        if not isinstance(domain, Box) or any(domain.periodic):
            raise ValueError(
                f"`weak` is for sg.pinn.Box without periodic coordinates, got "
                f"{'one with some' if isinstance(domain, Box) else type(domain).__name__}."
            )
        count = (self.degree + 1 - 2 * self.order) ** domain.dim
        if count > MOST:
            raise ValueError(
                f"`degree` = {self.degree} makes {count} test functions of {domain.dim} coordinates; at most "
                f"{MOST} are possible."
            )
        matrix = _matrix(self, np.asarray(domain.high - domain.low))
        return eqx.tree_at(lambda weak: weak.matrix, self, jnp.asarray(matrix, float), is_leaf=_is_none)


def _matrix(weak: Weak, lengths: Float[np.ndarray, " d"]) -> Float[np.ndarray, "q N"]:
    """From the residuals of N nodes, each divided by √N, to the integrals."""
    points, weights = legendre.leggauss(weak.nodes)
    # The order-th antiderivatives of Legendre polynomials vanish at both ends with all that are asked.
    tops = np.eye(weak.degree + 1 - weak.order)[weak.order :].T
    series = legendre.legint(tops, weak.order, lbnd=-1)
    values = [legendre.legval(points, legendre.legder(series, i)) for i in range(weak.order + 1)]
    masses = [(value * (weights / 2)) @ value.T for value in values]
    energy = np.zeros(1)
    for orders in itertools.product(range(weak.order + 1), repeat=len(lengths)):
        if sum(orders) == weak.order:
            times = math.factorial(weak.order) / math.prod(map(math.factorial, orders))
            parts = [masses[i] * (2 / length) ** (2 * i) for i, length in zip(orders, lengths, strict=True)]
            energy = energy + times * reduce(np.kron, parts)
    integrals = reduce(np.kron, [values[0] * (weights / 2)] * len(lengths))
    return np.linalg.solve(np.linalg.cholesky(energy), integrals) * math.sqrt(integrals.shape[1])


def _is_none(x: Any) -> bool:
    return x is None
