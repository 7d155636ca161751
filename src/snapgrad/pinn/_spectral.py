"""Spectral solvers for the equations of the zoo without a closed form; `_references` stores what they find.

All are Galerkin methods (products on a finer grid, so that nothing is aliased) with the exponential
Runge–Kutta method of order four of Cox and Matthews, its weights by contour integrals (Kassam and
Trefethen), and the errors in h⁴, h⁵, … removed by Richardson's extrapolation.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.fft import dct, irfft, rfft

TIMES = np.linspace(0, 1, 21)
"""When the solutions are kept."""


def march(
    start: np.ndarray, linear: np.ndarray, nonlinear: Callable, times: np.ndarray, steps: int
) -> np.ndarray:
    """Solves v' = Lv + N(v) for a diagonal L, kept at the given times, with so many steps between them."""
    found, size, weights = [start], 0.0, ()
    for begin, end in pairwise(times):
        h = (end - begin) / steps
        if abs(h - size) > 1e-12 * h:
            size, weights = h, _weights(linear, h)
        v = found[-1]
        for _ in range(steps):
            v = _step(v, nonlinear, *weights)
        found.append(v)
    return np.array(found)


def extrapolated(run: Callable[[int], np.ndarray], steps: int, levels: int) -> np.ndarray:
    """`run(steps)` and its refinements by two, without the terms in h⁴, h⁵, … of their errors."""
    found = [run(steps * 2**level) for level in range(levels)]
    for order in range(4, 3 + levels):
        found = [fine + (fine - coarse) / (2**order - 1) for coarse, fine in pairwise(found)]
    return found[0]


def _weights(linear: np.ndarray, h: float | np.floating) -> tuple[np.ndarray, ...]:
    """exp(hL), exp(hL/2) and the four φ-functions, as means over a circle around hL."""
    wide = np.abs(linear).dtype
    z = (h * linear)[..., None] + np.exp(1j * _pi(wide) * (np.arange(64).astype(wide) + 0.5) / 32)
    e = np.exp(z)
    integrands = (
        (np.exp(z / 2) - 1) / z,
        (-4 - z + e * (4 - 3 * z + z**2)) / z**3,
        (2 + z + e * (z - 2)) / z**3,
        (-4 - 3 * z - z**2 + e * (4 - z)) / z**3,
    )
    means = [h * np.mean(values, axis=-1) for values in integrands]
    if np.isrealobj(linear):
        means = [mean.real for mean in means]
    return np.exp(h * linear), np.exp(h * linear / 2), *means


def _pi(dtype: Any) -> Any:
    """π to the precision of a type."""
    return 4 * np.arctan(np.ones((), dtype))


def _step(v, nonlinear, whole, half, q, first, middle, last):
    at_v = nonlinear(v)
    a = half * v + q * at_v
    at_a = nonlinear(a)
    b = half * v + q * at_a
    at_b = nonlinear(b)
    c = half * a + q * (2 * at_b - at_v)
    return whole * v + first * at_v + 2 * middle * (at_a + at_b) + last * nonlinear(c)


