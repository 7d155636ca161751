"""Bad storage: full, read-only, shared or foreign; errors say what to do, and what was there is unharmed."""

import contextlib
import errno
import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import snapgrad as sg
from snapgrad import _files, _memory, _signals
from snapgrad.reproduce import ResultsError, claimed

X = jnp.linspace(0, 1, 6)
PROBLEM = sg.LeastSquares(lambda p, row: p * row[0] - row[1], (X, 2 * X), jnp.ones(()))


def fit(folder, steps=2, **options):
    options = {"batch_size": 2, "record_every": 1, **options}
    return sg.fit(PROBLEM, jax.random.key(0), steps=steps, checkpoint=folder, **options)


@contextlib.contextmanager
def full_disk():
    """No file may grow beyond a few bytes, as on a disk without space."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    name = "jax_persistent_cache_min_compile_time_secs"
    least = getattr(jax.config, name)
    jax.config.update(name, 1e9)  # what JAX would store of a program would be cut off
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        jax.config.update(name, least)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    fit(tmp_path)
    before = (tmp_path / "checkpoint.snap").read_bytes()
    with full_disk(), pytest.raises(OSError, match=r"free space.*last checkpoint.*checkpoint.snap") as error:
        fit(tmp_path, steps=3)
    assert "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"checkpoint.snap": before}
    assert fit(tmp_path, steps=3).history["step"].tolist() == [0, 1, 2, 3]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="choose another folder for `checkpoint`"):
        fit(tmp_path / "file" / "deep")
    assert (tmp_path / "file").read_text() == "in the way" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="choose another folder for `checkpoint`"):
        fit(tmp_path)


def hold(folder, ready, end):
    with _files.locked(Path(folder)):
        ready.set()
        end.wait(300)


def test_two_processes_in_one_folder(tmp_path):
    """The second is refused, whoever the first is; a dead one does not count."""
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(str(tmp_path), ready, end))
    process.start()
    assert ready.wait(300)
    with pytest.raises(BlockingIOError, match="another process is training there: wait"):
        fit(tmp_path)
    with pytest.raises(ResultsError, match="another run is writing"), claimed(tmp_path):
        pass
    process.kill()
    process.join()
    assert fit(tmp_path).reason == "steps"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.snap"]


def test_what_others_write_is_left_alone(tmp_path):
    """Unfinished files of a run that died are removed, those of one that lives and foreign ones are not."""
    names = "dead/.a.csv.12.part", "own/.b.csv.34.part", ".x.part"
    dead, own, foreign = (tmp_path / name for name in names)
    for path in (dead, own, foreign):
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    (dead.parent / ".lock").touch()  # nobody holds it
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    process = context.Process(target=hold_what_is_there, args=(str(own.parent), ready, end))
    process.start()
    assert ready.wait(300)
    with claimed(tmp_path):
        assert own.exists() and foreign.exists() and not dead.exists()
    process.kill()
    process.join()
    with claimed(tmp_path):
        assert foreign.exists() and not own.exists()


def hold_what_is_there(folder, ready, end):
    handle = _files._lock(Path(folder) / ".lock")
    ready.set()
    end.wait(300)
    os.close(handle)


def test_a_file_system_without_locks_is_used_all_the_same(tmp_path, monkeypatch):
    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="without locks"):
        fit(tmp_path)
    assert (tmp_path / "checkpoint.snap").exists()


def test_checkpoints_that_are_no_run_of_this_problem(tmp_path):
    path = tmp_path / "checkpoint.snap"
    sg.save(path, {"w": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"holds no run of sg\.fit: choose another folder"):
        fit(tmp_path)
    path.unlink()
    fit(tmp_path)
    whole = path.read_bytes()
    for content, words in {
        whole[:-3]: "cut off.*delete that file",
        b"PK" + whole: "not a snapgrad checkpoint",
        whole.replace(b'"format": 1', b'"format": 7'): "format 7.*version that wrote it",
    }.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words) as error:
            fit(tmp_path, steps=3)
        assert "\n" not in str(error.value) and path.read_bytes() == content


def test_a_run_that_converged_stays_so(tmp_path):
    """Nothing is added by a second call, though this one would have gone on by its limit."""
    options = {"batch_size": None, "record_every": 5}
    first = fit(tmp_path, steps=500, **options)
    assert first.reason == "converged"
    again = fit(tmp_path, steps=500, **options)
    assert again.reason == "converged" and int(again.state.step) == int(first.state.step)


def test_sigterm_stores_a_checkpoint_and_exits_as_terminated(tmp_path):
    def stop(record, state):
        if record["step"] == 1:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        fit(tmp_path, callback=stop)
    assert end.value.code == 143 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert (tmp_path / "checkpoint.snap").exists()
    assert fit(tmp_path).history["step"].tolist() == [0, 1, 2]


def test_what_compiled_code_makes_of_an_interruption_is_one(tmp_path):
    """Extension modules raise an error of their own from it."""

    def stop(record, state):
        if record["step"] == 1:
            raise RuntimeError("returned a result with an exception set") from KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, callback=stop)
    assert (tmp_path / "checkpoint.snap").exists() and fit(tmp_path).reason == "steps"
    with pytest.raises(RuntimeError, match="of its own"), _signals.as_interruptions():
        raise RuntimeError("of its own")


def test_what_fails_for_lack_of_what_an_interruption_cut_off_is_one():
    """Matplotlib drops what is raised while NumPy makes an array, and complains that there is none."""

    def complain():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("no array")

    with pytest.raises(KeyboardInterrupt), _signals.interruptible(), _signals.as_interruptions():
        complain()
    with pytest.raises(OSError, match="full"), _signals.interruptible(), _signals.as_interruptions():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # while it is taken care of, errors are what they are
            raise OSError("full")  # noqa: B904
    with pytest.raises(ValueError, match="no array"), _signals.interruptible(), _signals.as_interruptions():
        raise ValueError("no array")


class Deaf:
    """Python drops what is raised here."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_is_dropped_comes_again():
    with pytest.raises(KeyboardInterrupt), _signals.interruptible() as came:
        deaf = Deaf()
        del deaf
        wait()
    assert len(came) == 2


