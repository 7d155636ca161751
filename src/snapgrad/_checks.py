"""Argument checks: each error names the argument, what was given and what would be right.

Values known now raise `ValueError`; values inside a trace go through `equinox.error_if`.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

if TYPE_CHECKING:
    from typing import Annotated as Given
else:

    class Given:
        """What may be given: `Given[ArrayLike, "m n"]` for an array of real numbers, `Given[Callable, ""]`.

        For readers and type checkers alone. At run time everything comes in, so that it is the checks below
        that refuse what is wrong, in their own words.
        """

        def __class_getitem__(cls, what: Any) -> Any:
            del what
            return Any


def real_scalar(name: str, value: Any, *, low: float, below: float = np.inf) -> Float[Array, ""]:
    """A floating-point scalar in `[low, below)`."""
    if isinstance(value, bool | str) or value is None:
        raise TypeError(f"`{name}` must be a number, got {value!r}.")
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.integer):
        array = array.astype(jnp.result_type(float))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"`{name}` must be a real number, got dtype {array.dtype}.")
    if array.shape != ():
        raise ValueError(
            f"`{name}` must be one number, got shape {array.shape}; to sweep over several, build the "
            f"method inside `jax.vmap` (or with `eqx.filter_vmap`)."
        )
    known = array if isinstance(array, Tracer) else np.asarray(array)  # eager operations are compiled
    bad = ~((known >= low) & (known < below))
    wanted = f">= {low:g}" if np.isinf(below) else f"in [{low:g}, {below:g})"
    if isinstance(array, Tracer):
        return eqx.error_if(array, bad, f"`{name}` must be {wanted}.")
    if bool(bad):
        raise ValueError(f"`{name}` must be {wanted}, got {value!r}.")
    return array


def positive_int(name: str, value: Any, *, most: int | None = None, most_name: str = "") -> int:
    """A whole number of at least one, and of at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be a whole number, got {value!r}.")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value}.")
    if most is not None and value > most:
        raise ValueError(f"`{name}` must be at most {most_name or most}, which is {most}; got {value}.")
    return int(value)


def real_array(name: str, value: Any, *, ndim: int, rows: int | None = None) -> Float[Array, "..."]:
    """A non-empty, finite, real floating-point array of `ndim` axes (and `rows` entries on the first)."""
    densify = next((name for name in ("toarray", "todense") if hasattr(value, name)), None)
    if densify is not None:  # of SciPy, JAX and others; no array has these
        gigabytes = 8 * float(np.prod([float(size) for size in value.shape])) / 1e9
        raise TypeError(
            f"`{name}` must be a dense array, got a sparse {type(value).__name__} of shape "
            f"{tuple(value.shape)}; `{name}.{densify}()` makes it dense, with {gigabytes:.3g} GB."
        )
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.integer):
        array = array.astype(jnp.result_type(float))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"`{name}` must hold real numbers, got dtype {array.dtype}.")
    if array.ndim != ndim:
        raise ValueError(f"`{name}` must have {ndim} axes, got shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"`{name}` must not be empty, got shape {array.shape}.")
    if rows is not None and array.shape[0] != rows:
        raise ValueError(f"`{name}` must have {rows} entries on its first axis, got shape {array.shape}.")
    if not isinstance(array, Tracer):
        bad = int(np.count_nonzero(~np.isfinite(np.asarray(array))))
        if bad:
            raise ValueError(f"`{name}` must be finite, got {bad} entries that are NaN or infinite.")
    return array


def float_params(name: str, params: Any) -> Any:
    """A pytree whose leaves are all floating-point arrays."""
    if not jax.tree.leaves(params):
        raise ValueError(f"`{name}` must hold at least one array, got {params!r}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        where = f"{name}{jax.tree_util.keystr(path)}"
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"`{where}` must be a floating-point array, got {type(leaf).__name__}"
                + (f" of dtype {dtype}" if dtype is not None else "")
                + "; split off what is not trained, for example with `equinox.partition`."
            )
    return params


def trainable(name: str, params: Any) -> Any:
    """The floating-point leaves of a tree as arrays, with None where a leaf is held fixed.

    Activation functions, strings, flags and everything else that is not a number is held fixed, as
    `equinox.filter(params, equinox.is_inexact_array)` would do; `equinox.combine(trainable, params)` puts it
    back. Python floats and NumPy arrays count as arrays. Whole numbers raise `TypeError`, because they can be
    neither trained nor told from a forgotten decimal point; a tree without any number raises `ValueError`.
    """

    def convert(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, bool) or not (hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)):
            return None
        dtype = getattr(leaf, "dtype", type(leaf))
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"`{name}{jax.tree_util.keystr(path)}` must be a floating-point array, got "
                f"{type(leaf).__name__}{'' if dtype is type(leaf) else f' of dtype {dtype}'}"
                "; split off what is not trained, for example with `equinox.partition`."
            )
        return jnp.asarray(leaf, jnp.result_type(dtype)) if dtype is type(leaf) else jnp.asarray(leaf)

    found = jax.tree_util.tree_map_with_path(convert, params)
    if not jax.tree.leaves(found):
        raise ValueError(f"`{name}` must hold at least one floating-point array, got {params!r}.")
    return found


def same_tree(name: str, given: Any, wanted: Any, what: str) -> None:
    """`given` has the structure and leaf shapes of `wanted`."""
    if jax.tree.structure(given) != jax.tree.structure(wanted):
        raise ValueError(
            f"`{name}` must have the tree structure of {what}, {jax.tree.structure(wanted)}; "
            f"got {jax.tree.structure(given)}."
        )
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(wanted), strict=True):
        if jnp.shape(a) != jnp.shape(b):
            raise ValueError(
                f"`{name}{jax.tree_util.keystr(path)}` must have shape {jnp.shape(b)} as in {what}, "
                f"got {jnp.shape(a)}."
            )


def one_of(name: str, value: Any, options: tuple[str, ...]) -> Any:
    """One of a few words."""
    if value not in options:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, options))}; got {value!r}.")
    return value
