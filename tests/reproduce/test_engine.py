"""From studies to a folder of results, with small made-up studies."""

import dataclasses
import functools
import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest

from snapgrad.reproduce import (
    Claim,
    FailedError,
    Panel,
    ResultsError,
    Study,
    _engine,
    compute,
    finish,
    plan,
    read_metrics,
    write_report,
)


def line(ax, data):
    ax.plot(next(iter(data.values()))["x"])


def make(name, costs, value=1.0):
    def panels(size, seed):
        return [
            Panel(
                f"p{i}",
                {"study": name, "seed": seed, "size": size, "i": i},
                functools.partial(arrays, i),
                cost,
            )
            for i, cost in enumerate(costs)
        ]

    return Study(
        name=name,
        title=name.title(),
        source="Figure 1",
        caption="A line.",
        panels=panels,
        plots=[line],
        claims=lambda data: [
            Claim("x is one", float(data["p0"]["x"][1]), low=value, high=value, detail="why")
        ],
        table=lambda data: [{"x": 1.0}],
    )


def arrays(i, tick):
    tick(1.0)
    return {"x": np.array([i, 1.0])}


STUDIES = {
    "dear": make("dear", [30.0, 1.0]),
    "cheap": make("cheap", [2.0]),
    "wrong": make("wrong", [5.0], 2.0),
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def start(folder, size="full"):
    """On a thread, in place of processes: any executor will do."""
    plans = [plan(study, folder, size, 0) for study in STUDIES.values()]
    return compute(plans, STUDIES.__getitem__, size, 0, ThreadPoolExecutor(1))


def test_the_cheapest_study_is_computed_first_and_an_interruption_keeps_it(folder):
    events = start(folder)
    assert [(next(events).job.study) for _ in range(2)] == ["cheap", "wrong"]
    events.close()  # as Ctrl-C does
    plans = [plan(study, folder, "full", 0) for study in STUDIES.values()]
    assert {p.study.name: len(p.missing) for p in plans} == {"dear": 2, "cheap": 0, "wrong": 0}
    again = [(event.job.study, event.job.panel) for event in start(folder)]
    assert again == [("dear", "p0"), ("dear", "p1")]
    assert list(start(folder)) == []


def test_a_finished_study_is_drawn_judged_and_put_on_the_page_in_the_given_order(folder):
    list(start(folder))
    with pytest.raises(ResultsError, match="lacks p0"):
        finish(dataclasses.replace(STUDIES["cheap"], name="other"), folder, "full", 0)
    entries = {name: finish(study, folder, "full", 0) for name, study in STUDIES.items()}
    assert entries["cheap"]["claims"][0]["passed"] and not entries["wrong"]["claims"][0]["passed"]
    assert json.loads((folder / "dear" / "claims.json").read_text()) == entries["dear"]["claims"]
    assert (folder / "dear" / "dear.csv").read_text() == "x\n1.0\n"
    page = write_report(folder, ["wrong", "cheap", "dear"]).read_text()
    assert page.index('id="wrong"') < page.index('id="cheap"') < page.index('id="dear"')
    assert "1 of 3 claims fail" in page


def test_quick_claims_are_not_judged(folder):
    list(start(folder, "quick"))
    assert not finish(STUDIES["wrong"], folder, "quick", 0)["claims"][0]["judged"]
    with pytest.raises(ResultsError, match="other settings"):
        plan(STUDIES["wrong"], folder, "full", 0)


def stuck(i, tick):
    """The first panel is quick; the others say that they have begun and go on for ever."""
    tick(0.5)
    while i:
        time.sleep(0.1)
    return arrays(i, tick)


def slow(name):
    study = make(name, [1.0, 2.0, 3.0])
    panels = lambda size, seed: [  # noqa: E731
        dataclasses.replace(panel, compute=functools.partial(stuck, i))
        for i, panel in enumerate(study.panels(size, seed))
    ]
    return dataclasses.replace(study, panels=panels)


def test_a_killed_process_is_named_and_what_was_finished_is_kept(tmp_path):
    study = slow("slow")
    events = compute([plan(study, tmp_path, "full", 0)], slow, "full", 0, 2)
    seen, killed = [], False
    with pytest.raises(FailedError, match=r"computing one of p1, p2 was killed.*fewer --jobs.*goes on"):
        for event in events:
            seen.append((event.job.panel, event.fraction))
            if not killed and {("p1", 0.5), ("p2", 0.5), ("p0", 1.0)} <= set(seen):
                os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
                killed = True
    assert [panel.name for panel in plan(study, tmp_path, "full", 0).missing] == ["p1", "p2"]
    assert not multiprocessing.active_children()


def test_workers_end_with_who_asked(tmp_path):
    """As on Ctrl-C: none is left computing what nobody wants any more."""
    events = compute([plan(slow("slow"), tmp_path, "full", 0)], slow, "full", 0, 1)
    assert next(events).job.panel == "p0"
    events.close()
    assert not multiprocessing.active_children()


class Lost(Executor):
    """Gives up what it is asked for, as a cluster does whose scheduler is gone."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


def test_panels_that_are_given_up_are_one_line(folder):
    with pytest.raises(FailedError, match="the scheduler gave up the panels"):
        list(compute([plan(STUDIES["cheap"], folder, "full", 0)], STUDIES.__getitem__, "full", 0, Lost()))


def test_damaged_records_are_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    with pytest.raises(ResultsError, match=r"metrics\.jsonl is damaged .*: delete that run"):
        list(read_metrics(tmp_path))


def test_a_worker_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("snapgrad.__version__", "0.0.1")
    with pytest.raises(FailedError, match=r"a worker has snapgrad 9.9, and this is 0.0.1"):
        _engine._same_version("9.9")
