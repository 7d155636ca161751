"""Predicted rates, and the step sizes and momentum that go with them, from the constants."""

import math
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ._estimate import Interval

Statement: TypeAlias = Literal[
    "sketch-and-project", "ngd", "sng", "inconsistent", "commuting", "accelerated", "spring-conjecture"
]
"""Which result to apply:

- `"sketch-and-project"`: block Kaczmarz on consistent least squares, E‖θ_t − θ*‖² ≤ (1 − α)ᵗ ‖θ₀ − θ*‖².
- `"ngd"`: Corollary 5.2, deterministic natural gradient descent at λ = 0, in the norm JᵀJ.
- `"sng"`: Theorem 5.1, SNG under squared volume sampling, in the norm W̃⁺.
- `"inconsistent"`: Theorem G.1, smooth, strongly convex and possibly inconsistent, down to a floor.
- `"commuting"`: Proposition F.1, if H and JJᵀ commute; γ plays no part.
- `"accelerated"`: SPRING on consistent least squares (Section 6), up to a constant factor.
- `"spring-conjecture"`: Conjecture 6.2, SPRING under squared volume sampling. Not proved.
"""

_NEEDS = {
    "sketch-and-project": ("alpha",),
    "ngd": (),
    "sng": ("alpha", "gamma"),
    "inconsistent": ("alpha", "gamma"),
    "commuting": ("alpha",),
    "accelerated": ("alpha", "beta"),
    "spring-conjecture": ("alpha", "beta", "gamma"),
}
_NORM = {"ngd": "JᵀJ", "sng": "W̃⁺", "inconsistent": "W̃⁺"}
_ACCELERATED = ("accelerated", "spring-conjecture")
_LEAST_SQUARES = ("sketch-and-project", "accelerated")


class Rate(NamedTuple):
    """E‖θ_t − θ*‖² ≤ (1 − `rate`)ᵗ ‖θ₀ − θ*‖² + `floor` ‖r(θ*)‖², in the norm named by `norm`.

    - `step_size`: the η it holds for; `momentum`: the μ, zero without momentum.
    - `exact_constant`: whether it holds as written, or up to a factor that does not depend on t.
    - `proved`: false for a conjecture.

    ```python
    rate = sg.theory.predicted_rate("sng", alpha=0.1, gamma=2.0)
    rate.rate, rate.step_size, rate.norm                   # 0.05, 0.5, "W̃⁺"
    ```
    """

    rate: float
    step_size: float
    momentum: float
    norm: str
    floor: float
    exact_constant: bool
    proved: bool


def predicted_rate(
    statement: Statement,
    *,
    alpha: float | Interval | None = None,
    beta: float | Interval | None = None,
    gamma: float | Interval | None = None,
    curvature: tuple[float, float] = (1.0, 1.0),
    step_size: float | None = None,
) -> Rate:
    """Returns the rate that a result of the paper guarantees (or conjectures) from the constants.

    **Arguments:**

    - `statement`: which result, see `Statement`.
    - `alpha`, `beta`, `gamma`: the constants that it needs. Of an `Interval` the end that makes the rate safe
      is taken.
    - `curvature`: (λ_min(H), ‖H‖), or strong convexity and smoothness of the loss; (1, 1) is least squares.
    - `step_size`: η, at most the one of `sg.theory.step_size`, which is the default.

    ```python
    J = jax.random.normal(jax.random.key(0), (20, 4))
    alpha, gamma = sg.theory.alpha(J, sample_size=2), sg.theory.gamma(J, sample_size=2)
    sg.theory.predicted_rate("sng", alpha=alpha, gamma=gamma, curvature=(0.01, 1.0)).rate
    ```
    """
    a, b, g = _safe_values(statement, alpha, beta, gamma)
    smallest, largest = _curvature(statement, curvature)
    most = _step(statement, a, b, g, largest)
    eta = most if step_size is None else float(step_size)
    fixed = statement in ("sketch-and-project", *_ACCELERATED)
    if not 0 < eta <= most * (1 + 1e-12) or (fixed and not math.isclose(eta, most, rel_tol=1e-9)):
        wanted = f"{most:.6g}, the only one it is stated for" if fixed else f"in (0, {most:.6g}]"
        raise ValueError(f"`step_size` must be {wanted}, for {statement!r}; got {step_size!r}.")
    rates = {
        "sketch-and-project": a,
        "ngd": eta * smallest,
        "accelerated": math.sqrt(a / b),
        "spring-conjecture": smallest / largest * math.sqrt(a / b) / g,
    }
    return Rate(
        rate=rates.get(statement, eta * smallest * a),
        step_size=eta,
        momentum=_momentum(a, b) if statement in _ACCELERATED else 0.0,
        norm=_NORM.get(statement, "I"),
        floor=2 * g * eta / (smallest * a) if statement == "inconsistent" else 0.0,
        exact_constant=statement not in _ACCELERATED,
        proved=statement != "spring-conjecture",
    )


