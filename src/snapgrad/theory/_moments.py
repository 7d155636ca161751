"""Means over batches S of the matrices behind α, β and γ, from draws, with as little variance as is cheap.

**γ.** Write S = R ∪ {i}. With F = J_R^{+(λ)}, a_i = Fᵀ J_i and v_i = J_i − J_Rᵀ a_i (a row as a column),

    J_S^{+(λ)} = [F − u_i a_iᵀ, u_i],    u_i = v_i / s_i,    s_i = ‖v_i‖² + λ(1 + ‖a_i‖²),

and Greville's u_i = F a_i / (1 + ‖a_i‖²) where s_i = 0. So from a batch with one of its rows left out, the
average over that row is analytic: row i is the missing one with a chance proportional to s_i under squared
volume sampling, and the same for all i under uniform sampling. With c_i = k times that chance,

    X_ii = E[c_i h_i],    X_Ri = E[c_i (Fᵀ M u_i − a_i h_i)],    h_i = u_iᵀ M u_i,    M = W̃⁺.

Under squared volume sampling c_i P(R) = s_i ρ P'(R) with P' the law SVS(J, k−1, λ) and ρ = p_{k−1}/p_k,
so where all R can be enumerated nothing is random.

**β.** E[P P̄⁺ P] = Jᵀ X J with M = P̄⁺ serves when R is enumerated. Otherwise that form has no variance to
spare, and whole batches are drawn: P(S) = Y Yᵀ, and with A = P̄^{-1/2} Y the matrix is E[A AᵀA Aᵀ], of norm
β. Rare batches carry much of it. So they are drawn from det(J_S J_Sᵀ + λI + t J_S P̄⁺ J_Sᵀ), t = 1/rank,
which is SVS of a matrix with the same left singular vectors and σ² (1 + t/p) for σ², p the eigenvalues of P̄,
and weighted by the ratio of the laws, a constant over det(I + t AᵀA).
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from . import exact
from ._closed_forms import log_esp_of, log_esp_ratio, ratios
from ._spectrum import Sampling, Spectrum

FOLDS = 10
_BLOCK = 500

Form: TypeAlias = Float[np.ndarray, " e"] | Float[np.ndarray, "e e"]
"""A symmetric matrix in the basis V; one axis means diagonal, as all are under squared volume sampling."""


class SymmetricRows(NamedTuple):
    """The symmetric m × m matrix (A + Aᵀ)/2 + diag(d) where only a few rows of A are not zero.

    A mean over few draws is such a matrix, and m × m numbers are not needed to multiply with it.

    - `places`: which rows of A are stored, in increasing order; `rows`: these rows; `diagonal`: d.
    """

    places: Int[np.ndarray, " u"]
    rows: Float[np.ndarray, "u m"]
    diagonal: Float[np.ndarray, " m"]

    def __matmul__(self, x: Float[np.ndarray, "m *columns"]) -> Float[np.ndarray, "m *columns"]:
        """The product with a vector or with a matrix."""
        out = self.rows.T @ x[self.places] / 2 + (self.diagonal * x.T).T
        out[self.places] += self.rows @ x / 2
        return out

    def dense(self) -> Float[np.ndarray, "m m"]:
        """All m × m numbers."""
        A = np.zeros((len(self.diagonal), len(self.diagonal)))
        A[self.places] = self.rows
        return (A + A.T) / 2 + np.diag(self.diagonal)

    def mixed(self, other: "SymmetricRows", share: float) -> "SymmetricRows":
        """(1 − share) times this matrix plus share times the other one."""
        index = np.union1d(self.places, other.places)
        rows = np.zeros((len(index), len(self.diagonal)))
        rows[np.searchsorted(index, self.places)] = (1 - share) * self.rows
        rows[np.searchsorted(index, other.places)] += share * other.rows
        return SymmetricRows(index, rows, (1 - share) * self.diagonal + share * other.diagonal)


def second_moment(
    spec: Spectrum,
    M: Form,
    sets: Int[np.ndarray, "N r"],
    lam: float,
    sampling: Sampling,
    weights: Float[np.ndarray, " N"] | None = None,
) -> SymmetricRows:
    """X with M for W̃⁺: the mean over draws of S less one row or, with `weights` P'(R), the sum over all R."""
    if M.ndim == 2:  # a rotation of the basis makes M diagonal and changes nothing else
        M, Q = np.linalg.eigh(M)
        spec = spec._replace(rows=spec.rows @ Q, V=spec.V @ Q)
    Z, k = spec.rows, sets.shape[1] + 1
    squares, forms = _dots(Z, Z), np.stack([np.ones(spec.rank), M], axis=1)
    rho = math.exp(log_esp_ratio(spec, k, lam)) if weights is not None and sampling == "svs" else None
    used, places = np.unique(sets, return_inverse=True)
    places = places.reshape(sets.shape)
    out, diagonal = np.zeros((len(used), len(Z))), np.zeros(len(Z))
    for index, R in enumerate(sets):
        left, s, right, q = (x[0] for x in exact.singular_values(spec, R[None], lam))
        right, inverse = right[:, : spec.rank], _inverse(q)
        coordinates = Z @ right.T
        F = (right.T * (s * inverse)) @ left.T
        a = (coordinates * (s * inverse)) @ left.T
        v = Z - (coordinates * (s**2 * inverse)) @ right
        aa = _dots(a, a)
        square, h = ((v * v) @ forms).T
        schur = square + lam * (1 + aa)
        dependent = schur <= spec.tiny**2 * squares
        if dependent.any():
            v[dependent] = (a[dependent] @ F.T) / (1 + aa[dependent])[:, None]
            h[dependent] = (v[dependent] ** 2) @ M
            schur[dependent] = 0.0
        scale = 1 / np.where(dependent, 1.0, schur)  # u = scale · v
        h = scale**2 * h

        c = schur.copy() if sampling == "svs" else np.ones(len(Z))
        c[R] = 0.0
        c *= k / c.sum() if rho is None else rho
        c *= 1 / len(sets) if weights is None else weights[index]
        diagonal += c * h
        out[places[index]] += (c[:, None] * (scale[:, None] * (v @ (M[:, None] * F)) - a * h[:, None])).T
    return SymmetricRows(used, out, diagonal)


