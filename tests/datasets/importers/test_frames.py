"""Sampled frames of videos, and the choice of frames: a number, or positions among the frames with a face."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.importers.files import save_video
from tests.refusals import refused

from fedvisage.base.errors import BadFile
from fedvisage.datasets.frames import read_choice
from fedvisage.datasets.small_copies import write_video
from fedvisage.faces.pictures import equidistant, sample_video, video_length


def test_number_of_frames_is_read() -> None:
    assert read_choice("10").count == read_choice(10).count == 10


@pytest.mark.parametrize(
    ("text", "frames", "wanted"),
    [("6,6+n/2", 100, [6, 56]), ("6,", 100, [6]), ("6,6+n/2", 9, [6, 8]), ("n/2,n/4", 10, [2, 5]), ("0,1", 1, [0])],
)
def test_positions_start_at_0_and_n_is_the_number_of_frames(text: str, frames: int, wanted: list[int]) -> None:
    assert read_choice(text).among(frames)[0] == wanted


def test_last_frame_replaces_positions_beyond_the_end() -> None:
    choice = read_choice("6,6+n/2")
    assert choice.among(5) == ([4], True)
    assert choice.among(7) == ([6], True)
    assert choice.among(14) == ([6, 13], False)


@pytest.mark.parametrize("text", ["", "0", "-1", "six", "6+n", "6+n/0", "n*2", "1.5", "6;7", ","])
def test_invalid_choice_of_frames_is_refused(text: str) -> None:
    with refused("frames"):
        read_choice(text)


@given(st.integers(0, 500), st.integers(1, 50))
def test_equidistant_frames_are_distinct_and_evenly_spaced(length: int, count: int) -> None:
    numbers = equidistant(length, count)
    assert len(set(numbers)) == min(length, count)
    assert all(0 <= number < length for number in numbers)
    if len(numbers) > 2:
        gaps = np.diff(numbers)
        assert gaps.max() - gaps.min() <= 1


def test_one_frame_is_the_middle_one() -> None:
    assert equidistant(9, 1) == [4]


def test_short_video_yields_all_its_frames(tmp_path: Path) -> None:
    frames = list(sample_video(save_video(tmp_path / "x.avi", 3), 10))
    assert [number for number, _ in frames] == [0, 1, 2]
    assert all(image.shape == (32, 32, 3) and image.dtype == np.uint8 for _, image in frames)


def test_truncated_video_is_sampled_over_its_readable_part(tmp_path: Path) -> None:
    path = save_video(tmp_path / "x.avi", 20, side=256)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    left = len(list(sample_video(path, 1000)))
    assert 2 < left < 12
    assert [number for number, _ in sample_video(path, 2)] == equidistant(left, 2)


@pytest.mark.parametrize("ending", [".avi", ".mp4", ".mov"])
def test_held_and_decoded_frames_are_equal(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    write_video(path, tuple(np.random.default_rng(0).integers(0, 255, (17, 48, 64, 3), np.uint8)))
    once, again = (list(sample_video(path, 4, most)) for most in (1 << 20, 0))
    assert [number for number, _ in once] == equidistant(17, 4) == [number for number, _ in again]
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(once, again, strict=True))


def test_packets_without_a_picture_do_not_count(tmp_path: Path) -> None:
    """Packets that cannot be decoded make the stretches shorter, as if the file did not have them."""
    path = save_video(tmp_path / "x.avi", 12, side=64)
    whole = bytearray(path.read_bytes())
    starts = [place for place in range(len(whole)) if whole[place : place + 4] == b"00dc"][:12]
    for start in starts[8:]:
        length = int.from_bytes(whole[start + 4 : start + 8], "little")
        whole[start + 8 : start + 8 + length] = bytes(length)
    path.write_bytes(bytes(whole))
    left = video_length(path)
    assert 4 < left < 9
    once, again = (list(sample_video(path, 2, most)) for most in (1 << 20, 0))
    assert [number for number, _ in once] == equidistant(left, 2)
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(once, again, strict=True))


def test_playlist_of_other_files_is_refused(tmp_path: Path) -> None:
    target = save_video(tmp_path / "x.avi", 3)
    (tmp_path / "list.mp4").write_text(f"ffconcat version 1.0\nfile {target.name}\n")
    (tmp_path / "stream.mov").write_text(f"#EXTM3U\n#EXTINF:1,\n{target}\n")
    for name in ("list.mp4", "stream.mov"):
        with pytest.raises(BadFile, match="video"):
            next(sample_video(tmp_path / name, 1))


def test_file_name_with_a_pattern_is_one_file(tmp_path: Path) -> None:
    path = save_video(tmp_path / "take_1.avi", 3).rename(tmp_path / "take_%d.avi")
    assert len(list(sample_video(path, 2))) == 2
