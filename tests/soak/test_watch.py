"""What a soak measures: growth while processes live, and mistakes that follow from a seed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.soak.mischief import KINDS, PAUSES, plan
from tests.soak.watch import EVERY, WARM, Sample, grown_up, hours, slope

ONE = Sample(at=0.0, kind="site", machine="A", pid=1, age=300.0, rss_mb=300.0, files=30, threads=20)


def test_growth_is_that_of_processes_while_they_live() -> None:
    """Each grows by 6 MB an hour; the second is larger from the start, which is no growth."""
    first = [replace(ONE, at=60.0 * minute, rss_mb=300 + 0.1 * minute) for minute in range(30)]
    second = [replace(ONE, pid=2, at=60.0 * (30 + minute), rss_mb=400 + 0.1 * minute) for minute in range(10)]
    assert slope([*first, *second], "rss_mb") == pytest.approx(6.0)
    assert slope([*first, *second], "files") == 0.0


def test_nothing_grows_where_nothing_was_seen() -> None:
    assert slope([], "rss_mb") == slope([ONE], "rss_mb") == 0.0


def test_a_process_that_still_opens_does_not_count() -> None:
    young, other = replace(ONE, age=WARM / 2), replace(ONE, kind="server")
    assert grown_up([ONE, young, other], "site") == [ONE]


def test_mistakes_follow_from_the_seed() -> None:
    sites = ("A", "B")
    some = [plan(0, number, sites) for number in range(400)]
    assert some == [plan(0, number, sites) for number in range(400)]
    assert some != [plan(1, number, sites) for number in range(400)]
    assert {one.kind for one in some} == set(KINDS), "every mistake is made in a long soak"
    assert {one.site for one in some} == set(sites)
    assert all(PAUSES[0] <= one.pause <= PAUSES[1] for one in some)


def test_hours_are_those_of_all_processes_together() -> None:
    assert hours([ONE] * round(1800 / EVERY)) == pytest.approx(0.5)
