"""Read a file of weights in any format in which projects publish them, and return named tensors."""

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
from fedvisage.base.files import file_digest, read_plain, read_tensors
from fedvisage.base.onnx_graphs import LARGEST, parse_graph
from fedvisage.base.processes import SandboxUnavailable, block_signals, can_sandbox, enter_sandbox, free_memory
from fedvisage.federation.wire.message import MalformedMessage, decode, encode

# ONNX graphs. Exporters often fold BatchNorm into the convolution before it and number the result. So a graph is also
# read as the sequence of its layers, which can be compared with a table of layers in the order of computation.

LAYERS = {"Conv", "BatchNormalization", "PRelu", "Gemm", "MatMul"}
REMEDY = "write the network as one file, with tensors and standard operators only"
"""Advice to owners of a graph that is refused."""


@dataclass(frozen=True)
class GraphLayer:
    """A node of a graph with weights: its kind, the name of its first weight, and its weights in order."""

    kind: str
    name: str
    weights: tuple[Tensor, ...]


def read_graph(path: Path) -> tuple[dict[str, Tensor], tuple[GraphLayer, ...]]:
    """Return a graph's initialisers by name, and its layers with weights, in order."""
    from onnx import numpy_helper

    model = parse_graph(str(path), read_plain(path, LARGEST), REMEDY)
    try:
        tensors = {
            initializer.name: _tensor(numpy_helper.to_array(initializer)) for initializer in model.graph.initializer
        }
        constants = {
            node.output[0]: _tensor(numpy_helper.to_array(attribute.t))
            for node in model.graph.node
            if node.op_type == "Constant"
            for attribute in node.attribute
            if attribute.name == "value"
        }
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(str(path), f"is not a valid ONNX graph ({' '.join(str(error).split())[:160]})") from error
    values, layers = constants | tensors, []
    for node in model.graph.node:
        names = [name for name in node.input if name in values]
        if node.op_type not in LAYERS or not names:
            continue
        # The weights in the layout of torch.
        weights = [values[name] for name in names]
        is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        if node.op_type == "MatMul" or (node.op_type == "Gemm" and not is_transposed):
            weights[0] = weights[0].T.contiguous()
        if node.op_type == "PRelu":
            weights[0] = weights[0].reshape(-1)
        layers.append(GraphLayer(node.op_type, names[0], tuple(weights)))
    return tensors, tuple(layers)


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.array(array, copy=True))


# Checkpoints of torch are pickles. A closed-off process reads them, and only tensors leave it.
# ``torch.load(weights_only=True)`` runs a small part of the pickle language. In case that part has a hole, the process
# has no network, starts no program, writes no file and has little memory. It hands over safetensors, which are checked
# like any other file.

SPARE = 1 << 30
"""Bytes of memory beyond five times the file's size: for the tensors, their copy, and their encoded bytes."""

PATIENCE = 900
"""Seconds to wait; the slowest disk reads the largest file sooner."""

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
"""Keys under which checkpoints keep the weights, next to optimizers and counters."""


