"""Rendered people: the same person in every set, with different aligned photographs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.refusals import refused
from tests.toy import misalignment

from fedvisage.data.prepared import PreparedSet
from fedvisage.render.identities import (
    Identities,
    change_age,
    parse_identities,
    photograph_person,
    photographs_of,
    render_identities,
)
from fedvisage.render.people import TRAITS, draw_people

SMALL = Identities(identities=6, images=5, size=32, first=3, test=0.4, heldout=0.34)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    path = tmp_path_factory.mktemp("people") / "set"
    render_identities(SMALL, path)
    return PreparedSet.open(path, verify=True)


def test_photographs_of_every_person_are_split_as_requested(rendered: PreparedSet) -> None:
    assert len(rendered) == 30
    rows = rendered.rows
    by_person = {who: rows.split[rows.subject == who].tolist() for who in np.unique(rows.subject)}
    assert list(by_person) == [f"person-{number:06d}" for number in range(3, 9)]
    assert list(by_person.values()) == 4 * [["train"] * 3 + ["test"] * 2] + 2 * [["heldout"] * 5]
    assert SMALL.trained_on == 4
    assert rendered.rows.group is not None
    assert rendered.rows.group[::5].tolist() == [f"group-{number % 4}" for number in range(3, 9)]


def test_every_photograph_has_the_tone_of_its_person(rendered: PreparedSet) -> None:
    rows = rendered.rows
    for number in range(3, 9):
        (shot, *_) = photographs_of(SMALL, number)
        melanin = float(draw_people([shot.person], shot.group)["melanin"])
        tones = set(rows.further["tone"][rows.subject == f"person-{number:06d}"].tolist())
        assert tones == {"light" if melanin < 0.25 else "medium" if melanin < 0.5 else "dark"}
    assert set(rows.further["age"].tolist()) <= {"young", "middle", "old"}


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_number_of_workers(rendered: PreparedSet, tmp_path: Path) -> None:
    render_identities(SMALL, tmp_path / "set", workers=2)
    assert PreparedSet.open(tmp_path / "set").digest == rendered.digest


def test_a_person_is_the_same_in_every_set(rendered: PreparedSet, tmp_path: Path) -> None:
    render_identities(Identities(identities=1, images=5, size=32, first=4, test=0), tmp_path / "one")
    alone = PreparedSet.open(tmp_path / "one")
    assert np.array_equal(alone.images, rendered.images[rendered.rows.subject == "person-000004"])


def test_photographs_of_a_person_differ_and_people_differ_more(rendered: PreparedSet) -> None:
    images = rendered.images.reshape(6, 5, -1).astype(float)
    within = np.abs(images - images.mean(axis=1, keepdims=True)).mean()
    faces = images.mean(axis=1)
    assert all(np.abs(person[0] - other).mean() > 5 for person in images for other in person[1:])
    assert within > 10
    assert min(np.abs(a - b).mean() for i, a in enumerate(faces) for b in faces[:i]) > 2


def test_crops_are_aligned_up_to_detection_errors() -> None:
    _, points = photograph_person(photographs_of(Identities(images=12, size=64), 1), 64)
    worst = [misalignment(one, 64) for one in points]
    assert 0 < np.median(worst) < 0.1


def test_years_change_only_the_traits_that_depend_on_age() -> None:
    people = draw_people([1, 2], 0)
    older = change_age(people, [0.5, 0.5])
    for column, name in enumerate(TRAITS):
        moved = older.traits[:, column] - people.traits[:, column]
        if TRAITS[name].old == 0:
            assert torch.equal(moved, torch.zeros(2)), name
        assert (older.traits[:, column] >= TRAITS[name].low).all()
        assert (older.traits[:, column] <= TRAITS[name].high).all()
    assert (older["wrinkles"] > people["wrinkles"]).any()


@pytest.mark.parametrize(
    ("settings", "place", "keyword"),
    [
        (["identities=0"], "synth.identities", "0"),
        (["size=33"], "synth.size", "even"),
        (["heldout=1"], "synth.heldout", "share"),
        (["group=4"], "synth.group", "4"),
        (["people=3"], "synth", "people=3"),
        (["images=many"], "synth.images", "'many'"),
        (["images=3", "images=4"], "synth.images", "twice"),
    ],
)
def test_invalid_settings_are_refused(settings: list[str], place: str, keyword: str) -> None:
    with refused(place, keyword):
        parse_identities(settings)