def _convection(start: np.ndarray, linear: np.ndarray, factor: np.ndarray, steps: int) -> np.ndarray:
    """û' = Lû − factor·(u²)^/2 on a periodic grid, dealiased by the rule of three halves."""
    modes = start.size
    fine, half = 3 * modes // 2, modes // 2

    def nonlinear(v: np.ndarray) -> np.ndarray:
        padded = np.zeros(fine // 2 + 1, v.dtype)
        padded[:half] = v[:half]
        square = np.asarray(rfft(np.asarray(irfft(padded, fine)) ** 2)) * (fine / modes)
        return -0.5 * factor * np.append(square[:half], 0)

    found = march(np.asarray(rfft(start)), linear, nonlinear, TIMES.astype(start.dtype), steps)
    return np.asarray(irfft(found, modes, axis=1))


def korteweg_de_vries(modes: int, steps: int) -> np.ndarray:
    """u_t + u u_x + 0.022² u_xxx = 0 on [−1, 1], periodic, u = cos πx at t = 0: `[times, modes]`."""
    x = -1 + 2 * np.arange(modes) / modes
    wave = 1j * np.pi * np.arange(modes // 2 + 1)
    return _convection(np.cos(np.pi * x), -(0.022**2) * wave**3, wave, steps)


def kuramoto_sivashinsky(modes: int, steps: int, dtype: type = float) -> np.ndarray:
    """u_t + αu u_x + βu_xx + γu_xxxx = 0 on [0, 2π], periodic, u = cos x (1 + sin x) at t = 0.

    It is chaotic: until t = 1 rounding grows by a factor of 10⁷, so that eleven digits take `np.longdouble`.
    """
    x = 2 * _pi(dtype) * np.arange(modes).astype(dtype) / modes
    wave = np.arange(modes // 2 + 1).astype(dtype)
    linear = 100 / 16**2 * wave**2 - 100 / 16**4 * wave**4
    return _convection(np.cos(x) * (1 + np.sin(x)), linear, 100 / 16 * 1j * wave, steps)


def allen_cahn(modes: int, steps: int) -> np.ndarray:
    """u_t = 1e-4 u_xx + 5(u − u³) on [−1, 1], periodic, u = x² cos πx at t = 0: at 129 points of [0, 1].

    The solution is even, so periodic means u_x = 0 at both ends of [0, 1]: a cosine series. The slope of the
    first values jumps at x = ±1, so that their coefficients, taken in closed form, fall like 1/k²; the
    solution is smooth at once. Steps begin small, where high modes decay, and double.
    """
    wave = np.arange(modes)

    def moment(j: np.ndarray) -> np.ndarray:  # 2 ∫₀¹ x² cos(jπx) dx
        return np.where(j == 0, 2 / 3, 4 * (-1.0) ** j / np.maximum(j * np.pi, 1) ** 2)

    start = (moment(wave + 1) + moment(np.abs(wave - 1))) / 2
    start[0] /= 2

    def nonlinear(a: np.ndarray) -> np.ndarray:
        padded = np.append(a, np.zeros(modes))
        padded[1:] /= 2
        values = np.asarray(dct(padded, type=3))
        cube = np.asarray(dct(values**3, type=2))[:modes] / (2 * modes)
        cube[0] /= 2
        return -5 * cube

    early = TIMES[1] * 2.0 ** np.arange(-16, 0)
    times = np.concatenate([[0], early, TIMES[1:]])
    found = march(start, 5 - 1e-4 * (np.pi * wave) ** 2, nonlinear, times, steps)
    values = found[[0, *range(17, len(times))]] @ np.cos(np.pi * np.outer(wave, np.arange(129) / 128))
    values[0] = (np.arange(129) / 128) ** 2 * np.cos(np.pi * np.arange(129) / 128)
    return values


def gray_scott(modes: int, steps: int) -> np.ndarray:
    """u_t = 0.2Δu + 40(1 − u) − 1000uv², v_t = 0.1Δv − 100v + 1000uv² on [−1, 1]², periodic, t ≤ 2.

    u = 1 − exp(−10((x + 0.05)² + (y + 0.02)²)) and v = exp(−10((x − 0.05)² + (y − 0.02)²)) at t = 0, whose
    slopes jump by 1e-3 across the sides: their coefficients are integrals, not sums over the grid.
    Returns `[11 times, 2, 16, 16]`.
    """
    wave = np.fft.fftfreq(modes, 1 / modes)
    nodes, quadrature = np.polynomial.legendre.leggauss(2 * modes)

    def bump(centre: float) -> np.ndarray:
        values = quadrature * np.exp(-10 * (nodes - centre) ** 2)
        return np.exp(-1j * np.pi * np.outer(wave, nodes + 1)) @ values / 2

    def product(x: float, y: float) -> np.ndarray:
        return np.outer(bump(x), bump(y))[:, : modes // 2 + 1] * modes**2

    constant = np.zeros((modes, modes // 2 + 1))
    constant[0, 0] = modes**2
    start = np.array([constant - product(-0.05, -0.02), product(0.05, 0.02)])
    squared = np.pi**2 * (wave[:, None] ** 2 + wave[None, : modes // 2 + 1] ** 2)
    linear = np.array([-0.2 * squared - 40, -0.1 * squared - 100])
    keep = (np.abs(wave[:, None]) < modes / 3) & (np.abs(wave[None, : modes // 2 + 1]) < modes / 3)

    def nonlinear(w: np.ndarray) -> np.ndarray:
        u, v = np.fft.irfft2(w * keep, (modes, modes), axes=(1, 2))
        reaction = 1000 * np.fft.rfft2(u * v**2) * keep
        return np.array([40 * constant - reaction, reaction])

    times = np.concatenate([[0], 0.2 * 2.0 ** np.arange(-8, 0), np.linspace(0, 2, 11)[1:]])
    found = march(start, linear, nonlinear, times, steps)[[0, *range(9, len(times))]]
    values = np.fft.irfft2(found, (modes, modes), axes=(2, 3))[..., :: modes // 16, :: modes // 16]
    x, y = np.meshgrid(np.arange(-1, 1, 1 / 8), np.arange(-1, 1, 1 / 8), indexing="ij")
    values[0, 0] = 1 - np.exp(-10 * ((x + 0.05) ** 2 + (y + 0.02) ** 2))
    values[0, 1] = np.exp(-10 * ((x - 0.05) ** 2 + (y - 0.02) ** 2))
    return values
