"""A NetKet driver whose steps come from snapgrad's methods."""

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import netket as nk
import optax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Int
from netket.driver import AbstractOptimizationDriver
from netket.operator import AbstractOperator
from netket.utils import struct
from netket.vqs import FullSumState, VariationalState

from .._checks import Given, positive_int, real_scalar
from .._contracts import AbstractMethod, Params, State
from ..methods import FisherSpring, Spring
from ..training import as_transformation
from ._local import (
    Configurations,
    LocalEnergies,
    apply_function,
    check_state,
    chunk_size_for,
    configurations,
    flat_samples,
    local_energies,
    local_energies_of,
    with_samples,
)
from ._log_psi import Mode, Settings, make_settings
from ._step import Decided, first_state, method_at, propose, shown, subselect, take

MethodOrSchedule: TypeAlias = AbstractMethod | Callable[[int], AbstractMethod]
"""A method, or a function from the step count to the method of that step."""

_ELSEWHERE = {
    "diag_shift": "it is called `damping` here and belongs to the method, as in sg.Spring(damping=1e-3)",
    "damping": "it belongs to the method, as in method=sg.Spring(damping=1e-3)",
    "momentum": "it belongs to the method, as in method=sg.Spring(momentum=0.9); sg.SNG has none",
    "solver": "it belongs to the method, as in method=sg.Spring(1e-3, solver='cg')",
    "linear_solver": "it is called `solver` here and belongs to the method, as in sg.SNG(solver='eigh')",
    "proj_reg": "it is called `lift` here",
    "chunk_size_bwd": "it is called `block_size` here; `memory_limit` chooses it for you",
    "use_ntk": "the smaller of the two spaces is always chosen",
    "on_the_fly": "the Jacobian is never formed where the kernel is used",
}
"""Arguments of `netket.driver.VMC_SR` and of earlier versions: where each of them went."""


