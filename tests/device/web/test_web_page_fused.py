"""A fused model in the page: the score and the decision of Python, with one crop per margin."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.device.fusion import with_margin
from tests.device.web.conftest import as_png, serve_folder
from tests.device.web.test_web_page_results import ASK, compare

from fedvisage.device import Pipeline, open_export
from fedvisage.device.web.site import RuntimeFiles, build
from fedvisage.runs.export.fuse import fuse

pytestmark = pytest.mark.browser


def test_page_and_python_give_equal_scores_of_a_fused_model(
    trained_export: Path, webcam_frames: dict[str, np.ndarray], runtime: RuntimeFiles, browser: Any, tmp_path: Path
) -> None:
    wide = with_margin(trained_export, tmp_path / "wide", 2.0)
    fuse([trained_export, wide, wide], tmp_path / "fused", scales=[1.0, 2.0, 0.5], cache=tmp_path)
    build(tmp_path / "page", open_export(tmp_path / "fused"), None, runtime=runtime)
    pipeline = Pipeline(tmp_path / "fused")
    tight = np.ascontiguousarray(webcam_frames["bonafide"][120:420, 170:470])
    with serve_folder(tmp_path / "page") as address, browser.new_context(bypass_csp=True) as context:
        page = context.new_page()
        page.goto(address)
        for picture in (webcam_frames["bonafide"], webcam_frames["replay"], tight):
            shown = page.evaluate(ASK, base64.b64encode(as_png(picture)).decode())
            expected = pipeline.check(picture)
            assert shown["decision"] == expected.decision
            assert tuple(shown["reasons"]) == expected.reasons
            for shown_face, face in zip(shown["faces"], expected.faces, strict=True):
                compare(shown_face, face)
