"""`snapgrad theory`: what it reads, what it prints, what it draws."""

import io

import jax
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from snapgrad import theory
from snapgrad.cli import app
from snapgrad.cli import theory as command
from snapgrad.cli._shared import UserError, read_matrix

J = np.random.default_rng(0).standard_normal((12, 4))


def test_a_matrix_is_tabulated_and_drawn_the_same_every_time(tmp_path):
    np.save(tmp_path / "J.npy", J)
    out = tmp_path / "c.svg"
    args = ["theory", "--matrix", str(tmp_path / "J.npy"), "--k", "1,2", "--out", str(out)]
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert result.exit_code == 0 and "α" in result.stdout and "c.svg written" in result.stdout
    rows = theory.table(J, [1, 2], jax.random.split(jax.random.key(0))[1])
    assert out.read_bytes() == command.picture(rows, "svg") and out.read_bytes().startswith(b"<?xml")
    assert command.picture(rows, "png").startswith(b"\x89PNG")
    text = io.StringIO()
    Console(file=text, width=200).print(command.printed(rows))
    assert "√(α/β)/γ" in text.getvalue() and f" {rows[1].gamma.estimate:.4g} " in text.getvalue()


def test_a_picture_of_unknown_kind_is_refused_before_anything_is_computed(tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("computed")

    monkeypatch.setattr(command, "table", never)
    for name in ("x.xyz", "x"):
        with pytest.raises(UserError, match=r"--out must end in \.svg, \.png, \.pdf; got .*x"):
            CliRunner().invoke(app, ["theory", "--out", str(tmp_path / name)], catch_exceptions=False)


@pytest.mark.parametrize("kind", ["csv", "npy", "npz", "npz of many"])
def test_matrices_are_read_from_csv_npy_and_npz(tmp_path, kind):
    path = tmp_path / f"J.{kind[:3]}"
    if kind == "csv":
        np.savetxt(path, J, delimiter=",")
    elif kind == "npy":
        np.save(path, J)
    elif kind == "npz":
        np.savez(path, anything=J)
    else:
        np.savez(path, other=np.ones(3), J=J)
    np.testing.assert_array_equal(read_matrix("--matrix", path), J)


def test_a_csv_of_one_row_or_of_whole_numbers_is_a_matrix(tmp_path):
    path = tmp_path / "J.csv"
    path.write_text("1, 2,3\n")
    np.testing.assert_array_equal(read_matrix("--matrix", path), [[1.0, 2.0, 3.0]])


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("J.csv", lambda p: p.write_text("a,b\n1,2\n"), ["could not convert string 'a'", "row 0"]),
        ("J.csv", lambda p: p.write_text("1,2\n3\n"), ["columns"]),
        ("J.csv", lambda p: p.write_text("\n"), [r"shape \(0, 0\)"]),
        ("J.csv", lambda p: p.write_text("1,nan\n"), ["finite"]),
        ("J.npy", lambda p: p.write_text("1,2\n3,4\n"), ["not a .npy file"]),
        ("J.npy", lambda p: np.save(p, np.array([{}], object), allow_pickle=True), ["not a .npy file"]),
        ("J.npy", lambda p: np.save(p, np.ones(3)), ["one real matrix", r"shape \(3,\)"]),
        ("J.npy", lambda p: np.save(p, np.ones((2, 2), complex)), ["one real matrix", "complex128"]),
        ("J.npz", lambda p: np.savez(p, a=J, b=J), ["2 arrays", "a, b"]),
        ("J.npz", lambda p: p.write_bytes(b"nothing"), ["not a .npz file"]),
        ("J.txt", lambda p: p.write_text("1"), ["must be a .csv, .npy or .npz file"]),
        ("J.npy", lambda p: None, ["No such file"]),
    ],
)
def test_what_is_no_matrix_is_refused_in_one_line(tmp_path, name, write, words):
    write(tmp_path / name)
    for word in words:
        with pytest.raises(UserError, match=word) as error:
            read_matrix("--matrix", tmp_path / name)
        assert name in str(error.value) and "pickle" not in str(error.value).replace("allow_pickle", "")
        assert "\n" not in str(error.value)
