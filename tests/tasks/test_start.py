"""Starts: fitting tensors are used, others are named or refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.refusals import refused
from tests.toy import Sets, run_toy, tree

from fedvisage.base.files import read_json, write_tensors
from fedvisage.recipe import Start
from fedvisage.starts.start import read_start

PRESENT = {"model.w": torch.full((3, 2), 5.0), "model.n": torch.tensor(7), "head.b": torch.zeros(1)}
STILL = {"name": "sgd", "lr": 1e-12}


def start(path: Path, **more: object) -> Start:
    return Start.model_validate({"file": str(path), **more})


@pytest.mark.parametrize(
    ("result", "keyword"),
    [
        ({"model.w": torch.zeros(3, 2)}, "model.n"),
        ({"model.w": torch.zeros(2, 3), "model.n": torch.tensor(0)}, "(2, 3)"),
        ({"other.w": torch.zeros(1)}, "other.w"),
        ({}, "lacks"),
    ],
)
def test_strict_start_must_fit(result: dict[str, torch.Tensor], keyword: str, tmp_path: Path) -> None:
    save_file(result, tmp_path / "start.safetensors")
    with refused("recipe.training.start", keyword):
        read_start(tmp_path / "start.safetensors", start(tmp_path / "start.safetensors"), PRESENT)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.complex64, torch.int8, torch.bool], ids=lambda dtype: str(dtype)
)
@pytest.mark.parametrize("strict", [True, False])
def test_weights_must_be_real_numbers(dtype: torch.dtype, strict: bool, tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"model.w": torch.ones(3, 2).to(dtype), "model.n": torch.tensor(1)}, path)
    with refused("recipe.training.start", "model.w", str(dtype).removeprefix("torch.")):
        read_start(path, start(path, strict=strict), PRESENT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_may_have_another_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"model.w": torch.ones(3, 2).to(dtype), "model.n": torch.tensor(1)}, path)
    assert read_start(path, start(path), PRESENT).taken == ("model.w", "model.n")


def test_strict_start_may_hold_some_parts_only(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"model.w": torch.ones(3, 2), "model.n": torch.tensor(1)}, path)
    result = read_start(path, start(path), PRESENT)
    assert set(result.weights) == {"model.w", "model.n"}
    assert result.untouched == ("head",)


def test_loose_start_uses_fitting_tensors_and_names_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"model.w": torch.ones(3, 2), "head.b": torch.zeros(4), "adapter.w": torch.zeros(2)}, path)
    result = read_start(path, start(path, strict=False), PRESENT)
    assert result.taken == ("model.w",)
    assert result.weights["model.w"].tolist() == torch.ones(3, 2).tolist()
    assert int(result.weights["model.n"]) == 7, "what the file lacks stays as it was drawn, and the part is whole"
    assert (result.lacking, result.unknown, result.reshaped) == (("model.n",), ("adapter.w",), ("head.b",))
    text = " ".join(result.lines())
    assert all(name in text for name in ("model.n", "adapter.w", "head.b", "randomly"))


def test_only_named_parts_are_used(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"model.w": torch.ones(3, 2), "model.n": torch.tensor(1), "head.b": torch.ones(1)}, path)
    assert set(read_start(path, start(path, parts=["head"]), PRESENT).weights) == {"head.b"}
    with refused("recipe.training.start.parts", "'haed'", "head"):
        read_start(path, start(path, parts=["haed"]), PRESENT)
    save_file({"model.w": torch.ones(3, 2), "model.n": torch.tensor(1)}, path)
    with refused("recipe.training.start", "head.b"):
        read_start(path, start(path, parts=["head"]), PRESENT)


def test_loose_start_without_a_fitting_tensor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"other.w": torch.ones(3, 2)}, path)
    with refused("recipe.training.start", "network"):
        read_start(path, start(path, strict=False), PRESENT)


def test_converted_file_names_its_network(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    about = '{"network": {"name": "iresnet50"}, "input": {"size": 112}, "licence": "research only"}'
    write_tensors(path, {"model.stem.weight": torch.ones(1)}, about)
    with refused("recipe.training.start", "iresnet50", "112"):
        read_start(path, start(path), PRESENT)


@pytest.mark.long
def test_file_with_more_parts_starts_a_model_with_fewer(sets: Sets, tmp_path: Path) -> None:
    """A transformer with FedSIS's adapter starts one without it; the run records the fitting tensors."""
    run_toy(tree(sets, "fedsis", training__rounds=1), tmp_path / "first")
    given = tmp_path / "first" / "model.safetensors"
    still = {"training__optimizer": STILL, "training__rounds": 1}
    with refused("recipe.training.start", "adapter.layers.0.weight", "strict: false"):
        run_toy(tree(sets, "vit-h", **still, training__start=str(given)), tmp_path / "strict")
    loose = {"file": str(given), "strict": False}
    run_toy(tree(sets, "vit-h", **still, training__start=loose), tmp_path / "second")
    text = read_json(tmp_path / "second" / "start.json")
    assert any(name.startswith("adapter.") for name in text["unknown"])
    result, source = load_file(tmp_path / "second" / "model.safetensors"), load_file(given)
    name = "blocks.0.attn.qkv.weight"
    torch.testing.assert_close(result[name], source[name])
    assert read_json(tmp_path / "second" / "data.json")["training.start"]
