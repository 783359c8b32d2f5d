"""Sources of frames: a picture, a folder in the order of names, and a video; others are refused."""

import json
import os
import queue
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.commands import call, output_of
from tests.refusals import refused

from fedvisage.base.errors import BadFile, RunFailed, UserError
from fedvisage.datasets.small_copies import write_video
from fedvisage.device import Exported
from fedvisage.device.frames import open_source
from fedvisage.device.fused import required_threshold
from fedvisage.device.predict import list_input_pictures

BRIGHTNESS = (40, 90, 140, 190, 240)
"""Of the frames, so far apart that no codec confuses them."""


def images_of(source: Path) -> list[np.ndarray]:
    """Return the frames of a source, all of which are readable."""
    return [frame for frame in open_source(str(source)).frames if not isinstance(frame, BadFile)]


def watch(source: Path, pad: Path, *options: str) -> list[Any]:
    """Return the results of the command for each frame of a source."""
    output = output_of("watch", source, "--pad", pad, "--sharpness", 0, *options)
    return [json.loads(line) for line in output.splitlines()]


def grey(brightness: int) -> np.ndarray:
    return np.full((64, 96, 3), brightness, np.uint8)


def test_video_whose_path_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """OpenCV ends the process at such a path."""
    write_video(tmp_path / "door.avi", (grey(40),))
    path = (tmp_path / "door.avi").rename(tmp_path / os.fsdecode(b"d\xf6\xf6r.avi"))
    picture, *_ = list_input_pictures([path]).pictures
    with pytest.raises(BadFile, match="not in UTF-8"):
        picture.read()
    with pytest.raises(UserError, match="not in UTF-8"):
        list(open_source(str(path)).frames)


def test_frames_of_a_video_keep_their_order(tmp_path: Path) -> None:
    write_video(tmp_path / "door.avi", tuple(map(grey, BRIGHTNESS)))
    frames = images_of(tmp_path / "door.avi")
    assert [frame.shape for frame in frames] == [(64, 96, 3)] * len(BRIGHTNESS)
    assert [frame.mean() for frame in frames] == pytest.approx(BRIGHTNESS, abs=12)


def test_folder_includes_its_subfolders(tmp_path: Path) -> None:
    for number, name in enumerate(("real/b.png", "attack/print/a.png", "c.png")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), 40 * number, np.uint8)).save(tmp_path / name)
    assert [int(frame[0, 0, 0]) for frame in images_of(tmp_path)] == [40, 80, 0]


def test_folder_gives_rgb_pictures_in_order_of_names(tmp_path: Path) -> None:
    for name, colour in (("b", (0, 0, 200)), ("a", (200, 0, 0))):
        Image.new("RGB", (32, 32), colour).save(tmp_path / f"{name}.png")
    assert [frame[0, 0].tolist() for frame in images_of(tmp_path)] == [[200, 0, 0], [0, 0, 200]]


def test_watch_states_the_reason_for_each_unreadable_picture(pad: Path, face: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"")
    Image.fromarray(face).resize((192, 192)).save(tmp_path / "2.png")
    (tmp_path / "3.jpg").write_bytes((tmp_path / "2.png").read_bytes()[:2000])
    Image.fromarray(np.zeros((32, 32), np.uint16)).save(tmp_path / "4.png")
    (tmp_path / "5.jpg").symlink_to(tmp_path / "none.jpg")
    os.mkfifo(tmp_path / "6.jpg")
    Image.fromarray(face).resize((192, 192)).save(tmp_path / "7.png")
    lines = watch(tmp_path, pad)
    assert [line["frame"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert [line["frames"] for line in lines] == [0, 1, 0, 0, 0, 0, 1]
    assert lines[1]["decision"] == lines[6]["decision"] != "no_decision"
    reasons = {0: "1.png: an empty file", 2: "3.jpg:", 3: "4.png: more than 8 bits", 4: "5.jpg: a link to a missing"}
    for number, start in (reasons | {5: "6.jpg: is not a regular file"}).items():
        assert lines[number]["decision"] == "no_decision"
        assert lines[number]["this_frame"]["reasons"][0].startswith(start)


def test_watch_names_the_picture_of_each_line_and_counts_skipped_files(
    pad: Path, face: np.ndarray, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        Image.fromarray(face).resize((192, 192)).save(tmp_path / f"{name}.png")
    (tmp_path / "clip.mov").write_text("no picture")
    result = call("watch", tmp_path, "--pad", pad, "--every", 2)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["frame"], line["path"]) for line in lines] == [(0, f"{tmp_path}/a.png"), (2, f"{tmp_path}/c.png")]
    assert ".mov 1" in result.stderr


def test_watch_numbers_the_frames_of_a_video_as_in_the_file(pad: Path, tmp_path: Path) -> None:
    write_video(tmp_path / "door.avi", tuple(map(grey, BRIGHTNESS)))
    lines = watch(tmp_path / "door.avi", pad, "--every", "2")
    assert [(line["frame"], line["path"]) for line in lines] == [(n, str(tmp_path / "door.avi")) for n in (0, 2, 4)]


@pytest.mark.parametrize(("options", "frames"), [((), [1, 1, 1]), (("--window", "2"), [1, 2, 2])])
def test_folder_is_averaged_only_on_request(
    options: tuple[str, ...], frames: list[int], pad: Path, face: np.ndarray, tmp_path: Path
) -> None:
    for number in range(3):
        Image.fromarray(face).resize((192, 192)).save(tmp_path / f"{number}.png")
    assert [line["frames"] for line in watch(tmp_path, pad, *options)] == frames


@pytest.mark.parametrize("content", [b"", b"no video"])
def test_file_without_a_video_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "door.avi").write_bytes(content)
    with refused("door.avi", "AVI"):
        list(open_source(str(tmp_path / "door.avi")).frames)


def test_missing_camera_is_named() -> None:
    with pytest.raises((UserError, RunFailed), match="camera 987"):
        next(open_source("987").frames)


def test_stream_is_requested_by_rtsp() -> None:
    lines = queue.Queue[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with server.accept()[0] as connection:
                lines.put(connection.recv(100))

        thread = threading.Thread(target=hang_up)
        thread.start()
        with refused(f"rtsp://127.0.0.1:{server.getsockname()[1]}/door", "opened"):
            next(open_source(f"rtsp://127.0.0.1:{server.getsockname()[1]}/door").frames)
        thread.join()
    assert lines.get().startswith(b"OPTIONS rtsp://127.0.0.1:")


def test_missing_stream_is_named_without_its_password(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # without a listener
        address = f"127.0.0.1:{closed.getsockname()[1]}/door"
        with refused(f"RTSP://{address}", "opened"):
            next(open_source(f"RTSP://user:secret@{address}").frames)
    assert capfd.readouterr().err == ""


def test_broken_video_prints_only_its_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "door.mp4").write_bytes(bytes([0, 0, 0, 24]) + b"ftypisom" + bytes(200))
    with refused("door.mp4", "opened"):
        list(open_source(str(tmp_path / "door.mp4")).frames)
    assert capfd.readouterr().err == ""


@pytest.mark.long
def test_watch_decides_at_the_chosen_operating_point(pad: Path, face: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(face).resize((192, 192)).save(tmp_path / "face.png")
    own, chosen = (required_threshold(model) for model in (Exported.open(pad), Exported.open(pad).at("eer")))
    assert own.operating_point != chosen.operating_point
    for options, point in (((), own), (("--at", "eer"), chosen)):
        assert [line["operating_point"] for line in watch(tmp_path, pad, *options)] == [point.operating_point]
