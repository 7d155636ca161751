"""What to compare with, in the same loop: Adam, L-BFGS, dense ENGD, SNG and SPRING with fixed settings."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from .._checks import one_of
from .._contracts import AbstractMethod, AbstractSampler, Linearisation, Params, State
from ..methods import SGD, SNG, Auto, Spring
from ._problem import PINN
from ._sampling import Collocation

STEP_SIZES = 2.0 ** -np.arange(21)
"""What the line searches choose from."""


def best_step(lin: Linearisation, direction: Params) -> tuple[Params, Float[Array, ""]]:
    """The multiple of a direction that lowers the batch's loss most; zero if none does. And the multiple."""
    if lin.residual_at is None:
        raise ValueError("`lin` must carry `residual_at` for a line search, as problems of sg.pinn give.")
    sizes = jnp.asarray([*STEP_SIZES, 0.0], lin.residual.dtype)

    def loss(size: Float[Array, ""]) -> Float[Array, ""]:
        residual = lin.residual_at(jax.tree.map(lambda d: size.astype(d.dtype) * d, direction))  # pyright: ignore[reportOptionalCall]
        total = jnp.sum(residual**2)
        return jnp.where(jnp.isfinite(total), total, jnp.inf)

    chosen = sizes[jnp.argmin(jax.lax.map(loss, sizes))]
    return jax.tree.map(lambda d: chosen.astype(d.dtype) * d, direction), chosen


class SearchState(eqx.Module):
    """The inner method's state and the last step size."""

    inner: State
    step_size: Float[Array, ""]


class LineSearch(AbstractMethod):
    """The step along another method's direction that is best on the batch; use a unit learning rate."""

    inner: AbstractMethod

    def init(self, params: Params) -> SearchState:
        """The inner method's state."""
        return SearchState(self.inner.init(params), jnp.ones(()))

    def propose(self, lin: Linearisation, state: SearchState) -> tuple[Params, SearchState]:
        """The inner direction, scaled."""
        direction, inner = self.inner.propose(lin, state.inner)
        step, size = best_step(lin, direction)
        return step, SearchState(inner, size.astype(state.step_size.dtype))


class LBFGSState(eqx.Module):
    """optax's history and how far the parameters have moved."""

    history: Any
    moved: Params
    step_size: Float[Array, ""]


class LBFGS(AbstractMethod):
    """L-BFGS directions from optax with a line search on the batch; meant for fixed points."""

    memory: int = eqx.field(static=True, default=50)

    def init(self, params: Params) -> LBFGSState:
        """No history."""
        zero = jax.tree.map(jnp.zeros_like, params)
        return LBFGSState(self._transform().init(zero), zero, jnp.ones(()))

    def propose(self, lin: Linearisation, state: LBFGSState) -> tuple[Params, LBFGSState]:
        """The two-loop direction, scaled."""
        gradient = lin.jacobian.rmv(lin.residual)
        # Only differences of positions matter to it, so they may be counted from the start.
        direction, history = self._transform().update(gradient, state.history, state.moved)
        step, size = best_step(lin, direction)
        moved = jax.tree.map(lambda m, s: m - s, state.moved, step)
        return step, LBFGSState(history, moved, size.astype(state.step_size.dtype))

    def _transform(self) -> optax.GradientTransformation:
        return optax.scale_by_lbfgs(memory_size=self.memory)


class Setting(NamedTuple):
    """Arguments of `sg.pinn.solve`."""

    method: AbstractMethod
    optimizer: Any
    sampler: AbstractSampler | None


METHODS = ("auto", "spring", "sng", "engd", "engd-w", "adam", "lbfgs")
"""The names that `sg.pinn.setting` knows."""


def setting(name: str, problem: PINN) -> Setting:
    """A method by name, with what it needs: `sg.pinn.solve(problem, key, **setting._asdict())`.

    - `"auto"`: the default, `sg.Auto`.
    - `"spring"`: SPRING with published settings (λ = 1e-9, μ = 0.83, η = 0.06), fresh points.
    - `"sng"`: SNG without momentum, λ = 1e-8, line search, fresh points.
    - `"engd"`: the natural gradient by orthogonal factors, λ = 1e-12, line search, one set of points.
    - `"engd-w"`: SNG with λ = 3e-12 by orthogonal factors, line search, fresh points.
    - `"adam"`: Adam at 1e-3, decaying to 1e-5 over 50,000 steps, fresh points.
    - `"lbfgs"`: L-BFGS with a memory of 50, line search, one set of points.
    """
    one_of("name", name, METHODS)
    fresh, fixed = Collocation(problem, 1), Collocation(problem, None)
    if name == "auto":
        return Setting(Auto(), 1.0, None)
    if name == "spring":
        return Setting(Spring(1e-9, 0.83), 0.06, fresh)
    if name == "sng":
        return Setting(LineSearch(SNG(1e-8)), 1.0, fresh)
    if name == "engd":
        return Setting(LineSearch(SNG(1e-12, solver="qr")), 1.0, fixed)
    if name == "engd-w":
        return Setting(LineSearch(SNG(3e-12, solver="qr")), 1.0, fresh)
    if name == "adam":
        return Setting(SGD(), optax.adam(optax.exponential_decay(1e-3, 50_000, 1e-2, end_value=1e-5)), fresh)
    return Setting(LBFGS(), 1.0, fixed)
