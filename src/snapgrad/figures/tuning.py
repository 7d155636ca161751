"""`sg.Auto` without settings, against fixed settings tuned in hindsight."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from .. import pinn
from .._contracts import AbstractMethod
from ..methods import Auto, Spring
from ..problems import DiscretePoisson, LeastQuadratics, linear_hessian, singular_values, spectrum_matrix
from ..reproduce import Claim, Data, Panel, Size, Study, Tick
from ..sampling import Uniform
from ..training import run
from . import _chains as chains
from ._hindsight import Family, errors_over_grid
from ._measured import Measured
from ._sweep import stack

SPECTRA = ("flat", "power:1", "power:2", "exp:0.05")
LABELS = ("flat", "1/i", "1/i²", "exponential")
CONDITIONS: dict[Size, tuple[int, ...]] = {"full": (1, 10, 100, 1000), "quick": (1, 100)}
SAMPLE_SIZES: dict[Size, tuple[int, ...]] = {"full": (5, 10, 20, 50), "quick": (4,)}
NETWORKS = ("poisson-2d", "heat-1d", "poisson-5d", "poisson-10d")
SIZES: dict[Size, dict[str, Any]] = {
    "full": {
        "rows": 1000,
        "params": 100,
        "seeds": 3,
        "steps": 10_000,
        "noisy": 4000,
        "nets": 4,
        "chains": 3,
    },
    "quick": {"rows": 40, "params": 10, "seeds": 1, "steps": 100, "noisy": 500, "nets": 1, "chains": 1},
}
TOLERANCE, NOISE, NOISY_SAMPLE = 1e-4, 0.05, 10
PATIENCE = 5
"""A run that takes this many times the tuned number of steps has failed."""
CHUNK = 500
"""Steps between two looks at whether a run has arrived; one number, so that there is one program."""
LIMITS, TICKS = (0.1, 7), (0.1, 0.2, 0.5, 1, 1.5, 3, 5)
POISSON = {"sample_size": 10, "steps": 1000, "tolerance": 0.03, "every": 10}


def _energy_error(problem: LeastQuadratics, params: Float[Array, " n"]) -> Scalar:
    """‖θ − θ*‖/‖θ*‖ in the norm of JᵀHJ: √(excess loss), relative to that of θ = 0."""
    J, HJ, star = problem.jacobian, problem.hessian_jacobian, problem.solution
    error = params - star
    return jnp.sqrt((J @ error) @ (HJ @ error) / ((J @ star) @ (HJ @ star)))


def _problems(size: Size, key: PRNGKeyArray, spectrum: str, noise: float) -> list[LeastQuadratics]:
    """One J, and H of each condition number; b is perturbed by so much of its norm."""
    settings = SIZES[size]
    m, n = settings["rows"], settings["params"]
    key_j, key_h, key_t, key_n = jax.random.split(key, 4)
    J = spectrum_matrix(key_j, singular_values(spectrum, n), m)
    star, perturbation = jax.random.normal(key_t, (n,)), jax.random.normal(key_n, (m,))
    out = []
    for condition in CONDITIONS[size]:
        H = None if condition == 1 else linear_hessian(key_h, m, condition)
        problem = LeastQuadratics(J, H, solution=star)
        if noise:
            scale = noise * jnp.linalg.norm(problem.rhs) / jnp.linalg.norm(perturbation)
            problem = LeastQuadratics(J, H, rhs=problem.rhs + scale * perturbation)
        out.append(problem)
    return out


def _family(problems: Sequence[LeastQuadratics]) -> Family:
    return Family(
        problems[0].jacobian,
        jnp.stack([p.hessian_jacobian for p in problems]),
        jnp.stack([p.hessian_jacobian @ p.solution - p.rhs for p in problems]),
        -jnp.stack([p.solution for p in problems]),
    )


@eqx.filter_jit
def _auto(problems: Any, states: Any, key: PRNGKeyArray, sample_size: int, every: int, records: int) -> Any:
    """Some more steps of all problems side by side, which draw the same rows."""

    def one(problem: Measured, state: Any) -> Any:
        sampler = Uniform(problem.num_rows, sample_size)
        steps = every * records
        result = run(
            problem, key, method=Auto(), sampler=sampler, steps=steps, record_every=every, state=state
        )
        return result.state, result.history["relative_error"][1:]

    return eqx.filter_vmap(one, in_axes=(eqx.if_array(0), eqx.if_array(0)))(problems, states)


def _auto_errors(
    problems: Sequence[LeastQuadratics],
    key: PRNGKeyArray,
    sample_size: int,
    every: int,
    steps: int,
    goal: Any,
) -> np.ndarray:
    """Errors [records, problems] of `sg.Auto`, until each is below its goal or `steps` are done."""
    # Least squares and the others are two programs.
    groups = [[i for i, p in enumerate(problems) if (p.hessian is None) == plain] for plain in (True, False)]
    out: dict[int, np.ndarray] = {}
    for group in filter(None, groups):
        wrapped = [Measured(problems[i], _energy_error) for i in group]
        stacked, states, found = stack(wrapped), None, []
        while sum(x.shape[1] for x in found) * every < steps:
            states, errors = _auto(stacked, states, key, sample_size, every, CHUNK // every)
            found.append(np.asarray(errors))
            if np.all((np.concatenate(found, axis=1) <= goal[group][:, None]).any(axis=1)):
                break
        out |= dict(zip(group, np.concatenate(found, axis=1), strict=True))
    length = max(map(len, out.values()))
    return np.stack([np.pad(out[i], (0, length - len(out[i])), mode="edge") for i in range(len(problems))], 1)


def _first(errors: np.ndarray, goal: np.ndarray, every: int) -> np.ndarray:
    """Steps until an error [records, …] is at most its goal; infinite if it never is."""
    below = errors <= goal
    return np.where(below.any(axis=0), (below.argmax(axis=0) + 1) * every, np.inf)


def _linear(size: Size, seed: int, k: int, tick: Tick) -> dict[str, np.ndarray]:
    """Steps to the tolerance, or to the least error that the grid reaches: [seed, spectrum, κ]."""
    settings, every = SIZES[size], max(1, 50 // (2 * k))
    tuned, auto, goals = [], [], []
    for index in range(settings["seeds"]):
        for number, spectrum in enumerate(SPECTRA):
            key = jax.random.fold_in(jax.random.key(seed), 10 * index + number)
            problems = _problems(size, key, spectrum, 0.0)
            errors = errors_over_grid(
                _family(problems), key, k, every, settings["steps"],
                lambda found: bool(np.all(found.min(axis=(0, 2)) <= TOLERANCE)),
            ).min(axis=2)  # fmt: skip
            goal = np.maximum(TOLERANCE, errors.min(axis=0))
            best = _first(errors, goal, every)
            own = _auto_errors(
                problems, jax.random.fold_in(key, 1), k, every, int(PATIENCE * best.max()), goal
            )
            tuned.append(best), auto.append(_first(own, goal, every)), goals.append(goal)
            tick((index * len(SPECTRA) + number + 1) / (settings["seeds"] * len(SPECTRA)))
    shape = settings["seeds"], len(SPECTRA), len(CONDITIONS[size])
    return {
        name: np.reshape(values, shape)
        for name, values in (("tuned", tuned), ("auto", auto), ("goal", goals))
    }


def _noisy(size: Size, seed: int, tick: Tick) -> dict[str, np.ndarray]:
    """The error over the last quarter of the steps, of the best of the grid and of Auto."""
    settings, k = SIZES[size], min(NOISY_SAMPLE, SIZES[size]["params"] // 2)
    every, steps = 10, settings["noisy"]
    tuned, auto = [], []
    for index in range(settings["seeds"]):
        for number, spectrum in enumerate(SPECTRA):
            key = jax.random.fold_in(jax.random.key(seed), 1000 + 10 * index + number)
            problems = _problems(size, key, spectrum, NOISE)
            errors = errors_over_grid(_family(problems), key, k, every, steps, lambda found: False)
            own = _auto_errors(problems, jax.random.fold_in(key, 1), k, every, steps, np.zeros(len(problems)))
            last = slice(-(steps // every // 4), None)
            tuned.append(np.sqrt(np.mean(errors[last] ** 2, axis=0)).min(axis=1))
            auto.append(np.sqrt(np.mean(own[last] ** 2, axis=0)))
            tick((index * len(SPECTRA) + number + 1) / (settings["seeds"] * len(SPECTRA)))
    shape = settings["seeds"], len(SPECTRA), len(CONDITIONS[size])
    return {"tuned": np.reshape(tuned, shape), "auto": np.reshape(auto, shape)}


@eqx.filter_jit
def _train(
    problem: Any, key: Any, method: AbstractMethod, rate: Array, sampler: Any, steps: int, every: int
) -> Array:
    result = run(
        problem,
        key,
        method=method,
        sampler=sampler,
        optimizer=optax.sgd(rate),
        steps=steps,
        record_every=every,
    )
    history = result.history
    return history["relative_l2" if "relative_l2" in history else "relative_error"][1:]


def _over_grid(
    problem: Any, key: Any, sampler: Any, steps: int, every: int, grid: Sequence[Any]
) -> np.ndarray:
    """Errors [grid, records] of SPRING at points (λ, η, μ)."""
    lam, eta, mu = (jnp.asarray(x, float) for x in zip(*grid, strict=True))
    one = lambda lam, eta, mu: _train(problem, key, Spring(lam, mu), eta, sampler, steps, every)  # noqa: E731
    found = np.asarray(jax.jit(jax.vmap(one))(lam, eta, mu))
    return np.where(np.isfinite(found), found, np.inf)


def _poisson(size: Size, seed: int, tick: Tick) -> dict[str, np.ndarray]:
    """The paper's network: steps to a relative error of 0.03."""
    full = size == "full"
    problem = DiscretePoisson() if full else DiscretePoisson(12, 6)
    k, every, goal = POISSON["sample_size"] if full else 3, POISSON["every"], np.array(POISSON["tolerance"])
    steps = POISSON["steps"] if full else 20
    grid = [(1e-2, 2.0**i, mu) for i in range(-9, -3) for mu in (0.0, 0.5, 0.75, 0.9)]
    sampler, tuned, auto = Uniform(problem.num_rows, k), [], []
    for index in range(SIZES[size]["seeds"]):
        key = jax.random.fold_in(jax.random.key(seed), 2000 + index)
        best = _first(_over_grid(problem, key, sampler, steps, every, grid).T, goal, every).min()
        tick((index + 0.7) / SIZES[size]["seeds"])
        own = _train(problem, key, Auto(), jnp.asarray(1.0), sampler, 3 * steps, every)
        tuned.append(best), auto.append(_first(np.asarray(own), goal, every))
    return {"tuned": np.array(tuned), "auto": np.array(auto)}


