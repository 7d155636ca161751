"""Ground states of spin chains: the driver without settings beside SPRING tuned in hindsight."""

import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Int, PRNGKeyArray, Scalar
from scipy.sparse.linalg import eigsh

from .._contracts import AbstractProblem, AbstractSampler, Linearisation, Params, State
from ..methods import FisherSpring, Spring
from ..operators import jacobian, realify
from ..training import run

Name: TypeAlias = Literal["tfim", "heisenberg", "j1j2"]
NAMES: tuple[Name, ...] = get_args(Name)
GOAL = 1e-3
"""The relative error to which steps are counted."""
TAIL = 20
"""The final error is the geometric mean over so many last steps."""


class Size(NamedTuple):
    """Which chains, sites, samples a step, steps, seeds, and the settings of SPRING that are tried."""

    names: tuple[Name, ...]
    sites: int
    samples: int
    steps: int
    seeds: int
    rates: tuple[float, ...]
    momenta: tuple[float, ...]
    dampings: tuple[float, ...]

    def settings(self) -> np.ndarray:
        """All (η, μ, λ), one a row."""
        return np.array(list(itertools.product(self.rates, self.momenta, self.dampings)))


FULL = Size(NAMES, 10, 64, 300, 3, (0.005, 0.01, 0.02, 0.05, 0.1), (0.0, 0.8, 0.95), (1e-2, 1e-3))
QUICK = Size(("tfim",), 6, 32, 40, 2, (0.02, 0.05), (0.0, 0.8), (1e-3,))


class SpinChain(AbstractProblem):
    """The energy of a neural quantum state, on independent samples from |ψ|² over all configurations.

    A batch holds uniform numbers, which the distribution of the current parameters turns into samples.
    """

    log_psi: Callable = eqx.field(static=True)
    init_params: Callable = eqx.field(static=True)
    phase: bool = eqx.field(static=True)  # whether ψ has one; without, a sample is one row
    states: Float[Array, "m sites"]
    values: Inexact[Array, " e"]  # the entries of the Hamiltonian, their rows and columns
    rows: Int[Array, " e"]
    columns: Int[Array, " e"]
    ground: Float[Array, ""]
    num_rows: None = None

    def init(self, key: PRNGKeyArray) -> Params:
        """The model's own initial parameters."""
        return self.init_params(key, self.states[:1])

    def linearise(self, params: Params, batch: Float[Array, " k"]) -> Linearisation:
        """2(E_loc − ⟨E⟩)/√k and the centred rows ∂log ψ/√k."""
        p, _ = self._local(params)
        chosen = jnp.minimum(jnp.searchsorted(jnp.cumsum(p), batch), p.size - 1)
        root = 1 / jnp.sqrt(batch.size)

        def residual_at(step: Params) -> Float[Array, " rows"]:
            local = self._local(jax.tree.map(lambda x, s: x - s, params, step))[1][chosen]
            residual = 2 * root * (local - jnp.mean(local))
            return realify(residual) if self.phase else residual

        one = lambda q, x: self.log_psi(q, x[None])[0]  # noqa: E731
        fn = realify(one) if self.phase else one
        jac = jacobian(fn, params, self.states[chosen]).scale(root).centre()
        zero = jax.tree.map(jnp.zeros_like, params)
        return Linearisation(residual_at(zero), jac, residual_at, has_loss=False)

    def metrics(self, params: Params) -> dict[str, Scalar]:
        """(E − E₀)/|E₀|, exactly."""
        p, local = self._local(params)
        energy = jnp.sum(p * local.real)
        return {"relative_error": (energy - self.ground) / jnp.abs(self.ground)}

    def _local(self, params: Params) -> tuple[Float[Array, " m"], Inexact[Array, " m"]]:
        """|ψ|² and the local energy of every configuration."""
        log_psi = self.log_psi(params, self.states)
        terms = self.values * jnp.exp(log_psi[self.columns] - log_psi[self.rows])
        local = jax.ops.segment_sum(terms, self.rows, num_segments=log_psi.size)
        return jax.nn.softmax(2 * log_psi.real), local