def step_size(
    statement: Statement,
    *,
    alpha: float | Interval | None = None,
    beta: float | Interval | None = None,
    gamma: float | Interval | None = None,
    curvature: tuple[float, float] = (1.0, 1.0),
) -> float:
    """Returns the largest step size η a result allows: 1/(γ‖H‖) for `"sng"`, half that for
    `"inconsistent"`.

    For SPRING on least squares it is (ρ + 1/β)/(1 + ρ) with ρ = √(α/β); for `"spring-conjecture"` that over
    γ‖H‖, which is a guess. The arguments are those of `sg.theory.predicted_rate`: the `statement`, those of
    `alpha`, `beta` and `gamma` that it needs, and the `curvature`.

    ```python
    sg.theory.step_size("sng", gamma=2.0, curvature=(0.01, 1.0))         # 0.5
    ```
    """
    a, b, g = _safe_values(statement, alpha, beta, gamma, of_step=True)
    return _step(statement, a, b, g, _curvature(statement, curvature)[1])


def momentum(*, alpha: float | Interval, beta: float | Interval) -> float:
    """Returns SPRING's μ = (1 − ρ)/(1 + ρ) with ρ = √(α/β), the accelerated sketch-and-project rate.

    Of an `Interval` for `alpha` or `beta` the end is taken that makes the rate safe.

    ```python
    sg.theory.momentum(alpha=0.04, beta=4.0)               # ρ = 0.1, μ = 0.818
    ```
    """
    return _momentum(_number("alpha", alpha, "low"), _number("beta", beta, "high"))


def _step(statement: str, a: float, b: float, g: float, largest: float) -> float:
    if statement == "sketch-and-project":
        return 1.0
    if statement in ("ngd", "commuting"):
        return 1 / largest
    if statement == "sng":
        return 1 / (g * largest)
    if statement == "inconsistent":
        return 1 / (2 * g * largest)
    rho = math.sqrt(a / b)
    eta = (rho + 1 / b) / (1 + rho)
    return eta if statement == "accelerated" else eta / (g * largest)


def _momentum(a: float, b: float) -> float:
    rho = math.sqrt(a / b)
    return (1 - rho) / (1 + rho)


def _safe_values(
    statement: Any, alpha: Any, beta: Any, gamma: Any, of_step: bool = False
) -> tuple[float, float, float]:
    """Safe values of α, β, γ; what the statement does not need is NaN, so that it cannot pass unseen."""
    if statement not in get_args(Statement):
        raise ValueError(f"`statement` must be one of {', '.join(get_args(Statement))}; got {statement!r}.")
    needs = _NEEDS[statement]
    if of_step and statement not in _ACCELERATED:
        needs = tuple(name for name in needs if name == "gamma")
    given = {"alpha": (alpha, "low"), "beta": (beta, "high"), "gamma": (gamma, "high")}
    values = [_number(name, *given[name]) if name in needs else math.nan for name in given]
    return values[0], values[1], values[2]


def _number(name: str, value: Any, end: str) -> float:
    if value is None:
        raise ValueError(f"`{name}` must be given, got None; see `sg.theory.{name}`.")
    number = float(getattr(value, end) if isinstance(value, Interval) else value)
    if not (
        number > 0 and (name != "alpha" or number <= 1 + 1e-9) and (name != "beta" or number >= 1 - 1e-9)
    ):
        wanted = {"alpha": "in (0, 1]", "beta": ">= 1", "gamma": "positive"}[name]
        raise ValueError(f"`{name}` must be {wanted}, got {value!r}.")
    return number


def _curvature(statement: str, curvature: Any) -> tuple[float, float]:
    smallest, largest = (float(x) for x in curvature)
    if not 0 < smallest <= largest < math.inf:
        raise ValueError(
            f"`curvature` must be (smallest, largest) with 0 < smallest <= largest, got {curvature}."
        )
    if statement in _LEAST_SQUARES and (smallest, largest) != (1.0, 1.0):
        raise ValueError(f"`curvature` must be (1, 1), least squares, for {statement!r}; got {curvature}.")
    return smallest, largest
