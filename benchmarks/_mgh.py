"""The test problems of Moré, Garbow and Hillstrom (ACM TOMS 7, 1981) as nonlinear least squares.

Each is a function r of a vector whose sum of squares is minimised, with its standard start and the minima
that the collection lists, global and local, some of them at infinity; the lower minimum of Chebyquad with
n = 10 was found later. The sizes are those of its tables.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ZERO = 1e-15
"""A sum of squares below this counts as a zero minimum."""
DIGITS = 1e-5
"""A minimum that is not zero is reached to this relative error: the collection prints six digits."""


class Problem(NamedTuple):
    """A function r from parameters to residuals; `minima` are known values of ‖r‖², smallest first."""

    name: str
    residual: Callable[[jax.Array], jax.Array]
    start: np.ndarray
    minima: tuple[float, ...]

    def begin(self, factor: float) -> np.ndarray:
        """The start, times a factor; where it is the origin, the factor itself, as in MINPACK's tests."""
        return factor * self.start if factor == 1 or np.any(self.start) else np.full_like(self.start, factor)

    def solved(self, value: float) -> bool:
        """Whether this ‖r‖² is one of the known minima."""
        return any(
            abs(value - known) <= DIGITS * known + (ZERO if known == 0 else 0) for known in self.minima
        )


def rosenbrock(x):
    return jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def freudenstein_roth(x):
    return jnp.array(
        [-13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1], -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1]]
    )


def powell_badly_scaled(x):
    return jnp.array([1e4 * x[0] * x[1] - 1, jnp.exp(-x[0]) + jnp.exp(-x[1]) - 1.0001])


def brown_badly_scaled(x):
    return jnp.array([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2])


def beale(x):
    return jnp.array([1.5, 2.25, 2.625]) - x[0] * (1 - x[1] ** jnp.arange(1, 4))


def jennrich_sampson(x):
    i = jnp.arange(1.0, 11)
    return 2 + 2 * i - (jnp.exp(i * x[0]) + jnp.exp(i * x[1]))


def helical_valley(x):
    turn = jnp.arctan(x[1] / x[0]) / (2 * jnp.pi) + jnp.where(x[0] < 0, 0.5, 0.0)
    return jnp.array([10 * (x[2] - 10 * turn), 10 * (jnp.sqrt(x[0] ** 2 + x[1] ** 2) - 1), x[2]])


BARD = np.array([14, 18, 22, 25, 29, 32, 35, 39, 37, 58, 73, 96, 134, 210, 439]) / 100


def bard(x):
    u = jnp.arange(1.0, 16)
    v = 16 - u
    return BARD - (x[0] + u / (v * x[1] + jnp.minimum(u, v) * x[2]))


GAUSSIAN = np.array([9, 44, 175, 540, 1295, 2420, 3521, 3989, 3521, 2420, 1295, 540, 175, 44, 9]) / 1e4


def gaussian(x):
    t = (8 - jnp.arange(1.0, 16)) / 2
    return x[0] * jnp.exp(-x[1] * (t - x[2]) ** 2 / 2) - GAUSSIAN


MEYER = np.array(
    [34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744, 8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872.0]
)


def meyer(x):
    return x[0] * jnp.exp(x[1] / (45 + 5 * jnp.arange(1.0, 17) + x[2])) - MEYER


def gulf(x):
    t = np.arange(1.0, 100) / 100
    y = 25 + (-50 * np.log(t)) ** (2 / 3)
    return jnp.exp(-(jnp.abs(y - x[1]) ** x[2]) / x[0]) - t


def box(x):
    t = jnp.arange(1.0, 11) / 10
    return jnp.exp(-t * x[0]) - jnp.exp(-t * x[1]) - x[2] * (jnp.exp(-t) - jnp.exp(-10 * t))


def powell_singular(x):
    a, b, c, d = x.reshape(-1, 4).T
    parts = [a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2]
    return jnp.stack(parts, axis=1).ravel()


def wood(x):
    return jnp.array(
        [
            10 * (x[1] - x[0] ** 2),
            1 - x[0],
            90**0.5 * (x[3] - x[2] ** 2),
            1 - x[2],
            10**0.5 * (x[1] + x[3] - 2),
            10**-0.5 * (x[1] - x[3]),
        ]
    )


KOWALIK_Y = np.array([1957, 1947, 1735, 1600, 844, 627, 456, 342, 323, 235, 246]) / 1e4
KOWALIK_U = np.array([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])


def kowalik_osborne(x):
    u = KOWALIK_U
    return KOWALIK_Y - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])


def brown_dennis(x):
    t = jnp.arange(1.0, 21) / 5
    return (x[0] + t * x[1] - jnp.exp(t)) ** 2 + (x[2] + x[3] * jnp.sin(t) - jnp.cos(t)) ** 2


