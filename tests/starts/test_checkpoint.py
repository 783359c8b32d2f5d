"""Checkpoints are read without torch: the same tensors as torch reads, and nothing else runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checkpoints import MakesDirectory
from tests.refusals import refused

from fedvisage.starts.checkpoint import read_state


def save(value: object, path: Path) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=False)
    return path


def test_every_tensor_equals_the_one_that_torch_reads(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2).half())
    state = net.state_dict()
    shared = torch.arange(10.0, dtype=torch.float64)
    state["part"], state["whole"] = shared[4:], shared
    arrays = read_state(save(state, tmp_path / "a.pth"))
    assert arrays.keys() == state.keys()
    for name, value in state.items():
        assert arrays[name].dtype == value.numpy().dtype
        np.testing.assert_array_equal(arrays[name], value.numpy())


def test_code_in_a_checkpoint_is_refused_and_does_not_run(tmp_path: Path) -> None:
    path = save({"w": torch.zeros(2), "x": MakesDirectory(tmp_path / "ran")}, tmp_path / "a.pth")
    with refused("a.pth", "mkdir", "run code"):
        read_state(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("value", "keyword"),
    [
        ({"w": torch.arange(6.0).reshape(2, 3).T}, "contiguous"),
        ({"state_dict": {"w": torch.zeros(2)}}, "mapping"),
        ([torch.zeros(2)], "mapping"),
        ({"w": torch.zeros(2, dtype=torch.bfloat16)}, "torch.BFloat16Storage"),
        ({"w": torch.zeros(2).to_sparse()}, "names"),
    ],
)
def test_anything_but_plain_tensors_is_refused(tmp_path: Path, value: object, keyword: str) -> None:
    with refused("a.pth", keyword):
        read_state(save(value, tmp_path / "a.pth"))


def test_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    path = save({"w": torch.zeros(200)}, tmp_path / "a.pth")
    whole = path.read_bytes()
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with refused("a.pth"):
            read_state(path)
