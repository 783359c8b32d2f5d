"""Commands report damaged files of a run in one line, and print valid JSON."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.commands import output_of, refusal_of
from tests.refusals import refused
from tests.toy import remove_seal

import fedvisage as fv

DEEP = "[" * 100_000


@pytest.fixture
def run(pad_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run without a seal, so that each file is read, and a picture beside it."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "picture.png")
    return remove_seal(shutil.copytree(pad_run, tmp_path / "run"))


@pytest.mark.parametrize(
    ("verb", "name", "content"),
    [
        *((verb, "model.json", content) for verb in ("predict", "evaluate", "audit") for content in ("{", DEEP)),
        *((verb, "model.safetensors", "short") for verb in ("predict", "evaluate", "audit")),
        *((verb, "metrics.json", content) for verb in ("report", "compare", "audit") for content in ("{", "[]", DEEP)),
        *((verb, "recipe.yaml", DEEP[:5000]) for verb in ("report", "compare", "audit")),
        *(("report", name, "{}\n{}\n") for name in ("rounds.jsonl", "ledger.jsonl")),
        ("report", "scores.csv", "item,label\n"),
        ("report", "environment.json", "7"),
    ],
)
def test_damaged_file_is_named_in_one_line(verb: str, name: str, content: str, run: Path) -> None:
    (run / name).write_text(content)
    words = {"predict": (run.parent / "picture.png", "--crop", "none", "--json"), "evaluate": ("--json",)}
    assert str(run) in refusal_of(verb, run, *words.get(verb, ())).place


@pytest.mark.parametrize("name", ["metrics.json", "rounds.jsonl", "ledger.jsonl", "scores.csv"])
def test_python_api_names_the_damaged_file(name: str, run: Path) -> None:
    (run / name).write_text('a,b\n{"half')
    with refused(run / name):
        getattr(fv.Run(run), name.partition(".")[0])


def test_python_api_names_the_invalid_figure(run: Path) -> None:
    (run / "metrics.json").write_text("{}")
    with refused("run", "restore"):
        str(fv.Run(run))
    with refused("run", "metrics.json"):
        fv.compare([run])


def test_json_output_has_no_nan(run: Path) -> None:
    output = output_of("predict", run, run.parent / "picture.png", "--crop", "none", "--json")
    json.loads(output, parse_constant=pytest.fail)
    for path in (*run.glob("*.json"), *run.glob("*.jsonl")):
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(line, parse_constant=pytest.fail)
