"""Rendering and reading: whether data keeps up with training."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.measurement import Measurement, rendered
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.rendered.sets import parse_synthesis, synthesise
from fedvisage.nn.precision import LAYOUT, choose
from fedvisage.nn.resnet import ResNet18, resnet18


def measure_rendering(cache: Path) -> Measurement:
    """Render O, C, I and M at 128 px with two processes, counted from the first subject on, without their start."""
    del cache
    timed = [_render(domain) for domain in ("O", "C", "I", "M")]
    images, seconds = sum(count for count, _ in timed), sum(spent for _, spent in timed)
    rate = images / seconds
    return Measurement(
        "rendering at 128 px on two cores", "≥ 150 images/s", f"{rate:.0f} images/s ({images} images)", rate >= 150
    )


def _render(domain: str) -> tuple[int, float]:
    marks: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as out:
        synthesise(
            parse_synthesis(f"{domain} subjects=40 size=128"),
            Path(out) / "set",
            workers=2,
            progress=lambda done, _: marks.append((time.perf_counter(), done)),
        )
    return marks[-1][1] - marks[0][1], marks[-1][0] - marks[0][0]


def measure_reading(cache: Path) -> Measurement:
    """Read random batches of a prepared set, against what one ResNet-18 step consumes."""
    view = View.of(PreparedSet.open(rendered(cache, "O", 24, 128)), "train")
    rng, count = np.random.default_rng(0), 64
    began = time.perf_counter()
    for _ in range(50):
        view.batch(rng.choice(len(view), count, replace=False))
    reading = 50 * count / (time.perf_counter() - began)
    compute = choose("cpu", "auto")
    net = resnet18(ResNet18(), "rgb+hsv")
    compute.place(net)
    images = torch.rand(32, 6, 128, 128).contiguous(memory_format=LAYOUT)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        with compute.autocast():
            loss = net(images).float().square().mean()
        loss.backward()
        seconds.append(time.perf_counter() - began)
    training = len(images) / min(seconds)
    return Measurement(
        "reading a prepared set against training on it (images/s, 128 px)",
        "≥ 10",
        f"{reading / training:.0f} ({reading:.0f} / {training:.0f} images/s)",
        reading >= 10 * training,
    )
