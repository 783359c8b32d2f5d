"""Federated fine-tuning by adapters: messages, the finished model, protections, and refused settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.methods.combining import TRANSFORMER, combined
from tests.refusals import refused
from tests.toy import Sets, deterministic_files, recipe_of, run_toy, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.methods import ALGORITHMS
from fedvisage.nn.face_networks import IResNet, iresnet
from fedvisage.studies.shipped import locate
from fedvisage.tasks.finished_model import open_model


def content(sets: Sets, transformer_weights: Path, **changes: Any) -> dict[str, Any]:
    named = {"method__network__weights": str(transformer_weights), "input__colour": "rgb"}
    return combined(sets, "fedavg", "adapters", **named, **changes)


def test_only_adapters_and_head_cross_the_wire_and_the_frozen_network_is_in_the_model(
    sets: Sets, transformer_weights: Path, tmp_path: Path
) -> None:
    run_toy(content(sets, transformer_weights), tmp_path / "run")
    actual, given = load_file(tmp_path / "run" / "model.safetensors"), load_file(transformer_weights)
    frozen = {name.removeprefix("adapters.frozen."): v for name, v in actual.items() if ".frozen." in name}
    assert frozen.keys() == {name for name in given if not name.startswith("head.")}
    assert all(torch.equal(value, given[name]) for name, value in frozen.items())
    small = sum(value.numel() * 4 for name, value in actual.items() if ".frozen." not in name)
    rows = read_lines(tmp_path / "run" / "ledger.jsonl")
    assert {row["bytes"] for row in rows if row["field"] == "weights"} == {small}
    down = [row for row in rows if row["direction"] == "down"]
    assert {row["field"] for row in down} == {"adapters", "head"}
    assert max(row["bytes"] for row in down) <= small
    learned = [name for name in actual if name.endswith(".b")]
    assert all(bool(actual[name].any()) for name in learned)


@pytest.mark.long
def test_a_finished_model_needs_no_other_file(sets: Sets, transformer_weights: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy.safetensors"
    copied.write_bytes(transformer_weights.read_bytes())
    run_toy(content(sets, copied), tmp_path / "run")
    copied.unlink()
    faces = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert open_model(tmp_path / "run").score(faces).shape == (2,)


def test_rank_zero_is_a_linear_probe_of_frozen_features(sets: Sets, transformer_weights: Path, tmp_path: Path) -> None:
    """One site, full batches, plain SGD: logistic regression on features, step by step."""
    from fedvisage.data.batches import View
    from fedvisage.data.prepared import PreparedSet
    from fedvisage.nn.timm_network import TimmNetwork, load_weights, timm_network
    from fedvisage.recipe import Input

    changes = {"method__network__rank": 0, "training__batch": 64, "training__rounds": 2}
    asked = content(sets, transformer_weights, **changes)
    asked["training"] |= {"augment": {}, "local": {"epochs": 1}, "optimizer": {"name": "sgd", "lr": 0.1}}
    asked["data"]["sites"] = {"A": asked["data"]["sites"]["A"]}
    run_toy(asked, tmp_path / "run")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    view = View.of(PreparedSet.open(sets["A"]), "train")
    whole = timm_network(TimmNetwork(arch=TRANSFORMER), Input(size=32, colour="rgb"), outputs=0).eval()
    load_weights(whole, transformer_weights)
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
    from fedvisage.base.streams import seed_global_rng
    from fedvisage.methods import find

    recipe = recipe_of(asked)
    with seed_global_rng(recipe.runtime.seed, "initial weights"):
        net = find(recipe.method).network(recipe)
    return {f"head.{name}": value.clone() for name, value in net["head"].state_dict().items()}


@pytest.mark.long
@pytest.mark.parametrize(
    "protection",
    [
        {"federation__secure": {"entropy": "derived"}},
        {"federation__dp": {"clip": 1.0, "noise": 0.5, "delta": 0.1, "entropy": "derived"}},
    ],
)
def test_protections_treat_adapters_like_any_upload(
    protection: dict[str, Any], sets: Sets, transformer_weights: Path, tmp_path: Path
) -> None:
    run_toy(content(sets, transformer_weights, **protection), tmp_path / "run")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in actual.values())
    assert any(bool(value.any()) for name, value in actual.items() if name.endswith(".b"))


@pytest.mark.long
def test_resumed_run_ends_in_the_same_bytes(sets: Sets, transformer_weights: Path, tmp_path: Path) -> None:
    asked = content(sets, transformer_weights, runtime__checkpoint_every=1)
    run_toy(asked, tmp_path / "whole")
    run_toy(asked, tmp_path / "again")
    assert deterministic_files(tmp_path / "again") == deterministic_files(tmp_path / "whole")
    held = sum(path.stat().st_size for path in (tmp_path / "whole" / "checkpoints").rglob("*") if path.is_file())
    assert held < transformer_weights.stat().st_size, "no checkpoint holds the frozen network"


def test_missing_file_is_refused_before_any_output(sets: Sets, tmp_path: Path) -> None:
    with refused("recipe.method.network.weights", "nowhere.safetensors"):
        run_toy(content(sets, tmp_path / "nowhere.safetensors"), tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedlora", "fedstackfpad", "fedlora-faces"])
def test_the_shipped_demos_run_shrunk(name: str, sets: Sets, tmp_path: Path) -> None:
    """With the recipe's own method and training, on sets and a network small enough for a test."""
    shown = yaml.safe_load(locate(f"demo/{name}").read_text())
    small = tree(sets, "fedavg" if name == "fedlora-faces" else "fedpad")
    shown |= {key: small[key] for key in ("data", "runtime", "evaluation")}
    shown["data"] = {key: value for key, value in shown["data"].items() if not key.startswith("public")}
    if name != "fedlora-faces":
        (shown["method"]["model"] if "model" in shown["method"] else shown["method"]["network"])["arch"] = TRANSFORMER
    shown["input"]["size"] = 32
    shown["training"] |= {"rounds": 1, "batch": 8}
    metrics = run_toy(shown, tmp_path / "run")
    assert metrics["method"] == shown["method"]["name"]
    assert metrics["task"] == ("recognition" if name == "fedlora-faces" else "pad")


