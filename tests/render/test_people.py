"""People: traits from seeds, their limits, and the differences between groups."""

import numpy as np
import pytest
import torch

from fedvisage.render.people import TRAITS, draw_people
from fedvisage.render.skin import skin_colour


def test_a_person_does_not_depend_on_the_batch() -> None:
    together = draw_people([5, 6, 7])
    assert torch.equal(together.traits[1:2], draw_people([6]).traits)


def test_selecting_rows_equals_drawing_those_people() -> None:
    people = draw_people([5, 6, 7]).select([2, 0, 0])
    assert people.seeds == (7, 5, 5)
    assert torch.equal(people.traits, draw_people([7, 5, 5]).traits)


def test_traits_stay_within_their_limits() -> None:
    traits = draw_people(range(300)).traits.double().numpy()
    lows, highs = (np.array([getattr(trait, end) for trait in TRAITS.values()]) for end in ("low", "high"))
    assert (traits >= lows - 1e-6).all()
    assert (traits <= highs + 1e-6).all()


def test_people_differ_by_more_than_rounding() -> None:
    traits = draw_people(range(50)).traits
    scaled = (traits - traits.mean(0)) / traits.std(0).clamp(min=1e-6)
    distances = torch.pdist(scaled)
    assert distances.min() > 4.0


@pytest.mark.parametrize(("paler", "darker"), [(0, 1), (1, 2), (2, 3)])
def test_groups_differ_in_mean_skin_reflectance(paler: int, darker: int) -> None:
    means = [skin_colour(draw_people(range(200), group=group)).mean() for group in (paler, darker)]
    assert means[0] > means[1]


def test_each_person_can_have_a_group() -> None:
    mixed = draw_people([1, 2], group=[0, 3])
    assert torch.equal(mixed.traits[1:], draw_people([2], group=3).traits)
