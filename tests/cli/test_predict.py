"""Prediction on the command line and in docs/predict.md: sources of pictures, batches, output and exit codes."""

import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif as heif
import pytest
import torch
from PIL import Image
from tests import commands
from tests.commands import output_of, refusal_of
from tests.device.photographs import draw_face, draw_photographs
from tests.documented import ROOT
from tests.refusals import refused
from tests.toy import SIZE, run_toy, tree
from typer.testing import Result

from fedvisage.data.crops import RENDERED_ONLY
from fedvisage.device.predict import SEVERAL, Prediction, Predictions, list_input_pictures, probability
from fedvisage.faces.pictures import ENDINGS
from fedvisage.metrics.threshold import Threshold
from fedvisage.runs.predict import predict
from fedvisage.tasks.finished_model import open_model


@pytest.fixture(scope="module")
def run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("predicting") / "run"
    run_toy(tree(sets, training__rounds=1, evaluation__batch=4), out)
    return out


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten crops of the network's size, of noise from dark to light."""
    place, rng = tmp_path_factory.mktemp("crops"), np.random.default_rng(0)
    for number in range(10):
        image = rng.integers(10 * number, 10 * number + 100, (SIZE, SIZE, 3), dtype=np.uint8)
        Image.fromarray(image).save(place / f"{number}.png")
    return place


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one face, two faces, a face upside down, a grey face, and a wall."""
    place, pictures = tmp_path_factory.mktemp("photographs"), draw_photographs(draw_face())
    for name in ("one", "two", "turned", "grey", "wall"):
        Image.fromarray(pictures[name]).save(place / f"{name}.png")
    return place


def call(run: Path, *words: object, stdin: bytes = b"") -> Result:
    return commands.call("predict", run, *words, stdin=stdin)


def values(result: Result) -> list[dict[str, Any]]:
    assert result.exception is None, result.exception
    rows: list[dict[str, Any]] = json.loads(result.stdout)["images"]
    return rows


def test_batch_size_does_not_change_scores(run: Path, crops: Path) -> None:
    model = open_model(run)
    together = predict(model, list_input_pictures([crops]), crop="none").images
    for image in together:
        (alone,) = predict(model, list_input_pictures([Path(image.path)]), crop="none").images
        assert image.probability == pytest.approx(alone.probability, abs=1e-6)
    assert len({round(image.probability or 0, 4) for image in together}) > 5


def test_command_line_and_python_give_the_same_score(run: Path, crops: Path) -> None:
    paths = sorted(crops.iterdir())
    images = np.stack([np.asarray(Image.open(path)) for path in paths])
    logits = open_model(run).score(torch.from_numpy(images).permute(0, 3, 1, 2))
    rows = values(call(run, crops, "--crop", "none", "--json"))
    assert [row["path"] for row in rows] == list(map(str, paths))
    np.testing.assert_allclose([row["logit"] for row in rows], logits, atol=1e-4)


@pytest.mark.long
def test_method_with_random_draws_scores_each_picture_independently(
    sets: Mapping[str, Path], crops: Path, tmp_path: Path
) -> None:
    run_toy(tree(sets, "vit-h-is", training__rounds=1, evaluation__batch=4), tmp_path / "run")
    model = open_model(tmp_path / "run")
    together = predict(model, list_input_pictures([crops]), crop="none").images
    alone = predict(model, list_input_pictures([crops / "7.png"]), crop="none").images[0]
    assert together[7] == alone


def test_pictures_come_from_arguments_a_pipe_and_a_list(run: Path, crops: Path) -> None:
    content = (crops / "3.png").read_bytes()
    plain = values(call(run, crops / "3.png", crops / "5.png", "--crop", "none", "--json"))
    piped = values(call(run, "-", "--crop", "none", "--json", stdin=content))
    listed = f"{crops / '3.png'}\n{crops / '5.png'}\n".encode()
    named = values(call(run, "--paths-from", "-", "--crop", "none", "--json", stdin=listed))
    assert named == plain
    scores = {name: piped[0][name] for name in ("probability", "logit")}
    assert piped[0] == plain[0] | {"path": "-", **scores}
    assert piped[0]["logit"] == pytest.approx(plain[0]["logit"], abs=1e-5)
    assert "twice" in refusal_of("predict", run, "-", "--paths-from", "-").message


def test_paths_that_the_system_refuses_are_unreadable_pictures_of_a_list(run: Path, crops: Path) -> None:
    listed = f"{crops / '3.png'}\n{'n' * 300}.png\n{'n' * 300}.avi\n{crops}/3.png/4.png\n".encode()
    read, *others = values(call(run, "--paths-from", "-", "--crop", "none", "--json", stdin=listed))
    assert read["decision"] in ("live", "attack")
    assert [row["reason"].partition(":")[0] for row in others] == ["cannot be read"] * 3


def test_phone_photograph_is_scored(run: Path) -> None:
    content = io.BytesIO()
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    heif.from_pillow(image).save(content)
    (row,) = values(call(run, "-", "--crop", "none", "--json", stdin=content.getvalue()))
    assert row["decision"] in ("live", "attack")


def test_faces_are_counted_boxed_and_turned_upright(run: Path, photographs: Path) -> None:
    result = call(run, photographs, "--json")
    rows = {Path(row["path"]).stem: row for row in values(result)}
    assert {name: row["faces"] for name, row in rows.items()} == {"one": 1, "two": 2, "turned": 1, "grey": 1, "wall": 0}
    notes = {"one": [], "two": ["several faces"], "turned": ["upside down"], "grey": ["grey"], "wall": []}
    assert {name: row["notes"] for name, row in rows.items()} == notes
    assert rows["wall"]["decision"] == "rejected"
    assert rows["turned"]["logit"] == pytest.approx(rows["one"]["logit"], abs=1e-4)
    large, small = rows["two"]["boxes"]
    np.testing.assert_allclose(large, rows["one"]["boxes"][0], atol=3)
    assert small[0] > 300
    x, y, w, h = rows["one"]["boxes"][0]
    np.testing.assert_allclose(rows["turned"]["boxes"][0], [480 - x - w, 240 - y - h, w, h], atol=3)


def test_every_picture_has_one_line_for_any_file_name(run: Path, crops: Path, tmp_path: Path) -> None:
    content = (crops / "0.png").read_bytes()
    for name in ("a\nlive     score 0.99.png", ":smile: [red]b.png"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "clip.mov").write_text("no picture")
    result = call(run, tmp_path, "--crop", "none")
    assert len(result.stdout.splitlines()) == 3
    assert ":smile: [red]b.png" in result.stdout
    assert ".mov 1" in result.stderr


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "json"])
def test_exit_code_reports_attacks_only_on_request(run: Path, crops: Path, photographs: Path, form: str) -> None:
    words = ["--json"] if form == "json" else []
    decisions = {
        path: values(call(run, path, "--crop", "none", "--json"))[0]["decision"]
        for path in sorted(crops.iterdir())[::4]
    }
    code = {"live": 0, "attack": 1}
    for path, decision in decisions.items():
        assert call(run, path, "--crop", "none", "--exit-code", *words).exit_code == code[decision]
    assert call(run, photographs / "wall.png", "--exit-code", *words).exit_code == 3
    assert call(run, photographs / "wall.png", *words).exit_code == 0


def test_comparison_of_a_picture_without_a_face_is_rejected(recognition: Path, photographs: Path) -> None:
    words = (photographs / "wall.png", "--against", photographs / "one.png", "--exit-code")
    answer = call(recognition, *words, "--json")
    assert answer.exit_code == 3
    values = json.loads(answer.stdout)
    assert values["of_face"]["reason"] == "no face found"
    (match,) = values["matches"]
    assert (match["decision"], match["similarity"]) == ("rejected", None)
    assert match["reason"].endswith("wall.png: no face found")
    printed = call(recognition, *words)
    assert printed.exit_code == 3
    assert re.fullmatch(r"rejected +\S+wall.png  no face found", printed.stdout.splitlines()[1])


@pytest.mark.parametrize(("model", "kind"), [("one.png", "picture"), ("", "folder")])
def test_pictures_in_place_of_the_model_are_named(photographs: Path, model: str, kind: str) -> None:
    with refused(photographs / model, kind, "--pad minifasnet"):
        output_of("predict", photographs / model)
    with refused(photographs / model, kind):
        output_of("predict", photographs / model, photographs / "two.png")


def test_published_model_in_place_of_the_model_is_named(photographs: Path) -> None:
    with refused("minifasnet", "--pad minifasnet"):
        output_of("predict", "minifasnet", photographs / "one.png")


def test_misspelt_crop_suggests_the_nearest(run: Path, crops: Path) -> None:
    with refused("--crop", "did you mean centre"):
        output_of("predict", run, crops, "--crop", "center")


def test_list_from_a_named_pipe_is_refused_with_the_remedy(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list")
    with refused("list", "regular file", "--paths-from -"):
        output_of("predict", run, "--paths-from", tmp_path / "list")


def test_quiet_json_writes_only_the_result(run: Path, crops: Path) -> None:
    result = call(run, crops, "--crop", "none", "--json", "--quiet")
    assert result.stderr == ""
    assert len(values(result)) == 10
    assert refusal_of("predict", run, crops, "--log-format", "xml").place == "--log-format"


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


@pytest.mark.long
def test_documented_commands_score_their_pictures(
    run: Path, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "runs" / "first")
    (tmp_path / "photos").mkdir()
    for name in ("one", "two", "wall"):
        shutil.copy(photographs / f"{name}.png", tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    (shown,) = blocks("console")
    outputs = {}
    for command in shown.splitlines():
        (program, *words), stdin = parse_pipeline(command)
        assert program == "fedvisage"
        result = commands.call(*words, stdin=stdin)
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
