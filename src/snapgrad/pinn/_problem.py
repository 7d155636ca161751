"""A PINN: a network, and named blocks of residuals on sampled domains."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from .._checks import Given, float_params, real_array
from .._contracts import AbstractProblem, AbstractSampler, Batch, Linearisation, Params
from ..operators import AbstractRows, StructuredJacobian, jacobian, stack
from ..structure.compat import ClosedJaxpr, Literal
from ._blocks import Block, Row, draw_points, points_of, taken, weighted
from ._domains import Points
from ._drawing import AbstractDomain, Sites
from ._network import Network, check_network, evaluate
from ._sampling import Collocation

REFRESH_EVERY = 25
"""The most steps between two sets of points where they outnumber the parameters: with more of them a network
can follow its points away from the solution, with fewer it cannot follow a narrow valley of the loss."""
EVALUATION_POINTS = 4096
"""Points on which errors and losses are measured; never those of training."""


class PINN(AbstractProblem):
    """Find u, a network, whose residuals vanish: min Σ_b w_b · mean of ½ r_b² over the blocks.

    **Arguments:**

    - `network`: anything with `network.init(key)` and `network(params, x)` for one point x, such as
      `sg.pinn.MLP([2, 64, 1])`, `sg.pinn.Equinox` or `sg.pinn.Flax`. Where its output has shape `(1,)`,
      residuals see one number.
    - `blocks`: the conditions, as `sg.pinn.Block`s.
    - `exact`: the solution where it is known, to measure the error: a function of a point, or a pair
      `(points, values)`.
    - `measured`: what `exact` is compared with, a function of `u` and a point; by default u itself. With
      `lambda u, x: u(x)[0]` it is the first output alone, with `lambda u, x, a: a(x)` the field a.
    - `unknowns`: coefficients to find along with u, `{name: first guess}`. A residual that names one as an
      argument receives it.
    - `fields`: functions of a point to find along with u, `{name: network}`, such as a conductivity that
      varies. A residual that names one as an argument receives a function like u.

    Errors say which argument is wrong: a network with another number of inputs than the domain has
    coordinates, a residual that is not a number or a vector, an `exact` of another shape than the network.

    ```python
    box = sg.pinn.Box([0, 0], [1, 1])
    problem = sg.pinn.PINN(
        sg.pinn.MLP([2, 16, 1]),
        [
            sg.pinn.Block("interior", lambda u, x: sg.pinn.laplacian(u, x) + 1, box, points=100),
            sg.pinn.Block("boundary", lambda u, x: u(x), box.boundary(), points=20),
        ],
    )
    params, batch = problem.init(jax.random.key(0)), problem.draw(jax.random.key(1))
    problem.residuals(params, batch)["interior"].shape              # (100,)
    ```
    """

    network: Any
    blocks: tuple[Block, ...]
    exact: Callable | None = eqx.field(static=True)
    test: tuple[Float[Array, "N d"], Float[Array, "N *o"]] | None
    loss_points: dict[str, Any]
    unknowns: dict[str, Float[Array, "..."]]
    measured: Callable | None = eqx.field(static=True)
    fields: dict[str, Any]
    num_rows: int | None = eqx.field(static=True, default=None)
    recipe: tuple[Any, ...] | None = eqx.field(static=True, default=None)

    def __init__(
        self,
        network: Given[Network, ""],
        blocks: Sequence[Block],
        exact: Callable | tuple[ArrayLike, ArrayLike] | None = None,
        unknowns: Mapping[str, Any] | None = None,
        measured: Callable | None = None,
        fields: Given[Mapping[str, Network] | None, ""] = None,
    ):
        self.fields = dict(fields or {})
        for name, value in {"network": network, **self.fields}.items():
            check_network(value, name)
        blocks = tuple(blocks)
        if not blocks:
            raise ValueError("`blocks` must hold at least one Block, got none.")
        for i, block in enumerate(blocks):
            if not isinstance(block, Block):
                raise TypeError(f"`blocks[{i}]` must be a sg.pinn.Block, got {type(block).__name__}.")
        names = [block.name for block in blocks]
        if len(set(names)) < len(names):
            raise ValueError(f"`blocks` must have different names, got {', '.join(names)}.")
        self.network, self.blocks = network, blocks
        self.unknowns = {name: jnp.asarray(value, float) for name, value in (unknowns or {}).items()}
        self.num_rows = self.recipe = None
        self._check_names()
        self.exact = exact if callable(exact) else None
        self.measured = measured
        try:
            params = jax.eval_shape(lambda key: self.init(key), jax.random.key(0))
        except Exception as error:
            raise TypeError(
                f"`network.init(key)` must return parameters, but it fails. Wrap a flax module as "
                f"sg.pinn.Flax(module, inputs=2). {type(error).__name__}: {error}"
            ) from error
        for block in blocks:
            self._check_block(block, params)
        self.test = self._test_set(exact, params)
        self.loss_points = self.draw(jax.random.key(1))

    def renewed(self, network: Given[Network, ""], blocks: tuple[Block, ...], exact: Any = None) -> "PINN":
        """Returns the same problem in other numbers, such as times: nothing is checked again.

        Checks trace each residual, which for a slab of a march would take longer than its training.
        """
        found = eqx.tree_at(lambda p: (p.network, p.blocks), self, (network, blocks))
        test = found._test_set(exact, jax.eval_shape(found.init, jax.random.key(0)))
        return eqx.tree_at(
            lambda p: (p.test, p.loss_points),
            found,
            (test, found.draw(jax.random.key(1))),
            is_leaf=lambda leaf: leaf is None,
        )

    def init(self, key: PRNGKeyArray) -> Params:
        """Returns `{"network": ..., "unknowns": ..., "fields": ...}`: random weights and the
        first guesses.

        Weights take JAX's default precision, which is that of the points: float64 once x64 is switched on,
        even for modules that ask for float32.
        """

        def default(leaf: Any) -> Any:
            real = eqx.is_inexact_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
            return leaf.astype(float) if real else leaf

        fields = {
            name: field.init(jax.random.fold_in(key, i))
            for i, (name, field) in enumerate(self.fields.items())
        }
        drawn = jax.tree.map(default, {"network": self.network.init(key), "fields": fields})
        return drawn | {"unknowns": self.unknowns}

    def u(self, params: Params, x: Given[ArrayLike | Sequence[float], " d"]) -> Array:
        """Evaluates the network at one point `[d]`, or at each point of an array `[..., d]`."""
        return _everywhere(partial(evaluate, self.network, params["network"]), x)

    def field(self, name: str, params: Params, x: Given[ArrayLike | Sequence[float], " d"]) -> Array:
        """Evaluates an unknown field at one point `[d]`, or at each point of an array `[..., d]`."""
        if name not in self.fields:
            raise ValueError(f"`name` must be one of the fields {', '.join(self.fields)}; got {name!r}.")
        return _everywhere(partial(evaluate, self.fields[name], params["fields"][name]), x)

    def compared(self, params: Params, points: Float[Array, "N d"]) -> Float[Array, "N *o"]:
        """Returns what `exact` is compared with at each of these points: u, or what `measured`
        makes of it.
        """
        if self.measured is None:
            return self.u(params, points)
        row = Row(self.network, self.fields, self.measured)
        return jax.vmap(lambda x: row(params, x))(points)

    def draw(self, key: PRNGKeyArray, spread: bool = True) -> dict[str, Any]:
        """Returns points for one step, `{block name: points}`."""
        return draw_points(self.blocks, key, spread)

    def counts(self, params: Params) -> tuple[int, int]:
        """Returns how many rows a step has, and how many parameters there are."""
        rows = sum(leaf.size for leaf in jax.tree.leaves(self.shapes(params)))
        return rows, sum(leaf.size for leaf in jax.tree.leaves(params))

    def shapes(self, params: Params) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of `rows`, block by block, for parameters of which shapes are enough."""
        return eqx.filter_eval_shape(_drawn_rows, self, params, jax.random.key(0))

    def default_sampler(self, params: Params) -> AbstractSampler:
        """Returns a sampler of evenly spread points.

        They are kept for a while where they outnumber the parameters, and fresh at each step elsewhere.
        """
        rows, size = self.counts(params)
        return Collocation(self.blocks, refresh_every=REFRESH_EVERY if rows > size else 1, warm_up=True)

    def linearise(self, params: Params, batch: Batch) -> Linearisation:
        """Returns the weighted residuals of all blocks, stacked, and their Jacobian."""
        float_params("params", params)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if leaf.dtype != jnp.result_type(float):
                raise TypeError(
                    f"`params{jax.tree_util.keystr(path)}` must have dtype {jnp.result_type(float)} like the "
                    f"points, got {leaf.dtype}; convert with jax.tree.map(lambda p: p.astype(float), params)."
                )
        found = [
            _tested(block, jacobian(self._row(block), params, points_of(batch[block.name])), batch)
            for block in self.blocks
        ]
        rows = found[0] if len(found) == 1 else stack(found)
        return Linearisation(
            self._residual(params, batch),
            rows,
            jax.tree_util.Partial(_residual_after, self, params, batch),
            params=params,
        )

    def residuals(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Returns the residuals of each block without their weights."""
        return {
            block.name: jax.vmap(self._row(block), (None, 0))(params, points_of(batch[block.name]))
            for block in self.blocks
        }

    def rows(self, params: Params, batch: Batch) -> dict[str, Float[Array, " k"]]:
        """Returns the rows of each block as training sees them: weighted, and integrated in a weak form."""
        found = self.residuals(params, batch)
        return {block.name: _weighted(block, found[block.name], batch) for block in self.blocks}

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """Returns `loss` on points of its own, `relative_l2` where the solution is known, and the
        unknowns.
        """
        found = {"loss": jnp.sum(self._residual(params, self.loss_points) ** 2) / 2}
        if self.test is not None:
            points, values = self.test
            error = self.compared(params, points) - values
            found["relative_l2"] = jnp.linalg.norm(error) / jnp.linalg.norm(values)
        return found | {name: value for name, value in params["unknowns"].items() if value.ndim == 0}

    def check(self, params: Params, batch: Batch) -> None:
        """Raises `ValueError` that names a block whose residual is not finite, and a point where
        it is not.
        """
        residuals = eqx.filter_jit(PINN.residuals)(self, params, batch)
        for block in self.blocks:
            values = np.asarray(residuals[block.name]).reshape(block.points, -1)
            bad = np.flatnonzero(~np.all(np.isfinite(values), axis=1))
            if bad.size:
                first = int(bad[0])
                points = points_of(batch[block.name])
                where = jax.tree.map(lambda leaf: np.asarray(leaf[first]).tolist(), points)  # noqa: B023
                raise ValueError(
                    f"the residual of block {block.name!r} is NaN or infinite at {bad.size} of "
                    f"{len(values)} points, for example at x = {where}."
                )

    def _row(self, block: Block) -> Row:
        return Row(self.network, self.fields, block.residual)

    def _residual(self, params: Params, batch: Batch) -> Float[Array, " k"]:
        return jnp.concatenate(list(self.rows(params, batch).values()))

    def _check_names(self) -> None:
        """Every unknown and field must be an argument of some residual, and of one kind."""
        names = self.unknowns | self.fields
        if twice := set(self.unknowns) & set(self.fields):
            raise ValueError(f"`fields` and `unknowns` must have different names, got {twice.pop()!r} twice.")
        used = {name for block in self.blocks for name in taken(block.residual, names)}
        if idle := [name for name in names if name not in used]:
            raise ValueError(
                f"{idle[0]!r} is to be found but is an argument of no residual: add it to those that it "
                f"appears in, as in `lambda u, x, {idle[0]}: ...`."
            )

    def _check_block(self, block: Block, params: Any) -> None:
        points = jax.eval_shape(lambda key: block.draw(key), jax.random.key(0))
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), points)
        traced = jax.make_jaxpr(lambda p, x: self._row(block)(p, x))(params, one)
        (out,) = traced.out_avals
        if out.ndim > 1 or out.size == 0 or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(
                f"the residual of block {block.name!r} must be one real number, or a vector of them, for one "
                f"point; got shape {out.shape} and dtype {out.dtype}. Residuals are written for one point "
                f"and mapped over the batch for you."
            )
        if not _depends(traced, len(jax.tree.leaves(params))):
            raise ValueError(
                f"the residual of block {block.name!r} does not depend on the network or the unknowns: "
                f"there is nothing to train. Use the argument `u` in it."
            )

    def _test_set(self, exact: Any, params: Any) -> tuple[Array, Array] | None:
        if exact is None:
            return None
        if not callable(exact):
            points, values = exact
            points = real_array("exact[0]", points, ndim=2)
            values = real_array("exact[1]", values, ndim=np.ndim(values), rows=points.shape[0])
        else:
            domain = self.blocks[0].domain
            if isinstance(domain, Points):
                raise ValueError(
                    f"`exact` must be a pair (points, values) where the first block, "
                    f"{self.blocks[0].name!r}, has points of its own; or put a block on a domain first."
                )
            points, values = _evaluated(domain, exact)
        if values.shape[1:] == (1,):  # counts as one number, as in the network's output
            values = values[:, 0]
        shape = jax.eval_shape(lambda p: self.compared(p, points), params).shape
        if shape != values.shape:
            what = "the network's output" if self.measured is None else "what `measured` returns"
            raise ValueError(
                f"`exact` must have the shape of {what}, {shape[1:]} at one point; got {values.shape[1:]}."
            )
        return points, values


@eqx.filter_jit  # the slabs of a march are traced once
def _drawn_rows(problem: PINN, params: Params, key: PRNGKeyArray) -> dict[str, Array]:
    return problem.rows(params, problem.draw(key))


def _everywhere(function: Callable, x: Any) -> Array:
    """A function of a point at a point `[d]`, or at each point of an array `[..., d]`."""
    x = jnp.asarray(x)
    if x.ndim == 1:
        return function(x)
    values = jax.vmap(function)(x.reshape(-1, x.shape[-1]))
    return values.reshape(*x.shape[:-1], *values.shape[1:])


def _scale(block: Block, batch: Batch) -> Float[Array, " N"]:
    """The factor of each point's residual: the square root of its weight in the loss."""
    return jnp.sqrt(block.weight * weighted(batch[block.name]).weight)


def _weighted(block: Block, residual: Float[Array, "N *o"], batch: Batch) -> Float[Array, " k"]:
    """The rows of a block from its residuals."""
    scaled = jax.vmap(jnp.multiply)(_scale(block, batch), residual)
    tests = _tests(block)
    if tests is not None:
        scaled = jnp.tensordot(tests, scaled, axes=1)
    return scaled.reshape(-1)


def _tested(block: Block, jac: StructuredJacobian, batch: Batch) -> AbstractRows:
    """The Jacobian of those rows."""
    scaled = jac.scale(_scale(block, batch))
    tests = _tests(block)
    return scaled if tests is None else scaled.combine(tests)


def _tests(block: Block) -> Float[Array, "q N"] | None:
    """What takes the residuals of a step to its rows, where they are not the rows themselves."""
    return None if block.weak is None else block.weak.matrix


def _depends(traced: ClosedJaxpr, count: int) -> bool:
    """Whether the output has to do with any of the first `count` inputs."""
    reached: set[Any] = set(traced.jaxpr.invars[:count])
    for eqn in traced.jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in reached for atom in eqn.invars):
            reached.update(eqn.outvars)
    return any(not isinstance(atom, Literal) and atom in reached for atom in traced.jaxpr.outvars)


@eqx.filter_jit
def _evaluated(domain: AbstractDomain, exact: Callable) -> tuple[Array, Array]:
    points = domain.spread(jax.random.key(2), EVALUATION_POINTS)
    points = points.x if isinstance(points, Sites) else points
    return points, jax.tree.map(jnp.asarray, jax.vmap(exact)(points))


def _residual_after(problem: PINN, params: Params, batch: Batch, step: Params) -> Float[Array, " k"]:
    moved = jax.tree.map(lambda p, s: p - s.astype(p.dtype), params, step)
    return problem._residual(moved, batch)