# fmt: off
OSBORNE_1 = np.array([
    844, 908, 932, 936, 925, 908, 881, 850, 818, 784, 751, 718, 685, 658, 628, 603, 580, 558, 538, 522, 506,
    490, 478, 467, 457, 448, 438, 431, 424, 420, 414, 411, 406,
]) / 1e3
# fmt: on


def osborne_1(x):
    t = 10 * jnp.arange(33.0)
    return OSBORNE_1 - (x[0] + x[1] * jnp.exp(-t * x[3]) + x[2] * jnp.exp(-t * x[4]))


def biggs(x):
    t = jnp.arange(1.0, 14) / 10
    y = jnp.exp(-t) - 5 * jnp.exp(-10 * t) + 3 * jnp.exp(-4 * t)
    return x[2] * jnp.exp(-t * x[0]) - x[3] * jnp.exp(-t * x[1]) + x[5] * jnp.exp(-t * x[4]) - y


# fmt: off
OSBORNE_2 = np.array([
    1366, 1191, 1112, 1013, 991, 885, 831, 847, 786, 725, 746, 679, 608, 655, 616, 606, 602, 626, 651, 724,
    649, 649, 694, 644, 624, 661, 612, 558, 533, 495, 500, 423, 395, 375, 372, 391, 396, 405, 428, 429, 523,
    562, 607, 653, 672, 708, 633, 668, 645, 632, 591, 559, 597, 625, 739, 710, 729, 720, 636, 581, 428, 292,
    162, 98, 54,
]) / 1e3
# fmt: on


def osborne_2(x):
    t = jnp.arange(65.0) / 10
    peaks = [x[i] * jnp.exp(-((t - x[i + 7]) ** 2) * x[i + 4]) for i in (1, 2, 3)]
    return OSBORNE_2 - (x[0] * jnp.exp(-t * x[4]) + sum(peaks))


def watson(x):
    t, j = np.arange(1.0, 30)[:, None] / 29, np.arange(x.size)
    powers = jnp.asarray(t**j)
    slope = jnp.asarray(np.where(j > 0, j * t ** np.maximum(j - 1, 0), 0)) @ x
    return jnp.concatenate([slope - (powers @ x) ** 2 - 1, x[:1], x[1:2] - x[:1] ** 2 - 1])


def extended_rosenbrock(x):
    return jnp.stack([10 * (x[1::2] - x[::2] ** 2), 1 - x[::2]], axis=1).ravel()


def penalty_1(x):
    return jnp.append(1e-5**0.5 * (x - 1), x @ x - 0.25)


def penalty_2(x):
    n, e = x.size, jnp.exp(x / 10)
    i = np.arange(2.0, n + 1)
    y = np.exp(i / 10) + np.exp((i - 1) / 10)
    middle = 1e-5**0.5 * jnp.concatenate([e[1:] + e[:-1] - y, e[1:] - np.exp(-0.1)])
    return jnp.concatenate([x[:1] - 0.2, middle, jnp.append(0 * x[:0], jnp.arange(n, 0.0, -1) @ x**2 - 1)])


def variably_dimensioned(x):
    weighted = jnp.arange(1.0, x.size + 1) @ (x - 1)
    return jnp.concatenate([x - 1, jnp.array([weighted, weighted**2])])


def trigonometric(x):
    i = jnp.arange(1.0, x.size + 1)
    return x.size - jnp.sum(jnp.cos(x)) + i * (1 - jnp.cos(x)) - jnp.sin(x)


def brown_almost_linear(x):
    return jnp.append(x[:-1] + jnp.sum(x) - (x.size + 1), jnp.prod(x) - 1)


def _grid(n):
    return np.arange(1.0, n + 1) / (n + 1)


def boundary_value(x):
    t, h = _grid(x.size), 1 / (x.size + 1)
    padded = jnp.pad(x, 1)
    return 2 * x - padded[:-2] - padded[2:] + h**2 * (x + t + 1) ** 3 / 2


def integral_equation(x):
    t, h = _grid(x.size), 1 / (x.size + 1)
    below = np.tril(np.outer(1 - t, t))  # the sum over j ≤ i
    above = np.triu(np.outer(t, 1 - t), 1)
    return x + h / 2 * jnp.asarray(below + above) @ (x + t + 1) ** 3


def broyden_tridiagonal(x):
    padded = jnp.pad(x, 1)
    return (3 - 2 * x) * x - padded[:-2] - 2 * padded[2:] + 1


def broyden_banded(x):
    i = np.arange(x.size)
    near = (i[None] >= i[:, None] - 5) & (i[None] <= i[:, None] + 1) & (i[None] != i[:, None])
    return x * (2 + 5 * x**2) + 1 - jnp.asarray(near * 1.0) @ (x * (1 + x))


def linear_full_rank(x, m=20):
    return jnp.pad(x, (0, m - x.size)) - 2 / m * jnp.sum(x) - 1


def linear_rank_1(x, m=20):
    return jnp.arange(1.0, m + 1) * (jnp.arange(1.0, x.size + 1) @ x) - 1