class Uniforms(AbstractSampler):
    """So many uniform numbers a step."""

    size: int = eqx.field(static=True)
    num_rows: None = None

    def init(self, key: PRNGKeyArray) -> State:
        """No memory."""
        del key
        return ()

    def draw(self, key: PRNGKeyArray, state: State, linearise: Callable) -> tuple[Float[Array, " k"], State]:
        """Fresh ones."""
        del linearise
        return jax.random.uniform(key, (self.size,)), state


class System(NamedTuple):
    """A chain as NetKet has it, and as a problem of all its configurations."""

    hamiltonian: Any
    model: Any
    sampler: Any
    problem: SpinChain


def spin_system(name: Name, size: Size, scale: float = 1.0) -> System:
    """One of the chains with a restricted Boltzmann machine, energies times `scale`.

    `ImportError` without NetKet.
    """
    nk = _netket()
    chain = nk.graph.Chain(size.sites)
    if name == "tfim":
        hilbert = nk.hilbert.Spin(0.5, size.sites)
        plain = nk.operator.Ising(hilbert, chain, h=1.0, J=-1.0).to_local_operator().to_jax_operator()
        sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=16)
    else:
        hilbert = nk.hilbert.Spin(0.5, size.sites, total_sz=0)
        # Marshall's rotation of every other spin: without frustration the ground state is then positive.
        graph, couplings = chain, {"sign_rule": True}
        if name == "j1j2":
            graph = nk.graph.Chain(size.sites, max_neighbor_order=2)
            couplings = {"J": [1.0, 0.2], "sign_rule": [True, False]}
        plain = nk.operator.Heisenberg(hilbert, graph, **couplings).to_jax_operator()
        sampler = nk.sampler.MetropolisExchange(hilbert, graph=chain, d_max=2, n_chains=16)
    phase = name == "j1j2"
    model = nk.models.RBM(alpha=2, param_dtype=complex if phase else float)
    hamiltonian = scale * plain
    matrix = hamiltonian.to_sparse().tocoo()
    ground = eigsh(matrix.tocsr(), k=1, which="SA", v0=np.ones(matrix.shape[0]), return_eigenvectors=False)
    values = matrix.data if phase else matrix.data.real
    problem = SpinChain(
        log_psi=lambda params, x: model.apply({"params": params}, x),
        init_params=lambda key, x: model.init(key, x)["params"],
        phase=phase,
        states=jnp.asarray(hilbert.all_states(), float),
        values=jnp.asarray(values),
        rows=jnp.asarray(matrix.row),
        columns=jnp.asarray(matrix.col),
        ground=jnp.asarray(ground[0]),
    )
    return System(hamiltonian, model, sampler, problem)


def grid_errors(system: System, size: Size, settings: np.ndarray) -> np.ndarray:
    """Relative errors [settings, seeds, steps + 1] of SPRING on independent samples."""
    common: dict[str, Any] = {"sampler": Uniforms(size=size.samples), "steps": size.steps}

    def one(setting: Float[Array, " 3"], key: PRNGKeyArray) -> Float[Array, " steps"]:
        rate, momentum, damping = setting
        spring = Spring(damping, momentum)
        result = run(system.problem, key, method=spring, optimizer=rate, **common)
        return result.history["relative_error"]

    return _over(one, settings, size.seeds)


def default_errors(system: System, size: Size) -> np.ndarray:
    """Relative errors [seeds, steps + 1] without settings, on independent samples."""
    common: dict[str, Any] = {"sampler": Uniforms(size=size.samples), "steps": size.steps}

    def one(setting: Float[Array, " 1"], key: PRNGKeyArray) -> Float[Array, " steps"]:
        del setting
        return run(system.problem, key, method=FisherSpring(), **common).history["relative_error"]

    return _over(one, np.zeros((1, 1)), size.seeds)[0]


def _over(one: Callable, settings: np.ndarray, seeds: int) -> np.ndarray:
    """One compiled program for every setting and seed."""
    keys = jax.random.split(jax.random.key(0), seeds)
    every = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
    return np.asarray(every(jnp.asarray(settings), keys))