def read_checkpoint(path: Path, key: str | None) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, from under ``key`` where their place is ambiguous."""
    if not can_sandbox():
        raise UserError(
            str(path),
            "is a pickle, which is only read in a sandboxed process, and sandboxing requires Linux; "
            "convert it there, or save safetensors where it was made",
        )
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    size = path.stat().st_size
    child = context.Process(target=_send_tensors, args=(str(path), key, 5 * size + SPARE, sender), daemon=True)
    with block_signals():
        child.start()
    # Close our copy of the child's end, so that reading raises EOFError if the child dies.
    sender.close()
    try:
        if not receiver.poll(PATIENCE):
            raise UserError(str(path), f"could not be read within {PATIENCE} seconds")
        reply = receiver.recv_bytes()
    except EOFError:
        raise UserError(
            str(path),
            "crashed the process that read it; it needs more memory than its size allows, or is not a valid checkpoint",
        ) from None
    finally:
        child.kill()
        child.join()
        receiver.close()
    # The tensors, or the reason why there are none.
    if reply[:1] != b"+":
        raise UserError(str(path), reply[1:].decode("utf-8", "replace"))
    try:
        return decode(reply[1:])
    except MalformedMessage as error:
        raise UserError(str(path), f"does not contain plain tensors ({error})") from error


def _send_tensors(path: str, key: str | None, memory: int, out: Connection) -> None:
    """Read a checkpoint and send its tensors, or the reason for a failure; an exception ends this process alone."""
    import torch

    torch.set_num_threads(1)  # a closed-off process cannot start threads
    try:
        enter_sandbox(memory)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        tensors = weights_in(checkpoint, key)
        plain = {}
        for name, value in tensors.items():
            value = value.detach()
            dense = (value.dequantize() if value.is_quantized else value).to_dense()
            plain[name] = dense.contiguous().clone()
        out.send_bytes(b"+" + encode(plain))
    except MemoryError:
        out.send_bytes(b"-needs more memory than a file of its size may")
    except SandboxUnavailable as error:
        out.send_bytes(f"-is a pickle, which is only read where processes can be sandboxed: {error}".encode())
    except Exception as error:  # a file can raise anything; the parent gets the reason, and this process ends
        out.send_bytes(f"-{_describe_error(error)}".encode())
    finally:
        out.close()


def _describe_error(error: Exception) -> str:
    """Return the reason for an unreadable checkpoint, in words for the person who converts it."""
    text = " ".join(str(error).split())
    if isinstance(error, NoWeights):
        return text
    if "TorchScript" in text:
        return "is a TorchScript archive, which contains code; save the state_dict of the model instead"
    if "weights_only" in text or "Unsupported" in text or "GLOBAL" in text:
        return (
            "contains more than tensors, and reading the rest would run code; save model.state_dict() where "
            f"it was made ({text[:120]})"
        )
    return f"is not a valid checkpoint ({type(error).__name__}: {text[:160]})"


class NoWeights(Exception):
    """A checkpoint holds no set of named tensors, or several."""


def weights_in(contents: Any, key: str | None = None) -> dict[str, Tensor]:
    """Return the named tensors of a checkpoint: the whole mapping, or the value under a key."""
    if key is not None:
        for part in key.split("."):
            if not isinstance(contents, Mapping) or part not in contents:
                raise NoWeights(f"has no key {key!r}")
            contents = contents[part]
    if not isinstance(contents, Mapping):
        raise NoWeights("does not contain a mapping of names to tensors")
    if tensors := {str(name): value for name, value in contents.items() if isinstance(value, Tensor)}:
        return tensors
    inner = {name: value for name, value in contents.items() if isinstance(value, Mapping) and _has_tensors(value)}
    usual_keys = [name for name in HOLDERS if name in inner]
    chosen = usual_keys[:1] if usual_keys else list(inner) if len(inner) == 1 else []
    if not chosen:
        names = ", ".join(sorted(map(str, inner))) or "none with tensors"
        raise NoWeights(f"has weights under several keys or none ({names}); name one with --key")
    return weights_in(inner[chosen[0]])


def _has_tensors(value: Mapping[Any, Any]) -> bool:
    return any(
        isinstance(entry, Tensor) or (isinstance(entry, Mapping) and _has_tensors(entry)) for entry in value.values()
    )


@dataclass(frozen=True)
class WeightsFile:
    """The content of a file: tensors by name, and for a graph also its layers in order."""

    path: Path
    format: str
    sha256: str
    tensors: Mapping[str, Tensor]
    layers: tuple[GraphLayer, ...] = field(default=())


def read_source(path: Path, key: str | None = None) -> WeightsFile:
    """Read a file. Its first bytes determine the format; an ONNX graph is recognised by its suffix."""
    if not path.is_file():
        raise UserError(str(path), "does not exist or is not a regular file")
    size, free = path.stat().st_size, free_memory()
    if size > free // 2:
        raise UserError(str(path), f"has {size:,} bytes, more than half of the free memory ({free:,})")
    with path.open("rb") as file:
        form = "torch" if file.read(2) in (b"PK", b"\x80\x02") else "safetensors"
    form, layers = "onnx" if path.suffix.lower() == ".onnx" else form, tuple[GraphLayer, ...]()
    if key is not None and form != "torch":
        raise UserError("--key", f"requires a PyTorch checkpoint; {path.name} is {form}")
    if form == "onnx":
        tensors, layers = read_graph(path)
    elif form == "torch":
        tensors = read_checkpoint(path, key)
    else:
        tensors, _ = read_tensors(path)
    # All later steps compute in float32; files often hold float16.
    plain = {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}
    if not plain:
        raise UserError(str(path), "contains no tensors")
    for name, value in plain.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UserError(str(path), f"{name} contains NaN or infinite values")
    return WeightsFile(path, form, file_digest(path), plain, layers)
