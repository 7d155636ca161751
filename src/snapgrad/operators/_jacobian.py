"""`sg.jacobian`: from a function, parameters and a batch to an operator."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .._checks import Given, positive_int, trainable
from .._contracts import Batch, Params
from ._explain import SPLIT, Options
from ._realify import Realified
from ._structured import StructuredJacobian, split_function

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def jacobian(
    fn: Given[Callable, ""],
    params: Params,
    batch: Batch,
    *,
    block_size: int | None = None,
    memory_limit: int | str | None = None,
    precision: str = "highest",
    factor_dtype: Given[DTypeLike | None, ""] = None,
    gram_dtype: Given[DTypeLike | None, ""] = None,
) -> StructuredJacobian:
    """The rows ∂f(θ, x_i)/∂θ over a batch, as `gram`, `mv`, `rmv` and `dense`, without forming them.

    **Arguments:**

    - `fn`: `fn(params, x)` for one point; a real scalar, or an array of outputs, each of which becomes a row.
      Complex outputs: wrap it in `sg.realify`. Complex parameters count as pairs of real ones.
    - `params`: a pytree of floating-point arrays. Leaves that are not numbers at all (the activation
      functions of an equinox model, strings, None) are handed to `fn` as they are; tangents and what `rmv`
      returns have None there.
    - `batch`: a pytree of arrays that share their first axis, the points.
    - `block_size`: points whose factors exist at a time in `gram`; all of them by default.
    - `memory_limit`: bytes, or text such as `"2GiB"`, that `gram` may use; chooses the block size.
    - `precision`: the precision of matrix products, as in `jax.default_matmul_precision`; JAX's own default
      on GPUs (TF32) costs three digits. `"float16x3"` makes float32 kernels on NVIDIA cards of three products
      of float16 parts, which are several times faster and about as accurate; elsewhere it is `"highest"`.
    - `factor_dtype`: compute the factors of the kernel in this real type, for example `jnp.float32`;
      products stay in the parameters' type. `gram_error` measures what it costs.
    - `gram_dtype`: the real type in which the kernel is accumulated and returned.

    ```python
    model = lambda p, x: jnp.tanh(x @ p["W"]) @ p["v"]
    params, points = {"W": jnp.ones((2, 3)), "v": jnp.ones(3)}, jnp.linspace(-1, 1, 8).reshape(4, 2)
    jac = sg.jacobian(model, params, points)
    print(jac.explain())
    K = jac.gram()
    ```
    """
    if not callable(fn):
        raise TypeError(f"`fn` must be a function of (params, x), got {type(fn).__name__}.")
    given, params = params, trainable("params", params)
    batch, points = _batch(batch)
    if block_size is not None:
        block_size = min(positive_int("block_size", block_size), points)
    if memory_limit is not None:
        memory_limit = _bytes(memory_limit)
        if block_size is not None:
            raise ValueError("give either `block_size` or `memory_limit`, which chooses one; got both.")
    _check_precision(precision)
    inner, holomorphic = fn, False
    if isinstance(fn, Realified) and fn.holomorphic and _all_complex(params):
        inner, holomorphic = fn.fn, True
    rest = jax.tree.map(lambda p, leaf: leaf if p is None else None, params, given, is_leaf=_is_none)
    if jax.tree.leaves(rest):
        inner = Completed(inner, rest)
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    output = jax.eval_shape(inner, params, x)
    if not isinstance(output, jax.ShapeDtypeStruct):
        raise TypeError(f"`fn` must return one array for a point, got {jax.tree.structure(output)}.")
    if not holomorphic and not jnp.issubdtype(output.dtype, jnp.floating):
        hint = (
            "; sg.realify(fn) gives two real rows for each complex output" if output.dtype.kind == "c" else ""
        )
        raise TypeError(f"`fn` must return real floating-point numbers, got dtype {output.dtype}{hint}.")
    if output.size == 0:
        raise ValueError(f"`fn` must return at least one number for a point, got shape {output.shape}.")
    arrays, static = split_function(inner)
    options = Options(
        block_size=block_size,
        memory_limit=memory_limit,
        precision=precision,
        factor_dtype=_real_type("factor_dtype", factor_dtype),
        gram_dtype=_real_type("gram_dtype", gram_dtype),
        holomorphic=holomorphic,
    )
    shape_dtype = (output.shape, output.dtype)
    return StructuredJacobian(params, batch, None, arrays, static, shape_dtype, options)


class Completed(eqx.Module):
    """`fn(params, x)` as a function of the trained leaves alone, with None for the others."""

    fn: Callable
    rest: Params

    def __call__(self, params: Params, x: Any) -> Any:
        """The output at one point."""
        return self.fn(eqx.combine(params, self.rest), x)


def _check_precision(precision: str) -> None:
    if precision == SPLIT:
        return
    try:
        with jax.default_matmul_precision(precision):
            pass
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`precision` must be 'highest', {SPLIT!r} or another name that jax.default_matmul_precision "
            f"takes; got {precision!r}."
        ) from error


def _is_none(x: Any) -> bool:
    return x is None


def _batch(batch: Any) -> tuple[Any, int]:
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    if not leaves:
        raise ValueError("`batch` must hold at least one array, got an empty tree.")
    arrays = [(f"batch{jax.tree_util.keystr(path)}", jnp.asarray(leaf)) for path, leaf in leaves]
    points = arrays[0][1].shape[0] if arrays[0][1].ndim else 0
    for name, array in arrays:
        if array.ndim == 0 or array.shape[0] == 0:
            raise ValueError(f"`{name}` must have at least one point on its first axis, got {array.shape}.")
        if array.shape[0] != points:
            raise ValueError(
                f"`{name}` must have {points} points on its first axis like the leaves before it, "
                f"got shape {array.shape}."
            )
    return jax.tree.map(jnp.asarray, batch), points


def _bytes(limit: int | str) -> int:
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return limit
    text = str(limit).strip().upper()
    digits = text.rstrip("BKMGTI ")
    unit = text[len(digits) :].strip() or "B"
    try:
        value = float(digits) * _UNITS[unit]
    except (KeyError, ValueError):
        value = 0
    if value < 1:
        raise ValueError(f"`memory_limit` must be bytes, or text such as '2GiB' or '500MB'; got {limit!r}.")
    return int(value)


def _real_type(name: str, dtype: Any) -> str | None:
    if dtype is None:
        return None
    given = jnp.dtype(dtype)
    if not jnp.issubdtype(given, jnp.floating):
        raise TypeError(f"`{name}` must be a real floating-point type, got {given}.")
    if given == jnp.float64 and not jax.config.read("jax_enable_x64"):
        raise ValueError(f"`{name}` is float64, which JAX needs `jax_enable_x64` for; it is off.")
    return given.name


def _all_complex(params: Any) -> bool:
    return all(jnp.iscomplexobj(leaf) for leaf in jax.tree.leaves(params))
