"""Judging photographs: reading, finding faces and scoring, with crops in batches against one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.measurement import Measurement, processor_seconds, rendered
from fedvisage.base.progress import discard_steps
from fedvisage.data.prepared import PreparedSet
from fedvisage.device.exported import CropShape
from fedvisage.device.predict import CroppedFace as Seen
from fedvisage.device.predict import FindFace as Look
from fedvisage.device.predict import InputPicture, list_input_pictures, probability, read_in_batches
from fedvisage.device.predict import face_cropper as look_for
from fedvisage.faces.cropping import MARGIN
from fedvisage.federation.wire.message import Message
from fedvisage.methods import METHODS, read_method
from fedvisage.nn.compute import resolve_compute
from fedvisage.recipe import validate
from fedvisage.runs.predict import score_with
from fedvisage.tasks.scoring import Scorer

COUNT, SIDE, SIZE, TURNS = 200, 250, 128, 3


def measure(cache: Path) -> Measurement:
    """Judge the same photographs both ways, in turn; one by one, weights are loaded for each, as they once were."""
    path = rendered(cache, "O", 6, SIZE)
    tree = {"method": "fedpad", "data": {"sites": {"O": str(path)}}, "input": {"size": SIZE}, "training": {"rounds": 1}}
    scorer = Scorer(METHODS["fedpad"], validate(tree, read_method), resolve_compute("cpu", "fp32"))
    finished = {name: value.clone() for name, value in scorer.net.state_dict().items()}
    look = look_for("face", [CropShape(MARGIN, SIZE)])
    pictures = list_input_pictures([_photographs(path, cache / "photographs")]).pictures
    together, alone, looking = (float("inf"),) * 3
    for _ in range(TURNS):
        looking = min(looking, processor_seconds(partial(_crops, look, pictures)))
        together = min(together, processor_seconds(partial(_together, scorer, finished, look, pictures)))
        alone = min(alone, processor_seconds(partial(_alone, scorer, finished, look, pictures)))
    apart = np.abs(_together(scorer, finished, look, pictures) - _alone(scorer, finished, look, pictures)).max()
    scoring = f"scoring alone {(together - looking) / (alone - looking):.2f}"
    measured = f"{together / alone:.2f} ({together:.1f} / {alone:.1f} s, {scoring}; scores differ by {apart:.0e})"
    return Measurement(
        f"predict {COUNT} photographs in batches against one by one (processor time)",
        "≤ 0.8",
        measured,
        bool(together <= 0.8 * alone and apart <= 1e-6),
    )


def _crops(look: Look, pictures: Sequence[InputPicture]) -> list[NDArray[np.uint8]]:
    seen = [one for portion in read_in_batches(pictures, look, discard_steps) for _, one in portion]
    return [one.crops[0] for one in seen if isinstance(one, Seen) and one.crops]


def _together(scorer: Scorer, finished: Message, look: Look, pictures: Sequence[InputPicture]) -> NDArray[np.float64]:
    score = score_with(scorer, finished)
    return np.array([probability(logit) for logit in score(_crops(look, pictures))])


def _alone(scorer: Scorer, finished: Message, look: Look, pictures: Sequence[InputPicture]) -> NDArray[np.float64]:
    logits = [score_with(scorer, finished)([crop]) for crop in _crops(look, pictures)]
    return np.array([probability(float(logit[0])) for logit in logits])


def _photographs(path: Path, folder: Path) -> Path:
    """Write rendered faces on grey walls, as photographs of 4:3."""
    made = PreparedSet.open(path)
    faces = np.array(made.images[made.rows.label == 1])
    folder.mkdir()
    height = SIDE * 3 // 4
    for number in range(COUNT):
        wall = np.full((height, SIDE, 3), 120, np.uint8)
        side = height * 9 // 10
        left, top = (7 * number) % (SIDE - side), (height - side) // 2
        wall[top : top + side, left : left + side] = cv2.resize(faces[number % len(faces)], (side, side))
        Image.fromarray(wall).save(folder / f"{number:03d}.png")
    return folder
