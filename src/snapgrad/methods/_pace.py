"""Step size and momentum from the observed rate: the closed forms of accelerated sketch-and-project."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

MEMORY = 4
"""Averages remember about one MEMORY-th of the steps so far."""
WARM_UP = 10
"""Steps before a slope is believed."""
PATIENCE = 50
"""Steps before a lack of progress is taken for noise."""
LEAST_BETA = 4
"""β starts at this over the fraction of a row that others explain: twice what random directions need."""
RAISE, LOWER = 16, 4
"""Without progress log β grows by the first over the number of steps; where steps are too short it falls."""
WIDE = 20
"""Where H is not the identity and n/k is more than this, β grows by as much less: ‖r‖ is no measure of
progress there, and the bound of β far above what the few directions that matter need."""
NEARLY = 0.99
"""A β above this fraction of its bound counts as being there."""
FORESIGHT = 1.5
"""ρ is at least the part of a new batch that φ foresees, to this power: more memory would not add to it."""
SHORT = 0.1
"""Steps are too short if φ foresees more than this part of a new batch."""
FLATNESS = 3
"""The power of those odds: ρ = k/n holds for a flat spectrum only."""
MOST_BETA = 2.0
"""β is at most this times n/k; rows in random directions need n/k."""


class Trend(eqx.Module):
    """−d log‖r‖²/dt by regression that forgets: its memory is a fixed fraction of the steps so far."""

    sums: Float[Array, " 5"]  # of 1, t, y, t², ty

    def update(self, time: Float[Array, ""], value: Float[Array, ""]) -> tuple["Trend", Float[Array, ""]]:
        """The trend with one more value, and the slope, which is 0 during the warm-up."""
        new = jnp.stack([jnp.ones_like(time), time, value, time**2, time * value])
        sums = (1 - MEMORY / (time + MEMORY)) * self.sums + new
        w, t, y, tt, ty = sums
        spread = w * tt - t * t
        slope = -(w * ty - t * y) / jnp.where(spread > 0, spread, 1)
        return Trend(sums), jnp.where((time > WARM_UP) & (spread > 0), slope, 0)


class Foresight(eqx.Module):
    """The part of a new batch's residual that φ predicts, before it has seen the batch."""

    along: Float[Array, ""]  # mean of v·r/‖r‖², v = Jφ, with r before the last step
    square: Float[Array, ""]  # mean of ‖v‖²/‖r‖²

    @property
    def part(self) -> Float[Array, ""]:
        """Of ‖r‖², from 0 to 1."""
        seen = jnp.maximum(self.along, 0) ** 2 / jnp.where(self.square > 0, self.square, 1)
        return jnp.clip(seen, 0, 1)

    def update(
        self, time: Float[Array, ""], along: Float[Array, ""], square: Float[Array, ""]
    ) -> "Foresight":
        """With one more batch."""
        ok = jnp.isfinite(along) & jnp.isfinite(square)
        weight = jnp.where(ok, jnp.minimum(1, MEMORY / (time + MEMORY - 1)), 0)
        mean = lambda old, new: old + weight * (jnp.where(ok, new, 0).astype(old.dtype) - old)  # noqa: E731
        return Foresight(mean(self.along, along), mean(self.square, square))


class Pace(eqx.Module):
    """η = (ρ + 1/β)/(1 + ρ) and μ = (1 − ρ)/(1 + ρ) at the observed rate ρ; η decays on the noise floor.

    Both β and a lower bound of ρ come from the fraction of a row that the other rows of its batch explain.
    For rows in random directions that is k/n: ρ is then at least k/n, and β at its most.
    Where few directions matter it is near one, and β can be far less, which is faster; how much less the rows
    alone do not say, so β is raised while nothing improves. All this is for least squares: the less the
    Hessian of the loss is like the identity (`agreement` < 1), the more counts what φ foresees of a batch.
    """

    step_size: Float[Array, ""]  # η
    momentum: Float[Array, ""]  # μ
    trend: Trend
    foresight: Foresight
    climb: Float[Array, ""]  # steps that made progress
    explained: Float[Array, ""]  # the mean fraction of a row that the others of its batch explain
    log_raise: Float[Array, ""]  # of β, above what that fraction says
    log_decay: Float[Array, ""]  # of η, on the noise floor

    def update(
        self,
        time: Float[Array, ""],
        size: Float[Array, ""],
        fraction: Float[Array, ""],
        seen: tuple[Float[Array, ""], Float[Array, ""]],
        agreement: float | Float[Array, ""],
        shape: tuple[int, int],
    ) -> "Pace":
        """The pace of step number `time`, with ‖r‖ = `size` and rows explained to `fraction`."""
        k, n = shape
        dtype = self.explained.dtype
        tiny = jnp.finfo(dtype).tiny
        trend, slope = self.trend.update(time, 2 * jnp.log(jnp.maximum(size, tiny)))
        noisy = (time > PATIENCE) & (slope * time < 1)
        climb = self.climb + jnp.where(noisy, 0, 1)
        change = jnp.clip(fraction, 0, 1).astype(dtype) - self.explained
        change = jnp.where(jnp.isfinite(fraction), change, 0)
        explained = self.explained + jnp.minimum(1, MEMORY / (time + MEMORY - 1)) * change
        # The odds of being explained, of random directions over those seen: 1 if the spectrum of J is flat.
        flat = (k - 1) * (1 - explained) / jnp.maximum((n - k + 1) * explained, tiny)
        rho = jnp.maximum(jnp.maximum(2 / (climb + 2), slope), k / n * jnp.minimum(1, flat) ** FLATNESS)
        foresight = self.foresight.update(time, *seen)
        part = (1 - agreement) * foresight.part  # for least squares the closed forms know better
        rho = jnp.clip(jnp.maximum(rho, part**FORESIGHT), 0, 1)

        most = max(1.0, MOST_BETA * n / k)
        least = jnp.clip(LEAST_BETA / jnp.maximum(explained, tiny), 1, most)
        # Nothing improves: steps are too long, unless φ foresees new batches, for then they are too short.
        raised = RAISE * (agreement + (1 - agreement) * min(1.0, WIDE * k / n))
        change = jnp.where(part > SHORT, -LOWER, jnp.where(noisy, raised, 0)) / time
        log_raise = jnp.clip(self.log_raise + change, 0, jnp.log(most / least))
        beta = least * jnp.exp(log_raise)
        # No progress although β is what it is at most: the noise floor.
        slower = jnp.where(beta < NEARLY * most, 0, -1)
        log_decay = jnp.minimum(0, self.log_decay + jnp.where(noisy, slower, 1) / time)
        return Pace(
            step_size=(rho + 1 / beta) / (1 + rho) * jnp.exp(log_decay),
            momentum=(1 - rho) / (1 + rho),
            trend=trend,
            foresight=foresight,
            climb=climb,
            explained=explained,
            log_raise=log_raise,
            log_decay=log_decay,
        )


def first_pace(dtype: jnp.dtype) -> Pace:
    """The pace before the first step."""
    zero = jnp.zeros((), dtype)
    trend, foresight = Trend(jnp.zeros(5, dtype)), Foresight(zero, zero)
    return Pace(jnp.ones((), dtype), zero, trend, foresight, zero, zero, zero, zero)
