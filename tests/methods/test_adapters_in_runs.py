"""Federated fine-tuning by adapters: what crosses the wire, what a finished model holds, and what protects it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.methods.combining import TRANSFORMER, combined
from tests.refusals import refused
from tests.toy import deterministic_files, run_toy, tree

from fedvisage.studies.shipped import locate
from fedvisage.tasks.finished_model import open_model


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of timm's names for images of 32 pixels."""
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = timm.create_model(TRANSFORMER, num_classes=7, img_size=32)
    path = tmp_path_factory.mktemp("published") / "weights.safetensors"
    save_file(net.state_dict(), path)
    return path


def content(sets: Mapping[str, Path], published: Path, **changes: Any) -> dict[str, Any]:
    named = {"method__network__weights": str(published), "input__colour": "rgb"}
    return combined(sets, "fedavg", "adapters", **named, **changes)


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


def test_only_adapters_and_head_cross_the_wire_and_the_frozen_network_is_in_the_model(
    sets: Mapping[str, Path], published: Path, tmp_path: Path
) -> None:
    run_toy(content(sets, published), tmp_path / "run")
    actual, given = load_file(tmp_path / "run" / "model.safetensors"), load_file(published)
    frozen = {name.removeprefix("adapters.frozen."): v for name, v in actual.items() if ".frozen." in name}
    assert frozen.keys() == {name for name in given if not name.startswith("head.")}
    assert all(torch.equal(value, given[name]) for name, value in frozen.items())
    small = sum(value.numel() * 4 for name, value in actual.items() if ".frozen." not in name)
    rows = rows_of(tmp_path / "run")
    assert {row["bytes"] for row in rows if row["field"] == "weights"} == {small}
    down = [row for row in rows if row["direction"] == "down"]
    assert {row["field"] for row in down} == {"adapters", "head"}
    assert max(row["bytes"] for row in down) <= small
    learned = [name for name in actual if name.endswith(".b")]
    assert all(bool(actual[name].any()) for name in learned)


def test_a_finished_model_needs_no_other_file(sets: Mapping[str, Path], published: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy.safetensors"
    copied.write_bytes(published.read_bytes())
    run_toy(content(sets, copied), tmp_path / "run")
    copied.unlink()
    faces = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert open_model(tmp_path / "run").score(faces).shape == (2,)


def test_rank_zero_is_a_linear_probe_of_frozen_features(
    sets: Mapping[str, Path], published: Path, tmp_path: Path
) -> None:
    """One site, full batches, plain SGD: logistic regression on features, step by step."""
    from fedvisage.data.batches import View
    from fedvisage.data.prepared import PreparedSet
    from fedvisage.nn.timm_network import TimmNetwork, load_weights, timm_network
    from fedvisage.recipe import Input

    changes = {"method__network__rank": 0, "training__batch": 64, "training__rounds": 2}
    asked = content(sets, published, **changes)
    asked["training"] |= {"augment": {}, "local": {"epochs": 1}, "optimizer": {"name": "sgd", "lr": 0.1}}
    asked["data"]["sites"] = {"A": asked["data"]["sites"]["A"]}
    run_toy(asked, tmp_path / "run")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    view = View.of(PreparedSet.open(sets["A"]), "train")
    whole = timm_network(TimmNetwork(arch=TRANSFORMER), Input(size=32, colour="rgb"), outputs=0).eval()
    load_weights(whole, published)
    batch = view.batch(np.arange(len(view)))
    with torch.no_grad():
        features = whole(batch.images.float() / 255).double()
    labels = batch.labels.double()
    start = open_initial(asked)
    weight, bias = start["head.weight"][0].double(), start["head.bias"].double()
    for _ in range(2):
        wrong = torch.sigmoid(features @ weight + bias) - labels
        weight = weight - 0.1 * (wrong[:, None] * features).mean(0)
        bias = bias - 0.1 * wrong.mean()
    torch.testing.assert_close(actual["head.weight"][0].double(), weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual["head.bias"].double(), bias.reshape(1), rtol=1e-4, atol=1e-5)
    assert not any("low_rank" in name for name in actual)


def open_initial(asked: dict[str, Any]) -> dict[str, torch.Tensor]:
    from tests.toy import recipe_of

    from fedvisage.base.streams import seed_global_rng
    from fedvisage.methods import find

    recipe = recipe_of(asked)
    with seed_global_rng(recipe.runtime.seed, "initial weights"):
        net = find(recipe.method).network(recipe)
    return {f"head.{name}": value.clone() for name, value in net["head"].state_dict().items()}


@pytest.mark.parametrize(
    "protection",
    [
        {"federation__secure": {"entropy": "derived"}},
        {"federation__dp": {"clip": 1.0, "noise": 0.5, "delta": 0.1, "entropy": "derived"}},
    ],
)
def test_protections_treat_adapters_like_any_upload(
    protection: dict[str, Any], sets: Mapping[str, Path], published: Path, tmp_path: Path
) -> None:
    run_toy(content(sets, published, **protection), tmp_path / "run")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in actual.values())
    assert any(bool(value.any()) for name, value in actual.items() if name.endswith(".b"))


