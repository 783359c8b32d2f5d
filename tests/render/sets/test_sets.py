"""Specifications and sets of both generations: parsing of lines, content, and the same bytes for the same line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.refusals import refused

from fedvisage.base.streams import derive, numpy_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import check_source, render_set
from fedvisage.render.domains import DOMAINS
from fedvisage.render.people import draw_people
from fedvisage.render.sets import Synthesis, parse_synthesis, plan_videos

SMALL = "C subjects=3 videos=1 frames=1 size=48"


def render(line: str, place: Path, workers: int = 1) -> PreparedSet:
    render_set(parse_synthesis(line), place, workers=workers)
    return PreparedSet.open(place, verify=True)


def test_a_line_is_read_into_a_specification() -> None:
    read = parse_synthesis("O subjects=20 frames=2 size=96 heldout=0.5 species=print,replay")
    assert read == Synthesis("O", size=96, subjects=20, frames=2, heldout=0.5, species=("print", "replay"))


@pytest.mark.parametrize(
    ("line", "place", "keyword"),
    [
        ("", "synth", "OULU-NPU"),
        ("X", "synth", "OULU-NPU"),
        ("O persons=3", "synth", "subjects"),
        ("O subjects", "synth", "name=value"),
        ("O subjects=many", "synth.subjects", "many"),
        ("O subjects=0", "synth.subjects", "0"),
        ("O size=97", "synth.size", "even"),
        ("O heldout=1", "synth.heldout", "share"),
        ("O size=64 size=96", "synth.size", "twice"),
        ("O species=paper", "synth.species", "print"),
        ("O species=mask", "synth.species", "print, replay"),
        ("O subjects=100000000", "synth.subjects", "100,000"),
        ("O frames=5000", "synth.frames", "1,000"),
        ("O videos=5000", "synth.videos", "1,000"),
        ("O subjects=90000 frames=100", "synth", "2,000,000"),
        ("O videos=500 frames=10 size=512", "synth", "2 GiB"),
    ],
)
def test_invalid_line_is_refused_with_valid_choices(line: str, place: str, keyword: str) -> None:
    with refused(place, keyword):
        parse_synthesis(line)


@pytest.mark.long
def test_domains_have_more_attacks_than_faces_like_their_datasets() -> None:
    for name in "OCIMSWEFA":
        videos = [video for subject in plan_videos(Synthesis(name)) for video in subject]
        attacks = [video for video in videos if video.attack]
        assert len(attacks) > len(videos) - len(attacks)
        assert {attack.species for attack in DOMAINS[name].attacks} == {video.species for video in attacks}


def test_persons_differ_between_domains_and_seeds() -> None:
    def persons(line: str) -> set[int]:
        return {videos[0].person for videos in plan_videos(parse_synthesis(line))}

    everyone = [persons(line) for line in ("O", "C", "O seed=1")]
    assert sum(len(group) for group in everyone) == len(set.union(*everyone))


def test_more_subjects_leave_the_first_ones_unchanged() -> None:
    few, many = (plan_videos(parse_synthesis(f"I subjects={count}")) for count in (3, 9))
    assert many[:3] == few


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return render(SMALL, tmp_path_factory.mktemp("sets") / "one")


def test_set_contains_all_species_and_depth_for_living_faces_only(small: PreparedSet) -> None:
    assert set(small.rows.species) == {"bonafide", "print", "cut", "replay"}
    assert small.images.shape == (12, 48, 48, 3)
    assert small.depth is not None
    living = np.asarray(small.rows.label) == 1
    assert (small.depth[living].reshape(living.sum(), -1).max(1) > 100).all()
    assert not small.depth[~living].any()


def test_points_lie_in_the_picture_in_the_order_of_a_face(small: PreparedSet) -> None:
    points = np.asarray(small.points)
    assert ((points >= 0) & (points <= 48)).all()
    left_eye, right_eye, nose, left_mouth, right_mouth = points.transpose(1, 0, 2)
    assert (left_eye[:, 0] < right_eye[:, 0]).all()
    assert (left_mouth[:, 0] < right_mouth[:, 0]).all()
    assert (left_eye[:, 1] < nose[:, 1]).all()
    assert (nose[:, 1] < right_mouth[:, 1]).all()


def test_no_subject_is_in_both_splits_and_both_have_both_classes(small: PreparedSet) -> None:
    rows = small.rows
    groups = {part: {s for s, p in zip(rows.subject, rows.split, strict=True) if p == part} for part in rows.split}
    assert set(groups) == {"train", "heldout"}
    assert not set.intersection(*groups.values())
    for part in groups:
        assert {int(y) for y, p in zip(rows.label, rows.split, strict=True) if p == part} == {0, 1}


def test_threads_of_the_caller_do_not_affect_the_bytes(small: PreparedSet, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert render(SMALL, tmp_path / "threads").digest == small.digest
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_another_seed_gives_other_pictures(small: PreparedSet, tmp_path: Path) -> None:
    other = render(f"{SMALL} seed=1", tmp_path / "other")
    assert not np.array_equal(other.images, small.images)


def test_frames_of_a_print_video_differ_slightly(tmp_path: Path) -> None:
    filmed = render("O subjects=1 videos=1 frames=2 size=48 heldout=0", tmp_path / "set")
    pictures = filmed.images.astype(float)
    videos = np.asarray(filmed.rows.video)
    for name in set(videos):
        first, second = pictures[videos == name]
        assert 0 < np.abs(first - second).mean() < 25


@pytest.mark.parametrize("domain", ["3", "H", "W", "E", "F", "A", "S"])
def test_every_domain_renders(domain: str, tmp_path: Path) -> None:
    filmed = render(f"{domain} subjects=1 videos=1 frames=1 size=32 heldout=0", tmp_path / domain)
    assert (filmed.images.reshape(len(filmed), -1).std(1) > 10).all()


@pytest.mark.long
@pytest.mark.parametrize("generation", [1, 2])
def test_people_have_the_skin_tone_and_age_that_they_are_drawn_with(generation: int, tmp_path: Path) -> None:
    rows = render(f"O generation={generation} subjects=6 videos=1 frames=1 size=32", tmp_path / "set").rows
    seeds = [derive(0, "person", "O", number) for number in range(6)]
    melanin = draw_people(seeds)["melanin"][:, 0].tolist()
    for number, (seed, level) in enumerate(zip(seeds, melanin, strict=True), 1):
        mine = rows.subject == f"O-{number:04d}"
        tone = "light" if level < 0.25 else "medium" if level < 0.5 else "dark"
        assert set(rows.further["tone"][mine].tolist()) == {tone}
        draws = numpy_rng(seed, "person")
        draws.choice([-1.0, 1.0])
        draws.normal()
        share = draws.random()  # of the range of ages, as ``uniform`` draws it
        age = "young" if share < 1 / 3 else "middle" if share < 2 / 3 else "old"
        assert set(rows.further["age"][mine].tolist()) == {age}


LINE = "O generation=2 subjects=2 videos=1 frames=1 size=48"


def test_each_attack_has_a_bona_fide_video_with_the_same_camera(tmp_path: Path) -> None:
    prepared = render(LINE, tmp_path / "set")
    rows = prepared.rows
    pairs: dict[str, list[tuple[str, str]]] = {}
    for video, species, camera in zip(rows.video, rows.species, rows.further["camera"], strict=True):
        pairs.setdefault(str(video).rsplit("-", 1)[0], []).append((str(species), str(camera)))
    assert len(pairs) == 2 * 4  # the domain has four attacks per portrait
    assert all(len(pair) == 2 and pair[0][0] == "bonafide" != pair[1][0] for pair in pairs.values())
    assert all(pair[0][1] == pair[1][1] for pair in pairs.values())
    assert set(rows.subject.tolist()) == {"O-0001", "O-0002"}
    media = {(s, m) for s, m in zip(rows.species.tolist(), rows.further["medium"].tolist(), strict=True)}
    assert media == {
        ("bonafide", ""),
        ("print", "photo-printer-1"),
        ("print", "photo-printer-2"),
        ("replay", "dell-1905fp"),
        ("replay", "macbook-retina"),
    }
    assert prepared.depth is not None
    assert prepared.points is not None
    assert (prepared.depth.max((1, 2)) > 0).tolist() == (rows.label == 1).tolist()
    eyes, mouth = prepared.points[:, :2].mean(1), prepared.points[:, 3:].mean(1)
    assert (mouth[:, 1] > eyes[:, 1] + 5).all()


def test_paper_masks_are_cut_from_prints(tmp_path: Path) -> None:
    prepared = render("W generation=2 subjects=2 videos=1 frames=1 size=48 species=mask", tmp_path / "set")
    assert set(prepared.rows.species.tolist()) == {"bonafide", "mask"}
    assert set(prepared.rows.further["medium"].tolist()) == {"", "paper-mask"}


def test_selected_media_and_cameras_are_the_only_ones_in_a_set(tmp_path: Path) -> None:
    prepared = render(f"{LINE} media=macbook-retina,photo-printer-2 cameras=webcam", tmp_path / "set")
    assert set(prepared.rows.further["medium"].tolist()) == {"", "macbook-retina", "photo-printer-2"}
    assert set(prepared.rows.further["camera"].tolist()) == {"webcam"}
    assert np.bincount(prepared.rows.label).tolist() == [8, 8]


@pytest.mark.long
@pytest.mark.parametrize("line", [SMALL, LINE], ids=["first generation", "second generation"])
def test_two_processes_write_the_same_bytes_as_one(line: str, tmp_path: Path) -> None:
    for workers in (1, 2):
        render(line, tmp_path / str(workers), workers)
    assert (tmp_path / "1" / "set.json").read_bytes() == (tmp_path / "2" / "set.json").read_bytes()


def test_digest_text_of_the_first_generation_is_unchanged() -> None:
    """The names of cached sets follow from this text."""
    first = parse_synthesis("O subjects=20 frames=2 size=96")
    assert first.digest_text == (
        "domain=O size=96 subjects=20 videos=2 frames=2 seed=0 heldout=0.25 species=print,replay renderer=1"
    )
    second = parse_synthesis("O subjects=20 frames=2 size=96 generation=2 media=dell-1905fp").digest_text
    assert second.startswith(f"{first.digest_text} generation=2 media=dell-1905fp capture=")


@pytest.mark.parametrize(
    ("line", "place", "keyword"),
    [
        ("O generation=3", "synth.generation", "3"),
        ("O generation=2 media=ipad", "synth.media", "photo-printer-1"),
        ("O generation=2 cameras=ipad", "synth.cameras", "old-webcam"),
        ("O media=dell-1905fp", "synth.media", "generation=2"),
        ("O cameras=webcam", "synth.cameras", "generation=2"),
        ("O generation=2 species=print media=dell-1905fp", "synth.media", "species"),
        ("3 generation=2", "synth", "domain 3"),
    ],
)
def test_invalid_specification_is_refused_before_rendering(line: str, place: str, keyword: str) -> None:
    with refused(place, keyword):
        check_source(f"synth: {line}")
