"""A file of weights in any of the formats in which projects publish them, as named tensors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_plain, read_tensors
from fedvisage.base.onnx_graphs import LARGEST, parse_graph
from fedvisage.base.processes import CannotClose, can_close, closed_off, free_memory, starting
from fedvisage.data.prepared import file_digest
from fedvisage.federation.wire.message import Malformed, decode, encode

# The weights of an ONNX graph: its initialisers by name, and its layers in order with what each was given.
#
# Exporters often fold BatchNorm into the convolution before it, and then call the result by a number. So a graph is
# also
# read as the row of its layers, which a table of layers in the order of computation can be laid beside.


LAYERS = {"Conv", "BatchNormalization", "PRelu", "Gemm", "MatMul"}
REMEDY = "write the network as one file, with tensors and standard operators only"
"""What owners of a graph from elsewhere can do about a refusal."""


@dataclass(frozen=True)
class Layer:
    """A node of a graph with weights: what it is, the name of its first weight, and its weights in order."""

    kind: str
    name: str
    weights: tuple[Tensor, ...]


def read_graph(path: Path) -> tuple[dict[str, Tensor], tuple[Layer, ...]]:
    """Return a graph's initialisers by name, and its layers that have weights, in order."""
    from onnx import numpy_helper

    model = parse_graph(str(path), read_plain(path, LARGEST), REMEDY)
    try:
        tensors = {one.name: _tensor(numpy_helper.to_array(one)) for one in model.graph.initializer}
        constants = {
            node.output[0]: _tensor(numpy_helper.to_array(one.t))
            for node in model.graph.node
            if node.op_type == "Constant"
            for one in node.attribute
            if one.name == "value"
        }
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(str(path), f"is not a whole ONNX graph ({' '.join(str(error).split())[:160]})") from error
    known = constants | tensors
    return tensors, tuple(_layer(node, known) for node in model.graph.node if _has_weights(node, known))


def _has_weights(node: Any, known: dict[str, Tensor]) -> bool:
    return node.op_type in LAYERS and any(name in known for name in node.input)


def _layer(node: Any, known: dict[str, Tensor]) -> Layer:
    given = [name for name in node.input if name in known]
    weights = [known[name] for name in given]
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and not _attribute(node, "transB")):
        weights[0] = weights[0].T.contiguous()
    if node.op_type == "PRelu":
        weights[0] = weights[0].reshape(-1)
    return Layer(node.op_type, given[0], tuple(weights))


def _attribute(node: Any, name: str) -> int:
    return next((int(one.i) for one in node.attribute if one.name == name), 0)


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.array(array, copy=True))


# Weights out of a checkpoint of torch's, which is a pickle: read in a process that is closed off, as tensors only.
#
# ``torch.load(weights_only=True)`` runs a small part of what a pickle can say. Should that part have a hole, the
# process
# has no network, starts no program, writes no file and has little memory. What it hands over is safetensors, which
# is
# checked like any file.


SPARE = 1 << 30
"""Bytes of memory beyond five times the file: what is read, its copy, and its bytes on the way out."""

PATIENCE = 900
"""Seconds; the slowest disk reads the largest file sooner."""

HOLDERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "backbone",
    "encoder",
    "teacher",
    "ema",
    "weights",
)
"""Keys under which checkpoints keep the weights, beside optimizers and counters."""


def read_checkpoint(path: Path, key: str | None) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name; ``key`` says under which key they stand, where that is not plain."""
    if not can_close():
        raise UserError(str(path), "is a pickle, which is read in a process without network, and only Linux closes one "
                        "off; convert it there, or write safetensors where it was made")  # fmt: skip
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    size = path.stat().st_size
    child = context.Process(target=_child, args=(str(path), key, 5 * size + SPARE, theirs), daemon=True)
    with starting():
        child.start()
    theirs.close()
    try:
        return _answer(ours, path)
    finally:
        child.kill()
        child.join()
        ours.close()


def _answer(ours: Connection, path: Path) -> dict[str, Tensor]:
    try:
        if not ours.poll(PATIENCE):
            raise UserError(str(path), f"was not read within {PATIENCE} seconds")
        said = ours.recv_bytes()
    except EOFError:
        raise UserError(str(path), "ended the process that read it; it needs more memory than a file of its size may, "
                        "or is not what it says") from None  # fmt: skip
    if said[:1] != b"+":
        raise UserError(str(path), said[1:].decode("utf-8", "replace"))
    try:
        return decode(said[1:])
    except Malformed as error:
        raise UserError(str(path), f"holds no plain tensors ({error})") from error


def _child(path: str, key: str | None, memory: int, out: Connection) -> None:
    """Read a checkpoint and send its tensors, or the reason why not; whatever it raises ends this process alone."""
    import torch

    torch.set_num_threads(1)  # what is closed off begins no thread
    try:
        closed_off(memory)
        found = torch.load(path, map_location="cpu", weights_only=True)
        tensors = weights_in(found, key)
        plain = {name: _plain(value) for name, value in tensors.items()}
        out.send_bytes(b"+" + encode(plain))
    except MemoryError:
        out.send_bytes(b"-needs more memory than a file of its size may")
    except CannotClose as error:
        out.send_bytes(f"-is a pickle, which is only read where a process can be closed off: {error}".encode())
    except Exception as error:  # a file can raise anything; it is told, and this process ends
        out.send_bytes(f"-{_said(error)}".encode())
    finally:
        out.close()


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, NoWeights):
        return text
    if "TorchScript" in text:
        return "is a TorchScript archive, which is a program; save the state_dict of the model instead"
    if "weights_only" in text or "Unsupported" in text or "GLOBAL" in text:
        return ("holds more than tensors, and the rest would have to be run to be read; save model.state_dict() where "
                f"it was made ({text[:120]})")  # fmt: skip
    return f"is not a whole checkpoint ({type(error).__name__}: {text[:160]})"


class NoWeights(Exception):
    """A checkpoint in which no set of named tensors is found, or several are."""


def weights_in(found: Any, key: str | None = None) -> dict[str, Tensor]:
    """Return the named tensors of a checkpoint: all it is, or what stands under a key."""
    if key is not None:
        for one in key.split("."):
            if not isinstance(found, Mapping) or one not in found:
                raise NoWeights(f"has no key {key!r}")
            found = found[one]
    if not isinstance(found, Mapping):
        raise NoWeights("holds no mapping of names to tensors")
    if tensors := {str(name): value for name, value in found.items() if isinstance(value, Tensor)}:
        return tensors
    inner = {name: value for name, value in found.items() if isinstance(value, Mapping) and _has_tensors(value)}
    known = [name for name in HOLDERS if name in inner]
    chosen = known[:1] if known else list(inner) if len(inner) == 1 else []
    if not chosen:
        names = ", ".join(sorted(map(str, inner))) or "none with tensors"
        raise NoWeights(f"has weights under several keys or none ({names}); name one with --key")
    return weights_in(inner[chosen[0]])


def _has_tensors(value: Mapping[Any, Any]) -> bool:
    return any(isinstance(one, Tensor) or (isinstance(one, Mapping) and _has_tensors(one)) for one in value.values())


def _plain(value: Tensor) -> Tensor:
    value = value.detach()
    return (value.dequantize() if value.is_quantized else value).to_dense().contiguous().clone()


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
