"""Frames to watch: a picture, a folder of pictures in order of their names, a video file, or a camera."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.datasets.importers.pictures import ENDINGS, open_picture
from fedvisage.datasets.importers.report import BadFile, printable
from fedvisage.datasets.importers.videos import video_frames
from fedvisage.errors import RunFailed, UserError

Image = NDArray[np.uint8]


def frames_of(source: str) -> Iterator[Image]:
    """Return the frames of a source, RGB; a number is a camera, as the system counts them."""
    if source.isascii() and source.isdigit():
        return _camera(int(source))
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise UserError(printable(source), "is no picture, folder or video; a number names a camera")
    return _picture(path) if path.suffix.lower() in ENDINGS else _video(path)


def every(frames: Iterator[Image], step: int) -> Iterator[Image]:
    """Return the first of each ``step`` frames."""
    if step < 1:
        raise UserError("--every", f"must be at least 1, got {step}")
    return (frame for number, frame in enumerate(frames) if number % step == 0)


def _picture(path: Path) -> Iterator[Image]:
    try:
        yield open_picture(path)
    except BadFile as bad:
        raise UserError(printable(str(path)), str(bad)) from None


def _folder(path: Path) -> Iterator[Image]:
    pictures = sorted(one for one in path.iterdir() if one.suffix.lower() in ENDINGS and one.is_file())
    if not pictures:
        raise UserError(printable(str(path)), f"has no images ({', '.join(ENDINGS)})")
    for one in pictures:
        yield from _picture(one)


def _video(path: Path) -> Iterator[Image]:
    try:
        for _, frame in video_frames(path, range(sys.maxsize)):
            yield frame
    except BadFile as bad:
        raise UserError(printable(str(path)), str(bad)) from None


def _camera(number: int) -> Iterator[Image]:
    capture = cv2.VideoCapture(number)
    try:
        if not capture.isOpened():
            raise UserError(f"camera {number}", "cannot be opened; is it connected, and may this user read it?")
        while True:
            taken, frame = capture.read()
            if not taken:
                raise RunFailed(f"camera {number}: gives no more frames")
            yield cv2.cvtColor(frame, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)
    finally:
        capture.release()
