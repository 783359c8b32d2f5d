"""Adapters for recognition in runs: what crosses the wire, what a finished model holds, and who cannot have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.methods.combining import combined
from tests.refusals import refused
from tests.toy import deterministic_files, run_toy, tree

from fedvisage.methods import ALGORITHMS
from fedvisage.nn.face_networks import IResNet, iresnet
from fedvisage.studies.shipped import locate
from fedvisage.tasks.finished_model import open_model


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone as `fedvisage model convert` names it."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = iresnet(IResNet(depth=18, width=8, embedding=16), 32)
    path = tmp_path_factory.mktemp("start") / "weights.safetensors"
    save_file({f"model.{name}": value for name, value in net.state_dict().items()}, path)
    return path


def content(sets: Mapping[str, Path], start: Path, algorithm: str = "fedavg", **changes: Any) -> dict[str, Any]:
    adapters = {"method__network__adapters": {"rank": 2}, "method__network__weights": str(start)}
    return combined(sets, algorithm, "iresnet18", **adapters, **changes)


def test_only_adapters_cross_the_wire_and_the_model_needs_no_other_file(
    sets: Mapping[str, Path], start: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.safetensors"
    own.write_bytes(start.read_bytes())
    run_toy(content(sets, own), tmp_path / "run")
    own.unlink()
    actual, given = load_file(tmp_path / "run" / "model.safetensors"), load_file(start)
    frozen = {name.replace("model.frozen.", "model."): v for name, v in actual.items() if ".frozen." in name}
    assert frozen.keys() == given.keys()
    assert all(torch.equal(value, given[name]) for name, value in frozen.items())
    learned = {name: value for name, value in actual.items() if ".frozen." not in name}
    assert all(".low_rank." in name for name in learned)
    assert all(bool(value.any()) for name, value in learned.items() if name.endswith(".b"))
    rows = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    sent = {row["bytes"] for row in rows if row["field"] == "weights"}
    assert sent == {sum(4 * value.numel() for value in learned.values())}
    faces = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert open_model(tmp_path / "run").embed(faces).shape == (2, 16)


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=() if name in ("fedprox", "moon") else pytest.mark.slow)
        for name in ALGORITHMS
        if name not in ("fedavg", "fedbn")
    ],
)
def test_other_algorithms_train_adapters_too(
    algorithm: str, sets: Mapping[str, Path], start: Path, tmp_path: Path
) -> None:
    metrics = run_toy(content(sets, start, algorithm), tmp_path / "run")
    assert (metrics["method"], metrics["task"]) == (algorithm, "recognition")
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "run" / "model.safetensors").values())


def test_run_repeats_bytes_also_from_a_finished_run(sets: Mapping[str, Path], start: Path, tmp_path: Path) -> None:
    """A plain run's model is a start like any other."""
    plain = combined(sets, "fedavg", "iresnet18", training__rounds=1)
    run_toy(plain, tmp_path / "plain")
    for name in ("one", "two"):
        run_toy(content(sets, tmp_path / "plain" / "model.safetensors", training__rounds=1), tmp_path / name)
    assert deterministic_files(tmp_path / "one") == deterministic_files(tmp_path / "two")


@pytest.mark.parametrize(
    ("method", "changes", "place"),
    [
        ("fedfr", {}, "recipe.method.network.adapters"),
        ("fedavg", {"pretrain": {"epochs": 1}}, "recipe.training.pretrain"),
        ("fedavg", {"weights": "nowhere.safetensors"}, "recipe.method.network.weights"),
    ],
)
def test_impossible_settings_are_refused_by_place(
    method: str, changes: dict[str, Any], place: str, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    asked = tree(sets, method)
    network = {"name": "iresnet18", "width": 8, "embedding": 16, "adapters": {"rank": 2}}
    asked["method"] = {"name": method, "network": network}
    asked["training"].pop("pretrain", None)
    if "weights" in changes:
        network["weights"] = changes["weights"]
    asked["training"] |= {key: value for key, value in changes.items() if key == "pretrain"}
    with refused(place):
        run_toy(asked, tmp_path / "run")


def test_the_shipped_demo_runs_shrunk(sets: Mapping[str, Path], tmp_path: Path) -> None:
    shown = yaml.safe_load(locate("demo/fedlora-faces").read_text())
    small = tree(sets, "fedavg")
    shown |= {key: small[key] for key in ("data", "runtime", "evaluation")}
    for key in ("public", "public_identities"):
        shown["data"].pop(key, None)
    shown["input"]["size"] = 32
    shown["training"] |= {"rounds": 1, "batch": 8}
    assert run_toy(shown, tmp_path / "run")["task"] == "recognition"
