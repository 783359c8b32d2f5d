"""Every method runs on a real GPU and gives nearly the values of a CPU; skipped where there is none.

Both sides use SGD: the first steps of Adam are as long for a gradient of zero plus rounding errors as for any other.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.toy import discard, is_recognition, run_toy, tree, weights

from fedvisage.audit.audit import FILE, audit_run
from fedvisage.device.exported import GRAPH
from fedvisage.methods import METHODS
from fedvisage.runs.evaluate import evaluate
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SGD = {"name": "sgd", "lr": 0.01}
DIFFERENCE = 1e-3
"""The largest relative difference of a model: fp32 rounds to 6e-8, and a few steps of small networks amplify that."""
COUNTED = {"federated_texture": 5e-3}
"""The bound for local binary patterns: they compare neighbouring values, so one rounding changes a whole count."""


def content_of(sets: Mapping[str, Path], name: str, **changes: Any) -> dict[str, Any]:
    """Return a recipe of one round with SGD."""
    content = tree(sets, name, training__rounds=1, training__optimizer=SGD, **changes)
    if is_recognition(name):
        content["training"]["pretrain"]["optimizer"] = SGD
    return content


def on_gpu(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "runtime": {**content["runtime"], "device": "cuda"}}


def values_of(run: Path) -> torch.Tensor:
    tensors = load_file(run / "model.safetensors")
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def check_close(run: Path, other: Path, difference: float = DIFFERENCE) -> None:
    values, expected = values_of(run), values_of(other)
    assert torch.isfinite(values).all()
    assert float((values - expected).norm() / expected.norm()) < difference


@pytest.mark.parametrize("name", METHODS)
def test_a_method_computes_nearly_the_same_on_a_gpu(name: str, sets: Mapping[str, Path], tmp_path: Path) -> None:
    content = content_of(sets, name)
    run_toy(on_gpu(content), tmp_path / "gpu")
    run_toy(content, tmp_path / "cpu")
    check_close(tmp_path / "gpu", tmp_path / "cpu", COUNTED.get(name, DIFFERENCE))


def test_bf16_is_near_fp32_on_a_gpu(sets: Mapping[str, Path], tmp_path: Path) -> None:
    for precision in ("bf16", "fp32"):
        content = content_of(sets, "fedpad", runtime__precision=precision)
        run_toy(on_gpu(content), tmp_path / precision)
    check_close(tmp_path / "bf16", tmp_path / "fp32", 2e-2)


def test_several_workers_on_one_gpu_give_the_bytes_of_one_process(sets: Mapping[str, Path], tmp_path: Path) -> None:
    kept = {"lr": 0.01, "state": "kept"}
    content = tree(sets, training__rounds=2, training__optimizer=kept, runtime__deterministic=True)
    run_toy(on_gpu(content), tmp_path / "one")
    content["runtime"]["workers"] = 3
    run_toy(on_gpu(content), tmp_path / "three")
    assert weights(tmp_path / "one") == weights(tmp_path / "three")
    states = [
        {path.relative_to(run): path.read_bytes() for path in run.glob("sites/*/generation-*")}
        for run in (tmp_path / "one", tmp_path / "three")
    ]
    assert states[0] == states[1] != {}


@pytest.mark.parametrize("name", ["fedpad", "fedsis", "privacyface"])
def test_a_model_of_a_gpu_is_audited_evaluated_and_exported(
    name: str, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    run_toy(on_gpu(content_of(sets, name)), tmp_path / "run")
    model = open_model(tmp_path / "run")
    assert model.setup.compute.device.type == "cuda"
    evaluate(model, None, tmp_path / "cache", tmp_path / "evaluated")
    audit_run(tmp_path / "run", tmp_path / "audit", tmp_path / "cache", discard)
    export(model, tmp_path / "export", cache=tmp_path / "cache")
    assert (tmp_path / "export" / GRAPH).exists()
    assert (tmp_path / "audit" / FILE).exists()
