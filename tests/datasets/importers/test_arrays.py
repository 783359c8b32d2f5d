"""Frames in HDF5 files: the choice and order of colour arrays, and refusals of hostile files."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from tests.refusals import refused

from fedvisage.base.errors import BadFile
from fedvisage.datasets.dataset import Item
from fedvisage.datasets.frame_sources import ArrayFrames

FRAMES = np.random.default_rng(0).integers(0, 256, (12, 20, 24, 3), dtype=np.uint8)
FIRST = FRAMES.transpose(0, 3, 1, 2)  # channels first
Pixels = npt.NDArray[np.uint8]


def frames_of(path: Path, *, bgr: bool = False) -> ArrayFrames:
    return ArrayFrames(Item(path, "a.h5", "arrays", "bonafide", "s", "v", bgr=bgr))


def write_file(path: Path, write: Callable[[Any], object]) -> ArrayFrames:
    with h5py.File(path, "w") as file:
        write(file)
    return frames_of(path)


def write_stack(file: Any, name: str, frames: object) -> None:
    file[name] = frames


def write_frames(file: Any, name: str, frames: Pixels) -> None:
    for number, frame in enumerate(frames):
        file[name.format(number)] = frame


@pytest.mark.parametrize("frames", [FRAMES, FIRST], ids=["last", "first"])
@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_stack, "Color_Data"),
        (write_stack, "stream/rgb"),
        (write_stack, "only"),
        (write_frames, "Frame_{}/array"),
        (write_frames, "data/sr300/color/09_35_58_{:03d}"),
    ],
)
def test_frames_are_read_in_order_for_any_channel_axis(
    write: Callable[[Any, str, Pixels], None], name: str, frames: Pixels, tmp_path: Path
) -> None:
    source = write_file(tmp_path / "a.h5", lambda file: write(file, name, frames))
    assert len(source) == 12
    assert [number for number, _ in source.frames({1, 10})] == [1, 10]
    assert all((image == FRAMES[number]).all() for number, image in source.frames({1, 10, 2}))
    assert source.name(3) == "a.h5/000003"


def test_other_arrays_are_not_taken_for_colour(tmp_path: Path) -> None:
    def write(file: Any) -> None:
        file["Depth_Data"] = np.zeros((12, 1, 20, 24), np.uint16)
        file["Another"] = FRAMES // 2
        file["Color_Data"] = FRAMES
        file["Eye_Pos"] = np.zeros((12, 4))

    ((_, image),) = write_file(tmp_path / "a.h5", write).frames({5})
    assert (image == FRAMES[5]).all()


def test_bgr_arrays_are_converted(tmp_path: Path) -> None:
    write_file(tmp_path / "a.h5", lambda file: write_stack(file, "color", FRAMES[..., ::-1]))
    ((_, image),) = frames_of(tmp_path / "a.h5", bgr=True).frames({0})
    assert (image == FRAMES[0]).all()


def test_file_without_colour_arrays_lists_its_arrays(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.h5", lambda file: write_stack(file, "infrared", np.zeros((3, 20, 24), np.uint16)))
    with pytest.raises(BadFile, match="infrared 3×20×24 uint16"):
        len(source)
    both_sides = write_file(tmp_path / "b.h5", lambda file: file.update(left=FRAMES, right=FRAMES))
    with pytest.raises(BadFile, match="left 12×20×24×3 uint8"):
        len(both_sides)


def write_virtual(file: Any) -> None:
    layout = h5py.VirtualLayout(FRAMES.shape, np.uint8)
    layout[:] = h5py.VirtualSource("secret.h5", "color", FRAMES.shape)
    file.create_virtual_dataset("color", layout)


def write_external(file: Any) -> None:
    file.create_dataset("color", FRAMES.shape, np.uint8, external=[("secret.h5", 0, FRAMES.nbytes)])


@pytest.mark.parametrize(
    ("write", "keyword"),
    [
        (lambda file: write_stack(file, "color", h5py.ExternalLink("secret.h5", "color")), "link"),
        (write_virtual, "/color"),
        (write_external, "/color"),
    ],
    ids=["link", "virtual", "external"],
)
def test_links_out_of_the_file_are_refused(
    write: Callable[[Any], None], keyword: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "secret.h5", lambda file: write_stack(file, "color", FRAMES))
    source = write_file(tmp_path / "a.h5", write)
    with pytest.raises(BadFile, match=keyword):
        list(source.frames({0}))


@pytest.mark.parametrize(
    ("shape", "chunks", "keyword"),
    [
        ((1, 100_000, 100_000, 3), None, "100000×100000 pixels"),
        ((300_000, 32, 32, 3), None, "200000"),
        ((1, 8, 32, 3), None, "32×8 pixels"),
        ((100_000, 64, 64, 3), (60_000, 64, 64, 3), "512 MiB"),
    ],
)
def test_shapes_are_refused_before_anything_is_read(
    shape: tuple[int, ...], chunks: tuple[int, ...] | None, keyword: str, tmp_path: Path
) -> None:
    source = write_file(
        tmp_path / "a.h5", lambda file: file.create_dataset("color", shape, np.uint8, chunks=chunks or (1, 8, 8, 3))
    )
    assert source.item.path.stat().st_size < 100_000
    with pytest.raises(BadFile, match=keyword):
        list(source.frames({0}))


def test_too_large_file_is_not_digested(tmp_path: Path) -> None:
    with (tmp_path / "a.h5").open("wb") as file:
        file.truncate((64 << 30) + 1)  # takes no room
    with pytest.raises(BadFile, match="64 GiB"):
        frames_of(tmp_path / "a.h5").digest()


def test_cyclic_groups_and_soft_links_are_ignored(tmp_path: Path) -> None:
    def write(file: Any) -> None:
        file["a/color"] = FRAMES
        file["a/b"] = file["a"]
        file["a/soft_color"] = h5py.SoftLink("/a/color")

    assert len(write_file(tmp_path / "a.h5", write)) == 12


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + bytes(40), b"no such file" * 20])
def test_damaged_files_are_bad_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(content)
    with pytest.raises(BadFile, match="HDF5"):
        len(frames_of(tmp_path / "a.h5"))


def test_missing_h5py_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with refused("fedvisage[datasets]", "h5py"):
        len(frames_of(tmp_path / "a.h5"))
