"""Gaussian J: one batch under squared volume sampling against uniform sampling and two batches."""

from functools import cache, partial

import jax

from ..problems import gaussian_llq
from ..sampling import SquaredVolume
from . import _proxy
from ._proxy import ProxySettings, powers
from ._study import Claim, Data, Panel, Size, Study
from ._sweep import Instance

FULL = ProxySettings(
    num_rows=1000,
    num_params=100,
    sample_size=10,
    steps=1000,
    runs=5,
    dampings=powers(10, -8, 2),
    step_size=1.0,
    step_sizes=dict.fromkeys(_proxy.ALGORITHMS, powers(2, -9, 4)),
    damping=1e-3,
    chunks={},
)
QUICK = ProxySettings(
    num_rows=40,
    num_params=12,
    sample_size=3,
    steps=60,
    runs=2,
    dampings=powers(10, -3, 0),
    step_size=1.0,
    step_sizes=dict.fromkeys(_proxy.ALGORITHMS, powers(2, -2, 0)),
    damping=1e-3,
    chunks={"svs": 3},
)


@cache
def instances(settings_name: Size, seed: int, inflation: float) -> list[Instance]:
    """Five problems and the randomness of their runs; made once a process."""
    settings = FULL if settings_name == "full" else QUICK
    out = []
    for index in range(settings.runs):
        key_problem, key_run = jax.random.split(jax.random.fold_in(jax.random.key(seed), index))
        problem = gaussian_llq(key_problem, settings.num_rows, settings.num_params, inflation=inflation)
        volume = SquaredVolume.from_matrix(problem.jacobian, settings.sample_size, settings.damping)
        out.append(Instance(problem, key_run, volume))
    return out


def make_panels(name: str, inflation: float, size: Size, seed: int) -> list[Panel]:
    """The panels of this figure, and of the one with an inflated row."""
    return _proxy.panels(
        FULL if size == "full" else QUICK,
        partial(instances, size, seed, inflation),
        {"study": name, "size": size, "seed": seed, "inflation": inflation},
        {"uniform": 0.2, "svs": 1.0, "two-batch": 0.3},
    )


def _claims(data: Data) -> list[Claim]:
    return []


STUDY = Study(
    name="gaussian_proxy",
    title="Squared volume sampling as a proxy: Gaussian least-quadratics",
    source="Figure 6",
    caption="",
    panels=partial(make_panels, "gaussian_proxy", 1.0),
    plots=(
        lambda ax, data: _proxy.draw(ax, data, "damping", 1e-9, 1e2),
        lambda ax, data: _proxy.draw(ax, data, "step_size", 1e-9, 1e2),
    ),
    claims=_claims,
    table=_proxy.table,
)