def projector(spec: Spectrum, sets: Int[np.ndarray, "N k"], lam: float) -> Float[np.ndarray, "e e"]:
    """The mean of P(S) over draws of S."""
    out = np.zeros((spec.rank, spec.rank))
    for start in range(0, len(sets), _BLOCK):
        Y = _joined(_factors(spec, sets[start : start + _BLOCK], lam))
        out += Y @ Y.T
    return out / len(sets)


def squared_projector(
    spec: Spectrum, P_half: Form, sets: Int[np.ndarray, "N k"], lam: float, tilt: float, log_scale: float
) -> Float[np.ndarray, "e e"]:
    """The mean of (P̄^{-1/2} P(S) P̄^{-1/2})² over draws of S, weighted by e^log_scale / det(I + tilt AᵀA)."""
    out = np.zeros((spec.rank, spec.rank))
    for start in range(0, len(sets), _BLOCK):
        Y = _factors(spec, sets[start : start + _BLOCK], lam)
        A = P_half[:, None] * Y if P_half.ndim == 1 else P_half @ Y
        G = np.swapaxes(A, 1, 2) @ A
        weight = np.exp(log_scale - np.linalg.slogdet(np.eye(G.shape[1]) + tilt * G)[1])
        out += _joined(A) @ _joined(A @ G * weight[:, None, None]).T
    return (out + out.T) / (2 * len(sets))


class Tilted:
    """The law from which β draws: SVS of `matrix`; its weights are e^log_scale / det(I + tilt AᵀA)."""

    def __init__(self, spec: Spectrum, k: int, lam: float):
        p = spec.sigma**2 * ratios(spec, k, lam).leading
        self.tilt = 1 / spec.rank
        tilted = spec.sigma * np.sqrt(1 + self.tilt / p)
        self.matrix = spec.U * tilted
        self.log_scale = log_esp_of(tilted, spec.num_rows, k, lam) - log_esp_of(
            spec.sigma, spec.num_rows, k, lam
        )


def in_folds(sets: Int[np.ndarray, "N r"]) -> Int[np.ndarray, "folds N_each r"]:
    """Ten parts; later draws come to the end of each, so parts of more draws contain those of fewer."""
    return sets.reshape(-1, FOLDS, sets.shape[1]).swapaxes(0, 1)


def _factors(spec: Spectrum, S: Int[np.ndarray, "N k"], lam: float) -> Float[np.ndarray, "N e k"]:
    """Y with P(S) = Y Yᵀ."""
    _, s, right, q = exact.singular_values(spec, S, lam)
    return np.swapaxes(right[:, :, : spec.rank], 1, 2) * (s * np.sqrt(_inverse(q)))[:, None, :]


def _joined(Y: Float[np.ndarray, "N e k"]) -> Float[np.ndarray, "e Nk"]:
    """The blocks side by side, so that a sum of products is one product."""
    return Y.transpose(1, 0, 2).reshape(Y.shape[1], -1)


def _inverse(q: np.ndarray) -> np.ndarray:
    return np.where(q > 0, 1 / np.where(q > 0, q, 1.0), 0.0)


def _dots(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x_i · y_i for each row."""
    return np.einsum("ij,ij->i", x, y)
