"""The browser page on this machine: frames a second from a webcam, with networks of MobileFaceNet's size.

Both networks are MobileFaceNet as it is drawn, without training, because only their size counts here: one with a logit
behind it, for attack detection, the other with its embedding.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.measurement import Measurement
from benchmarks.service import serve_in_thread
from fedvisage.base.version import VERSION
from fedvisage.device import Exported
from fedvisage.device.exported import (
    GRAPH,
    INPUT,
    OUTPUTS,
    Description,
    OperatingPoint,
    write_export,
)
from fedvisage.device.service.app import build, open_engine, server_of
from fedvisage.device.service.limits import Limits
from fedvisage.device.web.site import RuntimeFiles, page_files
from fedvisage.faces.cropping import record_of
from fedvisage.nn.face_networks import MobileFaceNet, mobilefacenet
from fedvisage.render.identities import Identities, photograph_person, photographs_of

Task = Literal["pad", "recognition"]
SIZE, GOAL, SECONDS = 112, 10.0, 20.0
FLAGS = ("--no-sandbox", "--disable-gpu", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
CLAIM = "frames a second of the browser page at 640×480, detector and MobileFaceNet for attacks; with recognition"


def measure(cache: Path, seconds: float = SECONDS) -> Measurement:
    """Let the page look at a webcam, first without anybody enrolled, then with one person to compare."""
    del cache
    chromium = shutil.which("chromium")
    if chromium is None or not RuntimeFiles().is_there:
        return Measurement(CLAIM, f"≥ {GOAL:.0f}", "no Chromium, or no runtime (make web)", None)
    with tempfile.TemporaryDirectory() as place:
        pad, recognition = (exported(Path(place), task) for task in ("pad", "recognition"))
        page = page_files(pad, recognition, service={"keys": False})
        server = server_of(build(open_engine(pad, recognition), limits=Limits(rate=0), page=page), "127.0.0.1", 0)
        with serve_in_thread(server) as port:
            alone, compared = frames_a_second(chromium, port, webcam(Path(place)), seconds)
    return Measurement(CLAIM, f"≥ {GOAL:.0f}", f"{alone:.1f}; {compared:.1f} (Chromium, two workers)", alone >= GOAL)


class Whole(nn.Module):
    """A graph as devices have it, from bytes to a logit or an embedding, around a network."""

    def __init__(self, task: Task) -> None:
        """Draw the network."""
        super().__init__()
        self.network, self.task = mobilefacenet(MobileFaceNet(), SIZE), task
        for module in self.network.modules():  # the tracer writes Python, in which nothing can be called `global`
            if "global" in module._modules:
                module._modules = {f"{name}_": one for name, one in module._modules.items()}

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return what the task's graph gives."""
        found = self.network(images.permute(0, 3, 1, 2).float() / 255)
        if self.task == "recognition":
            return (nn.functional.normalize(found),)
        logit = found.mean(dim=1)
        return torch.sigmoid(logit), logit


def exported(place: Path, task: Task) -> Exported:
    """Write an exported directory whose every face is living and known."""
    torch.manual_seed(0)
    return written(place / task, task, Whole(task), SIZE, -50.0 if task == "pad" else 0.3)


def written(directory: Path, task: Task, whole: nn.Module, size: int, threshold: float) -> Exported:
    """Write the exported directory of a network that no run has trained."""
    said = Description(
        task=task,
        method="none",
        size=size,
        model_sha256="0" * 64,
        recipe_sha256="0" * 64,
        version=VERSION,
        threshold=OperatingPoint(value=threshold, rule="source-eer"),
        crop=record_of("face", aligned=task == "recognition"),
    )
    path = directory / GRAPH
    path.parent.mkdir(parents=True)
    program = torch.onnx.export(
        whole.eval(),
        (torch.zeros(2, size, size, 3, dtype=torch.uint8),),
        dynamo=True,
        verbose=False,
        input_names=[INPUT],
        output_names=list(OUTPUTS[task]),
        dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
    )
    assert program is not None
    program.save(path, external_data=False)
    write_export(directory, said)
    return Exported.open(directory)


def webcam(place: Path) -> Path:
    """Write a film of one rendered face that moves a little, as Chromium takes it for a camera."""
    face = cv2.resize(photograph_person(photographs_of(Identities(images=1, size=112), 0), 112)[0][0], (280, 280))
    path = place / "camera.mjpeg"
    with path.open("wb") as file:
        for step in range(30):
            screen = np.full((480, 640, 3), (120, 110, 90), np.uint8)
            screen[100:380, 150 + step : 430 + step] = face
            Image.fromarray(screen).save(file, "JPEG", quality=90)
    return path


def frames_a_second(chromium: str, port: int, camera: Path, seconds: float) -> tuple[float, float]:
    """Return the page's own figures, without and with somebody enrolled."""
    from playwright.sync_api import sync_playwright

    flags = [*FLAGS, f"--use-file-for-fake-video-capture={camera}"]
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=flags) as browser:
        page = browser.new_page()
        page.goto(f"http://localhost:{port}/")
        page.wait_for_selector("#state[data-kind=ready]", timeout=120_000)
        page.get_by_role("button", name="Start the camera").click()
        page.wait_for_selector("#decision:has-text('Living face')", timeout=60_000)
        alone = rate(page, seconds)
        page.get_by_label("Name").fill("somebody")
        page.get_by_role("button", name="Enrol this face").click()
        page.wait_for_selector("#matched:has-text('somebody')", timeout=60_000)
        compared = rate(page, seconds)
        return alone, compared


def rate(page: Any, seconds: float) -> float:
    """Return the mean of what the page says of its speed, after a while."""
    said = []
    for _ in range(10):
        page.wait_for_timeout(seconds * 100)
        said += re.findall(r"([\d.]+) frames a second", page.inner_text("#speed"))
    return float(np.mean([float(one) for one in said[len(said) // 2 :]]))
