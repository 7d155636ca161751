"""What `sg.diagnose` finds was planted; what it expects comes true; what it returns trains."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg
from snapgrad.diagnosis._choose import choose
from snapgrad.diagnosis._decay import decay
from snapgrad.diagnosis._drawn import draw
from snapgrad.diagnosis._linearity import whole_way
from snapgrad.diagnosis._reduced import system
from snapgrad.diagnosis._rehearsal import Race, Setting, Stage, expected_steps, fitted_rate
from snapgrad.figures._lanes import Lanes, arrivals

KEY = jax.random.key(0)
PROBLEM = sg.problems.spectrum_llq(jax.random.key(1), "power:1", 40, 6, hessian="identity")


def seen(problem, pool=1000):
    return draw(problem, KEY, problem.init(KEY), problem.default_sampler(problem.init(KEY)), pool)


@pytest.fixture(scope="module")
def report():
    lines = []
    found = sg.diagnose(PROBLEM, KEY, sample_sizes=[2, 4], seconds=2, show=lines.append)
    assert any("timing" in line for line in lines) and any("rehearsing" in line for line in lines)
    return found


class TestPool:
    def test_planted_rows_and_parameters_are_found(self):
        x = jax.random.normal(KEY, (12, 3)).at[3].set(0.0)
        x = x.at[5].set(-2 * x[1]).at[7].set(x[1])
        params = {"w": jnp.ones(3), "idle": {"b": jnp.ones((2, 2))}, "half": jnp.ones(2)}
        problem = sg.LeastSquares(lambda p, r: p["w"] @ r + p["half"][1] * r[0] - 1.0, x, params)
        drawn, _ = seen(problem)
        assert (drawn.dead_rows, drawn.repeated_rows) == (1, 2)
        assert drawn.dead_parameters == (("['half']", 1, 2), ("['idle']['b']", 4, 4))
        assert drawn.whole and drawn.mismatch < 1e-12

    def test_a_part_of_the_rows_is_drawn_where_there_are_more(self):
        drawn, _ = seen(PROBLEM, pool=15)
        assert drawn.kernel.shape == (15, 15) and not drawn.whole and drawn.num_rows == 40

    def test_the_linear_problem_is_the_one_that_was_given(self):
        """r = A e + r*, R Rᵀ = K, and e has the length of θ − θ*, for a Hessian and noise too."""
        problem = sg.problems.spectrum_llq(jax.random.key(2), "power:1", 30, 5, hessian="linear", noise=0.1)
        drawn, looker = seen(problem)
        found = system(drawn, looker)
        np.testing.assert_allclose(
            found.rows @ found.rows.T, problem.jacobian @ problem.jacobian.T, atol=1e-13
        )
        np.testing.assert_allclose(found.action @ found.error + found.noise, -problem.rhs, atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(found.error), np.linalg.norm(problem.solution), rtol=1e-8)
        H = np.asarray(problem.hessian)
        U = np.linalg.svd(np.asarray(problem.jacobian), full_matrices=False)[0]
        np.testing.assert_allclose(found.curvature[0], np.linalg.eigvalsh(U.T @ H @ U)[0], rtol=1e-8)
        np.testing.assert_allclose(found.curvature[1], np.linalg.norm(H @ U, 2), rtol=1e-8)
        assert found.full and found.noisy

    def test_an_exponential_is_not_linear_and_a_matrix_is(self):
        drawn, looker = seen(PROBLEM)
        straight = whole_way(drawn, looker, system(drawn, looker))
        assert straight.linear and straight.way.kernel == 0
        x = jnp.linspace(0.1, 1, 20)
        bent = sg.LeastSquares(lambda p, r: jnp.exp(p["a"] * r) - jnp.exp(3 * r), x, {"a": 0.0})
        drawn, looker = seen(bent)
        straight = whole_way(drawn, looker, system(drawn, looker))
        assert not straight.nearly and straight.way.kernel > 0.1


class TestDecay:
    i = np.arange(1, 61, dtype=float)

    @pytest.mark.parametrize(
        ("values", "kind", "exponent"),
        [(i**-3.0, "power law", 3.0), (np.exp(-0.4 * i), "exponential", 0.4), (1 + 1 / i, "flat", 0.0)],
    )
    def test_known_spectra(self, values, kind, exponent):
        found = decay(values, 60)
        assert found.kind == kind and str(found).startswith(("a power law", "exponential", "flat"))
        np.testing.assert_allclose(found.exponent, exponent, atol=1e-9)
        scale = values.sum() / 60
        np.testing.assert_allclose(found.effective_dimension[1e-2], np.sum(values / (values + 1e-2 * scale)))


class TestRehearsal:
    def test_it_takes_the_steps_of_the_method(self):
        """The same batches through `sg.Spring` give the same errors, with curvature, noise and damping."""
        problem = sg.problems.spectrum_llq(jax.random.key(2), "power:1", 30, 5, hessian="linear", noise=0.1)
        drawn, looker = seen(problem)
        stage = Stage(system(drawn, looker), 3, seed=4)
        settings = [Setting(1e-3, 0.5, 0.6), Setting(1e-6, 0.2, 0.0)]
        order = np.random.default_rng(8)
        stage.rng = np.random.default_rng(8)
        race = stage.race(settings, target=1e-9, most=6)
        indices = order.integers(len(stage.sets), size=6)
        for g, (lam, eta, mu) in enumerate(settings):
            method, params = sg.Spring(lam, mu), problem.init(KEY)
            state = method.init(params)
            for t, index in enumerate(indices):
                lin = problem.linearise(params, jnp.asarray(stage.sets[index]))
                direction, state = method.direction(lin, state)
                params = params - eta * direction
                error = problem.metrics(params)["relative_error"]
                np.testing.assert_allclose(race.error[t + 1, g], error, rtol=1e-7)

    def test_steps_beyond_the_end_are_extrapolated_unless_there_is_noise(self):
        error = np.exp(-0.1 * np.arange(41))[:, None]
        race = Race(np.array([np.inf]), error)
        np.testing.assert_allclose(expected_steps(race, np.exp(-10.0), noisy=False), [100.0])
        assert np.isinf(expected_steps(race, np.exp(-10.0), noisy=True)).all()
        np.testing.assert_allclose(fitted_rate(error[:, 0]), 0.2)

    def test_rates_of_runs_lie_in_their_intervals(self):
        """Nine in ten of SNG and SPRING at two sample sizes on three spectra, with fixed seeds."""
        inside = []
        for index, spectrum in enumerate(("flat", "power:1", "exp:0.1")):
            problem = sg.problems.spectrum_llq(jax.random.key(index), spectrum, 60, 12, hessian="identity")
            drawn, looker = seen(problem)
            linear = system(drawn, looker)
            for k in (3, 6):
                found = choose(linear, k, [1e-12], target=1e-3, most=2000, seconds=60, seed=index)
                settings = np.array([x.setting for x in found.values()])
                lanes = Lanes(*map(jnp.asarray, settings.T))
                length = -(-max(x.over for x in found.values()) // 100) * 100
                keys = jax.random.split(jax.random.key(7), 4)
                _, error = arrivals(problem, keys, k, lanes, 0.0, length, 100)
                for g, expected in enumerate(found.values()):
                    assert expected.reached
                    rates = [fitted_rate(run[: expected.over + 1]) for run in error[g]]
                    inside.append(expected.rate.low <= np.mean(rates) <= expected.rate.high)
        assert len(inside) == 12 and np.mean(inside) >= 0.9


class TestReport:
    def test_what_is_recommended_arrives_as_expected(self, report):
        assert report.error == "parameters" and report.goal == 1e-4
        steps = int(2 * report.expected.steps)
        result = sg.run(
            PROBLEM,
            jax.random.key(3),
            method=report.method(),
            sampler=report.sampler(),
            optimizer=report.optimizer(),
            steps=steps,
            record_every=steps,
        )
        assert result.history["relative_error"][-1] < 1e-4
        assert isinstance(report.sampler(), sg.sampling.Uniform)
        assert report.sampler().sample_size == report.sample_size

    def test_json_holds_what_the_text_says(self, report):
        there = json.loads(report.to_json())
        assert there == report.json()
        text = str(report)
        assert there["recommended"]["method"] == report.name and report.name in text
        for advice in there["advice"]:
            assert advice["sure"] in ("high", "medium", "low") and advice["reason"].endswith(".")
            assert advice["about"] in text
        assert [a["about"] for a in there["advice"]] == [
            *("method", "sample_size", "damping", "step_size", "momentum", "precision", "sampler")
        ]
        assert there["spectrum"]["rank"] == 6 and there["pool"]["dead_parameters"] == []

    def test_constants_are_those_of_the_theory(self, report):
        row = report.chosen
        exact = sg.theory.exact.constants(
            PROBLEM.jacobian, sample_size=row.sample_size, damping=report.setting.damping, sampling="uniform"
        )
        assert row.alpha.low <= exact.alpha <= row.alpha.high
        assert row.beta.low <= exact.beta <= row.beta.high
        assert row.proved["SNG"] == row.alpha.low

    def test_it_draws(self, report, tmp_path):
        report.plot(tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
        report.plot(str(tmp_path / "a.svg"))
        with pytest.raises(ValueError, match=r"`path` must end in \.svg, \.png, \.pdf; got 'a.gif'"):
            report.plot("a.gif")

    def test_noise_puts_the_tolerance_out_of_reach_and_it_says_so(self):
        noisy = sg.problems.spectrum_llq(KEY, "power:1", 40, 6, hessian="identity", noise=0.1)
        found = sg.diagnose(noisy, KEY, sample_sizes=[4], seconds=1)
        assert found.goal > 1e-3 and found.inconsistency > 0.05
        words = " ".join(found.warnings)
        assert "floor" in words and "tolerance of 0.0001" in words
        assert found.json()["recommended"]["sample_size"] == 4

    def test_a_pinn_keeps_its_sampler_and_is_sent_to_auto(self):
        problem = sg.pinn.zoo("poisson-1d", hidden=(6,), points=(30, 2))
        found = sg.diagnose(problem, KEY, pool=80, seconds=1)
        assert isinstance(found.sampler(), sg.pinn.Collocation) and found.sample_size == 32
        assert any("sg.Auto()" in warning for warning in found.warnings)
        assert any("not linear" in warning for warning in found.warnings)
        assert found.method().damping == found.setting.damping and 0 < found.optimizer() <= 2
        with pytest.raises(
            ValueError, match="`sample_sizes` must be None for a problem with its own batches"
        ):
            sg.diagnose(problem, KEY, pool=80, sample_sizes=[3])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"problem": jnp.eye(3)}, TypeError, "`problem` must be a problem such as sg.LeastSquares"),
        ({"pool": 0}, ValueError, "`pool` must be at least 1"),
        ({"pool": 5000}, ValueError, "`pool` must be at most 2000"),
        ({"tolerance": 0.0}, ValueError, "`tolerance` and `seconds` must be above 0"),
        ({"tolerance": 2.0}, ValueError, "`tolerance` must be in"),
        ({"seconds": 0.0}, ValueError, "`tolerance` and `seconds` must be above 0"),
        ({"sample_sizes": []}, ValueError, "`sample_sizes` must hold at least one"),
        ({"sample_sizes": [0]}, ValueError, "`sample_sizes` must be at least 1"),
        ({"sample_sizes": [41]}, ValueError, "`sample_sizes` must be at most the number of rows"),
        ({"sample_sizes": [8], "pool": 15}, ValueError, "at most half of the pool, which is 7"),
        ({"params": {"a": 1}}, TypeError, "params"),
    ],
)
def test_bad_arguments_are_named(change, error, words):
    arguments = {"problem": PROBLEM, "key": KEY, **change}
    with pytest.raises(error, match=words):
        sg.diagnose(arguments.pop("problem"), arguments.pop("key"), **arguments)


def test_a_problem_on_which_nothing_depends_is_refused():
    idle = sg.LeastSquares(lambda p, x: 0.0 * p["a"] + x, jnp.ones(4), {"a": 1.0})
    with pytest.raises(ValueError, match="no row of the pool depends on any parameter"):
        sg.diagnose(idle, KEY)


def test_rows_that_follow_the_parameters_are_refused():
    atom = sg.molecules.VMC(lambda p, x: -p * jnp.sum(x**2), "H", params=jnp.ones(()), walkers=8)
    with pytest.raises(ValueError, match=r"draws its rows from what its parameters say.*FisherSpring"):
        sg.diagnose(atom, KEY)


def test_a_problem_that_is_solved_is_refused():
    solved = sg.LeastSquares(lambda p, x: p["a"] * x - 2 * x, jnp.ones(4), {"a": 2.0})
    with pytest.raises(ValueError, match="nothing is left to train"):
        sg.diagnose(solved, KEY)
