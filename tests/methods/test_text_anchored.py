"""The text-anchored model in runs: what is sent, the finished model, training by hand, and refused settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.methods.combining import TRANSFORMER, combined
from tests.refusals import refused
from tests.toy import SIZE, Sets, recipe_of, run_toy, tree

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.record.ledger import read_lines
from fedvisage.methods import find
from fedvisage.methods.models.model import load_constant
from fedvisage.methods.models.text_anchored import MODEL
from fedvisage.starts.convert import convert
from fedvisage.studies.shipped import locate
from fedvisage.tasks.finished_model import open_model

EMBEDDING = 16
NETWORK = "method__network__"


@pytest.fixture(scope="module")
def anchored_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as `fedvisage model convert --texts` writes it, of a small tower with a projection."""
    import timm

    folder = tmp_path_factory.mktemp("anchored")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = timm.create_model(TRANSFORMER, num_classes=EMBEDDING, img_size=SIZE)
        prompts = {name: torch.randn(3, EMBEDDING) for name in ("attack", "live")}
    save_file(net.state_dict(), folder / "tower.safetensors")
    save_file(prompts, folder / "prompts.safetensors")
    path = folder / "start.safetensors"
    convert(folder / "tower.safetensors", TRANSFORMER, path, size=SIZE, texts=folder / "prompts.safetensors")
    return path


def content(sets: Sets, weights: Path, algorithm: str = "fedavg", **changes: Any) -> dict[str, Any]:
    named = {f"{NETWORK}weights": str(weights), "input__colour": "rgb"}
    return combined(sets, algorithm, "text-anchored", **(named | changes))


def cosines_by_hand(weights: Path, images: torch.Tensor) -> torch.Tensor:
    """Return the cosines with attack and live, by timm's network itself."""
    import timm

    tensors = load_file(weights)
    texts = tensors.pop("texts").double()
    net = timm.create_model(TRANSFORMER, num_classes=EMBEDDING, img_size=SIZE).eval()
    net.load_state_dict(tensors)
    published = timm.get_pretrained_cfg(TRANSFORMER)
    assert published is not None
    mean, std = (torch.tensor(values)[:, None, None] for values in (published.mean, published.std))
    with torch.no_grad():
        embeddings: torch.Tensor = net((images - mean) / std).double()
    cosines: torch.Tensor = embeddings @ texts.T / embeddings.norm(dim=1, keepdim=True)
    return cosines