def linear_rank_1_zeros(x, m=20):
    weights = jnp.arange(m - 0.0).at[-1].set(0.0)
    return weights * (jnp.arange(2.0, x.size) @ x[1:-1]) - 1


def chebyquad(x):
    y, last, this, sums = 2 * x - 1, jnp.ones_like(x), 2 * x - 1, []
    for i in range(1, x.size + 1):
        sums.append(jnp.mean(this) + (0 if i % 2 else 1 / (i**2 - 1)))
        last, this = this, 2 * y * this - last
    return jnp.stack(sums)


def _tiled(values, n):
    return np.tile(np.asarray(values, float), n // len(values))


_T10 = _grid(10)
PROBLEMS = tuple(
    Problem(name, residual, np.asarray(start, float), minima)
    for name, residual, start, minima in [
        ("Rosenbrock", rosenbrock, [-1.2, 1], (0.0,)),
        ("Freudenstein-Roth", freudenstein_roth, [0.5, -2], (0.0, 48.98425367924)),
        ("Powell badly scaled", powell_badly_scaled, [0, 1], (0.0,)),
        ("Brown badly scaled", brown_badly_scaled, [1, 1], (0.0,)),
        ("Beale", beale, [1, 1], (0.0,)),
        ("Jennrich-Sampson", jennrich_sampson, [0.3, 0.4], (124.3621823556,)),
        ("helical valley", helical_valley, [-1, 0, 0], (0.0,)),
        ("Bard", bard, [1, 1, 1], (8.214877306579e-3, 17.42869333333)),
        ("Gaussian", gaussian, [0.4, 1, 0], (1.127932769619e-8,)),
        ("Meyer", meyer, [0.02, 4000, 250], (87.94585517018,)),
        ("Gulf", gulf, [5, 2.5, 0.15], (0.0,)),
        ("Box", box, [0, 10, 20], (0.0,)),
        ("Powell singular", powell_singular, [3, -1, 0, 1], (0.0,)),
        ("Wood", wood, [-3, -1, -3, -1], (0.0,)),
        ("Kowalik-Osborne", kowalik_osborne, [0.25, 0.39, 0.415, 0.39], (3.07505603849e-4, 1.02734e-3)),
        ("Brown-Dennis", brown_dennis, [25, 5, -5, -1], (85822.20162636,)),
        ("Osborne 1", osborne_1, [0.5, 1.5, -1, 0.01, 0.02], (5.464894697483e-5,)),
        ("Biggs EXP6", biggs, [1, 2, 1, 1, 1, 1], (0.0, 5.655649925e-3)),
        (
            "Osborne 2",
            osborne_2,
            [1.3, 0.65, 0.65, 0.7, 0.6, 3, 5, 7, 2, 4.5, 5.5],
            (4.013773629355e-2,),
        ),
        ("Watson 6", watson, np.zeros(6), (2.287670053552e-3,)),
        ("Watson 9", watson, np.zeros(9), (1.399760138098e-6,)),
        ("Watson 12", watson, np.zeros(12), (4.722381150e-10,)),
        ("extended Rosenbrock", extended_rosenbrock, _tiled([-1.2, 1], 10), (0.0,)),
        ("extended Powell singular", powell_singular, _tiled([3, -1, 0, 1], 12), (0.0,)),
        ("penalty I", penalty_1, np.arange(1.0, 11), (7.08765146709e-5,)),
        ("penalty II", penalty_2, np.full(10, 0.5), (2.93660537e-4,)),
        ("variably dimensioned", variably_dimensioned, 1 - np.arange(1.0, 11) / 10, (0.0,)),
        ("trigonometric", trigonometric, np.full(10, 0.1), (0.0, 2.795056e-5)),
        ("Brown almost linear", brown_almost_linear, np.full(10, 0.5), (0.0, 1.0)),
        ("discrete boundary value", boundary_value, _T10 * (_T10 - 1), (0.0,)),
        ("discrete integral equation", integral_equation, _T10 * (_T10 - 1), (0.0,)),
        ("Broyden tridiagonal", broyden_tridiagonal, np.full(10, -1.0), (0.0,)),
        ("Broyden banded", broyden_banded, np.full(10, -1.0), (0.0,)),
        ("linear, full rank", linear_full_rank, np.ones(10), (10.0,)),
        ("linear, rank 1", linear_rank_1, np.ones(10), (20 * 19 / (2 * 41),)),
        ("linear, rank 1, zeros", linear_rank_1_zeros, np.ones(10), ((400 + 60 - 6) / (2 * 37),)),
        ("Chebyquad 7", chebyquad, _grid(7), (0.0,)),
        ("Chebyquad 8", chebyquad, _grid(8), (3.516873725677e-3,)),
        ("Chebyquad 10", chebyquad, _grid(10), (4.772713e-3, 6.503954e-3)),
    ]
)
