"""Every algorithm on every model: runs, names in recipes, and refused combinations."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.methods.combining import TINY, combined, small
from tests.methods.interrupting import Interrupted, stop_after
from tests.refusals import refused
from tests.toy import Sets, deterministic_files, recipe_of, run_toy, tree, weights

from fedvisage import recipe as recipes
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.server import Server
from fedvisage.methods import ALGORITHMS, METHODS, MODELS, find, on, read_method

WITHOUT_NORMS = ("fedma-vgg", "sphere20", "sphere64", "adapters", "text-anchored")
RUN = (
    *("resnet18", "vit", "vit-h", "fedma-vgg", "minifasnet", "timm", "sphere20", "iresnet18", "mobilefacenet"),
    *("timm-embedding", "adapters", "text-anchored"),
)
PAIRS = [
    (algorithm, model)
    for model in RUN
    for algorithm in ALGORITHMS
    if (algorithm, model) not in {("fedbn", name) for name in WITHOUT_NORMS}
]
TWICE = [
    ("moon", "timm"),
    ("fedbn", "iresnet18"),
    ("scaffold", "timm-embedding"),
    ("fedyogi", "vit-h"),
    ("fednova", "mobilefacenet"),
]


SELDOM = [
    (model, name)
    for model in ("adapters", "text-anchored")
    for name in ("fedprox", "afl", "fedadam", "fedyogi", "fednova", "feddyn", "ditto", "fedbabu", "fedala", "mrmtl")
]
"""Models with algorithms that treat them like the algorithms in the quick tier."""


ONE_PER_TASK = ("resnet18", "sphere20")
"""`make test` tries every algorithm on these models and every model with FedAvg, `make test-all` all pairs."""


@pytest.mark.parametrize("name", MODELS)
def test_a_model_can_be_sent_to_a_worker_process(name: str) -> None:
    model = MODELS[name]
    copied = pickle.loads(pickle.dumps(model))
    assert (copied.name, copied.options, copied.parts) == (model.name, model.options, model.parts)
    assert (copied.network, copied.check, copied.begin) == (model.network, model.check, model.begin)
    assert copied.least_identities == model.least_identities


def parameter_of(algorithm: str, model: str) -> Any:
    """Return a pair of parameters with the mark of the tier that tries it."""
    marks: pytest.MarkDecorator | tuple[()] = ()
    if (model, algorithm) in SELDOM:
        marks = pytest.mark.slow
    elif model not in ONE_PER_TASK and algorithm != "fedavg" and (algorithm, model) not in TWICE:
        marks = pytest.mark.long
    return pytest.param(algorithm, model, marks=marks)


@pytest.mark.long
@pytest.mark.parametrize(("algorithm", "model"), [parameter_of(*pair) for pair in PAIRS])
def test_two_rounds_end_in_finite_weights_and_figures(algorithm: str, model: str, sets: Sets, tmp_path: Path) -> None:
    content = combined(sets, algorithm, model)
    metrics = run_toy(content, tmp_path / "run")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in actual.values())
    assert (metrics["method"], metrics["task"], metrics["rounds"]) == (algorithm, MODELS[model].task, 2)
    rows = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert [row["failed"] for row in rows] == [{}, {}]
    if (algorithm, model) in TWICE:
        run_toy(content, tmp_path / "again")
        assert deterministic_files(tmp_path / "again") == deterministic_files(tmp_path / "run")


@pytest.mark.parametrize("model", ["fedma-vgg", "sphere20", "adapters", "text-anchored"])
def test_fedbn_is_refused_without_batchnorm(model: str, sets: Sets, tmp_path: Path) -> None:
    with refused("recipe.method.model"):
        run_toy(combined(sets, "fedbn", model), tmp_path / "run")


ADAM = {"name": "adam", "lr": 0.01}
HEAVY = {"name": "sgd", "lr": 0.01, "momentum": 0.9}


@pytest.mark.parametrize(
    ("algorithm", "model", "changes", "place"),
    [
        ("fednova", "resnet18", {"training__optimizer": ADAM}, "training.optimizer.name"),
        ("fednova", "sphere20", {"training__optimizer": HEAVY | {"state": "kept"}}, "training.optimizer.state"),
        ("fednova", "resnet18", {"federation__wire": "bf16"}, "federation.wire"),
        ("fedadam", "vit", {"training__server_optimizer": {"name": "sgd"}}, "training.server_optimizer.name"),
        ("fedyogi", "timm", {"training__server_optimizer": {"name": "adam"}}, "training.server_optimizer.name"),
        *(
            (name, "resnet18", {"training__server_optimizer": {"name": "sgd"}}, "training.server_optimizer")
            for name in ("fedbn", "afl", "scaffold", "fednova", "feddyn")
        ),
        *(
            (name, "resnet18", {"federation__combine": {"rule": "median"}}, "federation.combine")
            for name in ("afl", "scaffold", "fednova", "feddyn")
        ),
        *(
            (name, "resnet18", {"federation__secure": {}}, "federation.secure")
            for name in ("scaffold", "fednova", "feddyn")
        ),
        *(
            (name, "resnet18", {"federation__dp": {"clip": 1.0, "noise": 1.0, "delta": 0.1}}, "federation.dp")
            for name in ("afl", "scaffold", "fednova", "feddyn")
        ),
        ("fedala", "resnet18", {"training__micro_batch": 2}, "training.micro_batch"),
        ("feddyn", "resnet18", {"method__alpha": 0}, "method.alpha"),
        ("fedrep", "sphere20", {"method__sampled_classes": 4}, "method.sampled_classes"),
        ("fedbabu", "sphere20", {"method__sampled_classes": 4}, "method.sampled_classes"),
        ("fedrep", "adapters", {"method__network__rank": 0}, "method.network.rank"),
        ("fedbabu", "adapters", {"method__network__rank": 0}, "method.network.rank"),
        ("fedbabu", "resnet18", {"training__early_stop": {"patience": 2}}, "training.early_stop"),
        ("fedbn", "resnet18", {"training__start": "somewhere"}, "training.start"),
        ("fedbn", "iresnet18", {"training__pretrain": {"epochs": 1}}, "training.pretrain"),
        ("fedbn", "timm", {"method__network__weights": "some.safetensors"}, "method.network.weights"),
        ("fedbn", "vit-h", {"method__network__weights": "some.safetensors"}, "method.network.weights"),
        ("moon", "timm", {"method__network__weights": "a", "training__start": "b"}, "method.network.weights"),
        ("moon", "vit", {"input__size": 40}, "input.size"),
        ("scaffold", "vit-h", {"input__size": 40}, "input.size"),
        ("fedavg", "timm", {"method__network__arch": "resnet_18"}, "method.network.arch"),
        ("fedavg", "timm", {"method__network__weights": "nowhere"}, "method.network.weights"),
    ],
)
def test_unsupported_options_of_an_algorithm_are_refused_by_place(
    algorithm: str, model: str, changes: dict[str, Any], place: str, sets: Sets, tmp_path: Path
) -> None:
    with refused(f"recipe.{place}"):
        run_toy(combined(sets, algorithm, model, **changes), tmp_path / "run")


SERVER_STEP = {"training__server_optimizer": {"name": "sgd", "lr": 1.0}}
MICRO_BATCH = {"training__micro_batch": 2}
UNSUPPORTED = [
    *((name, SERVER_STEP) for name in ("fedgpad", "fedma", "single", "fused", "fedsis", "festa", "pretrained")),
    *((name, MICRO_BATCH) for name in ("fedgpad", "fedsis", "festa", "vit-h-is", "privacyface")),
    ("fedfr", MICRO_BATCH | {"method__sampled_classes": 4}),
]
"""Server steps need one mean; losses over whole batches and samples of classes allow no micro-batches."""


@pytest.mark.parametrize(("name", "changes"), UNSUPPORTED)
def test_unsupported_options_of_a_method_are_refused_by_place(
    name: str, changes: dict[str, Any], sets: Sets, tmp_path: Path
) -> None:
    with refused(f"recipe.{next(iter(changes)).replace('__', '.')}"):
        run_toy(tree(sets, name, **changes), tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["scaffold", "fedprox", "fedyogi"])
def test_weights_and_variates_in_bf16_are_finite_and_half_as_large(algorithm: str, sets: Sets, tmp_path: Path) -> None:
    sizes = {}
    for wire in ("fp32", "bf16"):
        run_toy(combined(sets, algorithm, "resnet18", federation__wire=wire), tmp_path / wire)
        rows = read_lines(tmp_path / wire / "ledger.jsonl")
        sizes[wire] = sum(row["bytes"] for row in rows if row["direction"] == "up" and row["call"] == "train")
        assert all(value.isfinite().all() for value in load_file(tmp_path / wire / "model.safetensors").values())
    assert sizes["bf16"] / sizes["fp32"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.long
@pytest.mark.parametrize(
    "algorithm", ["fedadam", "fedyogi", "moon", "fedprox", "ditto", "fedrep", "fedbabu", "fedala", "mrmtl"]
)
@pytest.mark.parametrize("protection", [{"federation__combine": {"rule": "median"}}, {"federation__secure": {}}])
def test_algorithms_with_a_single_mean_accept_robust_rules_and_secure_sums(
    algorithm: str, protection: dict[str, Any], sets: Sets, tmp_path: Path
) -> None:
    metrics = run_toy(combined(sets, algorithm, "resnet18", **protection), tmp_path / "run")
    assert metrics["rounds"] == 2


# Weights to begin with.


@pytest.mark.long
def test_weights_of_a_file_are_the_first_model_only(sets: Sets, tmp_path: Path) -> None:
    """A resumed run does not load them again."""
    import timm

    save_file(timm.create_model(TINY, num_classes=10).state_dict(), tmp_path / "file.safetensors")
    content = combined(sets, "fedprox", "timm", method__network__weights=str(tmp_path / "file.safetensors"))
    method, begun = on("fedprox", "timm"), []

    def begin(s: Server) -> None:
        begun.append(s.round)
        method.begin(s)

    watched = replace(method, begin=begin)
    run_toy(content, tmp_path / "whole", method=watched)
    assert begun == [0]
    with pytest.raises(Interrupted):
        run_toy(content, tmp_path / "parts", method=stop_after(watched, 1))
    run_toy(content, tmp_path / "parts", method=watched, resume=True)
    assert begun == [0, 0]
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    without = combined(sets, "fedprox", "timm")
    run_toy(without, tmp_path / "without")
    assert weights(tmp_path / "without") != weights(tmp_path / "whole")


# Their names in recipes.


def section(**method: Any) -> dict[str, Any]:
    return {"method": method, "data": {"sites": {"A": "nowhere"}}, "training": {"rounds": 1}}


FACE = {"name": "sphere20", "width": 8, "embedding": 16}


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ({"name": "fedprox"}, "resnet18"),
        ({"name": "fedprox", "model": "vit-h"}, "vit-h"),
        ({"name": "fedprox", "model": "iresnet100"}, "iresnet100"),
        ({"name": "fedavg"}, "sphere64"),
        ({"name": "fedavg", "model": "resnet18"}, "resnet18"),
        ({"name": "fedprox", "network": FACE}, "sphere20"),
        ({"name": "fedprox", "model": FACE}, "sphere20"),
        ({"name": "fedprox", "model": "sphere20", "network": FACE}, "sphere20"),
        ({"name": "fedprox", "model": {"name": "sphere20"}, "network": {"width": 8}}, "sphere20"),
        ({"name": "fedprox", "model": {"name": "timm", "arch": TINY}}, "timm"),
        ({"name": "fedprox", "model": "timm", "network": {"arch": TINY}}, "timm"),
        ({"name": "fedprox", "network": {"name": "timm", "arch": TINY}}, "timm"),
        ({"name": "moon", "network": {"name": "vit-h", "width": 8, "heads": 2}}, "vit-h"),
        ({"name": "moon", "model": {"name": "timm-embedding", "arch": TINY}}, "timm-embedding"),
        ({"name": "scaffold", "model": {"name": "vit", "depth": 2}}, "vit"),
    ],
)
def test_a_recipe_names_an_algorithm_and_its_model_and_its_resolved_text_names_the_same(
    method: dict[str, Any], model: str
) -> None:
    first = recipe_of(section(**method))
    actual = find(first.method)
    assert actual is (METHODS[method["name"]] if len(method) == 1 else on(method["name"], model))
    assert actual.task == MODELS[model].task
    again = recipe_of(yaml.safe_load(recipes.text_of(first)))
    assert again == first
    assert recipes.text_of(again) == recipes.text_of(first)
    assert find(again.method) is actual
    network = first.method.network  # type: ignore[attr-defined]
    for key, value in (FACE if model == "sphere20" and FACE in method.values() else {}).items():
        assert getattr(network, key) == value


@pytest.mark.parametrize(
    ("method", "place", "keywords"),
    [
        ({"name": "fedprx"}, "name", ["fedprox"]),
        ({"name": "fedprox", "model": "vit_h"}, "model", ["vit-h"]),
        ({"name": "fedprox", "model": {"name": "sphere2"}}, "model", ["sphere20"]),
        ({"name": "fedprox", "network": {"name": "iresnet19"}}, "network.name", ["iresnet18"]),
        ({"name": "fedavg", "network": {"name": "iresnet19"}}, "network.name", ["iresnet18"]),
        ({"name": "fedgpad", "model": "vit-h"}, "model", ["network", "fedprox"]),
        ({"name": "fedpad", "model": {"name": "timm", "arch": TINY}}, "model", ["network"]),
        ({"name": "fedavg-vit-h", "model": "vit"}, "model", ["network"]),
        ({"name": "fedprox", "model": {"arch": TINY}}, "model", ["name"]),
        ({"name": "fedprox", "model": "sphere20", "network": {"name": "iresnet18"}}, "network.name", ["sphere20"]),
        ({"name": "fedprox", "model": "vit-h", "network": {"name": "sphere20"}}, "network.name", ["sphere20", "vit-h"]),
        (
            {"name": "fedprox", "model": {"name": "sphere20", "width": 8}, "network": {"width": 16}},
            "network.width",
            ["16", "8", "method.model.width"],
        ),
        ({"name": "fedprox", "model": {"name": "vit"}, "network": {"name": "iresnet18"}}, "network.name", ["vit"]),
        ({"name": "fedprox", "model": "timm"}, "network", []),
        ({"name": "fedprox", "model": "timm-embedding"}, "network", ["arch"]),
        ({"name": "fedprox", "model": "sphere20", "network": {"arch": TINY}}, "network", ["arch"]),
        ({"name": "fedprox", "model": "vit", "network": {"arch": TINY}}, "network.arch", []),
        ({"name": "fedprox", "model": "vit", "network": "vit"}, "network", []),
        ({"name": ["fedprox"], "network": {"name": "sphere20"}}, "name", []),
        ({"name": "fedprox", "network": {"name": ["sphere20"]}}, "network.name", []),
        ({"name": "fedprox", "model": 3}, "model", ["unknown model"]),
        ({"name": "fedprox", "model": ["vit"]}, "model", ["unknown model"]),
        ({"name": "afl", "model": "vit", "weight": "uniform"}, "weight", ["unknown"]),
    ],
)
def test_recipe_without_exactly_one_model_is_refused_by_place(
    method: dict[str, Any], place: str, keywords: list[str]
) -> None:
    with refused(f"recipe.method.{place}", *keywords):
        recipe_of(section(**method))


RESOLVED = {
    "fedpad": "name: fedpad\nweight: uniform\nnetwork:\n  width: 64\n",
    "fedprox": "name: fedprox\nmu: 0.01\nweight: uniform\nnetwork:\n  width: 64\n",
    "fedavg": "name: fedavg\nweight: examples\nnetwork:\n  width: 64\n  embedding: 512\n  name: sphere64\n"
    "scale: 30.0\nmargin: 0.4\ncentres: mean-features\nsampled_classes: null\n",
    "fedavg-vit-h": "name: fedavg-vit-h\nweight: examples\nnetwork:\n  width: 768\n  depth: 12\n  heads: 12\n"
    "  weights: none\n  stem: 64\n  stages:\n  - 3\n  - 4\n  - 9\n",
}
"""Resolved sections of an earlier version, which are unchanged."""


@pytest.mark.parametrize("name", list(RESOLVED))
def test_unset_keys_are_not_in_the_resolved_recipe(name: str) -> None:
    text = recipes.text_of(recipe_of(section(name=name)))
    assert text.startswith(f"title: ''\nmethod:\n{indent(RESOLVED[name], '  ')}data:\n")
    assert "server_optimizer" not in text


@pytest.mark.parametrize("model", list(MODELS))
def test_every_model_can_be_named_for_every_algorithm(model: str) -> None:
    for algorithm in ALGORITHMS:
        options = read_method({"name": algorithm, "model": model, "network": small(model)})
        assert find(options) is on(algorithm, model)


def test_an_adaptive_step_has_a_rate_that_fits_it_unless_the_recipe_has_one() -> None:
    rates = {}
    for name in ("sgd", "adam", "yogi"):
        content = section(name="fedpad")
        content["training"]["server_optimizer"] = {"name": name}
        actual = recipe_of(content).training.server_optimizer
        assert actual is not None
        rates[name] = actual.lr
    assert rates == {"sgd": 1.0, "adam": 0.01, "yogi": 0.01}


@pytest.mark.long
@pytest.mark.parametrize("optimizer", [ADAM, HEAVY], ids=["adam", "momentum"])
def test_scaffold_corrects_any_optimizer(optimizer: dict[str, Any], sets: Sets, tmp_path: Path) -> None:
    """The first round is FedAvg's, as all variates are zero; from the second one on the correction is in the steps."""
    for rounds, alike in ((1, True), (2, False)):
        changes = {"training__optimizer": optimizer, "training__rounds": rounds}
        for name in ("fedavg", "scaffold"):
            run_toy(combined(sets, name, "resnet18", **changes), tmp_path / f"{name}-{rounds}")
        first, second = (weights(tmp_path / f"{name}-{rounds}") for name in ("fedavg", "scaffold"))
        assert (first == second) is alike


@pytest.mark.parametrize(
    ("model", "more"), [("timm", {}), ("timm-embedding", {"embedding": 16})], ids=["detection", "recognition"]
)
def test_an_unknown_architecture_is_refused_before_any_data_is_opened(
    model: str, more: dict[str, Any], sets: Sets, tmp_path: Path
) -> None:
    content = combined(sets, "fedprox", model)
    content["method"]["network"] = {"arch": "mobilenetv9", **more}
    shutil.copytree(content["data"]["sites"]["A"], tmp_path / "empty", ignore=lambda *_: ["images.npy"])
    content["data"]["sites"] = {"A": str(tmp_path / "empty")}
    with refused("recipe.method.network.arch", "mobilenetv9", "mobilenetv2_100"):
        run_toy(content, tmp_path / "run")
