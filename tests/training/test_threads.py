"""Who trains on two threads without `NPROC` is told, once."""

import os
import warnings

import jax
import pytest

import snapgrad as sg
from snapgrad import _threads


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    _threads.warn_of_few_threads.cache_clear()
    yield
    _threads.warn_of_few_threads.cache_clear()


def train():
    problem = sg.problems.gaussian_llq(jax.random.key(0), 6, 4)
    sampler = sg.sampling.Uniform(6, sample_size=3)
    return sg.run(problem, jax.random.key(1), method=sg.SNG(1e-3), sampler=sampler, steps=1)


def test_two_threads_are_told_once(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    with pytest.warns(UserWarning, match="set NPROC=4 in the environment before Python starts"):
        train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train()


@pytest.mark.parametrize(("threads", "nproc"), [({0, 1, 2, 3}, None), ({0, 1}, "4")])
def test_others_hear_nothing(threads, nproc, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: threads, raising=False)
    if nproc:
        monkeypatch.setenv("NPROC", nproc)
    _threads.warn_of_few_threads()  # a warning would be an error
