"""What `sg.diagnose` returns: everything it found, and the objects that follow from it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._contracts import AbstractMethod, AbstractSampler
from .._files import write_atomic
from ..methods import SNG, Spring
from ..theory import Interval
from ._choose import Expected
from ._decay import Decay
from ._drawn import Drawn
from ._linearity import Linearity
from ._rehearsal import Setting

PICTURES = (".svg", ".png", ".pdf")
Sure: TypeAlias = Literal["high", "medium", "low"]


class SampleSize(NamedTuple):
    """What was found at one sample size.

    - `sample_size`: k, in points; `rehearsed`: how many points of the pool stood for them.
    - `seconds_per_step`: how long a real step takes, compiled and timed.
    - `sng`, `spring`: what to expect of each method with its best settings.
    - `alpha`, `beta`, `gamma`: constants of the theory at the recommended λ under uniform sampling, None
      where there was no time for them; `proved`: the rates that theorems guarantee, by method.
    """

    sample_size: int
    rehearsed: int
    seconds_per_step: float
    sng: Expected
    spring: Expected
    alpha: Interval | None = None
    beta: Interval | None = None
    gamma: Interval | None = None
    proved: Mapping[str, float | None] | None = None

    def of(self, name: str) -> Expected:
        """The expectation for `"SNG"` or `"SPRING"`."""
        return self.sng if name == "SNG" else self.spring


class Advice(NamedTuple):
    """One recommendation, its reason, and how sure it is.

    - `sure`: `"high"`: measured on the pool, and nothing that was seen speaks against it. `"medium"`: the
      best of what was tried, with another choice close behind or an assumption that holds only roughly.
      `"low"`: an assumption it rests on fails here; a first guess.
    """

    about: str
    value: Any
    reason: str
    sure: Sure


@dataclass(frozen=True)
class Diagnosis:
    """The report of `sg.diagnose`: `str()` of it is meant to be read.

    - `drawn`, `eigenvalues`, `decay`: the pool, and its kernel's spectrum.
    - `curvature`: the smallest and largest eigenvalue of H on the range of J, (1, 1) for least squares.
    - `inconsistency`: the part of the residual that no parameters remove, ‖r*‖/‖r‖ on the pool.
    - `linearity`: how far the model departs from its linear one, over a step and on the whole way.
    - `error`: what is to fall by `tolerance`: the error of the `"parameters"` where the pool determines
      all of them, else the `"residual"`.
    - `goal`: the tolerance, or 1.2 times the lowest error that was rehearsed where that is out of reach.
    - `sizes`: a `SampleSize` for each k.
    - `sample_size`, `name`, `setting`: the recommended k, method (`"SNG"` or `"SPRING"`) and λ, η, μ.
    - `batches`: the sampler that `sampler()` returns.
    - `advice`, `warnings`: recommendations with reasons, and where the theory does not apply.

    ```python
    problem = sg.problems.spectrum_llq(jax.random.key(0), "power:1", 60, 10, hessian="identity")
    report = sg.diagnose(problem, jax.random.key(1), sample_sizes=[3, 6], seconds=5)
    report.method(), report.sampler(), report.optimizer()
    report.plot("diagnosis.svg")
    report.json()["advice"][0]["reason"]
    ```
    """

    drawn: Drawn
    decay: Decay
    eigenvalues: Float[np.ndarray, " e"]
    curvature: tuple[float, float]
    inconsistency: float
    error: str
    linearity: Linearity
    sizes: tuple[SampleSize, ...]
    sample_size: int
    name: str
    setting: Setting
    tolerance: float
    goal: float
    advice: tuple[Advice, ...]
    warnings: tuple[str, ...]
    batches: AbstractSampler

    @property
    def chosen(self) -> SampleSize:
        """The row of `sizes` with the recommended sample size."""
        return next(row for row in self.sizes if row.sample_size == self.sample_size)

    @property
    def expected(self) -> Expected:
        """What to expect of the recommended method at the recommended sample size."""
        return self.chosen.of(self.name)

    def method(self) -> AbstractMethod:
        """Returns the recommended method with its λ and μ, for `sg.fit` or `sg.run`."""
        lam = jnp.asarray(self.setting.damping, self.drawn.dtype)
        if self.name == "SNG":
            return SNG(lam)
        return Spring(lam, jnp.asarray(self.setting.momentum, self.drawn.dtype))

    def sampler(self) -> AbstractSampler:
        """Returns the recommended sampler, for `sg.fit` or `sg.run`."""
        return self.batches

    def optimizer(self) -> float:
        """Returns the recommended step size η, which every loop takes as `optimizer`."""
        return self.setting.step_size

    def __str__(self) -> str:
        from ._words import text

        return text(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the spectrum, and the rate per second against k, into an .svg, .png or .pdf file."""
        from ._picture import picture

        file = Path(path)
        if file.suffix not in PICTURES:
            raise ValueError(f"`path` must end in {', '.join(PICTURES)}; got {os.fspath(path)!r}.")
        write_atomic(file, picture(self, file.suffix[1:]))

    def json(self) -> dict[str, Any]:
        """Returns everything as plain JSON values; None stands for what is unknown or infinite."""
        drawn = {k: v for k, v in self.drawn._asdict().items() if k not in ("kernel", "residual")}
        drawn["dead_parameters"] = [
            {"path": path, "dead": dead, "of": whole} for path, dead, whole in self.drawn.dead_parameters
        ]
        return _plain(
            {
                "pool": drawn,
                "spectrum": {**self.decay._asdict(), "eigenvalues": self.eigenvalues},
                "curvature": {"smallest": self.curvature[0], "largest": self.curvature[1]},
                "inconsistency": self.inconsistency,
                "linearity": _nested(self.linearity),
                "error": self.error,
                "tolerance": self.tolerance,
                "goal": self.goal,
                "sizes": [_nested(row) for row in self.sizes],
                "recommended": {
                    "method": self.name,
                    "sample_size": self.sample_size,
                    **self.setting._asdict(),
                    "expected_steps": self.expected.steps,
                    "expected_seconds": self.expected.steps * self.chosen.seconds_per_step,
                },
                "advice": [advice._asdict() for advice in self.advice],
                "warnings": list(self.warnings),
            }
        )

    def to_json(self) -> str:
        """Returns everything as one text in JSON."""
        return json.dumps(self.json(), indent=2, ensure_ascii=False) + "\n"


def _nested(value: Any) -> Any:
    """Named tuples as dictionaries, all the way down."""
    if hasattr(value, "_asdict"):
        return {name: _nested(part) for name, part in value._asdict().items()}
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else f"{k:g}": _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
