"""From studies to a folder of results, with small made-up studies."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from snapgrad.reproduce import (
    Claim,
    Panel,
    ResultsError,
    Study,
    _engine,
    _workers,
    compute,
    finish,
    plan,
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


def here(jobs, workers):
    """In place of worker processes."""
    del workers
    for job in jobs:
        _workers.compute_panel(job, lambda fraction: None)
        yield _workers.Event("done", job)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_engine, "run_jobs", here)
    return tmp_path


def start(folder, size="full"):
    plans = [plan(study, folder, size, 0) for study in STUDIES.values()]
    return compute(plans, STUDIES.__getitem__, size, 0, 1)


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
