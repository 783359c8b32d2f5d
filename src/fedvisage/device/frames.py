"""Frames of a picture, a folder of pictures in order of their names, a video file, a camera, or a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fedvisage.base.errors import BadFile, RunFailed, UserError, printable
from fedvisage.device.predict import InputPicture, list_input_pictures, picture_at
from fedvisage.faces.align import Image
from fedvisage.faces.pictures import ENDINGS, open_picture, video_frames

Frame = Image | BadFile
"""A frame in RGB, or the reason why a picture of a folder is unusable."""


@dataclass(frozen=True, eq=False)
class Source:
    """Frames in order, the path of each one's file (None: a camera or stream), and notices about a folder."""

    frames: Iterator[Frame]
    paths: Iterable[str | None]
    notices: list[str]


def open_source(source: str) -> Source:
    """Open a source; a number is the system's number of a camera."""
    if source.isascii() and source.isdigit():
        frames = _captured(f"camera {source}", "is it connected, and may this user read it?", int(source))
        return Source(frames, repeat(None), [])
    if source.lower().startswith(_STREAMS):
        # Errors must not show the credentials in an address.
        place = printable(f"{source.partition('://')[0]}://{source.partition('://')[2].rpartition('@')[2]}")
        frames = _captured(place, "does it send a stream there?", source, cv2.CAP_FFMPEG, _STREAM_PATIENCE)
        return Source(frames, repeat(None), [])
    path = Path(source)
    if path.is_dir():
        inputs = list_input_pictures([path])
        paths = [picture.name for picture in inputs.pictures]
        return Source(map(_picture_or_fault, inputs.pictures), paths, inputs.notices)
    if not path.is_file():
        raise UserError(printable(source), "is not an image, folder, video, camera's number or rtsp:// address")
    return Source(_read_file(path), repeat(picture_at(path).name), [])


def _picture_or_fault(picture: InputPicture) -> Frame:
    """Return a picture of a folder; an unreadable one does not end the source."""
    try:
        return picture.read()
    except BadFile as bad:
        return BadFile(f"{printable(Path(picture.name).name)}: {bad}")


def _read_file(path: Path) -> Iterator[Image]:
    try:
        if path.suffix.lower() in ENDINGS:
            yield open_picture(path)
        else:
            for _, frame in video_frames(path, range(sys.maxsize)):
                yield frame
    except BadFile as bad:
        raise UserError(printable(str(path)), str(bad)) from None


_STREAMS = ("rtsp://", "rtsps://")
_STREAM_PATIENCE = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, 10_000, cv2.CAP_PROP_READ_TIMEOUT_MSEC, 10_000]


def _captured(place: str, question: str, *source: Any) -> Iterator[Image]:
    """Yield the frames of a camera or stream until it stops, which is a failure."""
    capture = cv2.VideoCapture(*source)
    try:
        if not capture.isOpened():
            raise UserError(place, f"cannot be opened; {question}")
        while True:
            success, frame = capture.read()
            if not success:
                raise RunFailed(f"{place}: stopped sending frames")
            yield cv2.cvtColor(frame, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)
    finally:
        capture.release()
