"""`sg.pinn.solve`: `sg.fit` for PDEs, whose result is a function."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from .. import report
from .._checks import Given
from .._contracts import Result
from ..training import fit, with_options_of
from ._baselines import METHODS, default_method
from ._pictures import drawn, everywhere, pictures
from ._problem import PINN
from ._uncertainty import ErrorBars, error_bars
from ._zoo import slabs_of


class Solution(Result):
    """What `sg.pinn.solve` returns: a `sg.Result` that is also a function of a point.

    - `problem`: the `sg.pinn.PINN` that was solved.
    - `solution(x)`: the network at a point `[d]`, or at each point of an array `[..., d]`.
    - `solution.unknowns`, `solution.fields`: the coefficients and fields found, for inverse problems, and
      `solution.error_bars()` how sure they are.
    - `solution.plot()`, `solution.save(path)`: a picture of it, and a file for `sg.pinn.load`.
    - `params`, `history`, `reason`, `rejected`, `state`: as in every `sg.Result`; `history` holds `step`,
      `seconds`, the problem's metrics, and what the method reports of itself.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    solution = sg.pinn.solve(problem, jax.random.key(0), steps=2)
    solution(jnp.zeros((5, 7, 1))).shape          # (5, 7)
    sg.pinn.derivatives(solution, jnp.array([0.3]))                   # value, gradient, Laplacian
    solution.plot("solution.png")
    ```
    """

    problem: PINN

    def __call__(self, x: Given[ArrayLike | Sequence[float], "*N d"]) -> Array:
        """The network at x."""
        return self.problem.u(self.params, x)

    @property
    def unknowns(self) -> dict[str, Array]:
        """The unknown coefficients that were found, by name."""
        return self.params["unknowns"]

    @property
    def fields(self) -> dict[str, Callable]:
        """The unknown fields that were found, by name; each is a function of points, as the solution is."""
        return {name: partial(self.problem.field, name, self.params) for name in self.problem.fields}

    def error_bars(
        self,
        *,
        noise: float | Mapping[str, float] | None = None,
        data: str | Sequence[str] | None = None,
        level: float = 0.9,
    ) -> ErrorBars:
        """How far noise in the data may have moved the coefficients, the fields and u itself.

        Physics is taken to be exact and training to have converged, in which case noise moves the solution
        by the Gauss–Newton matrix; what the network cannot represent is not part of it. A warning says where
        data do not determine a coefficient, or where it is still moving.

        **Arguments:**

        - `noise`: the standard deviation of the residuals of data, for all of them or `{block: deviation}`;
          by default it is estimated from what the fit leaves, and intervals follow Student's distribution.
        - `data`: the blocks that hold measured values; by default all those on `sg.pinn.Points`.
        - `level`: the probability of the intervals.

        **Returns:** a `sg.pinn.ErrorBars`. `ValueError` if noise cannot be estimated because the network
        follows the data too closely, or the Jacobian of the problem does not fit into memory.
        """
        return error_bars(self.problem, self.params, noise, data, level)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the solution to a file, from which `sg.pinn.load` reads it in any process.

        The file appears whole or not at all. It holds parameters and records, and for a problem of
        `sg.pinn.zoo` its name and sizes; the code of other problems is not stored.
        """
        from ._storage import save_solution  # which needs this file

        save_solution(path, self)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """A picture of the solution and, where it is known, of its error.

        In one dimension it is a line, else a plane: time and the first coordinate, or the first two; others
        stay in the middle of the domain. What lies outside the domain is left blank.

        **Arguments:** `path` ends with `.svg`, `.png` or `.pdf`; the picture is also stored there.

        **Returns:** a figure of matplotlib. `ValueError` if the first block of the problem is on given
        points, which have no domain to draw, or if the file is of another kind.
        """
        return drawn(self.pictures, path)

    def pictures(self) -> list[report.Draw]:
        """Returns the panels of `plot`, of which there are none where the first block is on given points."""
        return pictures(self.problem, partial(everywhere, self))


@with_options_of(fit)
def solve(problem: PINN, key: PRNGKeyArray, **options: Any) -> Solution:
    """Solves a PINN problem; nothing needs tuning.

    By default `sg.Auto` trains on evenly spread points: where the points outnumber the parameters they are
    kept for up to 25 steps, else drawn anew at each step. For solutions with fronts or layers give
    `sampler=sg.pinn.ResidualAdaptive(problem)`. For the most accurate solution choose points that outnumber
    the parameters, two to one, if memory and time allow (`sg.pinn.advice` says what that takes). Use float64.

    **Arguments:**

    - `problem`, `key`: what to solve, and the randomness of initial weights and points.
    - `options`: those of `sg.fit`: when to stop (`steps`, `seconds`, `tol`, `patience`), `checkpoint` and
      `resume`, `progress`, `callback`, `mesh` for several devices, and `method`, `optimizer`, `sampler` in
      place of the defaults. `sg.pinn.setting` gives the last three for a baseline by name.

    **Returns:** a `sg.pinn.Solution`. `ValueError` names the block and the point where a residual is not
    finite. A warning if `problem` is one of `sg.pinn.zoo` that is made for slabs of time.

    ```python
    problem = sg.pinn.zoo("poisson-1d", hidden=(8,), points=(30, 2))
    solution = sg.pinn.solve(problem, jax.random.key(0), steps=2)
    solution.history["relative_l2"][-1], solution(jnp.array([0.5]))
    ```
    """
    if not isinstance(problem, PINN):
        raise TypeError(f"`problem` must be a sg.pinn.PINN, got {type(problem).__name__}.")
    method = options.get("method")
    if method is None:
        options["method"] = default_method(problem)
    elif isinstance(method, str):
        known = method if method in METHODS else "adam"
        raise TypeError(
            f"`method` must be a method such as sg.Auto(), got {method!r}; for a baseline by name use "
            f"sg.pinn.solve(problem, key, **sg.pinn.setting({known!r}, problem)._asdict()), where names are "
            f"{', '.join(METHODS)}."
        )
    if slabs := slabs_of(problem):
        warnings.warn(
            f"this problem is made to be solved in slabs of time, and its network sees one of them: use "
            f"sg.pinn.march(problem, key, slabs={slabs}).",
            stacklevel=2,
        )
    return Solution(**vars(fit(problem, key, **options)), problem=problem)
