"""GPUs of workers, and deterministic algorithms."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.refusals import refused
from tests.toy import Sets, recipe_of, run_toy_once, tree
from torch import Tensor

from fedvisage.device.predict import list_input_pictures
from fedvisage.federation.method import Member
from fedvisage.methods import METHODS
from fedvisage.nn.compute import (
    choose_algorithms,
    device_of_worker,
    gpus_of,
    has_fast_bf16,
    report_nondeterminism,
    resolve_compute,
)
from fedvisage.runs.directory import describe
from fedvisage.runs.engine import LocalEngine
from fedvisage.runs.evaluate import evaluate
from fedvisage.runs.predict import predict
from fedvisage.runs.workers import WorkerPool, recipe_of_worker
from fedvisage.tasks.catalogue import set_up
from fedvisage.tasks.finished_model import open_model

SETS = {name: Path("nowhere", name) for name in "ABCU"}


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.fixture
def algorithms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    choose_algorithms(deterministic=False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.usefixtures("three_gpus")
@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("auto", ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]),
        ("cuda", ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]),
        ("cuda:1", ["cuda:1"] * 4),
        ("cpu", ["cpu"] * 4),
    ],
)
def test_workers_use_the_gpus_in_turn_unless_the_recipe_names_a_device(
    device: str, expected: list[str], tmp_path: Path
) -> None:
    engine = LocalEngine(tmp_path)
    recipe = recipe_of(tree(SETS, runtime__device=device))
    assert [device_of_worker(device, number) for number in range(4)] == expected
    assert [recipe_of_worker(recipe, engine, number).runtime.device for number in range(4)] == expected


@pytest.mark.usefixtures("three_gpus")
def test_a_number_beyond_the_last_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with refused("recipe.runtime.device", "cuda:3", "cuda:2"):
        resolve_compute("cuda:3", "fp32")


@pytest.mark.parametrize(("generation", "half"), [(7, False), (8, True)])
def test_auto_is_bf16_only_on_gpus_with_units_for_it(
    generation: int, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=generation))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)  # an emulation works
    assert has_fast_bf16(torch.device("cuda")) == half


def test_without_a_gpu_workers_keep_the_device_of_the_recipe() -> None:
    assert gpus_of("auto") == [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    assert gpus_of("cpu") == []


@pytest.mark.usefixtures("three_gpus")
@pytest.mark.parametrize(("device", "count"), [("cuda", 3), ("cuda:1", 0)])
def test_auto_starts_one_worker_per_gpu(
    device: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(tree(SETS, runtime__device=device))
    pool, notes = WorkerPool("auto", LocalEngine(tmp_path)), list[str]()
    monkeypatch.setattr(pool.engine, "capacity", lambda threads: 16)
    pool.start(recipe, METHODS["fedpad"], True, notes.append)
    assert len(pool.workers) == count
    assert notes == ([] if count else ["note: one process uses the GPU; runtime.workers changes nothing"])
    pool.engine.close()


@pytest.mark.usefixtures("algorithms")
def test_a_recipe_chooses_deterministic_algorithms_and_the_record_of_the_machine_names_them() -> None:
    for expected in (True, False):
        setup = set_up(recipe_of(tree(SETS, runtime__deterministic=expected or None)), METHODS["fedpad"])
        assert torch.are_deterministic_algorithms_enabled() == expected
        assert describe(setup.compute, 1).get("deterministic", False) == expected
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.backends.cudnn.allow_tf32, "fp32 is exact"


@pytest.mark.usefixtures("algorithms")
def test_an_operation_without_a_deterministic_algorithm_is_a_users_error() -> None:
    choose_algorithms(deterministic=True)
    with refused("recipe.runtime.deterministic", "put_ has no deterministic algorithm"), report_nondeterminism():
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


def put_twice(member: Member) -> Tensor:
    """Return logits from an operation without a deterministic algorithm."""
    return torch.zeros(len(member.images)).put_(torch.tensor([0, 0]), torch.ones(2))


@pytest.mark.usefixtures("algorithms")
def test_uses_of_a_finished_model_report_an_operation_without_a_deterministic_algorithm(
    sets: Sets, tmp_path: Path
) -> None:
    fedpad = METHODS["fedpad"]
    run_toy_once(tree(sets, training__rounds=1), tmp_path / "run")
    method = replace(fedpad, prediction=replace(fedpad.prediction, predict=put_twice))
    model = open_model(tmp_path / "run", method=method)
    faces = np.zeros((2, model.recipe.input.size, model.recipe.input.size, 3), np.uint8)
    Image.fromarray(faces[0]).save(tmp_path / "face.png")
    choose_algorithms(deterministic=True)
    for use in (
        lambda: evaluate(model, None, tmp_path / "cache"),
        lambda: predict(model, list_input_pictures([tmp_path / "face.png"]), crop="none"),
        lambda: model.score(faces),
    ):
        with refused("recipe.runtime.deterministic", "put_ has no deterministic algorithm"):
            use()


def test_other_errors_of_torch_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match="shape"), report_nondeterminism():
        torch.zeros(3).reshape(2, 2)