def _pinn(size: Size, seed: int, name: str, tick: Tick) -> dict[str, np.ndarray]:
    """Steps until the error is that of the best fixed settings at the end of their run."""
    full = size == "full"
    steps, every = (120, 5) if full else (6, 2)
    small = {"hidden": (24, 24), "points": (120, 16, 16) if name == "heat-1d" else (120, 32)}
    problem = pinn.zoo(name, **(small if full else {"hidden": (6,), "points": (20, 8)}))
    key = jax.random.fold_in(jax.random.key(seed), 3000)
    grid = [(lam, eta, mu) for lam in (1e-8, 1e-6, 1e-4) for eta in (0.1, 0.3) for mu in (0.8, 0.95)]
    sampler = pinn.Collocation(problem, 1)
    errors = _over_grid(problem, key, sampler, steps, every, grid if full else grid[:2]).T
    tick(0.7)
    goal = errors.min()
    own = _train(problem, key, Auto(), jnp.asarray(1.0), sampler, PATIENCE * steps, every)
    return {
        "tuned": _first(errors.min(axis=1), goal, every),
        "auto": _first(np.asarray(own), goal, every),
        "goal": np.asarray(goal),
    }


def _chain(size: Size, name: chains.Name, tick: Tick) -> dict[str, np.ndarray]:
    """A quantum state under the NetKet driver: steps to 1e-3, and the error in the end, as medians."""
    tick(0.0)
    found = chains.spin_chains((chains.FULL if size == "full" else chains.QUICK)._replace(names=(name,)))
    tick(1.0)
    pairs = {"": found["steps"][0], "_final": found["final"][0]}
    return {
        f"{who}{what}": value
        for what, medians in pairs.items()
        for who, value in (("auto", medians[0]), ("tuned", np.min(medians[1:])))
    }


