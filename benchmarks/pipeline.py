"""The deployed pipeline: what it adds to its ONNX sessions, what 8 bits save, and how long the first score takes.

Networks have their first weights: what they say is worth nothing, how long they take is the same.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

from benchmarks.measurement import Measurement, in_turn, middle, processor_seconds, rendered
from fedvisage.base.onnx_graphs import open_session
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.device import Exported, Pipeline, Settings
from fedvisage.device.exported import AGAIN, GRAPH
from fedvisage.methods import find, read_method
from fedvisage.metrics.threshold import Threshold
from fedvisage.recipe import validate
from fedvisage.render.identities import Identities, photograph_person, photographs_of
from fedvisage.runs.export.export import choose_weights, description_of, with_graph
from fedvisage.runs.export.quantised import quantise
from fedvisage.tasks.catalogue import set_up
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.saved_model import SavedModel

SIDE, PAD_SIZE, FACE_SIZE, TURNS, STARTS = 480, 128, 112, 20, 5
PAD: Mapping[str, Any] = {"name": "fedpad"}
PEOPLE: Mapping[str, Any] = {"name": "fedavg", "network": {"name": "mobilefacenet"}}
LARGE: Mapping[str, Any] = {"name": "fedavg", "network": {"name": "sphere64"}}
PAPER_SIZE = 256

Call = tuple[onnxruntime.InferenceSession, Any, Any]


def measure(cache: Path, turns: int = TURNS, pad: Mapping[str, Any] = PAD) -> Measurement:
    """Check a picture by networks of the papers' size."""
    return compare(cache / "large", turns, pad, PAPER_SIZE, LARGE)


def measure_small(cache: Path, turns: int = TURNS, pad: Mapping[str, Any] = PAD) -> Measurement:
    """Check it by networks so small that finding the face is most of the work."""
    return compare(cache / "small", turns, pad, PAD_SIZE, PEOPLE)


def compare(cache: Path, turns: int, pad: Mapping[str, Any], size: int, people: Mapping[str, Any]) -> Measurement:
    """Check a picture, and then run what ONNX Runtime was given meanwhile, bare; both on one thread, in turn."""
    models = [
        exported(cache / name, section, side)
        for name, section, side in (("pad", pad, size), ("people", people, FACE_SIZE))
    ]
    pipeline = Pipeline(*models, settings=Settings(threads=1, sharpness=0.0))
    picture, threads = photograph(), cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        calls = recorded(partial(pipeline.check, picture, report=True))
        (face,) = pipeline.check(picture, report=True).faces
        if face.embedding is None:
            raise AssertionError("the picture was not judged")
        whole, bare = in_turn(
            turns,
            lambda: processor_seconds(partial(pipeline.check, picture, report=True)),
            lambda: processor_seconds(partial(replay, calls)),
        )
    finally:
        cv2.setNumThreads(threads)
    ratio = float(np.median(bare) / np.median(whole))
    return Measurement(
        f"the pipeline on a picture of {SIDE} px, {pad['name']} at {size} px and {people['network']['name']}, against "
        "its ONNX sessions called bare, one thread (speed)",
        "≥ 0.9",
        f"{ratio:.2f} ({1000 * np.median(bare):.0f} / {1000 * np.median(whole):.0f} ms, {len(calls)} calls)",
        ratio >= 0.9,
    )


def measure_int8(cache: Path, turns: int = TURNS, pad: Mapping[str, Any] = PAD, size: int = PAD_SIZE) -> Measurement:
    """Run one crop through a graph and through the same in 8 bits, in turn."""
    model = exported(cache / "int8", pad, size)
    path = model.directory / "small.onnx"
    quantise(model.directory / GRAPH, path, View.of(PreparedSet.open(rendered(cache, "O", 2, size))))
    small = replace(model, session=open_session(str(path), path.read_bytes(), 1, remedy=AGAIN))
    crop = np.random.default_rng(0).integers(0, 255, (1, size, size, 3), dtype=np.uint8)
    for one in (model, small):
        one.run(crop)
    plain, less = in_turn(turns, *(lambda one=one: processor_seconds(partial(one.run, crop)) for one in (model, small)))
    sizes = [(model.directory / GRAPH).stat().st_size / 1e6, path.stat().st_size / 1e6]
    return Measurement(
        f"a crop of {size} px through the attack detector in 8 bits, and in float32 (processor time); sizes",
        "none: a figure to know",
        f"{middle([1000 * one for one in less], 'ms')} and {middle([1000 * one for one in plain], 'ms')};"
        f" {sizes[1]:.1f} / {sizes[0]:.1f} MB",
        None,
    )


def measure_start(cache: Path, starts: int = STARTS, pad: Mapping[str, Any] = PAD) -> Measurement:
    """Take the best of some starts of ``fedvisage predict`` with an exported model, until it has said its score."""
    model, path = exported(cache / "start", pad, PAD_SIZE), cache / "start.png"
    Image.fromarray(photograph()).save(path)
    command = [str(Path(sys.executable).with_name("fedvisage")), "predict", str(model.directory), str(path), "--quiet"]
    seconds = []
    for _ in range(starts):
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    return Measurement(
        "fedvisage predict with an exported model: from start to the first score",
        "≤ 1.5 s",
        f"{min(seconds):.2f} s",
        min(seconds) <= 1.5,
    )


def exported(place: Path, section: Mapping[str, Any], size: int) -> Exported:
    """Write a model with its first weights, and open it."""
    pad = section["name"] == PAD["name"]
    tree: dict[str, Any] = {
        "method": dict(section),
        "data": {"sites": {"O": "nowhere"}},
        "training": {"rounds": 1},
        "input": {"size": size, **({} if pad else {"colour": "rgb"})},
    }
    recipe = validate(tree, read_method)
    setup = set_up(recipe, find(recipe.method))
    scorer = setup.scorer()
    threshold = {"": Threshold(0.0, "fixed", None, None)}
    model = FinishedModel(place, setup, SavedModel(tree, dict(scorer.net.state_dict()), threshold, {}), scorer)
    chosen = choose_weights(model, "")
    place.mkdir(parents=True)
    with_graph(place, model, chosen, description_of(model, chosen))
    return Exported.open(place)


def photograph() -> NDArray[np.uint8]:
    """Return a picture with one face of half its side."""
    face = photograph_person(photographs_of(Identities(images=1, size=FACE_SIZE), 0), FACE_SIZE)[0][0]
    picture, side = np.full((SIDE, SIDE, 3), (120, 110, 90), np.uint8), SIDE // 2
    picture[side // 2 : side // 2 + side, side // 2 : side // 2 + side] = cv2.resize(face, (side, side))
    return picture


def recorded(work: Callable[[], object]) -> list[Call]:
    """Return what ONNX Runtime is asked while some work is done."""
    calls: list[Call] = []
    run = onnxruntime.InferenceSession.run

    def listening(session: onnxruntime.InferenceSession, names: Any, feeds: Any, options: Any = None) -> Any:
        calls.append((session, names, feeds))
        return run(session, names, feeds, options)

    onnxruntime.InferenceSession.run = listening
    try:
        work()
    finally:
        onnxruntime.InferenceSession.run = run
    return calls


def replay(calls: list[Call]) -> None:
    """Ask the same again, and do nothing else."""
    for session, names, feeds in calls:
        session.run(names, feeds)
