"""Products of rows with rows, and symmetric sums of them, K = Σ R Rᵀ, of which only one half is computed.

A GPU has a routine for the symmetric ones (`syrk`). Elsewhere rows are taken in blocks, and each block
meets itself and those before it. With `split`, float32 rows are multiplied as two float16 parts each, in
three products that are nearly as accurate; on tensor cores these are several times faster than one in
float32.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import Precision
from jaxtyping import Array, DTypeLike, Float, Inexact

CPU_BLOCK, SPLIT_BLOCK = 128, 2048
"""Rows per block on a CPU, and on a GPU in three products: smaller blocks leave out more of the upper half of
a kernel, but are multiplied less quickly."""
MOST_BLOCKS = 8
"""More of them would save little, and take longer to compile."""
SYRK_WORK = 2**34
"""With fewer multiply-adds a GPU takes the plain product: its routine for symmetric ones, as JAX calls it,
keeps the host busy until it is done (seen on an H200), which many small calls would pay for."""
SPLIT_COLUMNS, MOST_SPLIT_SUMS = 1024, 16
"""Columns that tensor cores add up at a time in the product of the large parts, and how many such sums there
are at most. They cut off what they hold (1.1e-4 is lost in a sum of 16,384 columns, measured on an H200);
shorter sums would be more accurate, and spend their time on adding up."""
FLOAT16_EXPONENT = 15
"""Parts are scaled so that the largest of a row lies just below two to this power, where float16 ends."""


def on_gpu() -> bool:
    """Returns whether JAX compiles its programs for a GPU.

    ```python
    sg.linalg.on_gpu()                                                     # False on a machine without one
    ```
    """
    return jax.default_backend() == "gpu"


def splits(dtype: DTypeLike) -> bool:
    """Returns whether this machine multiplies parts of numbers of type `dtype` faster than the numbers.

    Tensor cores of NVIDIA cards do so with the float16 parts of float32 numbers.

    ```python
    sg.linalg.splits("float32")                                            # True on a GPU
    ```
    """
    return on_gpu() and jnp.dtype(dtype) == jnp.float32


def product(
    a: Inexact[Array, "*z m d"], b: Inexact[Array, "*z n d"], split: bool = False
) -> Inexact[Array, "*z m n"]:
    """Returns A Bᴴ at full precision: on GPUs JAX's default would be TF32, good to three digits.

    **Arguments:**

    - `a`, `b`: A `[m, d]` and B `[n, d]`, with the same batch axes before these.
    - `split`: multiply float16 parts where `sg.linalg.splits` says so, three products for one, at a third of
      the time and a few digits less.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    sg.linalg.product(J, J[:2])                                            # [6, 2]
    ```
    """
    if split and a.dtype == b.dtype and splits(a.dtype):
        return _three_products(_parts(a), _parts(b))
    return _dot(a, b.conj())


def mirror(K: Float[Array, "*z k k"]) -> Float[Array, "*z k k"]:
    """Returns the symmetric matrix of which `K` has the half on and below the diagonal.

    The rest of `K` is ignored.

    ```python
    sg.linalg.mirror(jnp.array([[1.0, 0.0], [2.0, 3.0]]))                  # [[1, 2], [2, 3]]
    ```
    """
    return jnp.tril(K) + jnp.swapaxes(jnp.tril(K, -1), -1, -2)


class SymmetricSum(eqx.Module):
    """Σ R Rᵀ, to which rows R are added a few columns at a time; `sg.linalg.symmetric_sum` begins one.

    - `strips`: what was added up so far, on and below the diagonal: the rows of each block.
    - `edges`: the rows at which blocks begin and end.
    - `split`: whether float16 parts are multiplied.

    ```python
    J = jax.random.normal(jax.random.key(0), (6, 4))
    total = sg.linalg.symmetric_sum(6, J.dtype)
    for piece in (J[:, :2], J[:, 2:]):
        total = total.add([piece[start:stop] for start, stop in total.blocks()])
    K = sg.linalg.mirror(total.lower())                                    # J Jᵀ
    ```
    """

    strips: tuple[Float[Array, "_ _"], ...]  # the rows of each block, up to the block's own columns
    edges: tuple[int, ...] = eqx.field(static=True)
    split: bool = eqx.field(static=True)

    @property
    def size(self) -> int:
        """How many rows (and columns) the matrix has."""
        return self.edges[-1]

    def blocks(self, multiple: int = 1) -> list[tuple[int, int]]:
        """Returns the first and the last row of each block, counted in points of so many rows."""
        return list(itertools.pairwise(edge // multiple for edge in self.edges))

    def add(self, rows: Sequence[Float[Array, "_ w"]]) -> "SymmetricSum":
        """Returns the sum with R Rᵀ added to it, where R is given by its `blocks`."""
        if syrk_pays(*rows[0].shape) and len(rows) == 1 and not self.split:
            return SymmetricSum((gram_onto(rows[0], self.strips[0]),), self.edges, False)
        if self.split:
            parts = [_parts(block) for block in rows]
            pairs = [[_three_products(a, b) for b in parts[: i + 1]] for i, a in enumerate(parts)]
        else:
            pairs = [[product(a, b) for b in rows[: i + 1]] for i, a in enumerate(rows)]
        return self.add_strips([jnp.concatenate(strip, axis=1) for strip in pairs])

    def add_strips(self, strips: Sequence[Float[Array, "_ _"]]) -> "SymmetricSum":
        """Returns the sum with another symmetric matrix added to it.

        That matrix is given as the sum stores its own: one strip of rows for each block, up to the diagonal.
        """
        total = tuple(a + b for a, b in zip(self.strips, strips, strict=True))
        return SymmetricSum(total, self.edges, self.split)

    def lower(self) -> Float[Array, "k k"]:
        """Returns the sum as one matrix, of which only the half on and below the diagonal has a meaning."""
        if len(self.strips) == 1:
            return self.strips[0]
        return jnp.concatenate([jnp.pad(s, ((0, 0), (0, self.size - s.shape[1]))) for s in self.strips])


def symmetric_sum(size: int, dtype: DTypeLike, split: bool = False, multiple: int = 1) -> SymmetricSum:
    """Returns a `sg.linalg.SymmetricSum` to which nothing was added yet.

    **Arguments:**

    - `size`: the number of rows of R.
    - `dtype`: the type of the numbers that are added up.
    - `split`: multiply float16 parts where that is faster, see `sg.linalg.product`.
    - `multiple`: rows that belong together, such as the outputs of one point; a block ends between them.

    ```python
    total = sg.linalg.symmetric_sum(6, jnp.float32)
    total.blocks()                                                         # which rows `add` takes together
    ```
    """
    split = split and splits(dtype)
    count = 1 if on_gpu() and not split else _blocks(size, max(SPLIT_BLOCK if split else CPU_BLOCK, multiple))
    edges = tuple(size // multiple * i // count * multiple for i in range(count + 1))
    strips = tuple(jnp.zeros((b - a, b), dtype) for a, b in itertools.pairwise(edges))
    return SymmetricSum(strips, edges, split)


def symmetric_share(size: int) -> float:
    """Returns which part of a symmetric product with `size` rows is computed; the rest is its
    mirror image.

    ```python
    sg.linalg.symmetric_share(1024)                                        # a little over one half
    ```
    """
    return 0.5 if on_gpu() else (1 + 1 / _blocks(size, CPU_BLOCK)) / 2


def _blocks(size: int, wanted: int) -> int:
    return max(1, min(MOST_BLOCKS, size // wanted))


def syrk_pays(rows: int, columns: int) -> bool:
    """Returns whether `sg.linalg.gram_onto` beats the plain product for so many `rows` and `columns`.

    ```python
    sg.linalg.syrk_pays(2048, 20000)                                       # True on a GPU
    ```
    """
    return on_gpu() and rows**2 * columns >= SYRK_WORK


@jax.custom_jvp
def gram_onto(rows: Float[Array, "k w"], K: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """Returns `K` + R Rᵀ for R = `rows`, on and below the diagonal; what lies above it means nothing.

    ```python
    rows = jax.random.normal(jax.random.key(0), (6, 4))
    K = sg.linalg.mirror(sg.linalg.gram_onto(rows, jnp.zeros((6, 6))))
    ```
    """
    return lax.linalg.symmetric_product(rows, K, alpha=1.0, beta=1.0)


@gram_onto.defjvp
def _gram_onto_jvp(primals, tangents):  # JAX has no rule for it
    (rows, K), (d_rows, d_K) = primals, tangents
    change = product(d_rows, rows)
    return gram_onto(rows, K), d_K + change + change.T


def _dot(a: Inexact[Array, "*z m d"], b: Inexact[Array, "*z n d"]) -> Inexact[Array, "*z m n"]:
    batch = tuple(range(a.ndim - 2))
    dims = ((a.ndim - 1,), (b.ndim - 1,)), (batch, batch)
    if a.dtype == jnp.float16:
        return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)
    return lax.dot_general(a, b, dims, precision=Precision.HIGHEST)


class _Parts(NamedTuple):
    """Rows as float16 numbers, x = unit (high + low) to the rounding of float32."""

    high: Inexact[Array, "*z m d"]
    low: Inexact[Array, "*z m d"]
    unit: Float[Array, "*z m 1"]


def _three_products(a: _Parts, b: _Parts) -> Float[Array, "*z m n"]:
    """A Bᵀ, but for the product of both low parts, which is lost in the rounding."""
    if a is b:
        cross = _dot(a.low, a.high)
        cross = cross + jnp.swapaxes(cross, -1, -2)
    else:
        cross = _dot(a.low, b.high) + _dot(a.high, b.low)
    columns = a.high.shape[-1]
    width = max(SPLIT_COLUMNS, -(-columns // MOST_SPLIT_SUMS))
    total = cross
    for start in range(0, columns, width):
        total = total + _dot(a.high[..., start : start + width], b.high[..., start : start + width])
    return total * a.unit * jnp.swapaxes(b.unit, -1, -2)


def _parts(x: Float[Array, "*z m d"]) -> _Parts:
    most = jnp.max(jnp.abs(lax.stop_gradient(x)), axis=-1, keepdims=True)
    _, exponent = jnp.frexp(jnp.where(jnp.isfinite(most) & (most > 0), most, 1))
    unit = jnp.ldexp(jnp.ones_like(most), exponent - FLOAT16_EXPONENT)
    scaled = x / unit
    high = scaled.astype(jnp.float16)
    return _Parts(high, (scaled - high.astype(x.dtype)).astype(jnp.float16), unit)