def test_only_adapters_and_scale_cross_the_wire_and_a_model_needs_no_other_file(
    sets: Sets, anchored_weights: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.safetensors"
    own.write_bytes(anchored_weights.read_bytes())
    run_toy(content(sets, own), tmp_path / "run")
    own.unlink()
    actual, given = load_file(tmp_path / "run" / "model.safetensors"), load_file(anchored_weights)
    assert torch.equal(actual.pop("head.frozen.weight"), given.pop("texts"))
    frozen = {name.removeprefix("adapters.frozen."): v for name, v in actual.items() if ".frozen." in name}
    assert frozen.keys() == given.keys()
    assert all(torch.equal(value, given[name]) for name, value in frozen.items())
    learned = {name: value for name, value in actual.items() if ".frozen." not in name}
    assert all(name == "head.log_scale" or ".low_rank." in name for name in learned)
    assert float(learned["head.log_scale"]) != pytest.approx(np.log(100), abs=1e-9)
    rows = read_lines(tmp_path / "run" / "ledger.jsonl")
    assert {row["bytes"] for row in rows if row["field"] == "weights"} == {
        sum(4 * value.numel() for value in learned.values())
    }
    faces = torch.randint(0, 255, (2, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert open_model(tmp_path / "run").score(faces).shape == (2,)


def test_fresh_model_is_the_zero_shot_classifier_of_its_texts(sets: Sets, anchored_weights: Path) -> None:
    changes: dict[str, Any] = {f"{NETWORK}scale": 8.0}
    recipe = recipe_of(content(sets, anchored_weights, **changes))
    net = find(recipe.method).network(recipe).eval()
    load_constant(net, recipe, {})
    images = torch.rand(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        actual = net["head"](MODEL.represent(net, images))
    expected = 8 * cosines_by_hand(anchored_weights, images)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)


def test_scale_alone_learns_as_by_hand(sets: Sets, anchored_weights: Path, tmp_path: Path) -> None:
    """One site, one batch and plain SGD on p, where the live logit is exp(p) times a difference of cosines."""
    rate, rounds = 0.1, 2
    changes: dict[str, Any] = {
        f"{NETWORK}rank": 0,
        f"{NETWORK}scale": 4.0,
        "training__batch": 64,
        "training__rounds": rounds,
    }
    asked = content(sets, anchored_weights, **changes)
    asked["training"] |= {"augment": {}, "local": {"epochs": 1}, "optimizer": {"name": "sgd", "lr": rate}}
    asked["data"]["sites"] = {"A": asked["data"]["sites"]["A"]}
    run_toy(asked, tmp_path / "run")
    view = View.of(PreparedSet.open(sets["A"]), "train")
    batch = view.batch(np.arange(len(view)))
    cosines = cosines_by_hand(anchored_weights, batch.images.float() / 255)
    margins, labels = (cosines[:, 1] - cosines[:, 0]).tolist(), batch.labels.tolist()
    p = float(np.log(4.0))
    for _ in range(rounds):
        logits = [np.exp(p) * margin for margin in margins]
        slopes = [(1 / (1 + np.exp(-z)) - label) * z for z, label in zip(logits, labels, strict=True)]
        p -= rate * sum(slopes) / len(slopes)
    actual = load_file(tmp_path / "run" / "model.safetensors")["head.log_scale"]
    assert float(actual) == pytest.approx(p, rel=1e-5)
    assert p != pytest.approx(np.log(4.0), rel=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "changes", "place", "keywords"),
    [
        ("fedavg", {"rank": 0, "learn_scale": False}, "learn_scale", ["rank"]),
        ("fedrep", {"rank": 0}, "learn_scale", ["fedrep"]),
        ("fedbabu", {"learn_scale": False}, "learn_scale", ["fedbabu"]),
        ("fedavg", {"arch": "test_efficientnet"}, "arch", ["test_efficientnet"]),
        ("fedavg", {"embedding": 8}, "weights", ["head.weight", "16", "8"]),
        ("fedavg", {"weights": "nowhere.safetensors"}, "weights", ["nowhere.safetensors"]),
    ],
)
def test_impossible_settings_are_refused_by_place_before_training(
    algorithm: str,
    changes: dict[str, Any],
    place: str,
    keywords: list[str],
    sets: Sets,
    anchored_weights: Path,
    tmp_path: Path,
) -> None:
    named = {f"{NETWORK}{key}": value for key, value in changes.items()}
    with refused(f"recipe.method.network.{place}", *keywords):
        run_toy(content(sets, anchored_weights, algorithm, **named), tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").exists() or not read_lines(tmp_path / "run" / "rounds.jsonl")


TEXTS = torch.eye(2, EMBEDDING)
BAD: dict[str, tuple[torch.Tensor | None, list[str]]] = {
    "without texts": (None, ["texts", "--texts"]),
    "three classes": (torch.eye(3, EMBEDDING), ["texts", "3"]),
    "texts of another width": (torch.eye(2, 8), ["texts", "8", "16"]),
    "texts that are not at unit length": (2 * TEXTS, ["texts", "length"]),
    "texts that are not finite": (TEXTS / 0, ["texts", "length"]),
}


@pytest.mark.parametrize("name", BAD)
def test_file_with_unusable_texts_is_refused(name: str, sets: Sets, anchored_weights: Path, tmp_path: Path) -> None:
    texts, keywords = BAD[name]
    tensors = load_file(anchored_weights)
    del tensors["texts"]
    save_file(tensors if texts is None else tensors | {"texts": texts}, tmp_path / "bad.safetensors")
    recipe = recipe_of(content(sets, tmp_path / "bad.safetensors"))
    with refused("recipe.method.network.weights", "bad.safetensors", *keywords):
        load_constant(find(recipe.method).network(recipe), recipe, {})


def test_demo_runs_shrunk(sets: Sets, tmp_path: Path) -> None:
    shown, small = yaml.safe_load(locate("demo/text-anchored").read_text()), tree(sets, "fedpad")
    shown |= {key: small[key] for key in ("data", "runtime", "evaluation")}
    shown["method"]["model"] |= {"arch": TRANSFORMER, "embedding": EMBEDDING}
    shown["input"]["size"] = SIZE
    shown["training"] |= {"rounds": 1, "batch": 8}
    metrics = run_toy(shown, tmp_path / "run")
    assert (metrics["method"], metrics["task"]) == ("fedavg", "pad")


@pytest.mark.slow
def test_exported_graph_computes_the_same_scores(sets: Sets, anchored_weights: Path, tmp_path: Path) -> None:
    import onnx

    from fedvisage.runs.export.export import export

    run_toy(content(sets, anchored_weights), tmp_path / "run")
    export(open_model(tmp_path / "run"), tmp_path / "device", cache=tmp_path / "cache")
    names = {tensor.name for tensor in onnx.load(str(tmp_path / "device" / "onnx" / "model.onnx")).graph.initializer}
    assert not any("low_rank" in name or "log_scale" in name for name in names)