class VMC(AbstractOptimizationDriver):
    """Energy minimisation by any method of snapgrad, on kernels that never form the Jacobian.

    It stands where `netket.driver.VMC_SR` does and runs with `driver.run(n, out=log)`, NetKet's loggers,
    callbacks and checkpoints; with `sg.SNG` (minSR, stochastic reconfiguration) and `sg.Spring` it takes the
    same steps. Beyond it: sample weights and full-summation states in either space, mixed real and complex
    parameters, holomorphic models, and a memory limit for the whole step. A step that is not finite leaves
    parameters, method and optimizer as they were; it is counted in `rejected_steps`, logged under that name,
    and the first one gives a warning.

    **Arguments:**

    - `hamiltonian`: a Hermitian NetKet operator.
    - `optimizer`: a learning rate η, a schedule of it, or any optax transformation of the direction. Leave it
      out, as in `VMC(hamiltonian, variational_state)`, for steps that choose themselves.
    - `variational_state`: a `netket.vqs.MCState` or `FullSumState`.
    - `method`: such as `sg.SNG(1e-3)`; default `sg.methods.FisherSpring()`, which has nothing to set, or
      `sg.Spring(1e-3, 0.9)` with an optimizer. For hyperparameters that change during
      the run give a function from the step count to a method of one kind. Methods that try their steps, such
      as `sg.Auto`, are refused: a quantum state has no loss on a batch that a trial step could be judged by.
    - `max_norm`: bound on ‖Δθ‖, after the optimizer; the method's state is not changed by it.
    - `mode`, `holomorphic`, `lift`, `memory_limit`, `block_size`, `precision`, `factor_dtype`,
      `gram_dtype`: see `snapgrad.netket.linearise`.
    - `subselect`: k, to keep only k of the state's samples at each step, chosen by `select` for the volume
      that their rows span under the method's damping. Local energies are then computed for these alone.
    - `seed`: a number that fixes the randomness of that choice.

    ```python
    import netket as nk, optax
    import snapgrad as sg, snapgrad.netket as sgn

    hilbert = nk.hilbert.Spin(0.5, 4)
    hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(4), h=1.0)
    vstate = nk.vqs.FullSumState(hilbert, nk.models.RBM())
    driver = sgn.VMC(hamiltonian, vstate)                       # nothing to set
    driver.run(10, out=nk.logging.RuntimeLog())

    driver = sgn.VMC(hamiltonian, 0.02, vstate, method=sg.Spring(damping=1e-3, momentum=0.8))
    damping = optax.linear_schedule(1e-2, 1e-4, 100)            # λ that falls from step to step
    driver = sgn.VMC(hamiltonian, 0.02, vstate, method=lambda step: sg.Spring(damping(step), 0.8))
    ```
    """

    method: MethodOrSchedule = struct.field(pytree_node=False, serialize=False)
    subselect: int | None = struct.field(pytree_node=False, serialize=False)
    seed: int = struct.field(pytree_node=False, serialize=False)
    _ham: Any = struct.field(pytree_node=False, serialize=False)
    _settings: Settings = struct.field(pytree_node=False, serialize=False)
    _lift: Any = struct.field(serialize=False)
    # The leaves of the method's state: NetKet's checkpoints store lists, but not modules of equinox.
    _memory: list[Array] = struct.field(serialize=True)
    _memory_tree: Any = struct.field(pytree_node=False, serialize=False)
    _kind: type | None = struct.field(pytree_node=False, serialize=False, default=None)
    _rejected: Int[Array, ""] = struct.field(serialize=True)
    _looks_back: bool = struct.field(pytree_node=False, serialize=False, default=False)
    _proposed: State = struct.field(serialize=False, default=None)
    _chunk_size: int | None = struct.field(pytree_node=False, serialize=False, default=None)

    def __init__(
        self,
        hamiltonian: Given[AbstractOperator, ""],
        optimizer: Given[
            float | Array | optax.Schedule | optax.GradientTransformation | VariationalState | None, ""
        ] = None,
        variational_state: Given[VariationalState | None, ""] = None,
        *,
        method: Given[MethodOrSchedule | None, ""] = None,
        max_norm: Given[ArrayLike, ""] | None = None,
        mode: Mode | None = None,
        holomorphic: bool = False,
        lift: Given[ArrayLike, ""] = 1.0,
        block_size: int | None = None,
        memory_limit: int | str | None = None,
        precision: str = "highest",
        factor_dtype: Given[DTypeLike | None, ""] = None,
        gram_dtype: Given[DTypeLike | None, ""] = None,
        subselect: int | None = None,
        seed: int = 0,
        **unknown: Any,
    ):
        for name in unknown:
            raise TypeError(
                f"VMC has no argument `{name}`: {_ELSEWHERE.get(name, 'see help(VMC) for those it has')}."
            )
        state: Any = variational_state
        rate: Any = optimizer
        if isinstance(optimizer, VariationalState):  # VMC(hamiltonian, variational_state)
            rate, state = variational_state, optimizer
        check_state(state, hamiltonian)
        if method is None:
            method = FisherSpring() if rate is None else Spring(1e-3, 0.9)
        first = method_at(method, 0)
        memory, looks_back = first_state(first, state.parameters)
        if rate is None and not looks_back:
            raise TypeError(
                f"`optimizer` must be a learning rate, a schedule or an optax transformation for "
                f"{type(first).__name__}, which chooses no step size; leave out both it and `method` for "
                f"steps that choose themselves."
            )
        transform = as_transformation(1.0 if rate is None else rate)
        if max_norm is not None:
            bound = real_scalar("max_norm", max_norm, low=0)
            transform = optax.chain(transform, optax.clip_by_global_norm(float(bound)))
        super().__init__(state, transform, minimized_quantity_name="Energy")
        if subselect is not None:
            if isinstance(state, FullSumState):
                raise ValueError(
                    "`subselect` must be None for a FullSumState, which keeps all configurations."
                )
            positive_int("subselect", subselect, most=state.n_samples, most_name="n_samples")
        self._ham = hamiltonian
        self.subselect, self.seed = subselect, seed
        self._lift = real_scalar("lift", lift, low=0)
        self._settings = make_settings(
            state,
            mode,
            holomorphic,
            block_size,
            memory_limit,
            precision,
            factor_dtype,
            gram_dtype,
        )
        self.method, self._kind, self._looks_back = method, type(first), looks_back
        # Everything a checkpoint holds exists from the start, so that a new driver can load it.
        self._memory, self._memory_tree = jax.tree.flatten(memory)
        self._rejected = jnp.zeros((), int)

    # NetKet's metaclass hides the arguments behind (*args, **kwargs).
    __signature__ = inspect.Signature(
        [p for p in inspect.signature(__init__).parameters.values() if p.name not in ("self", "unknown")]
    )

    def __repr__(self) -> str:
        counts = f"step_count={self.step_count}, rejected_steps={self.rejected_steps}"
        return f"VMC({shown(self._method())}, {counts})"

    def info(self, depth: int = 0) -> str:
        """Returns as text of several lines what is minimised, how and with which settings; `depth` indents
        it.

        ```python
        print(driver.info())
        ```
        """
        chosen = {name: value for name, value in self._settings._asdict().items() if value is not None}
        lines = [
            repr(self),
            f"hamiltonian: {self._ham}",
            f"state: {self.state}",
            f"rows: {', '.join(f'{name}={value}' for name, value in chosen.items())}",
        ]
        return "\n".join(lines).replace("\n", "\n" + "   " * (depth + 1))

    @property
    def rejected_steps(self) -> int:
        """How many steps were not finite and were therefore left out."""
        return int(self._rejected)

    @property
    def method_state(self) -> State:
        """What the method remembers from step to step, such as the increment φ of `sg.Spring`."""
        return jax.tree.unflatten(self._memory_tree, map(jnp.asarray, self._memory))  # a checkpoint is NumPy

    @method_state.setter
    def method_state(self, state: State) -> None:
        leaves, tree = jax.tree.flatten(state)
        if tree != self._memory_tree:
            raise ValueError(f"`method_state` must have the structure {self._memory_tree}, got {tree}.")
        self._memory = leaves

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
        """Returns the statistics of the energy and the method's direction on the current samples.

        The direction may be infinite or NaN: `update_parameters` then refuses it.
        """
        method = self._method()
        found, stats = self._configurations(method)
        direction, self._proposed = propose(
            self.state.parameters,
            self.state.model_state,
            found,
            method,
            self.method_state,
            self._lift,
            self._energies(found) if self._looks_back else None,
            apply=apply_function(self.state),
            settings=self._settings,
        )
        return stats, direction

    def update_parameters(self, dp: Params) -> None:
        """Takes the optimizer's step along a direction; if anything of it is not finite, everything stays."""
        before = self.method_state
        proposed, self._proposed = before if self._proposed is None else self._proposed, None
        after, ok = take(
            Decided(dp, proposed), self.state.parameters, before, self._optimizer_state, self._optimizer
        )
        self.state.parameters, self._optimizer_state, self.method_state = (
            after.params,
            after.optimizer,
            after.method,
        )
        self._rejected = self._rejected + jnp.where(ok, 0, 1)
        if not bool(ok) and self.rejected_steps == 1:
            warnings.warn(
                f"step {self.step_count} was not finite and was left out; `rejected_steps` counts these.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _method(self) -> AbstractMethod:
        """The method of this step."""
        method = method_at(self.method, self.step_count)
        if self._kind not in (None, type(method)):
            raise ValueError(
                f"`method` must give a {self._kind.__name__} at every step, as at the first; got a "
                f"{type(method).__name__} at step {self.step_count}."
            )
        return method

    def _configurations(self, method: AbstractMethod) -> tuple[Configurations, nk.stats.Stats]:
        state: Any = self.state
        limit = self._settings.memory_limit
        if self.subselect is not None:
            samples = flat_samples(state)
            chosen, weights = subselect(
                jax.random.fold_in(jax.random.key(self.seed), self.step_count),
                state.parameters,
                state.model_state,
                samples,
                getattr(method, "damping", 0.0),
                apply=apply_function(state),
                settings=self._settings,
                size=self.subselect,
                relative=self._looks_back,
            )
            samples = samples[chosen]
            local = local_energies(with_samples(state, samples), self._ham, limit, self._chunk())
            found = Configurations(samples, local, weights)
            return found, found.stats()
        found = configurations(state, self._ham, memory_limit=limit, chunk_size=self._chunk())
        if isinstance(state, FullSumState):
            return found, found.stats(exact=True)
        return found, nk.stats.statistics(found.local.reshape(state.samples.shape[:-1]))

    def _energies(self, found: Configurations) -> LocalEnergies:
        """The local energies of these configurations at any parameters."""
        chunk = self._chunk() or getattr(self.state, "chunk_size", None)
        return local_energies_of(self.state, self._ham, found.samples, chunk)

    def _chunk(self) -> int | None:
        """The chunk size that the memory limit stands for, measured once."""
        limit = self._settings.memory_limit
        if limit is not None and self._chunk_size is None and not isinstance(self.state, FullSumState):
            state: Any = self.state
            self._chunk_size = chunk_size_for(state, self._ham, limit)
        return self._chunk_size

    def _log_additional_data(self, log_dict: dict) -> None:
        super()._log_additional_data(log_dict)
        log_dict |= self._method().report(self.method_state)
        log_dict["rejected_steps"] = self.rejected_steps


with contextlib.suppress(ImportError):  # where NetKet's manual says it is, though not public
    from netket._src.callbacks.auto_chunk_size import get_forward_operator

    @get_forward_operator.dispatch  # pyright: ignore[reportFunctionMemberAccess]
    def _forward_operator(driver: VMC) -> Any:
        return driver._ham