def driver_errors(system: System, size: Size, setting: np.ndarray | None) -> np.ndarray:
    """Relative errors [seeds, steps + 1] of the driver on Markov chains, without settings or with (η, μ, λ).

    They are exact for the parameters of each step; only the steps see samples.
    """
    nk = _netket()
    from ..netket import VMC

    exact = jax.jit(lambda params: system.problem.metrics(params)["relative_error"])
    found = []
    for seed in range(size.seeds):
        options = {"n_samples": size.samples, "seed": seed, "sampler_seed": seed + 100}
        vstate = nk.vqs.MCState(system.sampler, system.model, **options)
        if setting is None:
            driver = VMC(system.hamiltonian, vstate)
        else:
            rate, momentum, damping = map(float, setting)
            driver = VMC(system.hamiltonian, rate, vstate, method=Spring(damping, momentum))
        errors: list[Array] = []

        def note(step: int, data: Any, driver: Any, errors: list[Array] = errors) -> bool:
            del step, data
            errors.append(exact(driver.state.parameters))  # before the update of this step
            return True

        driver.run(size.steps, callback=note, show_progress=False)
        found.append(np.array([*errors, exact(vstate.parameters)]))
    return np.stack(found)


def steps_to_goal(errors: np.ndarray) -> np.ndarray:
    """The first step at which the error is below the goal; infinite where there is none."""
    below = np.abs(errors) < GOAL
    return np.where(below.any(axis=-1), below.argmax(axis=-1), np.inf)


def final_error(errors: np.ndarray) -> np.ndarray:
    """The geometric mean of the last errors; infinite for a run that diverged."""
    last = np.abs(errors[..., -TAIL:])
    last = np.where(np.isfinite(last), last, np.inf)
    return np.exp(np.mean(np.log(np.maximum(last, np.finfo(float).tiny)), axis=-1))


def spin_chains(size: Size = FULL) -> dict[str, np.ndarray]:
    """What the panel needs of all chains; `FULL` takes about two minutes on two cores, `QUICK` seconds.

    SPRING is tuned on independent samples, in hindsight and by the median over the seeds: once for the fewest
    steps to the goal, once for the least final error. The driver then runs without settings and with these
    two, on Markov chains.

    **Returns:** arrays, one for each chain of `size.names`:

    - `settings` [chains, 2, 3]: the (η, μ, λ) of fewest steps, and of least final error;
    - `errors` [chains, 3, seeds, steps + 1]: of the driver without settings, and with these two;
    - `steps`, `final` [chains, 3]: medians over the seeds of steps to the goal and of final errors;
    - `steps_ratio`, `final_ratio` [chains]: without settings, over the better of the two;
    - `grid_steps`, `grid_final` [chains, grid]: medians of every setting on independent samples; and
      `default_steps`, `default_final` [chains] those without settings.

    `ImportError` without NetKet.
    """
    grid = size.settings()
    parts: list[dict[str, np.ndarray]] = []
    for name in size.names:
        system = spin_system(name, size)
        errors = grid_errors(system, size, grid)
        grid_steps, grid_final = (np.median(f(errors), axis=1) for f in (steps_to_goal, final_error))
        # Among equals in steps the better one in the end, as a user would choose.
        chosen = grid[[np.lexsort((grid_final, grid_steps))[0], np.argmin(grid_final)]]
        alone = default_errors(system, size)
        curves = np.stack([driver_errors(system, size, setting) for setting in (None, *chosen)])
        steps, final = (np.median(f(curves), axis=1) for f in (steps_to_goal, final_error))
        parts.append(
            {
                "settings": chosen,
                "errors": curves,
                "steps": steps,
                "final": final,
                "steps_ratio": steps[0] / np.min(steps[1:]),
                "final_ratio": final[0] / np.min(final[1:]),
                "grid_steps": grid_steps,
                "grid_final": grid_final,
                "default_steps": np.median(steps_to_goal(alone)),
                "default_final": np.median(final_error(alone)),
            }
        )
    return {key: np.stack([part[key] for part in parts]) for key in parts[0]}


def _netket() -> Any:
    try:
        import netket
    except ImportError as error:
        raise ImportError("the spin chains need NetKet: pip install 'snapgrad[netket]'.") from error
    return netket
