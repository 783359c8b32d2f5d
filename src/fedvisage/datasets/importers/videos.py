"""Reads equidistant frames of a video file, or says why it cannot be used. Files may be hostile."""

from collections.abc import Container, Iterator
from itertools import takewhile
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from fedvisage.datasets.importers.pictures import PIXEL_LIMIT, SIDE_MINIMUM
from fedvisage.datasets.importers.report import BadFile

FRAME_LIMIT = 200_000
VIDEO_LIMIT = 8 << 30
"""Bytes of a video; those of the datasets have a thousandth."""

HELD = 128 << 20
"""Bytes of frames that wait in memory until it is known that they are the right ones, at most."""

Frame = tuple[int, npt.NDArray[np.uint8]]


def sample_video(path: Path, count: int, most: int = HELD) -> Iterator[Frame]:
    """Yield up to `count` frames from the middles of equal stretches of the video, as (number, RGB).

    A video is decoded once: its packets say how many frames there will be. It is decoded again where that was wrong, or
    where the frames would have more than `most` bytes.
    """
    _check_container(path)
    likely, held = _packets(path), list[Frame]()
    wanted = frozenset(equidistant(likely, count))
    length = 0
    for length, capture in enumerate(_passed(path), 1):
        if length == 1 and len(wanted) * _frame_bytes(capture) > most:
            wanted = frozenset()
        if length - 1 in wanted:
            held += _retrieved(length - 1, capture)
    if length == likely and wanted and held:
        yield from held
    else:
        del held
        yield from video_frames(path, frozenset(equidistant(length, count)))


def video_length(path: Path) -> int:
    """Count a video's frames. The length in its header is often wrong, and with it every stretch."""
    _check_container(path)
    return sum(1 for _ in _passed(path))


def _packets(path: Path) -> int:
    """Count what a video's frames are packed in, mostly one in each, without decoding any; 0 if that cannot be."""
    capture = cv2.VideoCapture(str(path.resolve()), cv2.CAP_FFMPEG, [cv2.CAP_PROP_FORMAT, -1])
    try:
        return sum(1 for _ in takewhile(lambda _: capture.grab(), range(FRAME_LIMIT))) if capture.isOpened() else 0
    finally:
        capture.release()


def video_frames(path: Path, wanted: Container[int]) -> Iterator[Frame]:
    """Yield the frames with these numbers, as (number, RGB)."""
    _check_container(path)
    decoded_any = False
    for number, capture in enumerate(_passed(path)):
        if number in wanted:
            for frame in _retrieved(number, capture):
                decoded_any = True
                yield frame
    if not decoded_any:
        raise BadFile("no frame of the video can be decoded")


def _retrieved(number: int, capture: cv2.VideoCapture) -> list[Frame]:
    """Return the frame that a video stands at, in RGB, or none if it cannot be decoded."""
    decoded, image = capture.retrieve()
    if not decoded or image is None or image.ndim != 3:
        return []
    return [(number, cv2.cvtColor(image, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False))]


def _frame_bytes(capture: cv2.VideoCapture) -> float:
    width, height = capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    return float(3 * width * height)


def equidistant(length: int, count: int) -> list[int]:
    """Return the numbers of `count` frames out of `length`, one in the middle of each of as many equal stretches."""
    count = min(count, length)
    return [(2 * stretch + 1) * length // (2 * count) for stretch in range(count)]


def _check_container(path: Path) -> None:
    """Refuse what is no AVI, MP4, QuickTime or Matroska: the decoder also takes playlists, which name other files."""
    with path.open("rb") as file:
        start = file.read(12)
    riff = start[:4] == b"RIFF" and start[8:12] == b"AVI "
    boxes = start[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
    if not (riff or boxes or start[:4] == b"\x1a\x45\xdf\xa3"):
        raise BadFile("not a video of a known format (AVI, MP4, MOV, MKV, WebM)")


def _passed(path: Path) -> Iterator[cv2.VideoCapture]:
    """Yield the opened video once at each of its frames. Seeking instead would miss by some frames with many codecs."""
    # One decoder and an absolute path: others take a name with "%" for a pattern, or a bare one for an address.
    capture = cv2.VideoCapture(str(path.resolve()), cv2.CAP_FFMPEG)
    try:
        if not capture.isOpened():
            raise BadFile("the video cannot be opened")
        width, height = capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
        if min(width, height) < SIDE_MINIMUM or width * height > PIXEL_LIMIT:
            raise BadFile(f"frames of {width:.0f}×{height:.0f} pixels are not accepted")
        for _ in range(FRAME_LIMIT):
            if not capture.grab():
                return
            yield capture
    finally:
        capture.release()
