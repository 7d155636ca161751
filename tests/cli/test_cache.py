"""Compiled programs are kept between runs, where the user says so and nowhere else."""

import os
import subprocess
import sys

import jax
import pytest

from snapgrad import cli
from snapgrad.cli import _cache

PROGRAM = """
import runpy, sys
import jax, jax.numpy as jnp
keep_compiled = runpy.run_path(sys.argv[1])["keep_compiled"]  # alone: the library takes seconds to import
keep_compiled.__globals__["LEAST_SECONDS"] = 0.0
keep_compiled()
events = []
jax.monitoring.register_event_listener(lambda name, **about: events.append(name))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones(7))
print(sum(name.endswith("cache_hits") for name in events))
"""


@pytest.fixture
def no_cache(monkeypatch):
    """As in a fresh process; afterwards the tests have their own cache again."""
    chosen = jax.config.jax_compilation_cache_dir
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.delenv(name, raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", chosen)


def test_the_second_run_compiles_nothing_and_says_nothing(tmp_path):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}

    def run() -> tuple[int, str]:
        env = plain | {"XDG_CACHE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM, _cache.__file__]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        return int(done.stdout), done.stderr

    assert run() == (0, "")
    found, said = run()
    assert found > 0 and said == ""
    for entry in tmp_path.rglob("*-cache"):  # as a run leaves it that is killed while it writes
        entry.write_bytes(entry.read_bytes()[:100])
    assert run() == (0, "")


def test_a_folder_for_each_processor_in_the_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = _cache.cache_folder()
    assert here.parent == tmp_path / "snapgrad" / "jax"
    monkeypatch.setattr(_cache, "_processor", lambda: "another one")
    assert _cache.cache_folder().parent == here.parent and _cache.cache_folder() != here
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(_cache.Path, "home", lambda: tmp_path)
    for name, folder in (("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")):
        monkeypatch.setattr(sys, "platform", name)
        assert _cache.cache_folder().is_relative_to(tmp_path / folder / "snapgrad" / "jax")


def test_a_cache_of_the_user_stays(tmp_path, monkeypatch, no_cache):
    monkeypatch.setattr(_cache, "cache_folder", lambda: tmp_path / "ours")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    _cache.keep_compiled()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()


def test_a_folder_that_cannot_be_written_is_no_cache(tmp_path, monkeypatch, no_cache):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(_cache, "cache_folder", lambda: tmp_path / "file" / "jax")
    _cache.keep_compiled()
    assert jax.config.jax_compilation_cache_dir is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


@pytest.mark.parametrize(
    ("said", "args", "kept"),
    [
        (None, [], True),
        ("off", [], False),
        (None, ["--no-compilation-cache"], False),
        ("off", ["--compilation-cache"], True),
    ],
)
def test_it_can_be_turned_off(monkeypatch, capsys, said, args, kept):
    asked = []
    monkeypatch.setattr(cli, "keep_compiled", lambda: asked.append(True))
    if said is None:
        monkeypatch.delenv("SNAPGRAD_COMPILATION_CACHE")
    monkeypatch.setattr(sys, "argv", ["snapgrad", *args, "list"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0 and asked == [True] * kept
    capsys.readouterr()


def test_help_says_how_to_turn_it_off(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["snapgrad", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().out
    assert "--no-compilation-cache" in said and "SNAPGRAD_COMPILATION_CACHE" in said
