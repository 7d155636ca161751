"""The studies at quick size: every part of them runs, draws and checks; what they rest on is exact."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import figures, report, theory
from snapgrad.figures import _fits, _proxy, _sweep, _tuning, nn_proxy, spring, tail_averaging
from snapgrad.figures._sweep import Run, Subject, sweep
from snapgrad.reproduce import Claim, settings_hash

KEY = jax.random.key(0)
# The tests of the command line compute "superlinear".
IN_PROCESS = ("alpha_gamma", "spring", "gaussian_proxy", "noise_floor")
SLOW = tuple(name for name in figures.NAMES if name not in IN_PROCESS)


def draw(study, data):
    return report.render([lambda ax, plot=plot: plot(ax, data) for plot in study.plots], study.name)


@pytest.mark.parametrize(
    "name", [*IN_PROCESS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_quick_study_runs_draws_and_checks(name):
    study = figures.load(name)
    panels = study.panels("quick", 3)
    data = {panel.name: panel.compute(lambda fraction: None) for panel in panels}
    assert len(data) == len(panels) and study.name == name
    claims, table = study.claims(data), study.table(data)
    assert claims and table and all(isinstance(claim.wanted, str) for claim in claims)
    assert all(claim.detail for claim in claims), "a claim must say where its threshold comes from"
    assert draw(study, data).count("<svg") == 1
    assert all(isinstance(note, str) for note in study.notes(data))
    assert study.title and study.source and study.caption


@pytest.mark.parametrize("name", figures.NAMES)
def test_settings_name_every_panel_apart(name):
    """Two panels, sizes or seeds never share a hash, and a plan is the same every time it is made."""
    study = figures.load(name)
    hashes = []
    for size, seed in itertools.product(("quick", "full"), (0, 1)):
        panels = study.panels(size, seed)
        again = study.panels(size, seed)
        hashes += [settings_hash(panel.settings) for panel in panels]
        assert [p.settings for p in panels] == [p.settings for p in again]
        assert all(panel.cost > 0 for panel in panels)
    assert len(set(hashes)) == len(hashes)


def test_the_network_study_uses_the_same_jacobian_by_outer_products():
    plain = sg.problems.DiscretePoisson(12, 6)
    fast = nn_proxy.StructuredPoisson(plain)
    params, rows = plain.init(KEY), jnp.array([0, 3, 11])
    a, b = plain.linearise(params, rows), fast.linearise(params, rows)
    np.testing.assert_allclose(a.residual, b.residual, rtol=0, atol=0)
    np.testing.assert_allclose(a.jacobian.gram(), b.jacobian.gram(), rtol=1e-12)
    u = jnp.array([1.0, -2.0, 0.5])
    for x, y in zip(jax.tree.leaves(a.jacobian.rmv(u)), jax.tree.leaves(b.jacobian.rmv(u)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)


def test_a_network_panel_runs():
    panel = next(p for p in figures.load("nn_proxy").panels("quick", 0) if p.name.startswith("svs"))
    arrays = panel.compute(lambda fraction: None)
    assert np.isfinite(_sweep.final_error(arrays)).all()


class TestSweep:
    problem = sg.problems.gaussian_llq(KEY, 30, 6)

    def test_each_lane_is_the_plain_run(self):
        """One compiled program for grid × runs gives what `sg.run` gives one at a time."""
        keys = jax.random.split(KEY, 2)
        dampings, etas = [1e-3, 1e-1], [1.0, 0.5]
        one = Run("uniform", 3, 25, 25)
        result = sweep(one, [Subject(self.problem, key) for key in keys], damping=dampings, step_size=etas)
        for g, r in np.ndindex(2, 2):
            alone = sg.run(
                self.problem,
                keys[r],
                method=sg.SNG(dampings[g]),
                sampler=sg.sampling.Uniform(30, 3),
                optimizer=etas[g],
                steps=25,
                record_every=25,
            )
            error = alone.history["relative_error"][-1]
            np.testing.assert_allclose(result["error"][g, r, -1], error, rtol=1e-9)

    def test_a_diverged_run_stays_in_its_lane(self):
        one = Run("uniform", 3, 400, 400)
        result = sweep(one, [Subject(self.problem, KEY)], damping=1e-3, step_size=[1.0, 1e4])
        final = _sweep.final_error(result)
        assert np.isinf(final[1, 0]) and np.isfinite(final[0, 0])
        assert result["rejected"][0, 0] == 0


class TestTuning:
    def test_the_walk_stops_at_a_point_that_none_within_two_steps_beats(self):
        peak = (-5, 7)
        calls = []

        def evaluate(points):
            calls.append(len(points))
            return np.array([[-abs(i - peak[0]) - abs(j - peak[1])] * 2 for i, j in points], float)

        search = _tuning.Search(evaluate, 2, (range(-30, 30), range(20)))
        assert search.walk((0, 0)) == [peak, peak]
        assert sum(calls) == len(search.scores)  # nothing twice

    def test_a_trap_is_seen_by_the_wider_look(self):
        """A better peak three steps away: the paper's search stops before it, the wider look does not."""
        score = {0: 1.0, 3: 2.0}
        search = _tuning.Search(
            lambda points: np.array([[score.get(i, 0.0)] for (i,) in points]), 1, (range(-10, 11),)
        )
        (optimum,) = search.optima((0,))
        assert optimum.found == (0,) and optimum.best == (3,) and optimum.best_score == 2.0

    def test_diverged_points_never_win(self):
        one = Run("spring", 3, 50, 5)
        problem = sg.problems.spectrum_llq(KEY, "power:1", 20, 6, hessian="linear")
        rates = spring._evaluator(one, [Subject(problem, KEY)])([(0, 0), (12, 0)])
        assert np.isfinite(rates[0, 0]) and rates[1, 0] == -np.inf


