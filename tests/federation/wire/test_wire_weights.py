"""Weights that travel as bf16: half the bytes, unbiased, and float32 again before any use."""

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import failed, refused
from tests.toy import Sets, recipe_of, run_toy, tree

from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.site_worker import Workspace
from fedvisage.federation.wire.precision import to_bf16, weights_in
from fedvisage.federation.wire.schema import RefusedMessage, check
from fedvisage.methods import METHODS, find
from fedvisage.nn.compute import resolve_compute

DRAWS = 40_000


def test_rounding_picks_a_neighbour_and_is_right_on_average() -> None:
    """Between 1 and 2 two neighbours lie 2⁻⁷ apart; a tenth of the way is the mean of one draw in ten."""
    gap = 2.0**-7
    sent = torch.tensor([1 + gap / 10, -1 - gap / 10, 1.5, 0.0]).repeat(DRAWS, 1)
    got = to_bf16(sent, torch.Generator().manual_seed(0)).double()
    assert set(got[:, 0].tolist()) == {1.0, 1 + gap}
    assert set(got[:, 1].tolist()) == {-1.0, -1 - gap}
    error = 4 * gap * math.sqrt(0.1 * 0.9 / DRAWS)
    assert got.mean(dim=0)[:2].tolist() == pytest.approx([1 + gap / 10, -1 - gap / 10], abs=error)
    assert set(got[:, 2].tolist()) == {1.5}, "bf16 can represent it"
    assert set(got[:, 3].tolist()) == {0.0}


def test_values_that_are_not_finite_stay_so() -> None:
    every_nan = torch.tensor([0x7FFFFFFF, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    sent = torch.cat([every_nan, torch.tensor([math.inf, -math.inf])])
    got = to_bf16(sent, torch.Generator().manual_seed(0))
    assert got[:3].isnan().all()
    assert got[3:].tolist() == [math.inf, -math.inf]


def test_scales_of_codes_are_not_weights() -> None:
    one = torch.zeros(1)
    assert weights_in({"gradient": one, "gradient.scale": one, "head.weight": one, "left": one}) == {"head.weight"}


@pytest.mark.long
def test_weights_travel_in_half_the_bytes_and_evaluations_in_full(sets: Sets, tmp_path: Path) -> None:
    counted = {}
    for wire in ("fp32", "bf16"):
        run_toy(tree(sets, federation__wire=wire, training__rounds=1), tmp_path / wire)
        counted[wire] = _bytes(tmp_path / wire)
    for place, (whole, halves) in ((key, (counted["fp32"][key], counted["bf16"][key])) for key in counted["fp32"]):
        call, _, kind = place
        if kind == "weights" and call == "train":
            assert halves - _counters(tmp_path) == (whole - _counters(tmp_path)) / 2, place
        else:
            assert halves == whole, place
    weights = load_file(tmp_path / "bf16" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float32, torch.int64}


def _bytes(out: Path) -> dict[tuple[str, str, str], int]:
    actual: dict[tuple[str, str, str], int] = defaultdict(int)
    for line in read_lines(out / "ledger.jsonl"):
        if line["site"] == "A" and line["round"] == 1:
            actual[line["call"], line["direction"], line["kind"]] += line["bytes"]
    return actual


def _counters(root: Path) -> int:
    """Return the bytes of BatchNorm's counters, which stay whole numbers of 64 bits."""
    weights = load_file(root / "fp32" / "model.safetensors")
    return sum(8 for name in weights if name.endswith("num_batches_tracked"))


def test_weights_in_other_numbers_than_declared_are_refused(sets: Sets) -> None:
    recipe = recipe_of(tree(sets, federation__wire="bf16"))
    workspace = Workspace(find({"name": "fedpad"}), recipe, resolve_compute("cpu", "fp32"))
    reply = {f"model.{name}": value for name, value in workspace.net["model"].state_dict().items()}
    reply |= {"examples": torch.tensor(9), "loss": torch.tensor(0.5, dtype=torch.float64)}
    with failed(RefusedMessage, "torch.float32", "torch.bfloat16"):
        check(reply, workspace.schemas["train"])


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedma", "fedsis", "single", "privacyface"])
def test_methods_of_every_pattern_train_with_16_bit_weights(method: str, sets: Sets, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"training__rounds": 2, "evaluation__every": 0}
    changes |= {"method__wire": "int8"} if method == "fedsis" else {}
    run_toy(tree(sets, method, federation__wire="bf16", **changes), tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(value.isfinite().all() for value in weights.values())
    assert not any(value.dtype == torch.bfloat16 for value in weights.values())


@pytest.mark.long
def test_clipping_measures_the_update_from_the_lent_weights(sets: Sets, tmp_path: Path) -> None:
    """If sites change no convolution, clipping to almost zero must leave it as it was sent."""
    optimizer = {"name": "sgd", "lr": 1e-30}
    changes: dict[str, Any] = {"training__rounds": 1, "training__optimizer": optimizer, "evaluation__every": 0}
    bound = {"rule": "norm-clip", "bound": 1e-12}
    run_toy(tree(sets, federation__wire="bf16", federation__combine=bound, **changes), tmp_path / "clipped")
    run_toy(tree(sets, federation__wire="bf16", **changes), tmp_path / "free")
    free, clipped = (load_file(tmp_path / name / "model.safetensors") for name in ("free", "clipped"))
    convolutions = [name for name, value in free.items() if value.dim() == 4]
    assert len(convolutions) > 10
    for name in convolutions:
        assert torch.equal(free[name], clipped[name]), name
        assert torch.equal(free[name], free[name].bfloat16().float()), "it has come through the wire"


@pytest.mark.parametrize(
    ("other", "keyword"),
    [
        ({"federation__secure": True}, "federation.secure"),
        ({"federation__dp": {"clip": 1.0, "noise": 0}}, "federation.dp"),
    ],
)
def test_incompatible_features_are_refused(other: dict[str, Any], keyword: str, sets: Sets) -> None:
    recipe = recipe_of(tree(sets, federation__wire="bf16", **other))
    with refused("recipe.federation.wire", "bf16", keyword):
        check_protection(recipe, METHODS["fedpad"])
