"""Malformed and hostile input: one or two lines that name the cause, an exit code, and nothing written."""

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import snapgrad as sg
from snapgrad import cli
from snapgrad.cli import reproduce


@pytest.fixture(autouse=True)
def without_run_time_types():
    """Users do not run with the type checker of the tests: the library's own errors must do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def npy(shape: str, kind: str = "<f8") -> bytes:
    """The header of an array without its numbers."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00v\x00" + text.encode()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


LOOP, FOLDER = object(), object()  # a link to itself, and a folder in the place of a file
FILES = {
    "empty.csv": b"",
    "binary.csv": bytes(range(256)),
    "latin.csv": "1,é\n".encode("latin-1"),
    "infinite.csv": b"1e999,2\n",
    "nan.csv": b"nan,1\n",
    "ragged.csv": b"1,2\n3\n",
    "words.csv": b"a,b\n",
    "loop.npy": LOOP,
    "folder.npy": FOLDER,
    "empty.npy": b"",
    "huge.npy": npy("(1000000000, 1000000)"),
    "negative.npy": npy("(-3, 2)"),
    "objects.npy": npy("(1, 1)", "|O"),
    "header.npy": b"\x93NUMPY\x01\x00\xff\xff{",
    "J.npz": npz(J=np.ones((3, 2))),
    "cut.npz": npz(J=np.ones((30, 20)))[:-30],
    "spoilt.npz": npz(J=np.ones((30, 20))).replace(b"\xf0?", b"ab"),
    "objects.npz": npz(J=np.array([{}], object)),
    "cube.npz": npz(J=np.ones((2, 2, 2))),
    "empty.npz": b"",
    "empty.xyz": b"",
    "binary.xyz": b"\xff\xfe\x00",
    "short.xyz": b"2\n\nH 0 0 0\n",
    "element.xyz": b"1\n\nXx 0 0 0\n",
    "nan.xyz": b"1\n\nH 0 0 nan\n",
    "overflow.xyz": b"1\n\nH 0 0 1e999\n",
    "twice.xyz": b"2\n\nH 0 0 0\nH 0 0 0\n",
    "count.xyz": b"99999999999999999999\n\nH 0 0 0\n",
    "loop.xyz": LOOP,
    "folder.xyz": FOLDER,
    "file": b"in the way",
}
HUGE = "99999999999999999999999"
COMMANDS: dict[str, str] = {  # what is typed, and a word of the answer
    "theory --matrix empty.csv": "shape (0, 0)",
    "theory --matrix binary.csv": "binary.csv is not a .csv file",
    "theory --matrix latin.csv": "latin.csv is not a .csv file",
    "theory --matrix infinite.csv": "finite",
    "theory --matrix nan.csv": "finite",
    "theory --matrix ragged.csv": "columns",
    "theory --matrix words.csv": "could not convert",
    "theory --matrix loop.npy": "symbolic links",
    "theory --matrix folder.npy": "Is a directory",
    "theory --matrix empty.npy": "empty.npy is not a .npy file",
    "theory --matrix huge.npy": "huge.npy is not a .npy file",
    "theory --matrix negative.npy": "negative.npy is not a .npy file",
    "theory --matrix objects.npy": "objects.npy is not a .npy file",
    "theory --matrix header.npy": "header.npy is not a .npy file",
    "theory --matrix cut.npz": "no archive",
    "theory --matrix spoilt.npz": "spoilt.npz is not a .npz file",
    "theory --matrix objects.npz": "Object arrays cannot be loaded",
    "theory --matrix cube.npz": "shape (2, 2, 2)",
    "theory --matrix empty.npz": "no archive",
    "theory --matrix missing.npy": "No such file",
    "theory --matrix file": "must be a .csv, .npy or .npz file",
    "theory --matrix J.npz --k 9": "sample_size",
    "theory --k 0": "--k must be whole numbers of at least 1",
    "theory --k -1": "--k must be",
    "theory --k ,": "--k must be",
    f"theory --k {HUGE}": "--k must be",
    f"theory --m {HUGE}": "--m",
    "theory --m 1000000000 --n 1000000": "fewer rows or columns",
    "theory --damping nan": "--damping",
    "theory --damping inf": "damping",
    "theory --rtol nan": "--rtol",
    "theory --sampling best": "best",
    "theory --spectrum power:nan": "finite",
    "theory --spectrum exp:": "spectrum",
    f"theory --seed {HUGE}": "--seed",
    "theory --out picture.exe": "--out must end in",
    "theory --k 1 extra": "extra",
    "diagnose flat --m 4 --n 9": "num_rows",
    "diagnose flat --m 20 --n 4 --tolerance nan": "tolerance",
    "diagnose flat --m 20 --n 4 --seconds nan": "seconds",
    "diagnose flat --m 20 --n 4 --noise inf": "noise",
    "diagnose flat --m 1000000000 --n 1000000": "fewer rows or columns",
    "diagnose cut.npz": "no archive",
    "diagnose ../../etc/passwd": "../../etc/passwd",
    "pinn ../../etc/passwd": "../../etc/passwd",
    "pinn": "Missing argument",
    "pinn poisson-1d --steps 0": "--steps",
    "pinn poisson-1d --steps 1e3": "--steps",
    f"pinn poisson-1d --steps {HUGE}": "--steps",
    "pinn poisson-1d --seconds nan": "--seconds",
    "pinn poisson-1d --seconds -1": "--seconds",
    "pinn poisson-1d --method ../x": "../x",
    "pinn poisson-1d --out file": "cannot write to file",
    "pinn poisson-1d --resume": "no checkpoint",
    "molecule empty.xyz": "empty.xyz is not an .xyz file",
    "molecule binary.xyz": "binary.xyz is not an .xyz file",
    "molecule short.xyz": "short.xyz is not an .xyz file",
    "molecule element.xyz": "Xx",
    "molecule nan.xyz": "finite coordinates",
    "molecule overflow.xyz": "finite coordinates",
    "molecule twice.xyz": "different places",
    "molecule count.xyz": "count.xyz is not an .xyz file",
    "molecule loop.xyz": "symbolic links",
    "molecule folder.xyz": "Is a directory",
    "molecule ../H": "../H",
    f"molecule H --charge {HUGE}": "charge",
    "molecule H --spin 3": "spin",
    "molecule H --ansatz ../x": "../x",
    "reproduce ../x": "../x",
    "reproduce superlinear --quick --out file/x": "--out",
    "reproduce superlinear --jobs 0": "--jobs",
    f"reproduce superlinear --jobs {HUGE}": "--jobs",
    "reproduce superlinear --jobs 1 --scheduler tcp://x": "not both",
    "reproduce superlinear --scheduler nonsense://x": "nonsense://x",
    "reproduce superlinear --scheduler tcp://127.0.0.1:1": "no Dask scheduler answers",
    "report missing": "holds no results",
    "report file": "holds no results",
    "quantum tfim --size 1": "size",
    f"quantum tfim --size {HUGE}": "--size",
    "quantum tfim --size 100000 --alpha 10000": "smaller `size` or `alpha`",
    "quantum tfim --damping nan": "--damping",
    "quantum tfim --momentum 1": "momentum",
    "quantum tfim --step-size inf": "step_size",
    "quantum tfim --methods ,": "--methods",
    f"quantum tfim --samples {HUGE}": "--samples",
    "quantum tfim --resume": "nothing to resume",
    "--nonsense": "--nonsense",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    for name, content in FILES.items():
        path = folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is LOOP:
            path.symlink_to(name)
        else:
            path.mkdir()
    return folder


def seen(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("typed", COMMANDS)
def test_a_command(typed, folder, monkeypatch):
    needs = {"quantum": "netket", "--scheduler": "distributed"}
    for word, package in needs.items():
        if word in typed and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.setattr(sys, "argv", ["snapgrad", *typed.split(" ")])
    monkeypatch.setattr(reproduce, "CONNECT", 0.2)
    before, errors = seen(folder), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    said = errors.getvalue()
    assert end.value.code in (1, 2) and COMMANDS[typed] in said, said
    assert 1 <= len(said.strip().splitlines()) <= 2 and "Traceback" not in said, said
    assert seen(folder) == before


TREE = {"w": jnp.arange(6.0).reshape(2, 3)}


def checkpoint(change: Callable[[dict], None] = lambda header: None, arrays: bytes | None = None) -> bytes:
    """A checkpoint of `TREE` with another header, or other arrays under their own checksum."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(TREE["w"]))
    arrays = buffer.getvalue() if arrays is None else arrays
    header = {"format": 1, "leaves": [["['w']", [2, 3], "float64"]], "about": {}}
    header["sha256"] = hashlib.sha256(arrays).hexdigest()
    change(header)
    return b"snapgrad checkpoint\n" + json.dumps(header).encode() + b"\n" + arrays


def leaf(*entry: object) -> bytes:
    return checkpoint(lambda header: header.update(leaves=[list(entry)]))


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    return buffer.getvalue()


CHECKPOINTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a snapgrad checkpoint"),
    "bad magic": (b"SNAPGRAD" + checkpoint(), "not a snapgrad checkpoint"),
    "an archive": (npz(w=np.ones(3)), "not a snapgrad checkpoint"),
    "binary": (bytes(range(256)) * 10, "not a snapgrad checkpoint"),
    "magic alone": (b"snapgrad checkpoint\n", "header cannot be read"),
    "bad JSON": (b"snapgrad checkpoint\n{not JSON}\n", "header cannot be read"),
    "a list for a header": (b"snapgrad checkpoint\n[1, 2]\n", "header cannot be read"),
    "nested for ever": (b"snapgrad checkpoint\n" + b"[" * 100_000 + b"\n", "header cannot be read"),
    "not UTF-8": (b'snapgrad checkpoint\n{"format": "\xff"}\n', "header cannot be read"),
    "no leaves": (checkpoint(lambda header: header.pop("leaves")), "header cannot be read"),
    "no checksum": (checkpoint(lambda header: header.pop("sha256")), "header cannot be read"),
    "a number for a checksum": (checkpoint(lambda h: h.update(sha256=3)), "header cannot be read"),
    "nothing about it": (checkpoint(lambda header: header.update(about=None)), "header cannot be read"),
    "leaves that are words": (checkpoint(lambda h: h.update(leaves="ww")), "header cannot be read"),
    "a negative shape": (leaf("['w']", [-2, 3], "float64"), "header cannot be read"),
    "a shape of text": (leaf("['w']", ["2", "3"], "float64"), "header cannot be read"),
    "a leaf without a type": (leaf("['w']", [2, 3]), "header cannot be read"),
    "a huge shape": (leaf("['w']", [10**9, 10**9], "float64"), "does not fit `like`"),
    "another dtype": (leaf("['w']", [2, 3], "float32"), "float32"),
    "another name": (leaf("['v']", [2, 3], "float64"), "['v']"),
    "a format of later": (checkpoint(lambda header: header.update(format=2)), "format 2"),
    "a format of words": (checkpoint(lambda header: header.update(format="x")), "format x"),
    "cut off": (checkpoint()[:-1], "damaged or cut off"),
    "one bit": (checkpoint()[:-1] + b"\xff", "damaged or cut off"),
    "far too long": (checkpoint() + b"\x00" * 10**6, "damaged or cut off"),
    "a pickle": (checkpoint(arrays=pickled()), "arrays cannot be read"),
    "arrays of a huge shape": (checkpoint(arrays=npy("(1000000000, 1000000)")), "arrays cannot be read"),
    "no arrays": (checkpoint(arrays=b""), "arrays cannot be read"),
    "other arrays": (checkpoint(arrays=npy("(1, 1)") + b"\x00" * 8), "arrays cannot be read"),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoint(case, tmp_path):
    content, words = CHECKPOINTS[case]
    path = tmp_path / "model.snap"
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        sg.load(path, TREE)
    said = str(error.value)
    assert words in said and str(path) in said and len(said.splitlines()) <= 2, said
    assert path.read_bytes() == content and len(list(tmp_path.iterdir())) == 1


def test_the_checkpoint_that_all_of_these_spoil_is_sound(tmp_path):
    (tmp_path / "model.snap").write_bytes(checkpoint())
    np.testing.assert_array_equal(sg.load(tmp_path / "model.snap", TREE)["w"], TREE["w"])
