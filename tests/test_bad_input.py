"""Every bad input raises an error that names the argument and the value."""

import jax
import jax.numpy as jnp
import jaxtyping
import optax
import pytest

import snapgrad as sg


@pytest.fixture(autouse=True)
def without_run_time_types():
    """Users do not run with the type checker of the tests: the library's own errors must do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


J, r = jnp.ones((3, 4)), jnp.ones(3)
LIN = sg.Linearisation(r, sg.DenseJacobian(J))
PROBLEM = sg.problems.LeastQuadratics(jnp.eye(4), solution=jnp.ones(4))
UNIFORM = sg.sampling.Uniform(4, 2)
KEY = jax.random.key(0)
NAN = jnp.array([[1.0, jnp.nan]])

CASES = {
    "residual of the wrong length": (
        lambda: sg.Linearisation(jnp.ones(2), sg.DenseJacobian(J)),
        ValueError,
        ["residual", "(2,)", "(3,)"],
    ),
    "integer residual": (
        lambda: sg.Linearisation(jnp.ones(3, int), sg.DenseJacobian(J)),
        TypeError,
        ["residual", "int"],
    ),
    "jacobian not an operator": (lambda: sg.Linearisation(r, J), TypeError, ["jacobian", "DenseJacobian"]),
    "empty batch": (lambda: sg.DenseJacobian(jnp.ones((0, 4))), ValueError, ["rows", "(0, 4)"]),
    "empty tree": (lambda: sg.DenseJacobian({}), ValueError, ["rows"]),
    "integer jacobian": (lambda: sg.DenseJacobian(jnp.ones((3, 4), int)), TypeError, ["rows", "int"]),
    "leaves with unequal rows": (
        lambda: sg.DenseJacobian({"a": J, "b": J[:2]}),
        ValueError,
        ["rows['b']", "3 rows", "(2, 4)"],
    ),
    "negative damping": (lambda: sg.SNG(damping=-1e-3), ValueError, ["damping", "-0.001", ">= 0"]),
    "nan damping": (lambda: sg.TwoBatch(damping=float("nan")), ValueError, ["damping", "nan"]),
    "damping array": (lambda: sg.SNG(damping=jnp.ones(3)), ValueError, ["damping", "(3,)", "vmap"]),
    "damping text": (lambda: sg.SNG(damping="small"), TypeError, ["damping", "small"]),
    "momentum one": (lambda: sg.Spring(1e-3, momentum=1.0), ValueError, ["momentum", "1.0", "[0, 1)"]),
    "momentum negative": (lambda: sg.Spring(1e-3, momentum=-0.1), ValueError, ["momentum", "-0.1"]),
    "unknown solver": (
        lambda: sg.SNG(solver="lu"),
        ValueError,
        ["solver", "'lu'", "'auto'", "'cholesky'", "'eigh'", "'qr'", "'cg'"],
    ),
    "unknown solver of a self-tuning method": (
        lambda: sg.Auto(solver="qr"),
        ValueError,
        ["solver", "'qr'", "'auto', 'cg'"],
    ),
    "cg where a direct solver is needed": (
        lambda: sg.TwoBatch(solver="cg"),
        ValueError,
        ["solver", "'cg'", "'eigh'"],
    ),
    "cg alone without its report": (
        lambda: sg.methods.pinv_apply(sg.DenseJacobian(J), r, jnp.asarray(0.1), "cg"),
        ValueError,
        ["solver", "'cg'", "'eigh'"],
    ),
    "cg tolerance negative": (lambda: sg.CG(tolerance=-1.0), ValueError, ["tolerance", "-1.0", "[0, 1)"]),
    "cg tolerance text": (lambda: sg.CG(tolerance="tight"), TypeError, ["tolerance", "tight"]),
    "cg without steps": (lambda: sg.CG(max_steps=0), ValueError, ["max_steps", "0"]),
    "cg rank negative": (lambda: sg.CG(rank=-2), ValueError, ["rank", "-2"]),
    "cg rank not whole": (lambda: sg.CG(rank=2.5), TypeError, ["rank", "2.5"]),
    "integer parameters": (lambda: sg.SNG().init({"w": jnp.ones(2, int)}), TypeError, ["params['w']", "int"]),
    "text in parameters": (
        lambda: sg.Spring().init({"w": jnp.ones(2), "name": "net"}),
        TypeError,
        ["params['name']", "str"],
    ),
    "no parameters": (lambda: sg.SGD().init({}), ValueError, ["params"]),
    "mismatched tree": (
        lambda: sg.Spring().direction(LIN, sg.Spring().init({"w": jnp.ones(4)})),
        ValueError,
        ["tangent", "structure"],
    ),
    "mismatched shape": (
        lambda: sg.Spring().direction(LIN, sg.Spring().init(jnp.ones(5))),
        ValueError,
        ["tangent", "(4,)", "(5,)"],
    ),
    "optax tree": (
        lambda: sg.as_optax(sg.SNG(), 1.0).update(
            None, sg.as_optax(sg.SNG(), 1.0).init(jnp.ones(5)), jnp.ones(5), linearisation=LIN
        ),
        ValueError,
        ["linearisation", "(5,)", "(4,)"],
    ),
    "optax without linearisation": (
        lambda: sg.as_optax(sg.SNG()).update(None, sg.as_optax(sg.SNG()).init(jnp.ones(4))),
        ValueError,
        ["linearisation"],
    ),
    "one batch for two": (lambda: sg.TwoBatch().direction(LIN, ()), TypeError, ["pair", "Linearisation"]),
    "k > m": (
        lambda: sg.sampling.Uniform(4, sample_size=5),
        ValueError,
        ["sample_size", "num_rows", "5", "4"],
    ),
    "k = 0": (lambda: sg.sampling.Uniform(4, sample_size=0), ValueError, ["sample_size", "0"]),
    "k not whole": (lambda: sg.sampling.Uniform(4, sample_size=2.5), TypeError, ["sample_size", "2.5"]),
    "nan in A": (lambda: sg.kaczmarz(NAN, jnp.ones(1)), ValueError, ["`A`", "1 entries", "NaN"]),
    "nan in b": (
        lambda: sg.kaczmarz(jnp.ones((1, 2)), jnp.array([jnp.inf])),
        ValueError,
        ["`b`", "infinite"],
    ),
    "b too short": (lambda: sg.kaczmarz(J, jnp.ones(2)), ValueError, ["`b`", "3", "(2,)"]),
    "A not a matrix": (lambda: sg.kaczmarz(jnp.ones(3), r), ValueError, ["`A`", "2 axes", "(3,)"]),
    "complex A": (lambda: sg.kaczmarz(J + 1j, r), TypeError, ["`A`", "complex"]),
    "empty A": (lambda: sg.kaczmarz(jnp.ones((0, 2)), jnp.ones(0)), ValueError, ["`A`", "(0, 2)"]),
    "kaczmarz k > m": (lambda: sg.kaczmarz(J, r, sample_size=4), ValueError, ["sample_size", "4", "3"]),
    "kaczmarz negative damping": (lambda: sg.kaczmarz(J, r, damping=-1.0), ValueError, ["damping", "-1.0"]),
    "size and sketch": (
        lambda: sg.kaczmarz(J, r, sample_size=1, sketch=sg.linalg.RowSketch(1)),
        ValueError,
        ["sample_size", "sketch"],
    ),
    "sampler of other rows": (
        lambda: sg.kaczmarz(J, r, sketch=UNIFORM),
        ValueError,
        ["sketch", "3 rows", "4"],
    ),
    "nan in jacobian": (
        lambda: sg.problems.LeastQuadratics(NAN, rhs=jnp.ones(1)),
        ValueError,
        ["jacobian", "NaN"],
    ),
    "asymmetric H": (
        lambda: sg.problems.LeastQuadratics(jnp.eye(2), jnp.array([[1.0, 1], [0, 1]]), rhs=jnp.ones(2)),
        ValueError,
        ["hessian", "symmetric"],
    ),
    "indefinite H": (
        lambda: sg.problems.LeastQuadratics(jnp.eye(2), -jnp.eye(2), rhs=jnp.ones(2)),
        ValueError,
        ["hessian", "positive definite"],
    ),
    "H of the wrong size": (
        lambda: sg.problems.LeastQuadratics(jnp.eye(2), jnp.eye(3), rhs=jnp.ones(2)),
        ValueError,
        ["hessian", "(3, 3)"],
    ),
    "neither rhs nor solution": (
        lambda: sg.problems.LeastQuadratics(jnp.eye(2)),
        ValueError,
        ["rhs", "solution"],
    ),
    "unknown spectrum": (
        lambda: sg.problems.singular_values("steep", 3),
        ValueError,
        ["spectrum", "'steep'", "power:P"],
    ),
    "bad power": (lambda: sg.problems.singular_values("power:x", 3), ValueError, ["spectrum", "'power:x'"]),
    "unknown hessian": (
        lambda: sg.problems.gaussian_llq(KEY, 4, 2, hessian="round"),
        ValueError,
        ["hessian", "'round'", "'wishart'"],
    ),
    "more columns than rows": (
        lambda: sg.problems.spectrum_matrix(KEY, jnp.ones(5), 3),
        ValueError,
        ["num_rows", "5", "3"],
    ),
    "a grid of two points": (
        lambda: sg.problems.DiscretePoisson(num_rows=2),
        ValueError,
        ["num_rows", "3", "2"],
    ),
    "sampler and problem disagree": (
        lambda: sg.run(PROBLEM, KEY, method=sg.SNG(), sampler=sg.sampling.Uniform(9, 2), steps=3),
        ValueError,
        ["sampler", "9", "4"],
    ),
    "no steps": (
        lambda: sg.run(PROBLEM, KEY, method=sg.SNG(), sampler=UNIFORM, steps=0),
        ValueError,
        ["steps", "0"],
    ),
    "integer start": (
        lambda: sg.run(PROBLEM, KEY, method=sg.SNG(), sampler=UNIFORM, steps=3, params=jnp.ones(4, int)),
        TypeError,
        ["params", "int"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case):
    call, error, words = CASES[case]
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing from: {caught.value}"


def test_traced_values_are_checked_too():
    directions = jax.jit(lambda lam: sg.SNG(lam).direction(LIN, ())[0])
    assert directions(jnp.asarray(1.0)).shape == (4,)
    with pytest.raises(Exception, match="`damping` must be >= 0"):
        directions(jnp.asarray(-1.0)).block_until_ready()


def test_numpy_lists_and_whole_numbers_are_welcome():
    assert sg.kaczmarz([[2, 0], [0, 4]], [2, 4]).params.tolist() == [1.0, 1.0]
    assert float(sg.SNG(damping=1).damping) == 1.0
    assert isinstance(sg.as_optax(sg.SNG(), 1), optax.GradientTransformationExtraArgs)
