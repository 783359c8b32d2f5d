"""Runs on the second of two emulated cards give the model and scores of a CPU, and mix no devices.

The cards compute on the CPU, so the bytes are equal, except for transformers, whose attention uses other functions of
torch there. The tests replace the device of the recipe, because a recipe cannot name an emulated one.
`test_cards.py` runs this file.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from tests.cards.emulated_card import emulated_cards
from tests.contract.test_every_method import ALIKE
from tests.federation.test_secure_run import DERIVED
from tests.methods.combining import combined
from tests.toy import discard, run_toy_once, run_under_same_name, tree, weights

from fedvisage.audit.audit import FILE, audit_run
from fedvisage.device.exported import GRAPH
from fedvisage.methods import METHODS
from fedvisage.nn.compute import LAYOUTS, Compute, Layout
from fedvisage.runs.evaluate import evaluate
from fedvisage.runs.export.export import export
from fedvisage.tasks import catalogue
from fedvisage.tasks.finished_model import open_model

CARD = torch.device("card:1")
TRANSFORMERS = ("vit", "vit-h", "vit-h-is", "fedavg-vit-h", "fedprox-vit-h", "moon-vit-h", "festa", "fedsis")


def compute_on_card(device: str, precision: str, layout: Layout = "last") -> Compute:
    """Return the settings of a machine with cards, whatever device the recipe names."""
    return Compute(CARD, precision == "bf16", LAYOUTS[layout])


@contextmanager
def machine_with_cards() -> Iterator[None]:
    with emulated_cards(), patch.object(catalogue, "resolve_compute", compute_on_card):
        yield


def run_on_both(content: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Run a recipe on a card and on the CPU."""
    run_toy_once(content, folder / "cpu")
    with machine_with_cards():
        run_under_same_name(folder / "cpu", content, folder / "card")
    return folder / "card", folder / "cpu"


def check_same_bytes(on_card: Path, on_cpu: Path) -> None:
    scores = "scores.csv" if (on_cpu / "scores.csv").exists() else "similarities.safetensors"
    assert (on_card / scores).read_bytes() == (on_cpu / scores).read_bytes()
    assert weights(on_card) == weights(on_cpu)
    states = [
        {path.relative_to(run): path.read_bytes() for path in run.glob("sites/*/generation-*")}
        for run in (on_card, on_cpu)
    ]
    assert states[0] == states[1]


def _without_key_biases(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Remove the biases of attention's keys: the softmax cancels them, so Adam follows only rounding errors."""
    for name in tensors:
        if name.endswith("attn.qkv.bias"):
            query, _, value = tensors[name].chunk(3)
            tensors[name] = torch.cat([query, value])
    return tensors


def check_close(on_card: Path, on_cpu: Path) -> None:
    weights_on_card, expected = (_without_key_biases(load_file(run / "model.safetensors")) for run in (on_card, on_cpu))
    torch.testing.assert_close(weights_on_card, expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in METHODS]
)
def test_a_method_computes_the_same_on_a_card(name: str, sets: Mapping[str, Path], tmp_path: Path) -> None:
    """Methods for recognition begin with pre-training."""
    on_card, on_cpu = run_on_both(tree(sets, name, training__rounds=1), tmp_path)
    if name in TRANSFORMERS:
        check_close(on_card, on_cpu)
    else:
        check_same_bytes(on_card, on_cpu)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"runtime__precision": "bf16"}, id="bf16"),
        pytest.param({"federation__secure": DERIVED, "evaluation__every": 0}, id="secure"),
        pytest.param({"training__optimizer": {"lr": 0.01, "state": "kept"}, "training__rounds": 2}, id="kept"),
        pytest.param({"federation__wire": "bf16"}, id="wire"),
    ],
)
def test_an_option_computes_the_same_on_a_card(
    changes: dict[str, Any], sets: Mapping[str, Path], tmp_path: Path
) -> None:
    check_same_bytes(*run_on_both(tree(sets, **{"training__rounds": 1, **changes}), tmp_path))


def test_adapters_compute_nearly_the_same_on_a_card(sets: Mapping[str, Path], tmp_path: Path) -> None:
    content = combined(sets, "fedavg", "adapters", input__colour="rgb", training__rounds=1)
    check_close(*run_on_both(content, tmp_path))


def test_exact_statistics_are_nearly_the_same_on_a_card(sets: Mapping[str, Path], tmp_path: Path) -> None:
    check_close(*run_on_both(tree(sets, training__rounds=1, training__statistics="exact"), tmp_path))


@pytest.mark.parametrize(
    "name", ["fedpad", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedsis", "privacyface"))]
)
def test_a_finished_model_is_audited_evaluated_and_exported_on_a_card(
    name: str, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    run_toy_once(tree(sets, name, training__rounds=1), tmp_path / "run")
    with machine_with_cards():
        model = open_model(tmp_path / "run")
        assert model.setup.compute.device == CARD
        evaluate(model, None, tmp_path / "cache", tmp_path / "evaluated")
        audit_run(tmp_path / "run", tmp_path / "audit", tmp_path / "cache", discard)
        export(model, tmp_path / "export", cache=tmp_path / "cache")
    assert (tmp_path / "export" / GRAPH).exists()
    assert (tmp_path / "audit" / FILE).exists()