def _panels(size: Size, seed: int) -> list[Panel]:
    about = {"study": "tuning", "size": size, "seed": seed, **SIZES[size]}
    panels = [
        Panel(f"k{k}", {**about, "sample_size": k}, partial(_linear, size, seed, k), cost=40.0)
        for k in SAMPLE_SIZES[size]
    ]
    panels.append(Panel("noise", {**about, "noise": NOISE}, partial(_noisy, size, seed), cost=40.0))
    panels.append(Panel("poisson", {**about, **POISSON}, partial(_poisson, size, seed), cost=30.0))
    for name in NETWORKS[: SIZES[size]["nets"]]:
        panels.append(Panel(name, {**about, "network": name}, partial(_pinn, size, seed, name), cost=20.0))
    if find_spec("netket") is not None:
        for name in chains.FULL.names[: SIZES[size]["chains"]]:
            panels.append(
                Panel(f"{name}-chain", {**about, "chain": name}, partial(_chain, size, name), cost=60.0)
            )
    return panels


def _sizes(data: Data) -> list[int]:
    return sorted(int(name[1:]) for name in data if name[1:].isdigit())


def _ratios(data: Data) -> dict[int, np.ndarray]:
    """Steps of Auto over tuned steps [seed, spectrum, κ] for each k."""
    return {k: data[f"k{k}"]["auto"] / data[f"k{k}"]["tuned"] for k in _sizes(data)}


