"""Which leaves of the parameters are trained, and how trees of all and of the trained leaves correspond."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._contracts import Params


class Selection(NamedTuple):
    """A choice of leaves of a parameter tree; hashable, so that it may be part of a compiled program."""

    whole: Any  # the structure of all parameters
    part: Any  # the structure of the trained ones, with the placeholders that the user gave
    kept: tuple[bool, ...]  # for each leaf of the whole
    shapes: tuple[jax.ShapeDtypeStruct, ...]  # of each leaf of the whole

    def take(self, tree: Params) -> Params:
        """The trained leaves of a tree of all parameters."""
        return jax.tree.unflatten(self.part, self._split(tree)[0])

    def frozen(self, tree: Params) -> list[Any]:
        """The other leaves of a tree of all parameters."""
        return self._split(tree)[1]

    def merge(self, tree: Params, frozen: list[Any]) -> Params:
        """All parameters, from a tree of the trained leaves and a list of the others."""
        trained, rest = iter(jax.tree.leaves(tree)), iter(frozen)
        return jax.tree.unflatten(self.whole, [next(trained if keep else rest) for keep in self.kept])

    def fill(self, tree: Params) -> Params:
        """All parameters, with zeros for those that are not trained."""
        rest = [s for s, keep in zip(self.shapes, self.kept, strict=True) if not keep]
        return self.merge(tree, [jnp.zeros(s.shape, s.dtype) for s in rest])

    def columns(self) -> np.ndarray:
        """The columns of J that belong to trained leaves; a complex leaf has two for each entry."""
        counts = [int(np.prod(s.shape)) * (2 if s.dtype.kind == "c" else 1) for s in self.shapes]
        return np.flatnonzero(np.repeat(self.kept, counts))

    def _split(self, tree: Params) -> tuple[list[Any], list[Any]]:
        pairs = list(zip(jax.tree.leaves(tree), self.kept, strict=True))
        return [leaf for leaf, keep in pairs if keep], [leaf for leaf, keep in pairs if not keep]


def select(params: Params, keep: Any) -> Selection:
    """Read `keep`: a prefix of booleans, or a tree with nothing where the parameters have something."""
    marks = jax.tree.leaves(keep)
    if marks and all(isinstance(mark, bool | np.bool_) for mark in marks):
        try:
            keep = jax.tree.map(lambda mark, leaf: leaf if mark else None, keep, params)
        except ValueError as error:
            raise _mismatch(params, keep) from error
    if not jax.tree.leaves(keep):
        raise ValueError(f"`keep` must leave at least one parameter to train, got {keep!r}.")
    # A subtree without leaves (None, `optax.MaskedNode()`) stands for whatever the parameters have there.
    given, outline = jax.tree.flatten(keep, is_leaf=_is_empty)
    try:
        parts = outline.flatten_up_to(params)
    except ValueError as error:
        raise _mismatch(params, keep) from error
    kept: list[bool] = []
    for mark, part in zip(given, parts, strict=True):
        if not _is_empty(mark) and not jax.tree_util.treedef_is_leaf(jax.tree.structure(part)):
            raise _mismatch(params, keep)
        kept += [not _is_empty(mark)] * len(jax.tree.leaves(part))
    shapes = tuple(jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype) for leaf in jax.tree.leaves(params))
    return Selection(jax.tree.structure(params), jax.tree.structure(keep), tuple(kept), shapes)


def _is_empty(tree: Any) -> bool:
    return not jax.tree.leaves(tree)


def _mismatch(params: Params, keep: Any) -> ValueError:
    return ValueError(
        "`keep` must be a prefix of booleans of the parameters, or the parameters with None or "
        f"`optax.MaskedNode()` in place of what is frozen. The parameters are {jax.tree.structure(params)}; "
        f"got {jax.tree.structure(keep)}."
    )
