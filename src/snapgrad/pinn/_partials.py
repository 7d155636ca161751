"""Which directions serve for given partial derivatives: powers of linear forms that span monomials."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement, product
from math import factorial, gcd, prod

import numpy as np

from ._forward import Wanted

Direction = tuple[int, ...]


@cache
def directions_for(dim: int, partials: tuple[Direction, ...]) -> dict[int, Wanted]:
    """Few directions s whose derivatives dᵏ/dtᵏ, the k-th powers of s·∂, span the partial derivatives.

    Each partial derivative is given by how often each coordinate occurs. The highest orders choose first, as
    what they chose serves lower ones too: ∂²/∂x∂y takes the directions (1, 1) and (1, −1), and these give
    ∂/∂x and ∂/∂y.
    """
    chosen: list[Direction] = []
    found = {}
    for order in sorted({sum(partial) for partial in partials} - {0}, reverse=True):
        wanted = [partial for partial in partials if sum(partial) == order]
        weights = {}
        for partial in sorted(wanted, key=lambda p: -np.count_nonzero(p)):  # mixed ones serve pure ones
            chosen += _missing(chosen, partial)
            weights[partial] = _weights(chosen, partial)
        table = np.array([[weights[partial].get(s, 0.0) for s in chosen] for partial in wanted])
        used = np.any(table, axis=0)
        found[order] = Wanted(np.array(chosen, float).reshape(-1, dim)[used], table[:, used])
    return found


def _missing(chosen: list[Direction], partial: Direction) -> list[Direction]:
    """The directions to add for one more derivative: none that could be left out."""
    added: list[Direction] = []
    for candidate in _polarised(partial):
        if _weights(chosen + added, partial) is not None:
            break
        if candidate not in chosen:
            added.append(candidate)
    for candidate in tuple(added):
        rest = [other for other in added if other != candidate]
        if _weights(chosen + rest, partial) is not None:
            added = rest
    return added


def _polarised(partial: Direction) -> list[Direction]:
    """Directions for one derivative: Π xᵢ^mᵢ is a sum of powers of Σ (mᵢ − 2vᵢ) xᵢ over 0 ≤ v ≤ m."""
    found = []
    for v in product(*(range(m + 1) for m in partial)):
        direction = tuple(m - 2 * i for m, i in zip(partial, v, strict=True))
        divisor = gcd(*direction)
        if divisor and next(s for s in direction if s) > 0:  # one of each pair ±s
            found.append(tuple(s // divisor for s in direction))
    return sorted(set(found), key=lambda s: (np.count_nonzero(s), s))


def _weights(directions: Sequence[Direction], partial: Direction) -> dict[Direction, float] | None:
    """Weights w with ∂^partial = Σ_s w_s (s·∂)^order, or None if there are none."""
    order = sum(partial)
    alone = tuple(int(m > 0) for m in partial)
    if sum(alone) == 1 and alone in directions:
        return {alone: 1.0}
    axes, linked = _linked(directions, partial)
    if not linked:
        return None
    monomials = [tuple(map(chain.count, axes)) for chain in combinations_with_replacement(axes, order)]
    powers = [[prod(s[i] ** e for i, e in zip(axes, m, strict=True)) for s in linked] for m in monomials]
    matrix = np.array(powers) * np.array([[factorial(order) / prod(map(factorial, m))] for m in monomials])
    target = np.array([float(m == tuple(partial[i] for i in axes)) for m in monomials])
    weights = np.linalg.lstsq(matrix, target, rcond=None)[0]
    if not np.allclose(matrix @ weights, target, rtol=0, atol=1e-9):
        return None
    return {s: float(w) for s, w in zip(linked, weights, strict=True) if abs(w) > 1e-12}


def _linked(directions: Sequence[Direction], partial: Direction) -> tuple[list[int], list[Direction]]:
    """The axes that directions link to those of a derivative, and these directions: others do not matter."""
    axes = {i for i, m in enumerate(partial) if m}
    linked: list[Direction] = []
    while True:
        more = [s for s in directions if s not in linked and any(s[i] for i in axes)]
        if not more:
            return sorted(axes), linked
        linked += more
        axes |= {i for s in more for i, component in enumerate(s) if component}


def biharmonic_directions(dim: int) -> Wanted:
    """Directions and weights with Σ w (s·∂)⁴ = Δ²."""
    axes = np.eye(dim)
    if dim == 1:
        return Wanted(axes, np.ones((1, 1)))
    if dim == 2:  # three axes at 60°: Σ cos⁴ = 9/8 in all directions
        angles = np.pi / 3 * np.arange(3)
        return Wanted(np.stack([np.cos(angles), np.sin(angles)], axis=1), np.full((1, 3), 8 / 9))
    # (∂ᵢ + ∂ⱼ)⁴ + (∂ᵢ − ∂ⱼ)⁴ = 2∂ᵢ⁴ + 12∂ᵢ²∂ⱼ² + 2∂ⱼ⁴
    pairs = [axes[i] + sign * axes[j] for i in range(dim) for j in range(i) for sign in (1, -1)]
    weights = np.append(np.full(dim, 1 - (dim - 1) / 3), np.full(len(pairs), 1 / 6))
    kept = weights != 0  # in four dimensions pairs are enough
    return Wanted(np.concatenate([axes, pairs])[kept], weights[None, kept])