@pytest.mark.slow
def test_an_export_has_the_adapters_in_its_weights(sets: Sets, transformer_weights: Path, tmp_path: Path) -> None:
    """The graph has as many layers as the plain network's, and says the same as torch does."""
    import onnx

    from fedvisage.runs.export.export import export

    run_toy(content(sets, transformer_weights, method__network__biases=True), tmp_path / "run")
    export(open_model(tmp_path / "run"), tmp_path / "device", cache=tmp_path / "cache")
    graph = onnx.load(str(tmp_path / "device" / "onnx" / "model.onnx")).graph
    products = [node.op_type for node in graph.node if node.op_type in ("MatMul", "Gemm")]
    plain = open_model(tmp_path / "run").scorer.net.get_submodule("adapters.frozen")
    linear = [one for one in plain.modules() if isinstance(one, torch.nn.Linear)]
    attention = 2 * len(list(plain.get_submodule("network.blocks").children()))
    assert len(products) == len(linear) + attention + 1, "the head, and no product of an adapter"


# Adapters for recognition.


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone for recognition, as `fedvisage model convert` names it."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = iresnet(IResNet(depth=18, width=8, embedding=16), 32)
    path = tmp_path_factory.mktemp("backbone") / "weights.safetensors"
    save_file({f"model.{name}": value for name, value in net.state_dict().items()}, path)
    return path


def face_content(sets: Sets, backbone: Path, algorithm: str = "fedavg", **changes: Any) -> dict[str, Any]:
    adapters = {"method__network__adapters": {"rank": 2}, "method__network__weights": str(backbone)}
    return combined(sets, algorithm, "iresnet18", **adapters, **changes)


@pytest.mark.long
def test_only_adapters_of_a_face_network_cross_the_wire_and_the_model_needs_no_other_file(
    sets: Sets, backbone: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.safetensors"
    own.write_bytes(backbone.read_bytes())
    run_toy(face_content(sets, own), tmp_path / "run")
    own.unlink()
    actual, given = load_file(tmp_path / "run" / "model.safetensors"), load_file(backbone)
    frozen = {name.replace("model.frozen.", "model."): v for name, v in actual.items() if ".frozen." in name}
    assert frozen.keys() == given.keys()
    assert all(torch.equal(value, given[name]) for name, value in frozen.items())
    learned = {name: value for name, value in actual.items() if ".frozen." not in name}
    assert all(".low_rank." in name for name in learned)
    assert all(bool(value.any()) for name, value in learned.items() if name.endswith(".b"))
    rows = read_lines(tmp_path / "run" / "ledger.jsonl")
    sent = {row["bytes"] for row in rows if row["field"] == "weights"}
    assert sent == {sum(4 * value.numel() for value in learned.values())}
    faces = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert open_model(tmp_path / "run").embed(faces).shape == (2, 16)


@pytest.mark.long
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=() if name in ("fedprox", "moon") else pytest.mark.slow)
        for name in ALGORITHMS
        if name not in ("fedavg", "fedbn")
    ],
)
def test_other_algorithms_train_adapters_too(algorithm: str, sets: Sets, backbone: Path, tmp_path: Path) -> None:
    metrics = run_toy(face_content(sets, backbone, algorithm), tmp_path / "run")
    assert (metrics["method"], metrics["task"]) == (algorithm, "recognition")
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "run" / "model.safetensors").values())


@pytest.mark.long
def test_adapters_of_a_finished_run_repeat_their_bytes(sets: Sets, backbone: Path, tmp_path: Path) -> None:
    """A plain run's model is a start like any other."""
    plain = combined(sets, "fedavg", "iresnet18", training__rounds=1)
    run_toy(plain, tmp_path / "plain")
    for name in ("one", "two"):
        run_toy(face_content(sets, tmp_path / "plain" / "model.safetensors", training__rounds=1), tmp_path / name)
    assert deterministic_files(tmp_path / "one") == deterministic_files(tmp_path / "two")


@pytest.mark.parametrize(
    ("method", "changes", "place"),
    [
        ("fedfr", {}, "recipe.method.network.adapters"),
        ("fedavg", {"pretrain": {"epochs": 1}}, "recipe.training.pretrain"),
        ("fedavg", {"weights": "nowhere.safetensors"}, "recipe.method.network.weights"),
    ],
)
def test_impossible_settings_of_face_adapters_are_refused_by_place(
    method: str, changes: dict[str, Any], place: str, sets: Sets, tmp_path: Path
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
