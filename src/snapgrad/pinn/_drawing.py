"""How points are drawn: a domain places points of a unit cube, and may refuse some of them."""

import abc
import math
import warnings
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._checks import positive_int

SURVEY = 2**14
"""Evenly spread points by which a domain finds out what share of its candidates it accepts."""
LEAST_SHARE = 0.002
"""A domain that accepts fewer of its candidates is refused: drawing from it would be a waste."""


class Sites(eqx.Module):
    """Points `[N, d]` with named columns beside them, such as normals, which residuals take by keyword."""

    x: Float[Array, "N d"]
    columns: dict[str, Float[Array, "N ..."]]


class AbstractDomain(eqx.Module):
    """A set of points with a uniform distribution, described as the image of a unit cube.

    A domain of your own says how many coordinates its points have (`dim`), how many uniform numbers place one
    (`unit_dim`), and where they place it (`place`):

    ```python
    class Triangle(sg.pinn.AbstractDomain):
        dim: int = 2
        unit_dim: int = 2

        def place(self, unit):                  # fold the square along its diagonal
            return jnp.where(unit.sum(axis=1, keepdims=True) > 1, 1 - unit, unit)

    Triangle().spread(jax.random.key(0), 100)   # 100 evenly spread points, an array of shape (100, 2)
    ```

    A domain that is no such image places candidates, says which of them belong to it (`accepts`) and how many
    of them do (`share`, from 0 to 1). A boundary that knows its normals returns them (`normals`).
    """

    dim: eqx.AbstractVar[int]
    """How many coordinates a point has."""
    unit_dim: eqx.AbstractVar[int]
    """How many uniform numbers place a point."""

    @property
    def periods(self) -> dict[int, float]:
        """The coordinates in which the domain is periodic, each with the length of its period; by default
        none.
        """
        return {}

    def bounds(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Returns the corners of a box around the domain: by default of one around a few thousand of its
        points.
        """
        points = self.spread(jax.random.key(0), 4096)
        points = points.x if isinstance(points, Sites) else points
        return jnp.min(points, axis=0), jnp.max(points, axis=0)

    @abc.abstractmethod
    def place(self, unit: Float[Array, "N q"]) -> Float[Array, "N d"]:
        """Maps points of the unit cube to points of the domain, or to candidates; uniform ones to uniform
        ones.
        """

    @property
    def share(self) -> float | None:
        """The share of candidates that belong to the domain, or None where all of them do."""
        return None

    def accepts(self, unit: Float[Array, "N q"], points: Float[Array, "N d"]) -> Bool[Array, " N"]:
        """Returns which candidates belong to the domain, where `share` is given."""
        del unit
        return jnp.ones(points.shape[0], bool)

    def normals(self, points: Float[Array, "N d"]) -> Float[Array, "N d"] | None:
        """Returns outward normals at points of the domain, where residuals are to receive them, else None."""
        del points
        return None

    def sample(self, key: PRNGKeyArray, count: int) -> Float[Array, "N d"] | Sites:
        """Draws independent uniform points.

        Returns an array `[count, d]`, with normals beside it where the domain has them.
        """
        shape = (_candidates(positive_int("count", count), self.share), self.unit_dim)
        return self._drawn(jax.random.uniform(key, shape), count)

    def spread(self, key: PRNGKeyArray, count: int) -> Float[Array, "N d"] | Sites:
        """Draws evenly spread points, a Sobol sequence that is shifted at random around the unit cube.

        Returns what `sample` returns.
        """
        shift = jax.random.uniform(key, (1, self.unit_dim))
        candidates = _candidates(positive_int("count", count), self.share)
        levels = jnp.asarray(sobol(self.unit_dim, candidates), shift.dtype)
        return self._drawn((levels + shift) % 1, count)

    def _drawn(self, unit: Float[Array, "M q"], count: int) -> Float[Array, "N d"] | Sites:
        points = self.place(unit)
        if self.share is not None:
            accepted = self.accepts(unit, points)
            first = jnp.argsort(~accepted, stable=True)
            # Too few are accepted less than once in a billion draws; some then come twice.
            points = points[first[jnp.arange(count) % jnp.maximum(jnp.sum(accepted), 1)]]
        normals = self.normals(points)
        return points if normals is None else Sites(points, {"normal": normals})


def unit_grid(key: PRNGKeyArray, counts: tuple[int, ...], even: tuple[bool, ...]) -> Float[Array, "N q"]:
    """A grid in the unit cube: Gauss–Legendre nodes, or even ones that are shifted at random."""
    axes = []
    for axis, count in enumerate(counts):
        if even[axis]:
            shift = jax.random.uniform(jax.random.fold_in(key, axis))
            axes.append((jnp.arange(count) + shift) / count)
        else:
            axes.append(jnp.asarray(np.polynomial.legendre.leggauss(count)[0] / 2 + 0.5))
    return jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(counts))


def _candidates(count: int, share: float | None) -> int:
    """So many that `count` are accepted but for six standard deviations, those of the survey included."""
    if share is None:
        return count
    spread = 9 * (1 - share)
    sure = share - 3 * math.sqrt(share * (1 - share) / SURVEY)
    return math.ceil((math.sqrt(spread) + math.sqrt(spread + count)) ** 2 / sure)


def surveyed(domain: AbstractDomain, what: str) -> float:
    """The share of candidates that a domain accepts; `ValueError` where it is hopeless."""
    share = float(_share(domain, jnp.asarray(sobol(domain.unit_dim, SURVEY), float)))
    if share < LEAST_SHARE:
        size = f"covers less than {LEAST_SHARE:.1%}" if share else "covers none"
        raise ValueError(
            f"{what} {size} of where its points are sought; check that it is not empty, or describe it by "
            f"smaller parts."
        )
    return share


@eqx.filter_jit
def _share(domain: AbstractDomain, unit: Float[Array, "N q"]) -> Float[Array, ""]:
    return jnp.mean(domain.accepts(unit, domain.place(unit)).astype(float))


@lru_cache(maxsize=32)
def sobol(dim: int, count: int) -> Float[np.ndarray, "N q"]:
    """The first points of a scrambled Sobol sequence, always the same ones, on `count` levels per axis.

    Levels keep every axis evenly filled whatever the count, so that two points on the boundary of an
    interval are its two ends.
    """
    from scipy.stats import qmc  # takes seconds to import, and many uses of the library never come here

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is less even for counts that are no power of two
        points = qmc.Sobol(dim, scramble=True, rng=0).random(count)
    return points.argsort(axis=0).argsort(axis=0) / count
