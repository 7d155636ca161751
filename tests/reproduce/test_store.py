"""Stored panels: whole or not there, and never silent about damage."""

import numpy as np
import pytest

from snapgrad import _files
from snapgrad.reproduce import ResultsError, _store, claimed


class TestStore:
    settings: dict = {"study": "x", "seed": 0, "size": "quick", "grid": [1.0, 2.0]}  # noqa: RUF012
    arrays: dict = {"a": np.arange(3.0), "b": np.array([True])}  # noqa: RUF012

    def save(self, folder):
        _store.save_panel(folder, "p", self.arrays, self.settings, {"seconds": 1.0})

    def test_what_is_stored_comes_back(self, tmp_path):
        assert _store.load_panel(tmp_path, "p", self.settings) is None
        self.save(tmp_path)
        arrays, record = _store.load_panel(tmp_path, "p", self.settings)
        np.testing.assert_array_equal(arrays["a"], self.arrays["a"])
        assert record["seconds"] == 1.0 and record["settings"] == self.settings
        assert not list(tmp_path.glob(".*"))

    def test_the_same_arrays_are_the_same_bytes(self, tmp_path):
        self.save(tmp_path / "one")
        self.save(tmp_path / "two")
        assert (tmp_path / "one" / "p.npz").read_bytes() == (tmp_path / "two" / "p.npz").read_bytes()

    def test_arrays_without_a_record_are_unfinished(self, tmp_path):
        self.save(tmp_path)
        (tmp_path / "p.json").unlink()
        assert _store.load_panel(tmp_path, "p", self.settings) is None

    @pytest.mark.parametrize(
        ("file", "content"), [("p.npz", b"PK garbage"), ("p.json", b"{"), ("p.json", b"[]"), ("p.npz", None)]
    )
    def test_damage_is_one_line_that_says_what_to_do(self, tmp_path, file, content):
        self.save(tmp_path)
        if content is None:
            (tmp_path / file).unlink()
        else:
            (tmp_path / file).write_bytes(content)
        with pytest.raises(ResultsError, match=r"damaged.*[Dd]elete") as error:
            _store.load_panel(tmp_path, "p", self.settings)
        assert "\n" not in str(error.value) and file.removesuffix(".npz") in str(error.value)

    def test_other_settings_are_refused_not_overwritten(self, tmp_path):
        self.save(tmp_path / "data")
        with pytest.raises(ResultsError, match=r"seed: 0, now 1.*--out"):
            _store.load_panel(tmp_path / "data", "p", {**self.settings, "seed": 1})

    def test_a_full_disk_keeps_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "file"
        _store.write_atomic(path, b"old")

        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(_files.os, "fsync", full)
        with pytest.raises(ResultsError, match=r"No space left.*--out"):
            _store.write_atomic(path, b"new")
        assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["file"]

    def test_two_runs_do_not_share_a_folder(self, tmp_path):
        with (
            claimed(tmp_path),
            pytest.raises(ResultsError, match="another run"),
            claimed(tmp_path),
        ):
            pass

    def test_leftovers_are_removed(self, tmp_path):
        left = tmp_path / "x" / ".p.npz.1.part"
        left.parent.mkdir()
        left.write_bytes(b"half")
        with claimed(tmp_path):
            assert not left.exists()
