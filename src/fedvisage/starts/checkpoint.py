"""Read the tensors of a PyTorch checkpoint without torch and without running its code.

The published checkpoints have torch's older format: several pickles, and behind them the blocks of numbers that they
describe. The reader accepts the few names that a ``state_dict`` needs, builds inert values of its own from them, and
refuses every other name. `fedvisage model convert` reads all formats, with torch and in a sandbox.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_plain

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
STORAGES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8"}
"""The types of numbers, by torch's names for blocks of them."""

LARGEST = 1 << 28
"""Maximum bytes of a checkpoint."""


class _Block(NamedTuple):
    """A block of numbers: its key in the file, type and length."""

    key: str
    dtype: str
    length: int


class _Tensor(NamedTuple):
    """A tensor as a part of a block."""

    block: _Block
    offset: int
    shape: tuple[int, ...]


def read_state(path: Path) -> dict[str, NDArray[Any]]:
    """Return the named tensors of a checkpoint that holds a plain ``state_dict``."""
    file = BytesIO(read_plain(path, LARGEST))
    try:
        magic, protocol, system, state, keys = (_Unpickler(file).load() for _ in range(5))
        if (magic, protocol) != (MAGIC, PROTOCOL) or system.get("little_endian") is not True:
            raise ValueError("it does not begin like one")
        if not isinstance(state, Mapping) or not all(isinstance(tensor, _Tensor) for tensor in state.values()):
            raise ValueError("it does not hold a mapping of names to tensors alone")
        blocks = {tensor.block.key: tensor.block for tensor in state.values()}
        values = {}
        for key in keys:
            (length,) = struct.unpack("<q", file.read(8))
            dtype = np.dtype(blocks[key].dtype)
            values[key] = np.frombuffer(file.read(length * dtype.itemsize), dtype, length)
        arrays = {}
        for name, (block, offset, shape) in state.items():
            arrays[str(name)] = values[block.key][offset : offset + math.prod(shape)].reshape(shape)
    except Exception as error:  # a damaged pickle can raise anything
        fault = f"{type(error).__name__}: {error}"[:200]
        raise UserError(str(path), f"is not a checkpoint of plain tensors ({fault})") from None
    return arrays


class _Unpickler(pickle.Unpickler):
    """Builds mappings, numbers, texts and inert descriptions of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _describe_tensor
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise ValueError(f"it names {module[:40]}.{name[:40]}, and reading it would run code")

    def persistent_load(self, pid: Any) -> _Block:
        kind, dtype, key, _, length, _ = pid
        if kind != "storage" or dtype not in STORAGES.values() or not isinstance(key, str):
            raise ValueError("it describes a block of another kind")
        return _Block(key, dtype, length)


def _describe_tensor(block: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """Return the description of a tensor whose values lie in a block one after another."""
    numbers = (offset, *shape, *strides)
    if not isinstance(block, _Block) or not all(isinstance(each, int) and 0 <= each <= LARGEST for each in numbers):
        raise ValueError("it describes a tensor of another kind")
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if any(size > 1 and stride != step for size, stride, step in zip(shape, strides, steps, strict=True)):
        raise ValueError("it has a tensor that is not contiguous")
    return _Tensor(block, offset, tuple(shape))
