"""Photographs the results of a demo: its report, the browser page with its model, and examples of its rendered faces.

``fedvisage demo``, ``fedvisage web fetch`` and ``python -m docs.screenshots runs/demo`` write report.png, page.webp
and demo-faces.webp in docs/pictures. The system's Chromium takes the pictures. A second argument names the folder of
``web fetch --out``.
"""

from __future__ import annotations

import functools
import http.server
import io
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from docs.drawings import FOLDER
from PIL import Image
from playwright.sync_api import sync_playwright

from fedvisage.base.files import CACHE
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.show import contact_sheet
from fedvisage.datasets.sources import resolve
from fedvisage.render.domains import find_domain
from fedvisage.render.filming import render_videos
from fedvisage.render.sets import parse_synthesis, plan_videos

WIDTH, SCALE = 640, 1.4
"""Width of the window, which a phone shows legibly, and pixels per pixel of the page."""
COLOURS, QUALITY, GAP = 64, 80, 16
SCREEN = (480, 640)
"""Rows and columns of the picture that the page checks."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """A web server that prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def delivered(folder: Path) -> Iterator[str]:
    """Deliver a folder, and lend its address."""
    server = http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()


def photograph_report(browser: Any, report: Path) -> None:
    """Show the top of a report."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 700}, device_scale_factor=SCALE)
    page.goto(report.resolve().as_uri())
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / "report.png", optimize=True)


def photograph_page(browser: Any, run: Path, face: bytes, runtime: Sequence[str]) -> None:
    """Show the browser page after it has checked a picture with the model of a run."""
    with tempfile.TemporaryDirectory() as made:
        exported, built = f"{made}/pad", Path(made, "page")
        for words in (["export", str(run), exported], ["web", "build", str(built), "--pad", exported, *runtime]):
            subprocess.run([sys.executable, "-m", "fedvisage", *words], check=True)
        with delivered(built) as address:
            page = browser.new_page(viewport={"width": WIDTH, "height": 700}, device_scale_factor=SCALE)
            page.goto(address)
            page.wait_for_selector("#state[data-kind=ready]", timeout=60_000)
            page.set_input_files("#file", {"name": "face.png", "mimeType": "image/png", "buffer": face})
            page.wait_for_selector("#state:has-text('face.png was checked')", timeout=60_000)
            page.wait_for_timeout(500)  # the bar moves
            page.evaluate("document.getElementById('speed').hidden = true")  # it differs from machine to machine
            picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
            picture.convert("RGB").save(FOLDER / "page.webp", quality=QUALITY, method=6)


def rendered_face() -> bytes:
    """Return a picture of a rendered person, as the demo's unseen camera sees it, in front of a wall."""
    videos = [video for group in plan_videos(parse_synthesis("M subjects=2 videos=1 frames=1")) for video in group]
    living = [video for video in videos if video.species == "bonafide"]
    screen = np.full((*SCREEN, 3), (96, 104, 110), np.uint8)
    screen[60:420, 140:500] = render_videos(living[-1:], find_domain("M"), 360).images[0]
    buffer = io.BytesIO()
    Image.fromarray(screen).save(buffer, "PNG")
    return buffer.getvalue()


def rendered_faces() -> None:
    """Put contact sheets of the demo's four sets beside each other."""
    entries = [f"synth: {name} subjects=16 frames=2 size=96" for name in "OCIM"]
    sheets = [
        contact_sheet(PreparedSet.open(resolve(entry, CACHE)), columns=3, per_species=1).convert("RGB")
        for entry in entries
    ]
    width = max(sheet.width for sheet in sheets) + GAP
    heights = [max(sheet.height for sheet in sheets[row : row + 2]) for row in (0, 2)]
    whole = Image.new("RGB", (2 * width - GAP, sum(heights)), sheets[0].getpixel((0, 0)))
    for number, sheet in enumerate(sheets):
        whole.paste(sheet, (number % 2 * width, number // 2 * heights[0]))
    whole.save(FOLDER / "demo-faces.webp", quality=QUALITY, method=6)


def main(demo: Path, *runtime: str) -> None:
    """Write the three pictures; ``runtime`` is the folder of the page's runtime, if it has one of its own."""
    run = demo / "cells" / "fedpad-M-seed0"
    rendered_faces()
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        photograph_report(browser, run / "report.html")
        photograph_page(browser, run, rendered_face(), [f"--runtime={folder}" for folder in runtime])
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
