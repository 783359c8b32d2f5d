"""Read the tensors of a PyTorch checkpoint without torch and without running its code.

`torch.save` writes a pickle with references to blocks of numbers. The reader accepts the five names that a
``state_dict`` needs, builds inert values of its own from them, and refuses every other name. It is for files whose
digest was checked; `fedvisage model convert` reads other people's files in a sandbox.
"""

from __future__ import annotations

import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_plain

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""First values of the older format, in which several pickles and the blocks follow each other."""

STORAGES: Mapping[str, str] = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
}
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


class _Refused(Exception):
    """A checkpoint contains something other than plain tensors."""


def read_state(path: Path) -> dict[str, NDArray[Any]]:
    """Return the named tensors of a checkpoint that holds a plain ``state_dict``."""
    content = read_plain(path, LARGEST)
    try:
        state, blocks = _read_archive(content) if content[:2] == b"PK" else _read_sequence(content)
        if not isinstance(state, Mapping):
            raise _Refused("it does not hold a mapping of names to tensors")
        arrays = {}
        for name, tensor in state.items():
            if not isinstance(name, str) or not isinstance(tensor, _Tensor):
                raise _Refused(f"{str(name)[:80]!r} is not a tensor")
            values, count = blocks[tensor.block.key], math.prod(tensor.shape)
            if tensor.offset + count > len(values):
                raise _Refused(f"{name[:80]!r} is larger than its block")
            arrays[name] = values[tensor.offset : tensor.offset + count].reshape(tensor.shape)
    except _Refused as error:
        raise UserError(str(path), f"is not a checkpoint of plain tensors: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(str(path), f"is not a valid checkpoint ({type(error).__name__})") from None
    return arrays


class _Unpickler(pickle.Unpickler):
    """Builds mappings, numbers, texts and inert descriptions of tensors, and collects the blocks that they name."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.blocks: dict[str, _Block] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _describe_tensor
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise _Refused(f"it names {module[:40]}.{name[:40]}, and reading it would run code")

    def persistent_load(self, pid: Any) -> _Block:
        kind, dtype, key, _, length, *_ = pid
        valid = kind == "storage" and dtype in STORAGES.values() and isinstance(key, str) and isinstance(length, int)
        if not valid or not 0 <= length <= LARGEST:
            raise _Refused("it describes a block of another kind")
        return self.blocks.setdefault(key, _Block(key, dtype, length))


def _describe_tensor(block: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """Return the description of a tensor whose values lie in a block one after another."""
    numbers = (offset, *shape, *strides)
    if not isinstance(block, _Block) or not all(isinstance(each, int) and 0 <= each <= LARGEST for each in numbers):
        raise _Refused("it describes a tensor of another kind")
    expected = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if any(size > 1 and stride != step for size, stride, step in zip(shape, strides, expected, strict=True)):
        raise _Refused("it has a tensor that is not contiguous")
    return _Tensor(block, offset, tuple(shape))


def _read_archive(content: bytes) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Read the format of torch since 1.6: an uncompressed zip archive with one pickle and one file per block."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise _Refused("its archive is compressed")
        if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
            raise _Refused("its numbers are not little-endian")
        unpickler = _Unpickler(BytesIO(archive.read(entries["data.pkl"])))
        state = unpickler.load()
        blocks = {
            key: np.frombuffer(archive.read(entries[f"data/{key}"]), block.dtype, block.length)
            for key, block in unpickler.blocks.items()
        }
    return state, blocks


def _read_sequence(content: bytes) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Read the older format: four pickles, a list of keys, and per key a length and the numbers."""
    file = BytesIO(content)
    magic, protocol, system = (_Unpickler(file).load() for _ in range(3))
    if magic != MAGIC or protocol != PROTOCOL or system.get("little_endian") is not True:
        raise _Refused("it does not begin like one")
    unpickler = _Unpickler(file)
    state = unpickler.load()
    blocks = {}
    for key in _Unpickler(file).load():
        block = unpickler.blocks[key]
        (length,) = struct.unpack("<q", file.read(8))
        if length != block.length:
            raise _Refused("a block has another length than the tensors in it")
        blocks[key] = np.frombuffer(file.read(length * np.dtype(block.dtype).itemsize), block.dtype, length)
    return state, blocks
