"""The inconsistent case: where SNG stops improving, against the bound of the extension theorem."""

from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from .. import theory
from ..problems import LeastQuadratics, linear_hessian, singular_values, spectrum_matrix
from ..reproduce import Claim, Data, Panel, Size, Study, Tick
from ..sampling import SquaredVolume
from ._fits import loglog_slope
from ._measured import Measured
from ._sweep import Run, Subject, sweep

SIZES: dict[Size, dict[str, Any]] = {
    "full": {"num_rows": 200, "num_params": 20, "sample_size": 5, "steps": 40_000, "runs": 16, "tiny": 60},
    "quick": {"num_rows": 20, "num_params": 4, "sample_size": 2, "steps": 200, "runs": 2, "tiny": 3},
}
FRACTIONS = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""Step sizes as fractions of the largest one the theorem allows, 1/(2γ‖H‖)."""
CONDITION, NOISE = 10.0, 0.3


class WeightedError(eqx.Module):
    """‖θ − θ*‖ in the norm W̃⁺ of the theorem, over ‖r*‖."""

    weight: Float[Array, "n n"]

    def __call__(self, problem: LeastQuadratics, params: Float[Array, " n"]) -> Scalar:
        """At these parameters."""
        error = params - problem.solution
        residual = problem.hessian_jacobian @ problem.solution - problem.rhs
        return jnp.sqrt(error @ self.weight @ error) / jnp.linalg.norm(residual)


@cache
def noisy_problem(size: Size, seed: int) -> LeastQuadratics:
    """σ_i = 1/i, κ(H) = 10, and b perturbed by 30 % so that no θ solves the problem exactly."""
    settings = SIZES[size]
    m, n = settings["num_rows"], settings["num_params"]
    keys = jax.random.split(jax.random.key(seed), 4)
    J = spectrum_matrix(keys[0], singular_values("power:1", n), m)
    H = linear_hessian(keys[1], m, CONDITION)
    b = H @ (J @ jax.random.normal(keys[2], (n,)))
    noise = jax.random.normal(keys[3], (m,))
    return LeastQuadratics(J, H, rhs=b + NOISE * jnp.linalg.norm(b) / jnp.linalg.norm(noise) * noise)


@cache
def largest_step(size: Size, seed: int) -> tuple[float, theory.Interval]:
    """1/(2γ‖H‖) with ‖H‖ = 1, and γ."""
    problem, k = noisy_problem(size, seed), SIZES[size]["sample_size"]
    key = jax.random.fold_in(jax.random.key(seed), 1)
    gamma = theory.gamma(problem.jacobian, sample_size=k, key=key, num_samples=1000)
    return theory.step_size("inconsistent", gamma=gamma), gamma


def _panels(size: Size, seed: int) -> list[Panel]:
    identity = {"study": "noise_floor", "size": size, "seed": seed, "condition": CONDITION, "noise": NOISE}
    shared = {**identity, "fractions": list(FRACTIONS), **SIZES[size]}
    return [
        Panel("runs", {**shared, "part": "runs"}, partial(_runs, size, seed), cost=30.0),
        Panel("exact", {**shared, "part": "exact"}, partial(_exact, size, seed), cost=5.0),
    ]


def _runs(size: Size, seed: int, tick: Tick) -> dict[str, np.ndarray]:
    settings, problem = SIZES[size], noisy_problem(size, seed)
    k = settings["sample_size"]
    step, gamma = largest_step(size, seed)
    tick(0.3)
    alpha = theory.alpha(problem.jacobian, sample_size=k)
    weight = jnp.linalg.inv(theory.preconditioner(problem.jacobian, sample_size=k))
    volume = SquaredVolume.from_matrix(problem.jacobian, sample_size=k)
    weighted = Measured(problem, WeightedError(weight))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2), settings["runs"])
    one = Run("svs", k, settings["steps"], settings["steps"] // 200)
    etas = step * np.array(FRACTIONS)
    result = sweep(one, [Subject(weighted, key, volume) for key in keys], damping=0.0, step_size=etas)
    return {
        "step": np.arange(201) * one.record_every,
        "squared_error": np.mean(result["error"] ** 2, axis=1),
        "step_size": etas,
        "bound": 2 * gamma.high * etas / (alpha / CONDITION),
        "alpha": np.array(alpha),
        "gamma": np.array(gamma),
    }


def _exact(size: Size, seed: int, tick: Tick) -> dict[str, np.ndarray]:
    """Floors over bounds [problems, fractions] of tiny problems, exact."""
    rng, ratios = np.random.default_rng([seed, 3]), []
    for index in range(SIZES[size]["tiny"]):
        m, k, damping = int(rng.integers(5, 9)), int(rng.integers(1, 4)), float(rng.choice([0.0, 0.01, 0.3]))
        condition, decay = float(rng.choice([1.0, 10.0, 100.0])), float(rng.choice([0.0, 1.0, 2.0]))
        left, right, turn = (np.linalg.qr(rng.normal(size=shape))[0] for shape in ((m, 3), (3, 3), (m, m)))
        J = (left * np.arange(1, 4) ** -decay) @ right
        H = (turn * np.geomspace(1, 1 / condition, m)) @ turn.T
        problem = theory.enumerate_problem(J, H, rng.normal(size=m), sample_size=k, damping=damping)
        low, high = problem.curvature
        steps = np.array(FRACTIONS) / (2 * problem.gamma * high)
        bound = 2 * problem.gamma * steps / (low * problem.alpha) * problem.residual**2
        ratios.append([problem.floor(eta) for eta in steps] / bound)
        tick((index + 1) / SIZES[size]["tiny"])
    return {"ratio": np.array(ratios), "fraction": np.array(FRACTIONS)}


def _floors(data: Data) -> np.ndarray:
    """The mean squared error over the last half of each run, for each step size."""
    error = data["runs"]["squared_error"]
    return error[:, error.shape[1] // 2 :].mean(axis=1)


def _claims(data: Data) -> list[Claim]:
    runs, floors, exact = data["runs"], _floors(data), data["exact"]["ratio"]
    return [
        Claim(
            "The floor stays below the theorem's bound at every step size: largest floor/bound",
            float(np.max(floors / runs["bound"])),
            high=1.0,
            detail="Theorem G.1",
        ),
        Claim(
            "… on tiny problems exactly: largest floor/bound",
            float(exact.max()),
            high=1.0,
            detail=f"{len(exact)} problems, {exact.shape[1]} step sizes each",
        ),
        Claim(
            "The floor of the squared error shrinks in proportion to η: log–log slope",
            loglog_slope(runs["step_size"], floors),
            low=0.8,
            high=1.2,
            detail="the theorem's bound has slope 1; a fifth is allowed for higher orders of η and chance",
        ),
    ]


def _table(data: Data) -> list[dict[str, Any]]:
    runs, rows = data["runs"], []
    for i, eta in enumerate(runs["step_size"]):
        row = {"step_size": float(eta), "floor": _floors(data)[i], "bound": float(runs["bound"][i])}
        rows.append({**row, "largest_exact_ratio": float(data["exact"]["ratio"][:, i].max())})
    return rows


def _draw_runs(ax: Any, data: Data) -> None:
    from ..report import palette

    runs = data["runs"]
    for i, colour in enumerate(palette(len(runs["step_size"]))):
        label = f"η = {runs['step_size'][i]:.2g}"
        ax.plot(runs["step"][1:], runs["squared_error"][i, 1:], color=colour, label=label)
        ax.axhline(runs["bound"][i], color=colour, linestyle=":")
    ax.set(xscale="log", yscale="log", xlabel="step t", ylabel="mean ‖θ − θ*‖² / ‖r*‖²", title="runs")
    ax.legend(loc="lower left", ncols=2, title="dotted: bounds")


def _draw_exact(ax: Any, data: Data) -> None:
    from ..report import BLUE, GREY, ORANGE

    exact, runs = data["exact"], data["runs"]
    for row in exact["ratio"]:
        ax.plot(exact["fraction"], row, color=BLUE, alpha=0.3, linewidth=1)
    ax.plot([], [], color=BLUE, label="tiny problems, exact")
    ax.plot(exact["fraction"], _floors(data) / runs["bound"], color=ORANGE, marker="s", label="the runs")
    ax.axhline(1, color=GREY, linestyle=":")
    ax.set(
        xscale="log", yscale="log", xlabel="η times 2γ‖H‖", ylabel="floor / bound", title="how tight it is"
    )
    ax.legend(loc="lower right")


STUDY = Study(
    name="noise_floor",
    title="Inconsistent problems: the error floor against its bound",
    source="beyond the paper",
    caption=(
        "SNG under squared volume sampling on a problem that no θ solves exactly (m = 200, n = 20, k = 5, "
        "σ_i = 1/i, κ(H) = 10, λ = 0), for step sizes from the largest that Theorem G.1 allows down to a "
        "sixteenth. Left: squared error in the theorem's norm W̃⁺, mean over 16 runs, with the theorem's "
        "asymptotic bounds 2γη/(σα)‖r*‖² dotted. Right: floor over bound, also exactly for many tiny "
        "problems by enumeration."
    ),
    panels=_panels,
    plots=(_draw_runs, _draw_exact),
    claims=_claims,
    table=_table,
)
