"""Split learning in fewer bits: bytes in both directions, and the change of the result."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.toy import SIZE, Sets, run_toy, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.wire.precision import Form

FORMS: tuple[Form, ...] = ("fp32", "bf16", "int8")
IMAGES = 8
WIDTH = 8
TOKENS = (IMAGES, (SIZE // 16) ** 2, WIDTH)
VECTORS = (IMAGES, WIDTH)


def bytes_of(shape: tuple[int, ...], form: Form) -> int:
    """Return the bytes of a value on the wire; int8 has a scale of four bytes per vector."""
    count = math.prod(shape)
    return {"fp32": 4 * count, "bf16": 2 * count, "int8": count + 4 * count // shape[-1]}[form]


def recipe(sets: Sets, wire: Form, **changes: Any) -> dict[str, Any]:
    content = tree(sets, "fedsis", training__local={"batches": 2}, evaluation__every=0, **changes)
    content["method"] |= {"wire": wire, "unify_every": 1}
    return content


@pytest.mark.parametrize("form", FORMS)
def test_ledger_counts_bytes_in_both_directions(sets: Sets, tmp_path: Path, form: Form) -> None:
    """A batch is tokens and a gradient up, a pseudo-class token and a gradient down; ``left`` takes eight bytes."""
    run_toy(recipe(sets, form, training__rounds=1), tmp_path / "run")
    lines = read_lines(tmp_path / "run" / "ledger.jsonl")
    actual = {
        (direction, field): [
            line["bytes"]
            for line in lines
            if (line["site"], line["direction"], line["field"]) == ("A", direction, field)
        ]
        for direction, field in (("up", "tokens"), ("down", "pseudo"), ("up", "gradient"), ("down", "gradient"))
    }
    assert actual == {
        ("up", "tokens"): [bytes_of(TOKENS, form)] * 2,
        ("down", "pseudo"): [bytes_of(VECTORS, form)] * 2,
        ("up", "gradient"): [bytes_of(VECTORS, form)] * 2,
        ("down", "gradient"): [bytes_of(TOKENS, form)] * 2,
    }


@pytest.mark.long
def test_fewer_bits_train_nearly_the_same_model(sets: Sets, tmp_path: Path) -> None:
    """After one plain gradient step of every part the models differ by much less than the step."""
    actual = {}
    for form in FORMS:
        changes = {"training__optimizer": {"name": "sgd", "lr": 0.1}, "training__rounds": 1}
        run_toy(recipe(sets, form, **changes), tmp_path / form)
        actual[form] = load_file(tmp_path / form / "model.safetensors")
    still = {"training__optimizer": {"name": "sgd", "lr": 1e-12}, "training__rounds": 1}
    run_toy(recipe(sets, "fp32", **still), tmp_path / "start")
    start = load_file(tmp_path / "start" / "model.safetensors")
    weights = [name for name in start if "running" not in name and "tracked" not in name]

    def apart(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
        return float(torch.stack([(one[name] - other[name]).square().sum() for name in weights]).sum().sqrt())

    moved = apart(actual["fp32"], start)
    assert 0 < apart(actual["bf16"], actual["fp32"]) < 0.05 * moved
    assert 0 < apart(actual["int8"], actual["fp32"]) < 0.1 * moved