def wait(seconds=30.0):
    """In Python, where a signal is noticed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_signal_that_compiled_code_prints_and_drops_comes_again():
    with pytest.raises(KeyboardInterrupt), _signals.interruptible() as came:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as error:
            sys.excepthook(type(error), error, None)
        wait()
    assert len(came) == 2


def test_a_signal_does_not_come_again_when_nobody_waits_for_it():
    """The rest of a script would be killed by it."""
    with _signals.interruptible():
        deaf = Deaf()
        del deaf
    wait(5 * _signals.AGAIN)


class HalfMade:
    """Interrupted while it was made, it lacks what its removal asks for."""

    def __init__(self, circle=False):
        self.circle = self if circle else None  # which only the collector of garbage finds
        signal.raise_signal(signal.SIGINT)
        self.part = None

    def __del__(self):
        assert self.part is None


def test_objects_that_an_interruption_left_half_made_go_in_silence(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda what: told.append(what.exc_type))
    with pytest.raises(KeyboardInterrupt):
        HalfMade()
    assert told == [AttributeError]  # Python's own way
    with _signals.interruptible() as came, pytest.raises(KeyboardInterrupt):
        HalfMade()
    assert told == [AttributeError] and came == [signal.SIGINT]
    with _signals.interruptible(), pytest.raises(KeyboardInterrupt):
        HalfMade(circle=True)
    gc.collect()
    assert told == [AttributeError]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with _signals.interruptible():
        broken = HalfMade.__new__(HalfMade)
        del broken
    assert told == [AttributeError] * 2, "without an interruption it is told"


def test_memory_is_asked_for_before_it_is_taken(monkeypatch):
    jac = sg.jacobian(lambda p, x: jnp.tanh(p * x[None]).sum(), jnp.ones((40, 50)), jnp.ones((300, 50)))
    monkeypatch.setattr(_memory, "LARGE", 0)
    monkeypatch.setattr(_memory, "available", lambda: 10**5)
    with pytest.raises(MemoryError, match=r"kernel of 300 rows .* takes 1.37 MiB, and 97.7 KiB are free.*cg"):
        jac.gram()
    monkeypatch.setattr(_memory, "available", lambda: 2**21)
    with pytest.raises(MemoryError, match=r"blocks of 300 of 300 points .*smaller `block_size`"):
        jac.gram()
    assert jac.gram(block_size=50).shape == (300, 300)
    with pytest.raises(MemoryError, match="300 rows and 2000 parameters as a matrix"):
        jac.dense()
    monkeypatch.setattr(_memory, "available", lambda: 2**21 + 2**19)  # for the kernel, not for its factors
    with pytest.raises(MemoryError, match=r"factorising 300 equations takes 2.75 MiB.*cg"):
        sg.linalg.psd_solve(jnp.eye(300), jnp.ones(300), 1e-3)
    problem = sg.LeastSquares(lambda p, row: row @ p, jnp.ones((400, 300)), jnp.ones(300))
    with pytest.raises(
        MemoryError, match=r"Levenberg–Marquardt with 400 rows and 300 parameters.*AdaptiveSpring"
    ):
        sg.fit(problem, jax.random.key(0), method=sg.LevenbergMarquardt(), steps=1)


@pytest.mark.parametrize(
    ("name", "method", "rows"),
    [("cholesky", sg.SNG(1e-3, "cholesky"), 800), ("auto", sg.SNG(1e-3), 800), ("many", sg.Auto(), 1500)],
)
def test_what_is_asked_for_is_within_a_factor_of_two(name, method, rows, monkeypatch):
    """Of what the compiled step takes."""
    asked = []
    monkeypatch.setattr(_memory, "require", lambda needed, what, instead: asked.append(needed))

    def step(params, x):
        lin = sg.linearise(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], params, x)
        return method.propose(lin, method.init(params))[0]

    width = 40 if name == "many" else 300
    params = {"w": jnp.ones((2, width)), "v": jnp.ones(width)}
    used = jax.jit(step).lower(params, jnp.ones((rows, 2))).compile().memory_analysis()
    assert 0.5 < (used.temp_size_in_bytes + used.output_size_in_bytes) / max(asked) < 2


class Card:
    """What a JAX device says of its memory."""

    platform = "gpu"

    def __init__(self, stats):
        self.memory_stats = lambda: stats


def test_available_memory_is_that_of_the_card(monkeypatch):
    monkeypatch.setattr(_memory, "_machine", lambda: 5)
    assert _memory.available() == 5
    for stats, found in (
        ({"bytes_limit": 100, "bytes_in_use": 40}, 60),
        ({"bytes_limit": 100}, 100),
        ({}, None),  # an allocator that counts nothing
        (None, None),
    ):
        monkeypatch.setattr(jax, "local_devices", lambda backend, stats=stats: [Card(stats)])
        assert _memory.available() == found


def test_an_allocator_that_gives_up_is_put_in_words(monkeypatch):
    from snapgrad.training import _fit

    def exhausted(*args):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")

    monkeypatch.setattr(_fit, "advance", exhausted)
    with pytest.raises(MemoryError, match=r"RESOURCE_EXHAUSTED.*`batch_size`.*block_size.*solver=\"cg\""):
        sg.fit(PROBLEM, jax.random.key(0), steps=2)


def test_available_memory_is_that_of_the_machine_or_of_the_job(tmp_path):
    assert _memory._machine(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4 kB\n")
    assert _memory._machine(tmp_path) == 4096
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    for limit, found in {"max": 4096, "3000": 2000, "500": 0}.items():
        (group / "memory.max").write_text(f"{limit}\n")
        assert _memory._machine(tmp_path) == found
    job = group / "slurm" / "job_1"  # a job is limited by a group of its own, within others
    (job / "step_0").mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/slurm/job_1/step_0\n")
    (job / "memory.max").write_text("2500\n")
    (job / "memory.current").write_text("2000\n")
    (group / "memory.max").write_text("max\n")
    assert _memory._machine(tmp_path) == 500
    (job / "memory.stat").write_text("anon 1200\ninactive_file 800\n")  # which Linux would let go
    assert _memory._machine(tmp_path) == 1300
