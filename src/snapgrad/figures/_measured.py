"""Least-quadratics problems whose error is measured in another norm than their own."""

from collections.abc import Callable

from jaxtyping import Array, Float, Int, PRNGKeyArray, Scalar

from .._contracts import AbstractProblem, Linearisation
from ..problems import LeastQuadratics


class Measured(AbstractProblem):
    """A least-quadratics problem with `error(problem, params)` as its `relative_error`."""

    problem: LeastQuadratics
    error: Callable

    def __init__(
        self, problem: LeastQuadratics, error: Callable[[LeastQuadratics, Float[Array, " n"]], Scalar]
    ):
        self.problem, self.error = problem, error

    @property
    def num_rows(self) -> int:
        """As the problem."""
        return self.problem.num_rows

    def init(self, key: PRNGKeyArray) -> Float[Array, " n"]:
        """As the problem."""
        return self.problem.init(key)

    def linearise(self, params: Float[Array, " n"], batch: Int[Array, " k"]) -> Linearisation:
        """As the problem."""
        return self.problem.linearise(params, batch)

    def metrics(self, params: Float[Array, " n"]) -> dict[str, Scalar]:
        """`relative_error` as it was given."""
        return {"relative_error": self.error(self.problem, params)}
