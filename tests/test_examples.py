"""The scripts in examples/ run unchanged at a smaller size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tests.starts.test_published_models import pictures, write_published

EXAMPLES = Path(__file__).parents[1] / "examples"
LONGEST = 60


def run_example(name: str, *words: object, cwd: Path) -> str:
    """Run a script of the examples and return its output."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PATH": path, "FEDVISAGE_CACHE": str(cwd / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_is_short_and_listed(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST
    assert f"({path.name})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.long
def test_train_and_compare_prints_a_table_of_both_methods(tmp_path: Path) -> None:
    output = run_example("train_and_compare.py", "runs", "--subjects", 4, "--rounds", 1, "--size", 32, cwd=tmp_path)
    assert "| FedPAD |" in output or "fedpad" in output
    metrics = [json.loads((tmp_path / "runs" / name / "metrics.json").read_text()) for name in ("fedpad", "single")]
    assert [values["method"] for values in metrics] == ["fedpad", "single"]


@pytest.mark.long
def test_own_method_trains_with_its_loss(tmp_path: Path) -> None:
    small = [f"data.sites.{name}=synth: {name} subjects=4 frames=1 size=32" for name in "OCI"]
    small += ["data.target=synth: M subjects=4 frames=1 size=32", "input.size=32", "training.rounds=1"]
    output = run_example("own_method.py", "runs", *small, "evaluation.features=0", cwd=tmp_path)
    assert "smoothed" in output


@pytest.mark.long
def test_own_dataset_trains_on_arrays(tmp_path: Path) -> None:
    output = run_example("own_dataset.py", "runs", "--rounds", 1, cwd=tmp_path)
    metrics = json.loads((tmp_path / "runs" / "run" / "metrics.json").read_text())
    assert f"AUC {100 * metrics['auc']:.1f} %" in output
    assert sorted(metrics["sites"]) == ["bank", "border", "phone"]


def test_published_detector_decides_or_gives_a_reason_per_photograph(tmp_path: Path) -> None:
    write_published("v2", tmp_path / "weights.safetensors")
    Image.fromarray(pictures()[1][0]).save(tmp_path / "noise.png")
    (tmp_path / "broken.jpg").write_bytes(b"")
    lines = run_example(
        "published_detector.py", "weights.safetensors", "noise.png", "broken.jpg", cwd=tmp_path
    ).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["noise.png", "broken.jpg"]
    assert all("no decision" in line for line in lines)


@pytest.mark.slow
@pytest.mark.distributed
def test_federation_of_processes_finishes_its_run(tmp_path: Path) -> None:
    run_example("federation.py", "federation", cwd=tmp_path)
    metrics = json.loads((tmp_path / "federation" / "run" / "metrics.json").read_text())
    assert metrics["sites"] == ["bank", "border"]