class TestRates:
    def test_an_exponential_is_fitted_exactly_and_its_floor_left_out(self):
        steps = np.arange(0, 2000, 5)
        error = np.maximum(np.exp(-0.02 * steps), 1e-14)
        np.testing.assert_allclose(_fits.fitted_rate(steps, error[None]), 0.04, rtol=1e-10)

    def test_what_is_not_finite_has_no_rate(self):
        error = np.array([1.0, 0.5, np.inf, 0.1])
        assert _fits.fitted_rate(np.arange(4), error) == -np.inf

    def test_slope(self):
        k = np.array([1, 2, 5, 10])
        np.testing.assert_allclose(_fits.loglog_slope(k, 3.0 * k**2.5), 2.5)


def test_the_plug_in_is_the_mean_over_the_draws():
    from snapgrad.figures import alpha_gamma

    J = np.random.default_rng(1).normal(size=(9, 4))
    inverse = alpha_gamma._inverse_preconditioner(J, 2)
    rows = np.array([[0, 3], [5, 1], [0, 8]])
    X = np.zeros((9, 9))
    for S in rows:
        pinv = np.linalg.pinv(J[S])
        X[np.ix_(S, S)] += pinv.T @ inverse @ pinv / 3
    np.testing.assert_allclose(alpha_gamma._plug_in(J, inverse, rows, [3]), [np.linalg.norm(X, 2)], rtol=1e-9)


def test_gamma_at_one_row_is_computed_and_not_taken_for_granted(monkeypatch):
    """The claim γ = 1 at k = 1 fails when γ comes out wrong."""
    from snapgrad.figures import alpha_gamma

    monkeypatch.setattr(alpha_gamma.theory, "gamma", lambda *args, **kwargs: theory.Interval(1.2, 1.2, 1.2))
    data = {
        panel.name: panel.compute(lambda fraction: None) for panel in alpha_gamma.STUDY.panels("quick", 0)
    }
    (claim,) = [claim for claim in alpha_gamma.STUDY.claims(data) if "γ = 1 at k = 1" in claim.statement]
    assert claim.value == 1.2 and not claim.passed


def test_summing_adds_up_the_iterates():
    optimizer = tail_averaging._summing(0.5)
    params, state, total = jnp.array([1.0, 2.0]), optimizer.init(jnp.zeros(2)), jnp.zeros(2)
    for direction in (jnp.array([1.0, 0.0]), jnp.array([0.0, -2.0])):
        step, state = optimizer.update(direction, state, params)
        params = params + step
        total = total + params
    np.testing.assert_allclose(state.total, total)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0**-14, "2⁻¹⁴"), (1e-3, "10⁻³"), (1.0, "1"), (2.0, "2"), (0.3, "0.3"), (1e3, "10³")],
)
def test_powers_are_written_as_powers(value, text):
    assert _proxy.pretty(value) == text


def test_claims_say_what_they_want():
    claim = Claim
    assert claim("x", 1.0, low=0.5).passed and claim("x", 1.0, low=0.5).wanted == "≥ 0.5"
    assert not claim("x", float("nan"), low=0.5).passed
    assert claim("x", 1.0, high=0.5).wanted == "≤ 0.5" and not claim("x", 1.0, high=0.5).passed
    assert claim("x", 1.0, low=1.0, high=1.0).wanted == "= 1"
    assert claim("x", 1.0, low=0.5, high=2.0).wanted == "0.5 … 2"


def test_an_unknown_study_is_refused():
    with pytest.raises(ValueError, match="nn_proxy"):
        figures.load("nope")
