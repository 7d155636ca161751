"""Configurations, their weights and their local energies, within a bound on memory."""

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import netket as nk
from jaxtyping import Array, Float, Inexact, Num
from netket.operator import AbstractOperator, DiscreteJaxOperator, DiscreteOperator, to_sparse_cached
from netket.utils import HashablePartial
from netket.vqs import (
    FullSumState,
    MCState,
    VariationalMixedState,
    get_local_kernel,
    get_local_kernel_arguments,
)

from .._checks import Given, real_array
from .._contracts import Params


class Configurations(NamedTuple):
    """Configurations σ_i with E_loc(σ_i); `weights` sum to one, None means equal ones."""

    samples: Num[Array, "k sites"]
    local: Inexact[Array, " k"]
    weights: Float[Array, " k"] | None

    def stats(self, exact: bool = False) -> Any:
        """Mean, variance and standard error under the weights, of configurations independent or all."""
        w = jnp.full(self.local.shape, 1 / self.local.size) if self.weights is None else self.weights
        mean = jnp.sum(w * self.local)
        square = jnp.abs(self.local - mean) ** 2
        error = 0.0 if exact else jnp.sqrt(jnp.sum(w**2 * square))
        # NetKet's annotations say float, its own code passes arrays.
        numbers: Any = {"mean": mean, "error_of_mean": error, "variance": jnp.sum(w * square)}
        return nk.stats.Stats(**numbers)


def check_state(vstate: Any, hamiltonian: Any) -> None:
    """A pure state and a Hermitian operator on the same Hilbert space."""
    if not isinstance(vstate, MCState | FullSumState) or isinstance(vstate, VariationalMixedState):
        raise TypeError(
            f"`variational_state` must be a netket.vqs.MCState or FullSumState, got {type(vstate).__name__}."
        )
    if not isinstance(hamiltonian, nk.operator.AbstractOperator):
        raise TypeError(f"`hamiltonian` must be a NetKet operator, got {type(hamiltonian).__name__}.")
    if hamiltonian.hilbert != vstate.hilbert:
        raise ValueError(
            f"`hamiltonian` must act on the Hilbert space of the state, {vstate.hilbert}; "
            f"got {hamiltonian.hilbert}."
        )
    if not hamiltonian.is_hermitian:
        raise ValueError(
            "`hamiltonian` must be Hermitian: the residual 2(E_loc − ⟨E⟩) assumes a real energy."
        )


def apply_function(vstate: Any) -> Any:
    """The function of (variables, σ) that evaluates log ψ; NetKet offers no public name for it."""
    return vstate._apply_fun


def flat_samples(vstate: Any) -> Num[Array, "k sites"]:
    """The state's current configurations, chains one after another."""
    if isinstance(vstate, FullSumState):
        return jnp.asarray(vstate.hilbert.all_states())
    return vstate.samples.reshape(-1, vstate.samples.shape[-1])


def configurations(
    vstate: Any,
    hamiltonian: Any,
    weights: Any = None,
    memory_limit: int | None = None,
    chunk_size: int | None = None,
) -> Configurations:
    """All of a full-summation state, or the current samples of a Monte Carlo one."""
    samples = flat_samples(vstate)
    if isinstance(vstate, FullSumState):
        if weights is not None:
            raise ValueError("`weights` must be None for a FullSumState: its weights are |ψ|².")
        return Configurations(samples, *_full_sum(vstate, hamiltonian))
    if weights is not None:
        weights = real_array("weights", weights, ndim=1, rows=samples.shape[0])
        if bool(jnp.any(weights < 0)) or not bool(jnp.sum(weights) > 0):
            raise ValueError("`weights` must not be negative and must have a positive sum.")
        weights = weights / jnp.sum(weights)
    return Configurations(samples, local_energies(vstate, hamiltonian, memory_limit, chunk_size), weights)


def _full_sum(vstate: Any, hamiltonian: Any) -> tuple[Inexact[Array, " k"], Float[Array, " k"]]:
    psi = vstate.to_array()
    h_psi = to_sparse_cached(hamiltonian) @ psi
    weights = jnp.abs(psi) ** 2
    weights = weights / jnp.sum(weights)
    # Where ψ vanishes so does the weight, and the local energy may be anything finite.
    local = jnp.where(weights > 0, h_psi / jnp.where(weights > 0, psi, 1), jnp.vdot(psi, h_psi))
    return local, weights


