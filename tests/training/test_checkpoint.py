"""Files of arrays: what comes back is what went in, and anything else is said in words."""

import hashlib
import io
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import snapgrad as sg

TREE = {
    "w": jnp.arange(6.0).reshape(2, 3),
    "f": jnp.float32(2.5),
    "z": jnp.array([1 + 2j]),
    "i": jnp.arange(3),
    "n": 4,
    "x": 0.5,
    "host": np.array([1.5, -0.0, np.nan]),
    "fn": jnp.tanh,
    "none": None,
}


@pytest.fixture
def path(tmp_path):
    sg.save(tmp_path / "deep" / "tree.snap", TREE)
    return tmp_path / "deep" / "tree.snap"


def test_round_trip(path):
    like = jax.tree.map(lambda x: x * 0 if eqx.is_array_like(x) else x, TREE)
    found = sg.load(path, like)
    assert jax.tree.structure(found) == jax.tree.structure(TREE)
    for old, new in zip(jax.tree.leaves(TREE), jax.tree.leaves(found), strict=True):
        if eqx.is_array_like(old):
            assert type(new) is type(old) and np.asarray(old).tobytes() == np.asarray(new).tobytes()
        else:
            assert old is new
    assert [entry.name for entry in path.parent.iterdir()] == ["tree.snap"], "nothing is left beside it"


def test_a_model(tmp_path):
    model = eqx.nn.MLP(1, 1, 3, 1, key=jax.random.key(0))
    sg.save(tmp_path / "m", model)
    other = sg.load(tmp_path / "m", like=eqx.nn.MLP(1, 1, 3, 1, key=jax.random.key(1)))
    assert bool(eqx.tree_equal(model, other))


WRONG = {
    "another shape": ({**TREE, "w": jnp.zeros((3, 2))}, [r"\['w'\]", r"\(2, 3\)", r"\(3, 2\)"]),
    "another dtype": ({**TREE, "f": jnp.float64(0)}, [r"\['f'\]", "float32", "float64"]),
    "another name": (
        {**{k: v for k, v in TREE.items() if k != "w"}, "v": TREE["w"]},
        [r"\['w'\]", r"\['v'\]"],
    ),
    "one less": ({k: v for k, v in TREE.items() if k != "z"}, ["8 arrays|7 arrays", r"\['z'\]"]),
    "one more": ({**TREE, "zz": jnp.ones(2)}, ["7 arrays|8 arrays", r"\['zz'\]"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tree_that_does_not_fit(path, name):
    like, words = WRONG[name]
    for word in words:
        with pytest.raises(ValueError, match=word):
            sg.load(path, like)


def test_damage(path):
    content = path.read_bytes()
    with pytest.raises(FileNotFoundError):
        sg.load(path.with_name("missing"), TREE)
    for name, damaged in {
        "damaged or cut off": content[:-1],
        "damaged or cut off ": content[:-3] + b"abc",
        "header cannot be read": content[:30],
        "not a snapgrad checkpoint": b"PK" + content,
        "not a snapgrad checkpoint ": b"",
        "format 99": content.replace(b'"format": 1', b'"format": 99'),
    }.items():
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=name.strip()):
            sg.load(path, TREE)


def test_a_pickle_is_never_read(path):
    """An array of objects in the place of numbers is refused, not executed."""
    magic, line, _ = path.read_bytes().split(b"\n", 2)
    evil = io.BytesIO()
    np.save(evil, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    header = json.loads(line)
    header["leaves"], header["sha256"] = (
        [["['w']", [1], "float64"]],
        hashlib.sha256(evil.getvalue()).hexdigest(),
    )
    path.write_bytes(b"\n".join([magic, json.dumps(header).encode(), evil.getvalue()]))
    with pytest.raises(ValueError, match="arrays cannot be read"):
        sg.load(path, {"w": jnp.zeros(1)})


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        sg.save(path, {"w": jnp.zeros(3)})
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1
