"""The commands of docs/predict.md run with a small model and print the documented lines."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from tests.documented import ROOT
from tests.toy import run_toy, tree
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.data.crops import RENDERED_ONLY
from fedvisage.device.predict import SEVERAL, Prediction, Predictions, probability
from fedvisage.faces.pictures import ENDINGS
from fedvisage.metrics.threshold import Threshold
from fedvisage.render.identities import Identities, photograph_person, photographs_of

PAGE = (ROOT / "docs" / "predict.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    return [text for language, text in fenced if language == kind]


def parse_pipeline(command: str) -> tuple[list[str], bytes]:
    """Return the words for fedvisage, and what the shell would give it on standard input."""
    words, _, path = command.partition(" < ")
    before, _, after = words.rpartition(" | ")
    stdin = subprocess.run(shlex.split(before), check=True, capture_output=True).stdout if before else b""
    return shlex.split(after), Path(path).read_bytes() if path else stdin


def test_documented_commands_score_their_pictures(
    sets: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_toy(tree(sets, training__rounds=1), tmp_path / "runs" / "first")
    faces = photograph_person(photographs_of(Identities(images=2, size=112), 0), 112)[0]
    (tmp_path / "photos").mkdir()
    for name, face in zip(("one", "two"), faces, strict=True):
        Image.fromarray(cv2.resize(face, (224, 224))).save(tmp_path / "photos" / f"{name}.png")
    Image.fromarray(np.full((200, 200, 3), 90, np.uint8)).save(tmp_path / "photos" / "wall.png")
    monkeypatch.chdir(tmp_path)
    (shown,) = blocks("console")
    outputs = {}
    for command in shown.splitlines():
        (program, *words), stdin = parse_pipeline(command)
        assert program == "fedvisage"
        result = CliRunner().invoke(app, words, input=stdin)
        expected = (0, 1) if "--exit-code" in words else (0,)
        assert result.exit_code in expected, result.output
        outputs[command] = result.stdout
    folder, _, pipe, listed, _, burst = outputs.values()
    assert len(folder.splitlines()) == 4
    assert sorted(folder.splitlines()[1:]) == sorted(listed.splitlines()[1:])
    assert pipe.splitlines()[1].endswith("  -")
    assert "mean of 2 frames" in burst.splitlines()[1]


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def test_documented_output_equals_printed_output() -> None:
    threshold = Threshold(rule="source-eer", value=logit(0.5204), far=0.125, frr=0.1238)
    rows = [("photos/one.png", 0.8613, "live", 1), ("photos/two.png", 0.2187, "attack", 2)]
    images = []
    for name, score, decision, faces in rows:
        notes = (SEVERAL, RENDERED_ONLY)[2 - faces :]
        images.append(Prediction(name, probability(logit(score)), logit(score), decision, notes=notes, faces=faces))
    images.append(Prediction("photos/wall.png", reason="no face found"))
    assert Predictions(threshold, images).lines() == blocks("")[0].splitlines()


def test_page_names_every_readable_format() -> None:
    text = PAGE.lower()
    for ending in ENDINGS:
        assert {"jpg": "jpeg", "tif": "tiff", "heif": "heic"}.get(ending[1:], ending[1:]) in text
