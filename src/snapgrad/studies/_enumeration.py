"""Exact second moments of SNG and SPRING on tiny least-quadratics, by enumerating every batch.

With e = θ − θ*, G = J_S^{+(λ)} (HJ)_S, P = J_S^{+(λ)} J_S and g = J_S^{+(λ)} r*_S a step of SPRING is

    φ' = μ(I − P)φ + Ge + g,    e' = e − ηφ',

linear in (e, φ) up to g. So the matrix of second moments follows a linear map, whose spectral radius is the
exact rate of E‖θ_t − θ*‖², and whose fixed point is the exact error floor of an inconsistent problem.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from .. import theory


class Instance(NamedTuple):
    """A tiny problem with everything that its batches do.

    - `probabilities`: p(S); `maps`: G; `projectors`: P; `noise`: g.
    - `alpha`, `beta`, `gamma`, `weight`: the exact constants, and W̃⁺.
    - `curvature`: the smallest and largest eigenvalue of H; `residual`: ‖r*‖.
    """

    probabilities: Float[np.ndarray, " N"]
    maps: Float[np.ndarray, "N n n"]
    projectors: Float[np.ndarray, "N n n"]
    noise: Float[np.ndarray, "N n"]
    alpha: float
    beta: float
    gamma: float
    weight: Float[np.ndarray, "n n"]
    curvature: tuple[float, float]
    residual: float

    @property
    def conjectured(self) -> float:
        """κ⁻¹ √(α/β) / γ, the rate of Conjecture 6.2."""
        low, high = self.curvature
        return low / high * float(np.sqrt(self.alpha / self.beta)) / self.gamma

    @property
    def scaled(self) -> float:
        """The same with √γ for γ where γ < 1.

        P and cP differ by a step size only; α scales with c, β does not, so that 1/γ belongs under the root.
        """
        return self.conjectured * float(np.sqrt(min(1.0, self.gamma)))

    @property
    def advice(self) -> tuple[float, float]:
        """Untuned η and μ: those of accelerated sketch-and-project with P/γ for P, and η over ‖H‖."""
        rho = float(np.sqrt(self.alpha / self.beta / min(1.0, self.gamma)))
        step_size = (rho + 1 / self.beta) / (1 + rho) / (self.gamma * self.curvature[1])
        return step_size, (1 - rho) / (1 + rho)


def instance(
    J: Float[np.ndarray, "m n"],
    H: Float[np.ndarray, "m m"],
    rhs: Float[np.ndarray, " m"],
    k: int,
    damping: float,
) -> Instance:
    """Enumerates SVS(J, k, λ) for the problem ½vᵀHv − vᵀb; J must have full column rank."""
    constants = theory.exact.constants(J, sample_size=k, damping=damping)
    S = np.asarray(constants.subsets)
    solution = np.linalg.solve(J.T @ H @ J, J.T @ rhs)
    residual = H @ (J @ solution) - rhs
    rows = J[S]
    kernel = rows @ np.swapaxes(rows, 1, 2) + damping * np.eye(k)
    pinv = np.swapaxes(rows, 1, 2) @ np.linalg.pinv(kernel, hermitian=True)
    curvature = np.linalg.eigvalsh(H)
    return Instance(
        probabilities=np.asarray(constants.probabilities),
        maps=pinv @ (H @ J)[S],
        projectors=pinv @ rows,
        noise=np.einsum("snk,sk->sn", pinv, residual[S]),
        alpha=constants.alpha,
        beta=constants.beta,
        gamma=constants.gamma,
        weight=np.linalg.inv(np.asarray(constants.preconditioner)),
        curvature=(float(curvature[0]), float(curvature[-1])),
        residual=float(np.linalg.norm(residual)),
    )


def rate(problem: Instance, step_size: float, momentum: float) -> float:
    """1 − (spectral radius of the map of second moments): E‖θ_t − θ*‖² = O((1 − rate)ᵗ)."""
    n = problem.maps.shape[1]
    G, kept = problem.maps, momentum * (np.eye(n) - problem.projectors)
    A = np.block([[np.eye(n) - step_size * G, -step_size * kept], [G, kept]])
    moments = np.einsum("s,sij,skl->ikjl", problem.probabilities, A, A, optimize=True)
    return 1 - float(np.abs(np.linalg.eigvals(moments.reshape(4 * n * n, -1))).max())


def tuned_rate(problem: Instance) -> tuple[float, float, float]:
    """The best rate over η and μ, with them: a grid, then a simplex search from its best points."""

    def negative(x: Any) -> float:
        eta, gap = np.exp(x)
        return -rate(problem, eta, 1 - gap) if gap <= 1 else np.inf

    scale = 1 / problem.curvature[1]
    grid = [np.log([scale * 2.0**i, 2.0**-j]) for i in np.arange(-4, 3.5, 0.5) for j in range(8)]
    starts = sorted(grid, key=negative)[:3]
    options = {"xatol": 1e-3, "fatol": 1e-10, "maxiter": 80}
    best = min(
        (minimize(negative, x, method="Nelder-Mead", options=options) for x in starts), key=lambda r: r.fun
    )
    eta, gap = np.exp(best.x)
    return -float(best.fun), float(eta), float(1 - gap)


def floor(problem: Instance, step_size: float) -> float:
    """The limit of E‖θ_t − θ*‖² in the norm W̃⁺ for SNG: the fixed point of the map of second moments.

    Under squared volume sampling E g = W̃Jᵀr* = 0, so that no cross terms remain.
    """
    n = problem.maps.shape[1]
    p, A = problem.probabilities, np.eye(n) - step_size * problem.maps
    moments = np.einsum("s,sij,skl->ikjl", p, A, A, optimize=True).reshape(n * n, n * n)
    source = step_size**2 * np.einsum("s,si,sj->ij", p, problem.noise, problem.noise).ravel()
    fixed = np.linalg.solve(np.eye(n * n) - moments, source).reshape(n, n)
    return float(np.sum(problem.weight * fixed))
