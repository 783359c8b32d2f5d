"""Enrolment and search: attacks and poor pictures are refused, and known people are matched."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.device.gallery.tiles import GREEN, RED, Tiles, row_of, tile_of
from tests.refusals import refused

from fedvisage.device.gallery import enrolment
from fedvisage.device.gallery.enrolment import EmbeddingModel, evaluate
from fedvisage.device.gallery.file import AlreadyEnrolled, ModelChanged, NotEnrolled, UnknownName
from fedvisage.device.gallery.records import appearance
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.gallery.templates import Renewable
from fedvisage.metrics.similarity import Features

ENGINE = Tiles()


@pytest.fixture(params=[False, True], ids=["plain", "renewable"])
def gallery(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gallery]:
    with Gallery.create(tmp_path / "door.gallery", bytes(32)) as opened_gallery:
        opened_gallery.add_collection(renewable=request.param)
        for person in range(4):
            enrolment.enrol(opened_gallery, ENGINE, "default", f"person {person}", [("a.png", row_of(tile_of(person)))])
        yield opened_gallery


def embedding(person: int, photograph: int) -> Features:
    face = enrolment.face_to_enrol(ENGINE, row_of(tile_of(person, photograph)))
    assert not isinstance(face, str)
    assert face.embedding is not None
    return face.embedding


def test_person_is_recognised_on_another_photograph_and_stranger_is_not(gallery: Gallery) -> None:
    matches = enrolment.search(gallery, ENGINE, "default", embedding(2, 1))
    assert [match.decision for match in matches] == ["match", *["no_match"] * 3]
    assert matches[0].name == "person 2"
    alone = enrolment.verify(gallery, ENGINE, "default", "person 2", embedding(2, 1))
    assert alone == replace(matches[0], similarity=alone.similarity)
    assert alone.similarity == pytest.approx(matches[0].similarity, abs=1e-6)
    assert enrolment.verify(gallery, ENGINE, "default", "person 1", embedding(2, 1)).decision == "no_match"
    assert {match.decision for match in enrolment.search(gallery, ENGINE, "default", embedding(9, 0))} == {"no_match"}


def test_renewable_similarities_estimate_the_cosine(gallery: Gallery) -> None:
    """1,024 signs estimate a cosine near 0 with a standard deviation of 0.041; allow six of them for one key."""
    tolerance = 0.25 if gallery.collection("default").renewable else 1e-6
    for match in enrolment.search(gallery, ENGINE, "default", embedding(2, 1)):
        cosine = float(embedding(2, 1) @ embedding(int(match.name.split()[1]), 0))
        assert match.similarity == pytest.approx(cosine, abs=tolerance)


@pytest.mark.long
@pytest.mark.parametrize("other", [1, 2])
def test_renewable_similarities_average_to_the_cosine_over_keys(other: int) -> None:
    first, second = embedding(2, 1), embedding(other, 0)
    similarities = []
    for seed in range(40):
        form = Renewable(len(first), bytes([seed] * 32))
        templates = [np.frombuffer(form.make_template(vector), np.uint8) for vector in (first, second)]
        differing = np.unpackbits(templates[0] ^ templates[1]).mean()
        similarities.append(form.similarity(1 - 2 * float(differing)))
    assert np.mean(similarities) == pytest.approx(float(first @ second), abs=0.02)
    assert np.std(similarities) < 0.05


def test_a_face_that_matches_no_other_of_its_folder_is_named(gallery: Gallery) -> None:
    pictures = [("a.png", tile_of(5, 0)), ("b.png", tile_of(5, 1)), ("stranger.png", tile_of(8, 0))]
    rows = [(name, row_of(tile)) for name, tile in pictures]
    assert enrolment.enrol(gallery, ENGINE, "default", "eve", rows).unlike == ("stranger.png",)
    assert enrolment.enrol(gallery, ENGINE, "default", "eve", rows[:2]).unlike == ()
    assert enrolment.enrol(gallery, ENGINE, "default", "eve", rows[:1]).unlike == ()


@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        (row_of(), "no face"),
        (row_of(tile_of(5), tile_of(6)), "several"),
        (row_of(tile_of(5, colour=RED)), "attack"),
        (row_of(tile_of(5, colour=GREEN)), "blurred"),
    ],
    ids=["nobody", "two", "attack", "poor"],
)
def test_enrolment_needs_a_clear_live_face(gallery: Gallery, picture: np.ndarray, reason: str) -> None:
    with refused("eve.png", reason, error=NotEnrolled):
        enrolment.enrol(gallery, ENGINE, "default", "eve", [("eve.png", picture)])
    with pytest.raises(UnknownName):
        gallery.person("default", "eve")
    done = enrolment.enrol(gallery, ENGINE, "default", "eve", [("eve.png", picture), ("b.png", row_of(tile_of(5)))])
    assert len(done.faces) == 1
    assert done.faces[0].pad_score == 0.9
    assert [name for name, _ in done.refused] == ["eve.png"]


def test_enrolment_needs_attack_detection(gallery: Gallery) -> None:
    with refused("--pad", "attack-detection", error=NotEnrolled):
        enrolment.enrol(gallery, replace(ENGINE, pad_digest=None), "default", "eve", [("a.png", row_of(tile_of(5)))])
    with refused("--recognition", "recognition"):
        enrolment.enrol(gallery, replace(ENGINE, model=None), "default", "eve", [("a.png", row_of(tile_of(5)))])


def test_model_change_requires_reenrolment(gallery: Gallery) -> None:
    newer = replace(ENGINE, model=EmbeddingModel("sha256:" + "b" * 64, 0.9, "fmr=1e-3"))
    with refused("default", "1 more", error=ModelChanged):
        enrolment.search(gallery, newer, "default", embedding(2, 1))
    for person in range(4):
        done = enrolment.enrol(gallery, newer, "default", f"person {person}", [("a.png", row_of(tile_of(person)))])
        assert done.replaced == 1
    assert enrolment.search(gallery, newer, "default", embedding(2, 1))[0].decision == "match"


def test_figures_equal_counts_by_hand(gallery: Gallery) -> None:
    pictures = [(f"person {person}", row_of(tile_of(person, 1))) for person in range(4)]
    pictures += [(f"stranger {person}", row_of(tile_of(person, 1))) for person in range(10, 30)]
    pictures += [("person 0", row_of(tile_of(0, colour=RED))), ("person 1", row_of())]
    figures = evaluate(gallery, ENGINE, "default", pictures)
    assert (figures.people, figures.mated, figures.unmated) == (4, 4, 20)
    assert figures.not_judged == {"it is an attack": 1, "no face was found": 1}
    assert (figures.rank_one, figures.tpir, figures.fpir) == (1.0, 1.0, 0.0)
    assert figures.tpir_at_fpir == {0.1: 1.0}  # 20 searches cannot resolve one in a hundred
    highest = sorted(
        max(match.similarity for match in enrolment.search(gallery, ENGINE, "default", embedding(person, 1)))
        for person in range(10, 30)
    )
    assert figures.threshold_at_fpir[0.1] == pytest.approx(highest[-3], abs=1e-6)
    assert "100.00%" in figures.lines()[3]
    with refused("probes", "default"):
        evaluate(gallery, ENGINE, "default", pictures[4:10])


def test_folder_name_in_another_normal_form_is_the_same_person(gallery: Gallery) -> None:
    """File systems of macOS decompose the accents of names."""
    enrolment.enrol(gallery, ENGINE, "default", "Jos\u00e9", [("a.png", row_of(tile_of(40)))])
    figures = evaluate(gallery, ENGINE, "default", [("Jose\u0301", row_of(tile_of(40, 1)))])
    assert (figures.mated, figures.unmated) == (1, 0)


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("\u0440erson 1", "scripts"),  # a Cyrillic letter in a Latin word
        ("Person 1", "person 1"),
        ("\uff50\uff45\uff52\uff53\uff4f\uff4e 1", "person 1"),  # full width
        ("person \u2460", "person 1"),  # a digit in a circle
        ("per\u017fon 1", "person 1"),  # a long s
        ("\u0422\u041e\u041c", "tom"),  # all letters are Cyrillic
        ("\u03a4\u039f\u039c", "tom"),  # all letters are Greek
    ],
)
def test_confusable_name_is_enrolled_only_with_force(gallery: Gallery, name: str, keyword: str) -> None:
    enrolment.enrol(gallery, ENGINE, "default", "tom", [("tom.png", row_of(tile_of(50)))])
    pictures = [("other.png", row_of(tile_of(60)))]
    with refused(name, keyword, "force", error=AlreadyEnrolled):
        enrolment.enrol(gallery, ENGINE, "default", name, pictures)
    assert not gallery.has("default", name)
    assert enrolment.enrol(gallery, ENGINE, "default", name, pictures, force=True).person.name == name
    # Once enrolled, the person receives further faces without force.
    enrolment.enrol(gallery, ENGINE, "default", name, [("again.png", row_of(tile_of(60, 1)))])


@pytest.mark.parametrize("name", ["\u03a4\u039f\u039c\u03a5", "\u0422\u041e\u041c\u04ae", "TOMY"])
def test_capitals_of_another_script_look_like_latin_ones(name: str) -> None:
    """A Greek upsilon looks like Y as a capital, and like u as a small letter."""
    assert appearance(name) == "tomy"


@pytest.mark.parametrize("name", ["person 11", "\u0418\u0432\u0430\u043d Smith", "Jos\u00e9", "\u5c71\u7530 Taro"])
def test_distinct_names_of_any_script_need_no_force(gallery: Gallery, name: str) -> None:
    done = enrolment.enrol(gallery, ENGINE, "default", name, [("a.png", row_of(tile_of(60)))])
    assert done.person.name == name


@pytest.mark.long
def test_galleries_and_the_service_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from fedvisage.device.gallery import enrolment, search\n"
        "from fedvisage.metrics import identification\n"
        "from fedvisage.device.service import app\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
