"""An algorithm with what is special about it switched off is FedAvg, byte for byte, on networks of every kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.methods.combining import combined
from tests.toy import SITES, Sets, make_people, make_set, recipe_of, run_toy, set_of_task, weights

from fedvisage.federation.wire.message import digest_of
from fedvisage.methods import MODELS
from fedvisage.methods.algorithms.fedbn import separate_norms
from fedvisage.nn.batchnorm import LayerReference

ARCH = {"timm": {"arch": "mobilenetv3_small_050"}}
KINDS = ("resnet18", "vit-h", "timm", "sphere20", "iresnet18", "timm-embedding")
ALIKE = ("vit-h", "iresnet18", "timm-embedding")
"""Networks that algorithms meet as they meet the others of their task."""
PARAMETERS = [
    kind if kind == "sphere20" else pytest.param(kind, marks=pytest.mark.slow if kind in ALIKE else pytest.mark.long)
    for kind in KINDS
]
NULL: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    (
        "fedavg",
        {"training__server_optimizer": {"name": "sgd", "lr": 1.0}},
        {"training__server_optimizer": {"name": "sgd", "lr": 0.5}},
    ),
    ("fedprox", {"method__mu": 0.0}, {"method__mu": 1.0}),
    ("moon", {"method__mu": 0.0}, {"method__mu": 1.0}),
    ("afl", {"method__step": 0.0}, {"method__step": 1.0}),
    ("ga", {"method__step": 0.0}, {"method__step": 1.0}),
    ("scaffold", {"method__correction": 0.0}, {}),
    ("fedadam", {}, {}),
    ("fedyogi", {}, {}),
    ("feddyn", {}, {}),
    ("fedrep", {}, {}),
    ("fedbabu", {}, {}),
    ("fedala", {"method__rate": 0.0}, {"method__tensors": 4}),
)
"""Each with what switches it off, and with what leaves it on; some cannot be switched off."""


def recipe(sets: Sets, algorithm: str, model: str, **changes: Any) -> dict[str, Any]:
    """FedAvg's sites count alike here, as AFL's and GA's do at first."""
    actual = combined(sets, algorithm, model, **changes)
    actual["method"]["network"] |= ARCH.get(model, {})
    if algorithm not in ("afl", "ga"):
        actual["method"].setdefault("weight", "uniform")
    return actual


@pytest.fixture(scope="module", params=PARAMETERS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fedavg(model: str, sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("fedavg") / "run"
    run_toy(recipe(sets, "fedavg", model), out)
    return weights(out)


@pytest.mark.parametrize(
    ("algorithm", "off", "on"),
    [pytest.param(*case, id=case[0], marks=[] if case[0] == "scaffold" else pytest.mark.long) for case in NULL],
)
def test_algorithm_without_its_own_term_is_fedavg(
    algorithm: str, off: dict[str, Any], on: dict[str, Any], model: str, fedavg: bytes, sets: Sets, tmp_path: Path
) -> None:
    run_toy(recipe(sets, algorithm, model, **on), tmp_path / "on")
    assert weights(tmp_path / "on") != fedavg
    if off:
        run_toy(recipe(sets, algorithm, model, **off), tmp_path / "off")
        assert weights(tmp_path / "off") == fedavg


@pytest.mark.long
def test_common_model_of_ditto_is_fedavgs(model: str, fedavg: bytes, sets: Sets, tmp_path: Path) -> None:
    run_toy(recipe(sets, "ditto", model), tmp_path / "ditto")
    assert weights(tmp_path / "ditto") == fedavg


@pytest.mark.long
def test_fedrep_that_never_trains_its_heads_is_fedbabu(model: str, sets: Sets, tmp_path: Path) -> None:
    run_toy(recipe(sets, "fedrep", model, method__head_passes=0), tmp_path / "fedrep")
    run_toy(recipe(sets, "fedbabu", model), tmp_path / "fedbabu")
    assert weights(tmp_path / "fedrep") == weights(tmp_path / "fedbabu")


@pytest.mark.long
def test_first_round_of_scaffold_is_fedavg(model: str, sets: Sets, tmp_path: Path) -> None:
    for name in ("scaffold", "fedavg"):
        run_toy(recipe(sets, name, model, training__rounds=1), tmp_path / name)
    assert weights(tmp_path / "scaffold") == weights(tmp_path / "fedavg")


@pytest.mark.long
def test_fednova_with_equal_steps_is_fedavg_to_rounding(model: str, fedavg: bytes, sets: Sets, tmp_path: Path) -> None:
    """Its sites send one step's length, in float32; the first round is compared, before rounding errors grow."""
    for name in ("fednova", "fedavg"):
        run_toy(recipe(sets, name, model, training__rounds=1), tmp_path / name)
    actual, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("fednova", "fedavg"))
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=2e-6, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize(("norms", "sites"), [("shared", 3), ("private", 1)])
@pytest.mark.parametrize("kind", [one for one in PARAMETERS if one != "sphere20"])
def test_fedbn_without_private_layers_is_fedavg(kind: str, norms: str, sites: int, sets: Sets, tmp_path: Path) -> None:
    task = "fedavg" if MODELS[kind].task == "recognition" else "fedpad"
    few = {name: str(set_of_task(sets[name], task)) for name in SITES[:sites]}
    run_toy(recipe(sets, "fedavg", kind, data__sites=few), tmp_path / "fedavg")
    run_toy(recipe(sets, "fedbn", kind, data__sites=few, method__norms=norms), tmp_path / "fedbn")
    expected, actual = (load_file(tmp_path / name / "model.safetensors") for name in ("fedavg", "fedbn"))
    assert any(name.startswith("norms.") for name in actual)
    assert digest_of(join_parts(kind, recipe(sets, "fedbn", kind), actual)) == digest_of(expected)


def join_parts(kind: str, content: Mapping[str, Any], parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return FedBN's tensors under the names that they have in the model's own parts."""
    net = separate_norms(MODELS[kind])(recipe_of(content))
    places = [name for name, module in net.named_modules() if isinstance(module, LayerReference)]
    actual = {}
    for key, value in parts.items():
        part, _, rest = key.partition(".")
        place, _, name = rest.partition(".")
        actual[f"{places[int(place)]}.{name}" if part == "norms" else key] = value
    return actual


@pytest.mark.long
def test_fednova_differs_from_fedavg_where_sites_take_unequal_steps(tmp_path: Path) -> None:
    """Of recognition, too, whose sites go through views of their own size."""
    counts = {"A": 3, "B": 3, "C": 8}
    for seed, (name, count) in enumerate(counts.items()):
        make_people(tmp_path / f"people-{name}", name, seed, identities=count)
    make_people(tmp_path / "people-U", "U", 5)
    make_people(tmp_path / "people-P", "P", 9, identities=6, test=0, heldout=2)
    sets = {name: make_set(tmp_path / name, name, 0, subjects=3) for name in (*SITES, "U")}
    for name in ("fednova", "fedavg"):
        run_toy(recipe(sets, name, "sphere20", training__local={"epochs": 1}, training__batch=4), tmp_path / name)
    assert weights(tmp_path / "fednova") != weights(tmp_path / "fedavg")
