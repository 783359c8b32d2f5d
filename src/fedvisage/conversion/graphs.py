"""The weights of an ONNX graph: its initialisers by name, and its layers in order with what each was given.

Exporters often fold BatchNorm into the convolution before it, and then call the result by a number. So a graph is also
read as the row of its layers, which a table of layers in the order of computation can be laid beside.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvisage.errors import UserError
from fedvisage.files import read_plain
from fedvisage.graphs.checks import LARGEST, parse_graph

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
