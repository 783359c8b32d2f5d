"""Sampled and absent sites, drawn by seed and round at the configured rates."""

import pytest

from fedvisage.federation.record.attendance import draw_offline, select_sites
from fedvisage.recipe import Federation

NAMES = tuple("ABCDEFGH")


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 8), (0.5, 4), (0.25, 2), (0.01, 1)])
def test_sampled_fraction_is_exact_and_at_least_one_site(fraction: float, count: int) -> None:
    for number in range(1, 20):
        drawn = select_sites(NAMES, Federation(participation=fraction), 0, number)
        assert len(drawn) == len(set(drawn)) == count
        assert list(drawn) == sorted(drawn)


def test_every_site_gets_its_turn_and_rounds_differ() -> None:
    draws = [select_sites(NAMES, Federation(participation=0.25), 0, number) for number in range(1, 60)]
    assert {name for drawn in draws for name in drawn} == set(NAMES)
    assert len(set(draws)) > 10
    assert draws != [select_sites(NAMES, Federation(participation=0.25), 1, number) for number in range(1, 60)]


def test_each_site_is_absent_at_the_configured_rate() -> None:
    settings = Federation(offline=0.3)
    away = sum(len(draw_offline(NAMES, settings, 0, number)) for number in range(1000))
    assert 0.28 < away / 8000 < 0.32


def test_absence_of_a_site_does_not_depend_on_the_others() -> None:
    settings = Federation(offline=0.3)
    for number in range(50):
        assert draw_offline(NAMES[:3], settings, 0, number) == draw_offline(NAMES, settings, 0, number) & set(NAMES[:3])


def test_under_the_other_policy_at_most_one_site_is_away() -> None:
    settings = Federation(offline=0.5, offline_policy="one-site")
    away = [draw_offline(NAMES, settings, 0, number) for number in range(1000)]
    assert {len(lost) for lost in away} == {0, 1}
    assert 0.45 < sum(map(len, away)) / 1000 < 0.55
    assert {name for lost in away for name in lost} == set(NAMES)


def test_without_a_probability_all_sites_are_present() -> None:
    assert draw_offline(NAMES, Federation(), 0, 1) == frozenset()