def _networks(data: Data) -> list[str]:
    return [name for name in NETWORKS if name in data]


def _spins(data: Data) -> list[str]:
    return [name for name in data if name.endswith("-chain")]


def _claims(data: Data) -> list[Claim]:
    ratios = np.concatenate([x.ravel() for x in _ratios(data).values()])
    noise = data["noise"]["auto"] / data["noise"]["tuned"]
    poisson = data["poisson"]["auto"] / data["poisson"]["tuned"]
    nets = [float(data[name]["auto"] / data[name]["tuned"]) for name in _networks(data)]
    contract = "the threshold is what a user of fixed settings would lose by not tuning"
    return [
        Claim(
            f"Linear problems within 1.5 times the tuned number of steps: share of all {ratios.size}",
            float(np.mean(ratios <= 1.5)),
            low=185 / 192,
            detail=f"185 in 192; {contract}",
        ),
        Claim(
            f"… and none fails (more than {PATIENCE} times)",
            float(np.sum(~(ratios <= PATIENCE))),
            high=0.0,
            detail="nothing to tune must mean nothing to rescue",
        ),
        Claim(
            "The noise floor is that of tuned settings: median ratio of errors",
            float(np.median(noise)),
            high=1.1,
            detail="5 % noise; the last quarter of the steps",
        ),
        Claim(
            "The paper's network: median ratio of steps", float(np.median(poisson)), high=2.0, detail=contract
        ),
        Claim(
            "PINNs: largest ratio of steps to the error of the best fixed settings",
            max(nets),
            high=2.0,
            detail=contract,
        ),
        *_chain_claims(data),
    ]


def _chain_claims(data: Data) -> list[Claim]:
    panels = [data[name] for name in _spins(data)]
    if not panels:
        return []
    settings = "three seeds, medians; SPRING with the better of two settings out of 30"
    return [
        Claim(
            "Spin chains: largest ratio of steps to a relative error of 1e-3",
            max(float(panel["auto"] / panel["tuned"]) for panel in panels),
            high=1.5,
            detail=settings,
        ),
        Claim(
            "Spin chains: largest ratio of errors after 300 steps",
            max(float(panel["auto_final"] / panel["tuned_final"]) for panel in panels),
            high=2.0,
            detail=settings,
        ),
    ]


def _table(data: Data) -> list[dict[str, Any]]:
    conditions = CONDITIONS["full" if max(_sizes(data)) >= 50 else "quick"]
    rows = []
    for name, panel in data.items():
        if panel["tuned"].ndim < 3:
            pairs = zip(np.ravel(panel["tuned"]), np.ravel(panel["auto"]), strict=True)
            rows += [
                {
                    "panel": name,
                    "spectrum": "",
                    "condition": "",
                    "seed": i,
                    "tuned": float(a),
                    "auto": float(b),
                }
                for i, (a, b) in enumerate(pairs)
            ]
            continue
        for (s, i, j), tuned in np.ndenumerate(panel["tuned"]):
            found = {"tuned": float(tuned), "auto": float(panel["auto"][s, i, j])}
            rows.append(
                {"panel": name, "spectrum": SPECTRA[i], "condition": conditions[j], "seed": s, **found}
            )
    return rows


