"""A file of weights in any of the formats in which projects publish them, as named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedvisage.conversion.graphs import Layer, read_graph
from fedvisage.conversion.pickled import read_checkpoint
from fedvisage.data.manifest import file_digest
from fedvisage.errors import UserError
from fedvisage.files import read_tensors
from fedvisage.workers.machine import free_memory


@dataclass(frozen=True)
class Source:
    """What a file holds: tensors by name, and of a graph also its layers in order."""

    path: Path
    format: str
    sha256: str
    tensors: Mapping[str, Tensor]
    layers: tuple[Layer, ...] = field(default=())


def read_source(path: Path, key: str | None = None) -> Source:
    """Read a file; its format is told by its first bytes, and an ONNX graph by its name."""
    if not path.is_file():
        raise UserError(str(path), "does not exist, or is no plain file")
    size, free = path.stat().st_size, free_memory()
    if size > free // 2:
        raise UserError(str(path), f"has {size:,} bytes, more than half of the memory that is free ({free:,})")
    form, layers = _format(path), tuple[Layer, ...]()
    if key is not None and form != "torch":
        raise UserError("--key", f"is for a checkpoint of torch's; {path.name} is {form}")
    if form == "onnx":
        tensors, layers = read_graph(path)
    elif form == "torch":
        tensors = read_checkpoint(path, key)
    else:
        tensors, _ = read_tensors(path)
    plain = {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}
    _check_sound(path, plain)
    return Source(path, form, file_digest(path), plain, layers)


def _format(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(2)
    if path.suffix.lower() == ".onnx":
        return "onnx"
    return "torch" if start in (b"PK", b"\x80\x02") else "safetensors"


def _check_sound(path: Path, tensors: Mapping[str, Tensor]) -> None:
    if not tensors:
        raise UserError(str(path), "holds no tensor")
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UserError(str(path), f"{name} has values that are no numbers, or infinite")
