"""The second generation of rendered sets: one capture for both classes, and some media or cameras alone."""

from pathlib import Path

import numpy as np
import pytest
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import check_source, render_set
from fedvisage.render.sets import parse_synthesis

LINE = "O generation=2 subjects=2 videos=1 frames=1 size=48"


def render(line: str, place: Path, workers: int = 1) -> PreparedSet:
    render_set(parse_synthesis(line), place, workers=workers)
    return PreparedSet.open(place, verify=True)


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


def test_two_processes_write_the_same_bytes_as_one(tmp_path: Path) -> None:
    single, double = (render(LINE, tmp_path / str(workers), workers) for workers in (1, 2))
    assert (tmp_path / "1" / "set.json").read_bytes() == (tmp_path / "2" / "set.json").read_bytes()
    assert np.array_equal(np.asarray(single.images), np.asarray(double.images))


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
