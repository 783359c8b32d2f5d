"""The renderer's pixels are pinned: a change requires a higher RENDERER_VERSION and a new calibration.

The coarse look (an 8×8 grid of mean colours) holds on every machine. Bytes are compared on machines of the type that
recorded them, without exception, and wherever else a fingerprint of the operations that rendering uses is the same.

Run as a script, this file records anew: ``python -m tests.render.test_pin``.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.nn.functional import grid_sample

from fedvisage.base.streams import torch_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.nn.compute import resolve_compute
from fedvisage.render.sets import RENDERER_VERSION, parse_synthesis, synthesise
from fedvisage.runs.directory import describe

RECORD = Path(__file__).with_name("pinned.json")
LINES = tuple(f"{name} subjects=1 videos=1 frames=1 size=64 heldout=0" for name in ("O", "C", "I", "M", "H"))


def machine() -> dict[str, str]:
    """Return the properties of this machine that affect rounding."""
    seen = describe(resolve_compute("cpu", "fp32"), threads=1)
    packages = {name: seen["packages"][name] for name in ("torch", "numpy", "opencv-python-headless")}
    named = {name: seen[name] for name in ("system", "processor", "cpu_capability")}
    # Clouds use one name for several generations of processors, which differ in their matrix units.
    return {**packages, **named, "matrix_tiles": str(torch.cpu._is_amx_tile_supported())}


def fingerprint() -> str:
    """Return a digest of how this machine rounds."""
    random = torch.rand(64, 64, generator=torch_rng(0, "fingerprint")) + 0.1
    image = random[None, None].repeat(1, 3, 1, 1)
    grid = torch.stack([random, random.T], dim=-1)[None]
    results = [
        random @ random.T,
        torch.bmm(random[None], random[None]),
        random**2.4,
        random.exp(),
        random.cos(),
        random.erf(),
        random.tanh(),
        random.log(),
        torch.einsum("bchw,hk->bckw", image, random),
        grid_sample(image, grid, mode="bicubic", align_corners=False),
        torch.linalg.inv(random + 20 * torch.eye(64)),
    ]
    versions = f"{torch.__version__.split('+')[0]} {cv2.__version__} {torch.backends.cpu.get_cpu_capability()}"
    return hashlib.sha256(versions.encode() + b"".join(result.numpy().tobytes() for result in results)).hexdigest()


def render_pinned_frames() -> dict[str, Any]:
    """Return digest and coarse look of the pinned frames."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images = []
    with tempfile.TemporaryDirectory() as directory:
        for number, line in enumerate(LINES):
            synthesise(parse_synthesis(line), Path(directory) / str(number))
            images.append(np.array(PreparedSet.open(Path(directory) / str(number)).images))
    frames = {
        "renderer": RENDERER_VERSION,
        "machine": machine(),
        "fingerprint": fingerprint(),
        "sha256": hashlib.sha256(b"".join(part.tobytes() for part in images)).hexdigest(),
        "look": [part.reshape(-1, 8, 8, 8, 8, 3).mean((2, 4)).round().astype(int).ravel().tolist() for part in images],
    }
    torch.set_num_threads(threads)
    return frames


@pytest.fixture(scope="module")
def current() -> dict[str, Any]:
    return render_pinned_frames()


@pytest.fixture(scope="module")
def pinned() -> dict[str, Any]:
    return dict(json.loads(RECORD.read_text(encoding="utf-8")))


def test_record_belongs_to_this_version(pinned: dict[str, Any]) -> None:
    assert pinned["renderer"] == RENDERER_VERSION


def test_frames_look_as_recorded_on_every_machine(current: dict[str, Any], pinned: dict[str, Any]) -> None:
    for seen, recorded in zip(current["look"], pinned["look"], strict=True):
        apart = np.abs(np.array(seen) - np.array(recorded))
        assert apart.max() <= 6
        assert apart.mean() <= 0.5


def test_bytes_are_as_recorded_where_arithmetic_rounds_alike(current: dict[str, Any], pinned: dict[str, Any]) -> None:
    other = {name: value for name, value in current["machine"].items() if value != pinned["machine"][name]}
    if other and current["fingerprint"] != pinned["fingerprint"]:
        pytest.skip(f"this machine rounds otherwise than {pinned['machine']}, which recorded the bytes; it has {other}")
    assert current["sha256"] == pinned["sha256"]


if __name__ == "__main__":
    RECORD.write_text(json.dumps(render_pinned_frames()) + "\n", encoding="utf-8")