def local_energies(
    vstate: Any, hamiltonian: Any, memory_limit: int | None = None, chunk_size: int | None = None
) -> Inexact[Array, " k"]:
    """E_loc of the current samples; with a limit, in chunks that respect it unless their size is given."""
    if memory_limit is None:
        return _local(vstate, hamiltonian, vstate.chunk_size)
    chunk = chunk_size_for(vstate, hamiltonian, memory_limit) if chunk_size is None else chunk_size
    if isinstance(hamiltonian, DiscreteJaxOperator) or not isinstance(hamiltonian, DiscreteOperator):
        return _local(vstate, hamiltonian, chunk)
    # Other operators list all connected configurations first, so that the samples are cut as well.
    samples = flat_samples(vstate)
    item = samples.dtype.itemsize * samples.shape[1] + jnp.dtype(hamiltonian.dtype).itemsize
    rows = max(1, memory_limit // (2 * hamiltonian.max_conn_size * item))
    parts = [with_samples(vstate, samples[i : i + rows]) for i in range(0, samples.shape[0], rows)]
    return jnp.concatenate([_local(part, hamiltonian, chunk) for part in parts])


def _local(vstate: Any, hamiltonian: Any, chunk_size: int | None) -> Inexact[Array, " k"]:
    samples = flat_samples(vstate)
    padded = _padded(samples, chunk_size)
    state = vstate if padded is samples else with_samples(vstate, padded)
    found = state.local_estimators(hamiltonian, chunk_size=chunk_size)
    return jnp.asarray(found.data).reshape(-1)[: samples.shape[0]]


def _padded(samples: Num[Array, "k sites"], chunk_size: int | None) -> Num[Array, "p sites"]:
    """As many samples as NetKet can share out evenly: where it works in chunks, it asks for that."""
    missing = -samples.shape[0] % (jax.device_count() if nk.config.netket_sharding else 1)
    if chunk_size is None or not missing:
        return samples
    return jnp.concatenate([samples, jnp.broadcast_to(samples[:1], (missing, samples.shape[1]))])


class LocalEnergies(eqx.Module):
    """θ ↦ E_loc on given configurations, also within a compiled step: NetKet's kernel and its arguments.

    The first `count` of the samples are asked for; others fill the share of a device.
    """

    kernel: Callable = eqx.field(static=True)
    apply: Callable = eqx.field(static=True)
    model_state: Any
    samples: Num[Array, "k sites"]
    arguments: Any
    count: int = eqx.field(static=True)

    def __call__(self, params: Params) -> Inexact[Array, " k"]:
        """The local energies at these parameters."""
        variables = {"params": params, **self.model_state}
        return self.kernel(self.apply, variables, self.samples, self.arguments).reshape(-1)[: self.count]


def local_energies_of(
    vstate: Any, hamiltonian: Any, samples: Num[Array, "k sites"], chunk_size: int | None
) -> LocalEnergies:
    """The local energies of some configurations of a state, as a function of its parameters."""
    count = samples.shape[0]
    if isinstance(vstate, FullSumState):
        kernel, arguments = _all_energies, _entries(hamiltonian)
    else:
        samples = _padded(samples, chunk_size)
        hamiltonian, few = _jax_form(hamiltonian), with_samples(vstate, samples)
        choose: Any = get_local_kernel  # NetKet's annotations know one of its forms
        kernel = choose(few, hamiltonian, chunk_size)
        kernel = kernel if chunk_size is None else HashablePartial(kernel, chunk_size=chunk_size)
        found: Any = get_local_kernel_arguments(few, hamiltonian)
        arguments = found[1]
    return LocalEnergies(kernel, apply_function(vstate), dict(vstate.model_state), samples, arguments, count)


def _all_energies(apply: Any, variables: Any, samples: Any, entries: Any) -> Inexact[Array, " k"]:
    """Σ_σ' H_σσ' ψ(σ')/ψ(σ) over all configurations."""
    values, rows, columns = entries
    log_psi = apply(variables, samples)
    terms = values * jnp.exp(log_psi[columns] - log_psi[rows])
    return jax.ops.segment_sum(terms, rows, num_segments=samples.shape[0])


@lru_cache(maxsize=4)
def _entries(hamiltonian: Any) -> tuple[Array, Array, Array]:
    """The values, rows and columns of a Hamiltonian's entries."""
    sparse = hamiltonian.to_sparse().tocoo()
    return jnp.asarray(sparse.data), jnp.asarray(sparse.row), jnp.asarray(sparse.col)


@lru_cache(maxsize=4)
def _jax_form(hamiltonian: Any) -> Any:
    """The same operator in NetKet's compiled form, where it has one: nothing is listed ahead then."""
    if isinstance(hamiltonian, DiscreteJaxOperator) or not hasattr(hamiltonian, "to_jax_operator"):
        return hamiltonian
    return hamiltonian.to_jax_operator()


def with_samples(vstate: Any, samples: Num[Array, "k sites"]) -> Any:
    """The same state, sampled at the given configurations."""
    other = copy.copy(vstate)
    other._samples = samples[None]
    return other


def chunk_size_for(
    vstate: Given[MCState, ""], hamiltonian: Given[AbstractOperator, ""], memory_limit: int
) -> int:
    """Returns the `chunk_size` with which NetKet's local energies need at most so many bytes.

    It is a power of two. What one sample needs is read off the compiled program for eight of them. A smaller
    chunk size that the state has already is kept.

    **Arguments:**

    - `vstate`: a `netket.vqs.MCState`.
    - `hamiltonian`: the operator whose local energies are computed.
    - `memory_limit`: the number of bytes.

    ```python
    import netket as nk
    import snapgrad.netket as sgn

    hilbert = nk.hilbert.Spin(0.5, 4)
    hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(4), h=1.0)
    sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=4)
    vstate = nk.vqs.MCState(sampler, nk.models.RBM(param_dtype=float), n_samples=64)
    vstate.chunk_size = sgn.chunk_size_for(vstate, hamiltonian, memory_limit=2**20)
    ```
    """
    few = with_samples(vstate, flat_samples(vstate)[:8])
    found: Any = get_local_kernel_arguments(few, hamiltonian)
    samples, args = found
    samples = samples.reshape(-1, samples.shape[-1])
    kernel: Any = get_local_kernel(few, hamiltonian, None)
    program = jax.jit(lambda v, s, a: kernel(apply_function(vstate), v, s, a))
    memory = program.lower(vstate.variables, samples, args).compile().memory_analysis()
    size = 1 if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    # For discrete operators NetKet counts the configurations connected to a sample, not samples.
    count = samples.shape[0] * getattr(hamiltonian, "max_conn_size", 1)
    chunk = max(1, int(memory_limit * count / max(size, 1)))
    chunk = 2 ** (chunk.bit_length() - 1)
    return chunk if vstate.chunk_size is None else min(chunk, vstate.chunk_size)