def test_resumed_run_ends_in_the_same_bytes(sets: Mapping[str, Path], published: Path, tmp_path: Path) -> None:
    asked = content(sets, published, runtime__checkpoint_every=1)
    run_toy(asked, tmp_path / "whole")
    run_toy(asked, tmp_path / "again")
    assert deterministic_files(tmp_path / "again") == deterministic_files(tmp_path / "whole")
    held = sum(path.stat().st_size for path in (tmp_path / "whole" / "checkpoints").rglob("*") if path.is_file())
    assert held < published.stat().st_size, "no checkpoint holds the frozen network"


def test_missing_file_is_refused_before_any_output(sets: Mapping[str, Path], tmp_path: Path) -> None:
    with refused("recipe.method.network.weights", "nowhere.safetensors"):
        run_toy(content(sets, tmp_path / "nowhere.safetensors"), tmp_path / "run")


@pytest.mark.parametrize("name", ["fedlora", "fedstackfpad"])
def test_the_shipped_demos_run_shrunk(name: str, sets: Mapping[str, Path], tmp_path: Path) -> None:
    """With the recipe's own method and training, on sets and a network small enough for a test."""
    shown = yaml.safe_load(locate(f"demo/{name}").read_text())
    network = shown["method"]["model"] if "model" in shown["method"] else shown["method"]["network"]
    network["arch"] = TRANSFORMER
    small = tree(sets)
    shown |= {key: small[key] for key in ("data", "runtime")}
    shown["input"]["size"] = 32
    shown["training"] |= {"rounds": 1, "batch": 8}
    shown["evaluation"] = small["evaluation"]
    metrics = run_toy(shown, tmp_path / "run")
    assert metrics["method"] == shown["method"]["name"]
    assert 0 <= metrics["auc"] <= 100


@pytest.mark.slow
def test_an_export_has_the_adapters_in_its_weights(sets: Mapping[str, Path], published: Path, tmp_path: Path) -> None:
    """The graph has as many layers as the plain network's, and says the same as torch does."""
    import onnx

    from fedvisage.runs.export.export import export

    run_toy(content(sets, published, method__network__biases=True), tmp_path / "run")
    export(open_model(tmp_path / "run"), tmp_path / "device", cache=tmp_path / "cache")
    graph = onnx.load(str(tmp_path / "device" / "onnx" / "model.onnx")).graph
    products = [node.op_type for node in graph.node if node.op_type in ("MatMul", "Gemm")]
    plain = open_model(tmp_path / "run").scorer.net["adapters"].frozen  # type: ignore[union-attr]
    linear = [one for one in plain.modules() if isinstance(one, torch.nn.Linear)]
    attention = 2 * len(plain.network.blocks)  # type: ignore[arg-type]
    assert len(products) == len(linear) + attention + 1, "the head, and no product of an adapter"
