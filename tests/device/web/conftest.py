"""Fixtures for tests of the page in a real browser; they skip where a requirement is missing."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
import torch
from benchmarks.browser import written
from PIL import Image
from tests.device.exports import copy_export
from torch import Tensor, nn

from fedvisage.device import Exported, Pipeline
from fedvisage.device.exported import OperatingPoint
from fedvisage.device.web.site import ADVICE, RuntimeFiles, build
from fedvisage.faces.cropping import crop_face, make_detector
from fedvisage.render.domains import find_domain
from fedvisage.render.filming import render_videos
from fedvisage.render.sets import parse_synthesis, plan_videos

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

SCREEN = (480, 640)
"""Rows and columns of a webcam's frames."""

PATIENCE = 60_000


@pytest.fixture(scope="session")
def runtime() -> RuntimeFiles:
    """Return the runtime files of the page, or skip if they were not fetched."""
    files = RuntimeFiles()
    if not files.is_there:
        pytest.skip(f"the files of {files.package.name} are not there; {ADVICE}, or make web")
    return files


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the system's Chromium, or skip."""
    pytest.importorskip("playwright", reason='playwright is not installed; install "fedvisage[dev]"')
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed; install the system's package")
    return path


@pytest.fixture(scope="module")
def playwright(chromium: str) -> Iterator[Playwright]:
    """Yield the browser driver of a module; a thread can hold only one."""
    from playwright.sync_api import sync_playwright

    assert chromium
    with sync_playwright() as driver:
        yield driver


@contextmanager
def open_page(
    browser: Browser,
    address: str,
    state: str = "ready",
    *,
    listeners: Mapping[str, Callable[[Any], object]] = MappingProxyType({}),
    **options: Any,
) -> Iterator[Any]:
    """Yield a page in a new context of a browser, once it has this state; listeners get the page's events by name."""
    with browser.new_context(**options) as context:
        page: Any = context.new_page()
        for event, listener in listeners.items():
            page.on(event, listener)
        page.goto(address)
        wait_for_state(page, state)
        yield page


def wait_for_state(page: Any, kind: str = "ready") -> str:
    page.wait_for_selector(f"#state[data-kind={kind}]", timeout=PATIENCE)
    state: str = page.inner_text("#state")
    return state


@contextmanager
def open_browser(playwright: Playwright, chromium: str, *flags: str) -> Iterator[Browser]:
    """Yield a headless browser with command-line flags."""
    arguments = ["--no-sandbox", "--disable-gpu", *flags]
    browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="module")
def browser(playwright: Playwright, chromium: str) -> Iterator[Browser]:
    """Yield a browser without a camera."""
    with open_browser(playwright, chromium) as launched:
        yield launched


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder on localhost and yield its address."""
    server = http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(_Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def webcam_frames() -> dict[str, np.ndarray]:
    """Return webcam frames of a rendered person and of a replay of that person."""
    spec = parse_synthesis("O subjects=1 videos=1 frames=1 species=replay")
    (videos,) = plan_videos(spec)
    frames = render_videos(videos, find_domain("O"), 360).split(videos)
    screens = dict[str, np.ndarray]()
    for video, film_frames in zip(videos, frames, strict=True):
        screen = np.full((*SCREEN, 3), (96, 104, 110), np.uint8)
        screen[60:420, 140:500] = film_frames.images[0]
        screens[video.species] = screen
    return screens


class Difference(nn.Module):
    """A model that scores how much closer a crop is to the first crop than to the second."""

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        super().__init__()
        wanted, unwanted = (torch.from_numpy(crop).float().flatten() / 255 for crop in (first, second))
        apart = wanted - unwanted
        self.weight = nn.Parameter(4 * apart / (apart @ apart))
        self.middle = nn.Parameter((wanted + unwanted) / 2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logit = ((images.float().flatten(1) / 255 - self.middle) * self.weight).sum(dim=1)
        return torch.sigmoid(logit), logit


@pytest.fixture(scope="session")
def difference_export(webcam_frames: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an export that scores the person 2 and the replay -2, with a threshold of 0.5."""
    detect, out = make_detector(), tmp_path_factory.mktemp("telling") / "pad"
    frames = [webcam_frames[name] for name in ("bonafide", "replay")]
    crops = [crop_face(frame, detect(frame)[0], 64).image for frame in frames]
    written(out, "pad", Difference(*crops), 64, 0.5)
    return out


@pytest.fixture(scope="session")
def trained_export(pad: Path, webcam_frames: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the export of a run, with a threshold between its scores of the person and the replay."""
    verdicts = [Pipeline(pad).check(frame).faces[0].pad for frame in webcam_frames.values()]
    logits = [verdict.logit for verdict in verdicts if verdict is not None and verdict.logit is not None]
    point = OperatingPoint(value=float(np.mean(logits)), rule="source-eer")
    return copy_export(pad, tmp_path_factory.mktemp("trained") / "pad", threshold=point)


@pytest.fixture(scope="session")
def folder(
    difference_export: Path, recognition: Path, runtime: RuntimeFiles, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the page as a folder."""
    out = tmp_path_factory.mktemp("page") / "page"
    build(out, Exported.open(difference_export), Exported.open(recognition), runtime=runtime)
    return out


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Serve the folder and yield its address."""
    with serve_folder(folder) as where:
        yield where


def as_png(picture: np.ndarray) -> bytes:
    done, content = cv2.imencode(".png", picture[..., ::-1])
    assert done
    return bytes(content.tobytes())


def as_webcam(picture: np.ndarray, path: Path, frames: int = 10) -> Path:
    """Write a file for Chromium's fake camera: one picture as a sequence of JPEGs."""
    with path.open("wb") as file:
        for _ in range(frames):
            Image.fromarray(picture).save(file, "JPEG", quality=95, subsampling=0)
    return path
