"""An exported directory may come from anywhere: what is not as it says is refused in one line, before it is run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fedvisage.device import Exported
from fedvisage.errors import RunFailed, UserError

GRAPH = "onnx/model.onnx"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def copy(pad: Path, tmp_path: Path) -> Path:
    out = tmp_path / "copy"
    shutil.copytree(pad, out)
    return out


def changed(directory: Path, change: Change) -> None:
    path = directory / "config.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def replaced(directory: Path, content: bytes) -> None:
    """Put another graph in, with the digest that it really has."""
    (directory / GRAPH).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    changed(directory, lambda said: said["float32"].update(file=entry))


def described(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = said["float32"]["description"]
    return found


CHANGES: dict[str, Change] = {
    "another threshold": lambda said: described(said)["threshold"].update(value=-20.0),
    "a threshold that is no number": lambda said: described(said)["threshold"].update(value="NaN"),
    "an infinite threshold": lambda said: described(said)["threshold"].update(value=1e999),
    "another task": lambda said: described(said).update(task="recognition"),
    "another size": lambda said: described(said).update(size=64),
    "a size that fits nowhere": lambda said: described(said).update(size=10**9),
    "another model": lambda said: described(said).update(model_sha256="0" * 64),
    "another detector": lambda said: described(said)["crop"]["detector"].update(sha256="0" * 64),
    "another margin": lambda said: described(said)["crop"].update(margin=2.0),
    "a word for terminals": lambda said: described(said).update(method="\x1b[2J"),
    "an unknown key": lambda said: described(said).update(run="rm -rf"),
    "no description": lambda said: said["float32"].pop("description"),
    "a huge file": lambda said: said["float32"]["file"].update(bytes=1 << 50),
    "nothing": lambda said: said.clear(),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_description_that_was_changed_is_refused(copy: Path, name: str) -> None:
    changed(copy, CHANGES[name])
    with pytest.raises(UserError) as told:
        Exported.open(copy)
    assert str(told.value).isprintable()
    assert str(copy) in told.value.place


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"a":' * 5000, b" " * (1 << 21)])
def test_a_description_that_is_none_is_refused(copy: Path, content: bytes) -> None:
    (copy / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json"):
        Exported.open(copy)


def test_a_graph_with_other_bytes_is_refused(copy: Path) -> None:
    content = bytearray((copy / GRAPH).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / GRAPH).write_bytes(bytes(content))
    with pytest.raises(UserError, match="digest"):
        Exported.open(copy)


@pytest.mark.parametrize("content", [b"", b"no graph at all" * 10, b"\x08\x0a"])
def test_a_file_that_is_no_graph_is_refused_even_with_its_digest(copy: Path, content: bytes) -> None:
    replaced(copy, content)
    with pytest.raises(UserError, match=r"model\.onnx"):
        Exported.open(copy)


def test_a_graph_that_says_nothing_of_itself_is_refused(copy: Path) -> None:
    model = onnx.load(copy / GRAPH)
    del model.metadata_props[:]
    replaced(copy, model.SerializeToString())
    with pytest.raises(UserError, match="says another"):
        Exported.open(copy)


def bare(copy: Path, kind: int, shape: list[Any], value: float) -> bytes:
    """Return a graph that says of itself what the copy's does, has such an input, and answers one constant."""
    props = onnx.load(copy / GRAPH).metadata_props
    taken = helper.make_tensor_value_info("images", kind, shape)
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in ("score", "logit")]
    count = [
        helper.make_node("Shape", ["images"], ["count"], start=0, end=1),
        *(
            helper.make_node(
                "ConstantOfShape", ["count"], [name], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [value])
            )
            for name in ("score", "logit")
        ),
    ]
    graph = helper.make_graph(count, "bare", [taken], given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model.metadata_props.extend(props)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("kind", "shape"), [(TensorProto.FLOAT, ["batch", 32, 32, 3]), (TensorProto.UINT8, ["batch", 3, 32, 32])]
)
def test_a_graph_with_other_inputs_is_refused(copy: Path, kind: int, shape: list[Any]) -> None:
    replaced(copy, bare(copy, kind, shape, 0.0))
    with pytest.raises(UserError, match="inputs or outputs"):
        Exported.open(copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_end_it(copy: Path, value: float) -> None:
    replaced(copy, bare(copy, TensorProto.UINT8, ["batch", 32, 32, 3], value))
    model = Exported.open(copy)
    with pytest.raises(RunFailed, match="no number"):
        model.run(np.zeros((1, 32, 32, 3), np.uint8))


def test_a_pipe_in_the_place_of_a_graph_is_refused(copy: Path) -> None:
    (copy / GRAPH).unlink()
    os.mkfifo(copy / GRAPH)
    with pytest.raises(UserError, match="no plain file"):
        Exported.open(copy)


def test_a_run_is_no_export(pad_run: Path) -> None:
    with pytest.raises(UserError, match="fedvisage export"):
        Exported.open(pad_run)


def test_int8_has_to_be_there(pad: Path) -> None:
    with pytest.raises(UserError, match="--int8"):
        Exported.open(pad, int8=True)


def test_crops_of_another_shape_are_a_programs_mistake(pad: Path) -> None:
    model = Exported.open(pad)
    with pytest.raises(ValueError, match="crops must be"):
        model.run(np.zeros((1, 3, 32, 32), np.uint8))
    assert len(model.run(np.zeros((0, 32, 32, 3), np.uint8))) == 0
