"""What a soak measures: growth while processes live, the dead that stay, and mistakes that follow from a seed."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from campaigns.soak.mischief import KINDS, PAUSES, plan
from campaigns.soak.units import Unit, environment
from campaigns.soak.watch import ENOUGH, EVERY, WARM, Sample, Watch, grown_up, growth, hours

ONE = Sample(at=0.0, kind="site", machine="A", pid=1, age=300.0, rss_mb=300.0, files=30, threads=20)

NEGLIGENT = """
import os, sys
child = os.fork()
if not child:
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child, flush=True)
sys.stdin.read()
"""
"""A process that does not fetch its dead child before its own end."""


def life(minutes: int, **changes: list[float]) -> list[Sample]:
    """Return a process at one moment of each minute."""
    rows = [{"at": 60.0 * n, "age": 60.0 * n} | {name: row[n] for name, row in changes.items()} for n in range(minutes)]
    return [replace(ONE, **row) for row in rows]  # type: ignore[arg-type]


def test_growth_is_that_of_processes_while_they_live() -> None:
    """Each grows by 6 MB an hour; the second is larger from the start, which is no growth."""
    first = life(30, rss_mb=[300 + 0.1 * minute for minute in range(30)])
    second = [replace(one, pid=2, rss_mb=one.rss_mb + 100) for one in first[:10]]
    grown = growth([*first, *second], "rss_mb")
    assert grown.an_hour == pytest.approx(6.0)
    assert grown.give_or_take == pytest.approx(0.0, abs=1e-6)
    assert growth([*first, *second], "files").an_hour == 0.0


def test_the_error_of_a_growth_is_that_of_a_line() -> None:
    values = [float(value) for value in 300 + np.random.default_rng(0).normal(size=40).cumsum()]
    coefficients, covariance = np.polyfit(np.arange(40) / 60, values, 1, cov=True)
    grown = growth(life(40, rss_mb=values), "rss_mb")
    assert grown.an_hour == pytest.approx(coefficients[0])
    assert grown.give_or_take == pytest.approx(2 * math.sqrt(covariance[0, 0]))


def test_many_looks_in_a_minute_are_no_more_evidence_than_one() -> None:
    values = [float(value) for value in np.random.default_rng(0).normal(300, 5, size=40)]
    once = life(40, rss_mb=values)
    often = [replace(one, age=one.age + 5 * look) for one in once for look in range(12)]
    assert growth(often, "rss_mb").give_or_take == pytest.approx(growth(once, "rss_mb").give_or_take)


def test_a_leak_shows_and_noise_does_not() -> None:
    noise = np.random.default_rng(1).normal(scale=5, size=60)
    assert not growth(life(60, rss_mb=list(300 + noise)), "rss_mb").exceeds(10)
    assert growth(life(60, rss_mb=list(300 + np.arange(60) + noise)), "rss_mb").exceeds(10), "60 MB an hour"


def test_too_little_evidence_is_none() -> None:
    steep = life(ENOUGH + 1, rss_mb=[300.0 + 10 * minute for minute in range(ENOUGH + 1)])
    for samples in ([], [ONE], steep):
        assert not growth(samples, "rss_mb").exceeds(0)
        assert str(growth(samples, "rss_mb")) == "–"


def test_a_process_that_still_opens_does_not_count() -> None:
    young, other = replace(ONE, age=WARM / 2), replace(ONE, kind="server")
    assert grown_up([ONE, young, other], "site") == [ONE]


def test_hours_are_those_of_all_processes_together() -> None:
    assert hours([ONE] * round(1800 / EVERY)) == pytest.approx(0.5)


@pytest.fixture
def negligent(tmp_path: Path) -> Iterator[tuple[Unit, int]]:
    """A machine whose command leaves a dead child unburied."""
    unit = Unit("A", str(tmp_path), (), tmp_path, tmp_path / "A.log")
    command = [sys.executable, "-c", NEGLIGENT]
    env = environment(unit.root, unit.name)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as unit.process:
        assert unit.process.stdout is not None
        yield unit, int(unit.process.stdout.readline())
        unit.process.kill()


def test_the_dead_that_stay_are_found(negligent: tuple[Unit, int], tmp_path: Path) -> None:
    unit, dead = negligent
    patient = Watch(unit.root, {"A": unit}, tmp_path / "samples.csv")
    hasty = Watch(unit.root, {"A": unit}, tmp_path / "samples.csv", buried=-1.0)
    seen = [(one.kind, one.machine) for one in patient.look()]
    list(hasty.look())
    assert seen == [("site", "A")], "the dead child has no memory of its own"
    assert (set(patient.dead), patient.unburied) == ({dead}, set())
    assert hasty.unburied == {dead}


def test_mistakes_follow_from_the_seed() -> None:
    sites = ("A", "B")
    some = [plan(0, number, sites) for number in range(400)]
    assert some == [plan(0, number, sites) for number in range(400)]
    assert some != [plan(1, number, sites) for number in range(400)]
    assert {one.kind for one in some} == set(KINDS), "every mistake is made in a long soak"
    assert {one.site for one in some} == set(sites)
    assert all(PAUSES[0] <= one.pause <= PAUSES[1] for one in some)
