"""The code of two pages runs, and exports and runs predict equally."""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.commands import output_of, refusal_of
from tests.documented import ROOT

PAGES = [ROOT / "docs" / f"{name}.md" for name in ("device", "system-evaluation")]
PAGE = "".join(page.read_text(encoding="utf-8") for page in PAGES)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def place(
    sets: Mapping[str, Path],
    pad_run: Path,
    recognition: Path,
    photographs: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    shutil.copytree(pad_run, tmp_path / "runs" / "first")
    shutil.copytree(sets["A"], tmp_path / "sets" / "C")
    shutil.copytree(recognition, tmp_path / "exported" / "people")
    (tmp_path / "photos").mkdir()
    for name in ("one", "two", "turned", "wall"):
        Image.fromarray(photographs[name]).save(tmp_path / "photos" / f"{name}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_documented_commands_and_python_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [shlex.split(line)[1:] for block in blocks("console") for line in block.splitlines()]
    exported, predicted, watched, small, copied, evaluated = (output_of(*words) for words in lines)
    assert "60 presentations" in evaluated
    assert "pretended/replay-attack" in copied
    assert "APCER" in (place / "evaluated" / "iso30107.html").read_text()
    assert len(small.splitlines()) == 4
    float32, int8 = (output_of("predict", "exported/small", "photos", *words) for words in ((), ("--int8",)))
    assert [line[-9:] for line in float32.splitlines()[1:]] == [line[-9:] for line in int8.splitlines()[1:]]
    assert "MB" in exported
    assert len(predicted.splitlines()) == 5
    assert [json.loads(line)["frame"] for line in watched.splitlines()] == [0, 1, 2, 3]
    for code in blocks("python"):
        exec(compile(code, "docs/device.md", "exec"), {})
    assert capsys.readouterr().out.split()[0] in ("bona_fide", "attack")


@pytest.mark.long
def test_export_and_run_predict_equally(place: Path, pad: Path) -> None:
    run, export = (json.loads(output_of("predict", model, "photos", "--json")) for model in ("runs/first", pad))
    assert run["threshold"] == export["threshold"]
    for image, same in zip(run["images"], export["images"], strict=True):
        assert image.pop("probability") == pytest.approx(same.pop("probability"), abs=1e-4)
        assert image.pop("logit") == pytest.approx(same.pop("logit"), abs=1e-3)
        assert image == same


@pytest.mark.long
def test_export_and_run_compare_equally(place: Path, recognition_run: Path, recognition: Path) -> None:
    words = ("photos/one.png", "--against", "photos", "--json")
    run, export = (json.loads(output_of("predict", path, *words)) for path in (recognition_run, recognition))
    expected = {match.pop("path"): match for match in run["matches"]}
    assert sorted(match["path"] for match in export["matches"]) == sorted(expected)
    for match in export["matches"]:  # near ties may be in another order
        same = expected[match.pop("path")]
        assert match.pop("similarity") == pytest.approx(same.pop("similarity"), abs=1e-4)
        assert match == same


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("watch", "photos"), "--pad"),
        (("watch", "nowhere", "--pad", "PAD"), "nowhere"),
        (("watch", "runs", "--pad", "PAD"), "no images"),
        (("watch", "runs/first/model.json", "--pad", "PAD"), "model.json"),
        (("predict", "PAD", "photos", "--member", "A"), "--member"),
        (("predict", "PAD", "photos", "--int8"), "--int8"),
        (("predict", "runs/first", "photos", "--int8"), "--int8"),
        (("predict", "runs/first", "photos", "--provider", "CUDA"), "--provider"),
        (("predict", "PAD", "photos", "--provider", "nothing"), "--provider"),
        (("predict", "PAD", "photos/one.png", "--against", "photos"), "--against"),
        (("export", "runs/first", "photos"), "photos"),
        (("export", "runs/first", "out", "--data", "nowhere"), "nowhere"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(place: Path, pad: Path, words: tuple[str, ...], word: str) -> None:
    assert word in str(refusal_of(*(pad if argument == "PAD" else argument for argument in words)))
