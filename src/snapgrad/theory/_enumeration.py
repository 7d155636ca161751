"""Exact second moments of SNG and SPRING on tiny least-quadratics, by enumerating every batch.

With e = θ − θ*, G = J_S^{+(λ)} (HJ)_S, P = J_S^{+(λ)} J_S and g = J_S^{+(λ)} r*_S, one step of SPRING is

    φ' = μ(I − P)φ + Ge + g,    e' = e − ηφ',

which is linear in (e, φ) up to g. So the matrix of second moments follows a linear map. The spectral radius
of that map is the exact rate of E‖θ_t − θ*‖², and its fixed point is the exact error floor of an inconsistent
problem.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from . import exact


class EnumeratedProblem(NamedTuple):
    """A tiny least-quadratics problem with everything that each of its batches does to the error.

    Build it with `sg.theory.enumerate_problem`. Its methods give rates and floors without any sampling error.

    - `probabilities`: p(S) for each batch S.
    - `maps`: G for each batch; `projectors`: P for each batch; `noise`: g for each batch.
    - `alpha`, `beta`, `gamma`: the exact constants of the sampling law.
    - `weight`: W̃⁺, the norm in which Theorems 5.1 and G.1 are stated.
    - `curvature`: the smallest and the largest eigenvalue of H.
    - `residual`: ‖r(θ*)‖, which is zero for a consistent problem.

    ```python
    J = np.random.default_rng(0).normal(size=(6, 3))
    problem = sg.theory.enumerate_problem(J, np.eye(6), np.ones(6), sample_size=2, damping=0.1)
    problem.rate(step_size=0.8, momentum=0.3), problem.floor(step_size=0.1)
    ```
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
        """The rate of Conjecture 6.2, κ⁻¹ √(α/β) / γ, as `rate` counts it."""
        low, high = self.curvature
        return low / high * float(np.sqrt(self.alpha / self.beta)) / self.gamma

    @property
    def scaled(self) -> float:
        """The conjectured rate with √γ in the place of γ where γ < 1.

        P and cP differ only by a step size; α scales with c and β does not, so 1/γ belongs under the root.
        """
        return self.conjectured * float(np.sqrt(min(1.0, self.gamma)))

    @property
    def advice(self) -> tuple[float, float]:
        """A step size η and a momentum μ that need no tuning: those of accelerated sketch-and-project with
        P/γ for P, and η over ‖H‖.
        """
        rho = float(np.sqrt(self.alpha / self.beta / min(1.0, self.gamma)))
        step_size = (rho + 1 / self.beta) / (1 + rho) / (self.gamma * self.curvature[1])
        return step_size, (1 - rho) / (1 + rho)

    def rate(self, step_size: float, momentum: float = 0.0) -> float:
        """Returns the exact rate of SPRING (without momentum, of SNG): E‖θ_t − θ*‖² = O((1 − rate)ᵗ).

        It is one minus the spectral radius of the map of second moments, and negative where the iteration
        diverges.
        """
        n = self.maps.shape[1]
        G, kept = self.maps, momentum * (np.eye(n) - self.projectors)
        A = np.block([[np.eye(n) - step_size * G, -step_size * kept], [G, kept]])
        moments = np.einsum("s,sij,skl->ikjl", self.probabilities, A, A, optimize=True)
        return 1 - float(np.abs(np.linalg.eigvals(moments.reshape(4 * n * n, -1))).max())

    def tuned_rate(self) -> tuple[float, float, float]:
        """Searches for the best η and μ: a grid, then a simplex search from its three best points.

        Returns the rate there, η and μ.
        """
        from scipy.optimize import minimize  # takes a while to import, and only this needs it

        def negative(x: Any) -> float:
            eta, gap = np.exp(x)
            return -self.rate(eta, 1 - gap) if gap <= 1 else np.inf

        scale = 1 / self.curvature[1]
        grid = [np.log([scale * 2.0**i, 2.0**-j]) for i in np.arange(-4, 3.5, 0.5) for j in range(8)]
        best_of_grid = sorted(grid, key=negative)[:3]
        options = {"xatol": 1e-3, "fatol": 1e-10, "maxiter": 80}
        found = (minimize(negative, x, method="Nelder-Mead", options=options) for x in best_of_grid)
        best = min(found, key=lambda result: result.fun)
        eta, gap = np.exp(best.x)
        return -float(best.fun), float(eta), float(1 - gap)

    def floor(self, step_size: float) -> float:
        """Returns the limit of E‖θ_t − θ*‖² in the norm W̃⁺ for SNG; it is zero for consistent problems.

        It is the fixed point of the map of second moments. Under squared volume sampling E g = W̃Jᵀr* = 0, so
        no cross terms remain.
        """
        n = self.maps.shape[1]
        p, A = self.probabilities, np.eye(n) - step_size * self.maps
        moments = np.einsum("s,sij,skl->ikjl", p, A, A, optimize=True).reshape(n * n, n * n)
        source = step_size**2 * np.einsum("s,si,sj->ij", p, self.noise, self.noise).ravel()
        fixed = np.linalg.solve(np.eye(n * n) - moments, source).reshape(n, n)
        return float(np.sum(self.weight * fixed))


def enumerate_problem(
    J: Float[np.ndarray, "m n"],
    H: Float[np.ndarray, "m m"],
    rhs: Float[np.ndarray, " m"],
    *,
    sample_size: int,
    damping: float = 0.0,
) -> EnumeratedProblem:
    """Enumerates every batch of squared volume sampling for the problem of minimising ½vᵀHv − vᵀb at v = Jθ.

    Returns an `EnumeratedProblem`.

    It raises `ValueError` where J has not full column rank, because θ* is not unique then, and where there
    are more batches than `sg.theory.exact.constants` enumerates.

    **Arguments:**

    - `J`, `H`, `rhs`: the matrix, the Hessian (symmetric and positive definite) and b.
    - `sample_size`: k, the number of rows in a batch.
    - `damping`: the regularisation λ ≥ 0.

    ```python
    J = np.random.default_rng(0).normal(size=(6, 3))
    sg.theory.enumerate_problem(J, np.eye(6), np.zeros(6), sample_size=2).tuned_rate()
    ```
    """
    constants = exact.constants(J, sample_size=sample_size, damping=damping)
    rank = np.linalg.matrix_rank(J)
    if rank < J.shape[1]:
        raise ValueError(f"`J` must have full column rank, which is {J.shape[1]}; its rank is {rank}.")
    S = np.asarray(constants.subsets)
    solution = np.linalg.solve(J.T @ H @ J, J.T @ rhs)
    residual = H @ (J @ solution) - rhs
    rows = J[S]
    kernel = rows @ np.swapaxes(rows, 1, 2) + damping * np.eye(sample_size)
    pinv = np.swapaxes(rows, 1, 2) @ np.linalg.pinv(kernel, hermitian=True)
    curvature = np.linalg.eigvalsh(H)
    return EnumeratedProblem(
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
