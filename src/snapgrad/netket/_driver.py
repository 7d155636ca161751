"""A NetKet driver whose steps come from snapgrad's methods."""

import contextlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import netket as nk
import optax
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray, PyTree
from netket.driver import AbstractOptimizationDriver
from netket.utils import struct
from netket.vqs import FullSumState

from .._checks import one_of, positive_int, real_scalar
from .._contracts import AbstractMethod, Linearisation, Params, all_finite, guard, tree_where
from ..linalg import SOLVERS, Solver
from ..methods import SNG, Spring, SpringState
from ..operators import RealPairs, from_pairs, to_pairs
from ._linearise import LogPsi, Mode, Settings, log_psi_jacobian, make_settings, rows
from ._local import (
    Configurations,
    apply_function,
    check_state,
    chunk_size_for,
    configurations,
    flat_samples,
    local_energies,
    with_samples,
)
from ._subselect import Selection, points_kernel, select

Schedule: TypeAlias = Any
"""A number, or a function from the step count to one, such as optax's schedules."""


class VMC(AbstractOptimizationDriver):
    """Energy minimisation by SNG (minSR) or SPRING, on kernels that never form the Jacobian.

    Like `netket.driver.VMC_SR`, whose steps it takes, it runs with `driver.run(n, out=log)`, NetKet's
    loggers, callbacks and checkpoints. Beyond it: sample weights and full-summation states in either
    space, mixed real and complex parameters, holomorphic models, and a memory limit for the whole step.
    A step that is not finite leaves parameters, φ and optimizer as they were; it is counted in
    `rejected_steps`, logged under that name, and the first one gives a warning.

    **Arguments:**

    - `hamiltonian`: a Hermitian NetKet operator.
    - `optimizer`: an optax transformation, usually `optax.sgd(η)`; a number or schedule stands for that.
    - `variational_state`: a `netket.vqs.MCState` or `FullSumState`.
    - `damping`: λ, or a schedule.
    - `momentum`: μ of SPRING in [0, 1), or a schedule; None for SNG.
    - `max_norm`: bound on ‖Δθ‖, after the optimizer; φ itself is not changed by it.
    - `mode`, `holomorphic`, `lift`, `memory_limit`, `block_size`, `precision`, `factor_dtype`,
      `gram_dtype`: see `snapgrad.netket.linearise`.
    - `solver`: as in `sg.SNG`.
    - `subselect`: k, to keep only k of the state's samples at each step, chosen by `select` for the volume
      that their rows span. Local energies are then computed for these alone.
    - `seed`: of that choice.

    ```python
    driver = snapgrad.netket.VMC(hamiltonian, optax.sgd(0.02), vstate, damping=1e-3, momentum=0.8)
    driver.run(300, out=netket.logging.RuntimeLog())
    ```
    """

    damping: Schedule = struct.field(pytree_node=False, serialize=False)
    momentum: Schedule = struct.field(pytree_node=False, serialize=False)
    subselect: int | None = struct.field(pytree_node=False, serialize=False)
    seed: int = struct.field(pytree_node=False, serialize=False)
    _ham: Any = struct.field(pytree_node=False, serialize=False)
    _settings: Settings = struct.field(pytree_node=False, serialize=False)
    _solver: Solver = struct.field(pytree_node=False, serialize=False)
    _lift: Any = struct.field(serialize=False)
    _increment: PyTree = struct.field(serialize=True)
    _rejected: Int[Array, ""] = struct.field(serialize=True)
    _proposed: Any = struct.field(serialize=False, default=None)
    _chunk_size: int | None = struct.field(pytree_node=False, serialize=False, default=None)

    def __init__(
        self,
        hamiltonian: Any,
        optimizer: Any,
        variational_state: Any,
        *,
        damping: Schedule = 1e-3,
        momentum: Schedule | None = None,
        max_norm: Any = None,
        mode: Mode | None = None,
        holomorphic: bool = False,
        lift: Any = 1.0,
        solver: Solver = "auto",
        block_size: int | None = None,
        memory_limit: int | str | None = None,
        precision: str = "highest",
        factor_dtype: Any = None,
        gram_dtype: Any = None,
        subselect: int | None = None,
        seed: int = 0,
    ):
        check_state(variational_state, hamiltonian)
        if not isinstance(optimizer, optax.GradientTransformation):
            optimizer = optax.sgd(optimizer)
        if max_norm is not None:
            bound = real_scalar("max_norm", max_norm, low=0)
            optimizer = optax.chain(optimizer, optax.clip_by_global_norm(float(bound)))
        super().__init__(variational_state, optimizer, minimized_quantity_name="Energy")
        if subselect is not None:
            if isinstance(variational_state, FullSumState):
                raise ValueError(
                    "`subselect` must be None for a FullSumState, which keeps all configurations."
                )
            positive_int("subselect", subselect, most=variational_state.n_samples, most_name="n_samples")
        self._ham = hamiltonian
        self.damping, self.momentum = damping, momentum
        self.subselect, self.seed = subselect, seed
        self._solver = one_of("solver", solver, SOLVERS)
        self._lift = real_scalar("lift", lift, low=0)
        self._settings = make_settings(
            variational_state,
            mode,
            holomorphic,
            block_size,
            memory_limit,
            precision,
            factor_dtype,
            gram_dtype,
        )
        # Everything a checkpoint holds exists from the start, so that a new driver can load it.
        self._increment = None if momentum is None else jax.tree.map(jnp.zeros_like, self.state.parameters)
        self._rejected = jnp.zeros((), int)
        self._method()

    @property
    def rejected_steps(self) -> int:
        """How many steps were not finite and therefore left out."""
        return int(self._rejected)

    @property
    def mode(self) -> Mode:
        """Whether rows are those of log ψ or of its real part."""
        return self._settings.mode

    @property
    def chunk_size_bwd(self) -> int | None:
        """The block size of the kernel, under the name by which NetKet's callbacks tune it."""
        return self._settings.block_size

    @chunk_size_bwd.setter
    def chunk_size_bwd(self, value: int | None) -> None:
        size = None if value is None else positive_int("chunk_size_bwd", value)
        self._settings = self._settings._replace(block_size=size, memory_limit=None)

    def compute_loss_and_update(self) -> tuple[nk.stats.Stats, Params]:
        """The energy's statistics and the direction, on the current samples."""
        method = self._method()
        found, stats = self._configurations(method)
        direction, increment, finite = _propose(
            self.state.parameters,
            self.state.model_state,
            found,
            method,
            self._increment,
            self._lift,
            apply=apply_function(self.state),
            settings=self._settings,
        )
        self._proposed = increment, finite
        return stats, direction

    def update_parameters(self, dp: Params) -> None:
        """The optimizer's step along a direction, unless it or the direction is not finite."""
        increment, finite = self._increment, jnp.asarray(True)
        if self._proposed is not None:
            (increment, finite), self._proposed = self._proposed, None
        before = self.state.parameters, self._optimizer_state, self._increment
        after, finite = _apply(self._optimizer.update, dp, increment, before, finite)
        self.state.parameters, self._optimizer_state, self._increment = after
        self._rejected = self._rejected + jnp.where(finite, 0, 1)
        if not bool(finite) and self.rejected_steps == 1:
            warnings.warn(
                f"step {self.step_count} was not finite and was left out; `rejected_steps` counts these.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _method(self) -> AbstractMethod:
        """The method with this step's hyperparameters."""
        damping = _at(self.damping, self.step_count)
        if self.momentum is None:
            return SNG(damping, self._solver)
        return Spring(damping, _at(self.momentum, self.step_count), self._solver)

    def _configurations(self, method: Any) -> tuple[Configurations, nk.stats.Stats]:
        state: Any = self.state
        limit = self._settings.memory_limit
        if self.subselect is not None:
            samples = flat_samples(state)
            chosen, weights = _subselect(
                jax.random.fold_in(jax.random.key(self.seed), self.step_count),
                state.parameters,
                state.model_state,
                samples,
                method.damping,
                apply=apply_function(state),
                settings=self._settings,
                size=self.subselect,
            )
            samples = samples[chosen]
            local = local_energies(with_samples(state, samples), self._ham, limit, self._chunk())
            found = Configurations(samples, local, weights)
            return found, found.stats()
        found = configurations(state, self._ham, memory_limit=limit, chunk_size=self._chunk())
        if isinstance(state, FullSumState):
            return found, found.stats(exact=True)
        return found, nk.stats.statistics(found.local.reshape(state.samples.shape[:-1]))

    def _chunk(self) -> int | None:
        """The chunk size that the memory limit stands for, measured once."""
        limit = self._settings.memory_limit
        if limit is not None and self._chunk_size is None and not isinstance(self.state, FullSumState):
            self._chunk_size = chunk_size_for(self.state, self._ham, limit)
        return self._chunk_size

    def _log_additional_data(self, log_dict: dict) -> None:
        super()._log_additional_data(log_dict)
        log_dict["rejected_steps"] = self.rejected_steps


def _at(value: Schedule, step: int) -> Any:
    return value(step) if callable(value) else value


@partial(jax.jit, static_argnames=("apply", "settings"))
def _propose(
    params: Params,
    model_state: Any,
    found: Configurations,
    method: AbstractMethod,
    increment: Params | None,
    lift: Any,
    *,
    apply: Callable,
    settings: Settings,
) -> tuple[Params, Params | None, Bool[Array, ""]]:
    """Direction, next φ, and whether both are finite."""
    log_psi = LogPsi(apply, dict(model_state), settings.mode == "real")
    lin = rows(log_psi, params, found, settings, lift)
    lin = Linearisation(lin.residual, RealPairs(lin.jacobian))
    state = () if increment is None else SpringState(to_pairs(increment))
    zero = jax.tree.map(jnp.zeros_like, to_pairs(params))
    (direction, state), finite = guard(method.propose(lin, state), (zero, state))
    if increment is not None:
        increment = from_pairs(state.increment)
    return from_pairs(direction), increment, finite


@partial(jax.jit, static_argnums=0)
def _apply(
    update: Callable, direction: Params, increment: Params | None, before: tuple, finite: Bool[Array, ""]
) -> tuple[tuple, Bool[Array, ""]]:
    """Parameters, optimizer state and φ after the step, or as they were."""
    params, optimizer_state, _ = before
    updates, optimizer_state = update(direction, optimizer_state, params)
    after = optax.apply_updates(params, updates), optimizer_state, increment
    finite = finite & all_finite(after)
    return tree_where(finite, after, before), finite


@partial(jax.jit, static_argnames=("apply", "settings", "size"))
def _subselect(
    key: PRNGKeyArray,
    params: Params,
    model_state: Any,
    samples: Num[Array, "c sites"],
    damping: Any,
    *,
    apply: Callable,
    settings: Settings,
    size: int,
) -> Selection:
    """The part of a pool to keep."""
    log_psi = LogPsi(apply, dict(model_state), settings.mode == "real")
    jac = log_psi_jacobian(log_psi, params, samples, settings)
    K = jac.scale(1 / jnp.sqrt(samples.shape[0])).centre().gram()
    return select(key, points_kernel(K, jac.outputs), size, damping)


with contextlib.suppress(ImportError):  # where NetKet's manual says it is, though not public
    from netket._src.callbacks.auto_chunk_size import get_forward_operator

    @get_forward_operator.dispatch  # pyright: ignore[reportFunctionMemberAccess]
    def _forward_operator(driver: VMC) -> Any:
        return driver._ham