def _draw(ax: Any, data: Data) -> None:
    """One column of dots for each k, coloured by spectrum; κ grows to the right within a column."""
    from ..report import GREY, palette

    ratios = _ratios(data)
    colours = palette(len(SPECTRA))
    for column, values in enumerate(ratios.values()):
        conditions = values.shape[2]
        for i, (colour, label) in enumerate(zip(colours, LABELS, strict=True)):
            for j in range(conditions):
                place = column + 0.18 * (j - (conditions - 1) / 2) + 0.03 * (i - 1.5)
                shown = np.minimum(values[:, i, j], PATIENCE)
                ax.plot(
                    np.full(len(shown), place), shown, "o", color=colour, markersize=2.5,
                    label=label if column == j == 0 else None,
                )  # fmt: skip
    ax.axhline(1, color=GREY, linestyle=":")
    ax.axhline(1.5, color=GREY, linestyle="--")
    ax.set(yscale="log", ylim=LIMITS, ylabel="steps, Auto / tuned SPRING")
    ax.set(xlabel="sample size; within each, κ(H) grows from 1 to 1000")
    ax.set_xticks(range(len(ratios)), [f"k = {k}" for k in ratios])
    ax.set_yticks(TICKS, list(map(str, TICKS)))
    ax.minorticks_off()
    ax.legend(title="singular values of J", loc="upper center", ncols=4, fontsize=7, title_fontsize=7)


def _draw_others(ax: Any, data: Data) -> None:
    from ..report import BLUE, GREEN, GREY, INK, ORANGE

    def ratio(name: str, what: str = "") -> np.ndarray:
        return np.ravel(data[name][f"auto{what}"] / data[name][f"tuned{what}"])

    spins = _spins(data)
    columns = [
        ("5 % noise (error)", INK, ratio("noise")),
        ("Poisson network", BLUE, ratio("poisson")),
        *((f"PINN {name}", GREEN, ratio(name)) for name in _networks(data)),
        *((name.replace("-", " "), ORANGE, ratio(name)) for name in spins),
        *((f"{name.replace('-', ' ')} (error)", ORANGE, ratio(name, "_final")) for name in spins),
    ]
    for place, (_, colour, values) in enumerate(columns):
        spread = 0.2 * np.linspace(-1, 1, len(values)) if len(values) > 1 else np.zeros(1)
        ax.plot(place + spread, np.minimum(values, PATIENCE), "o", color=colour, markersize=3)
    ax.axhline(1, color=GREY, linestyle=":")
    ax.axhline(1.5, color=GREY, linestyle="--")
    ax.set(yscale="log", ylim=LIMITS, ylabel="without settings / tuned in hindsight")
    ax.set_xticks(range(len(columns)), [name for name, _, _ in columns], fontsize=7, rotation=40, ha="right")
    ax.set_yticks(TICKS, list(map(str, TICKS)))
    ax.minorticks_off()


def _notes(data: Data) -> list[str]:
    ratios = _ratios(data)
    medians = ", ".join(f"k = {k}: {np.median(values):.2f}" for k, values in ratios.items())
    return [
        f"Median ratio of steps on linear problems: {medians}.",
        "Tuning knows the answer: the best of 156 pairs (η, μ) is chosen for each problem by its own error, "
        "and costs 156 runs. Auto runs once.",
    ]


STUDY = Study(
    name="tuning",
    title="No settings, against settings tuned in hindsight",
    source="beyond the paper",
    caption=(
        "Left: steps that `sg.Auto` takes, over those of SPRING with the best of 13 step sizes × 12 momenta "
        "for that problem (λ = 0), to a relative error of 1e-4 in the norm of JᵀHJ (the root of the excess "
        "loss), or to what the best pair reaches in 10⁴ steps. Least-quadratics, m = 1000, n = 100, three "
        "problems each. Right: the error on the noise floor relative to the best of the same grid (k = 10, b "
        "perturbed by 5 %); steps to a relative error of 0.03 for the paper's network (k = 10, 24 pairs, λ = "
        "0.01); steps to the error that the best of 12 settings (λ, η, μ) of SPRING reaches in 120 steps, on "
        "four small PINNs; steps to a relative error of 1e-3, and errors after 300 steps, of quantum states "
        "on three spin chains (10 sites, 64 samples a step, the default of the NetKet driver against SPRING "
        "with the better of two settings out of 30; where NetKet is installed). Dots at the top edge: not "
        "within five times the tuned number. Below the dotted line Auto is better; the dashed line is one "
        "and a half times the tuned number."
    ),
    panels=_panels,
    plots=(_draw, _draw_others),
    claims=_claims,
    table=_table,
    notes=_notes,
)
