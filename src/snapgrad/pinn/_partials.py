"""Which directions serve for given partial derivatives: powers of linear forms that span monomials."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from math import factorial, gcd, prod

import numpy as np
from jaxtyping import Float

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
        for partial in sorted(wanted, key=lambda p: -np.count_nonzero(p)):  # mixed ones serve pure ones
            added = []
            for candidate in _polarised(partial):
                if _weights(chosen + added, [partial], order) is not None:
                    break
                if candidate not in chosen:
                    added.append(candidate)
            for candidate in tuple(added):
                rest = [other for other in added if other != candidate]
                if _weights(chosen + rest, [partial], order) is not None:
                    added = rest
            chosen += added
        weights = _weights(chosen, wanted, order)
        assert weights is not None
        used = np.any(weights, axis=0)
        found[order] = Wanted(np.array(chosen, float).reshape(-1, dim)[used], weights[:, used])
    return found


def _polarised(partial: Direction) -> list[Direction]:
    """Directions for one derivative: Π xᵢ^mᵢ is a sum of powers of Σ (mᵢ − 2vᵢ) xᵢ over 0 ≤ v ≤ m."""
    found = []
    for v in product(*(range(m + 1) for m in partial)):
        direction = tuple(m - 2 * i for m, i in zip(partial, v, strict=True))
        divisor = gcd(*direction)
        if divisor and next(s for s in direction if s) > 0:  # one of each pair ±s
            found.append(tuple(s // divisor for s in direction))
    return sorted(set(found), key=lambda s: (np.count_nonzero(s), s))


def _weights(
    directions: Sequence[Direction], partials: Sequence[Direction], order: int
) -> Float[np.ndarray, "m q"] | None:
    """Weights w with ∂^partial = Σ_q w_q (s_q·∂)^order for each one, or None if there are none."""
    if not directions:
        return None
    used = np.flatnonzero(np.any(np.array([*directions, *partials]), axis=0)).tolist()
    monomials = [m for m in product(range(order + 1), repeat=len(used)) if sum(m) == order]
    powers = [[prod(s[i] ** e for i, e in zip(used, m, strict=True)) for s in directions] for m in monomials]
    matrix = np.array(powers) * np.array([[factorial(order) / prod(map(factorial, m))] for m in monomials])
    target = np.array([[float(tuple(p[i] for i in used) == m) for p in partials] for m in monomials])
    weights = np.linalg.lstsq(matrix, target, rcond=None)[0]
    if not np.allclose(matrix @ weights, target, rtol=0, atol=1e-9):
        return None
    return np.where(np.abs(weights) < 1e-12, 0, weights).T


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
