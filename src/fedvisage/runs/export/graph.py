"""The ONNX graph of a model, from the bytes of a crop to a score or an embedding, and its comparison with torch.

The graph contains the colour space, the normalisation, the method's prediction, the mean over members, and the sigmoid
or the scaling to unit length. A device passes in the bytes of a crop and needs no preprocessing of its own.
"""

from __future__ import annotations

import copy
import keyword
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedvisage.base.errors import RunFailed
from fedvisage.base.extensions import missing_extra
from fedvisage.base.streams import torch_rng
from fedvisage.device.exported import INPUT, OUTPUTS, FoldedNorm
from fedvisage.federation.method import Member
from fedvisage.federation.wire.message import Message, load_parts
from fedvisage.methods.models.model import fold_adapters
from fedvisage.nn.inputs import colour_channels
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.scoring import LIMIT

# Comparison of a graph with torch on crops of a dataset, in batches of one and of five.

Crops = NDArray[np.uint8]
Compute = Callable[[Crops], NDArray[np.floating[Any]]]

SCORE, COSINE = 1e-4, 0.9999
"""The largest difference allowed between scores, which are probabilities, and the least cosine between embeddings."""

BATCHES = (1, 5)
LEAST = max(BATCHES)


@dataclass(frozen=True)
class Parity:
    """The difference between graph and torch at one batch size: the largest of scores, or the least cosine."""

    batch: int
    crops: int
    score_difference: float | None = None
    cosine: float | None = None

    @property
    def holds(self) -> bool:
        """Return whether the difference is small enough; NaN is not."""
        if self.score_difference is not None:
            return self.score_difference <= SCORE
        return self.cosine is not None and self.cosine >= COSINE

    def as_values(self) -> dict[str, Any]:
        """Return the fields that are set, as plain values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def measure(graph: Compute, torch: Compute, crops: Crops, task: str) -> list[Parity]:
    """Compare a graph with torch in batches of one and of five; an incomplete last batch of five is left out."""
    parity = []
    for batch in BATCHES:
        starts = range(0, len(crops) - batch + 1, batch)
        graph_outputs, torch_outputs = (
            np.concatenate([compute(crops[start : start + batch]) for start in starts]).astype(np.float64)
            for compute in (graph, torch)
        )
        if task == "pad":
            with np.errstate(invalid="ignore"):  # `require_parity` rejects NaN
                probabilities = (np.exp(-np.logaddexp(0.0, -logits)) for logits in (graph_outputs, torch_outputs))
                difference = float(np.abs(np.subtract(*probabilities)).max())
            parity.append(Parity(batch, len(graph_outputs), score_difference=difference))
        else:
            lengths = np.linalg.norm(graph_outputs, axis=1) * np.linalg.norm(torch_outputs, axis=1)
            cosine = float(((graph_outputs * torch_outputs).sum(axis=1) / lengths).min())
            parity.append(Parity(batch, len(graph_outputs), cosine=cosine))
    return parity


def require_parity(parities: list[Parity]) -> None:
    """Raise an error if the outputs of the graph differ from those of torch."""
    for parity in parities:
        if not parity.holds:
            difference = (
                f"scores differ by {parity.score_difference:.2g}"
                if parity.cosine is None
                else f"cosine {parity.cosine:.6f}"
            )
            limit = f"at most {SCORE:g}" if parity.cosine is None else f"at least {COSINE:g}"
            raise RunFailed(
                f"the graph and torch give different results: {difference} in batches of {parity.batch}, the limit is "
                f"{limit}; nothing was written"
            )


OPSET = 20


class Graph(nn.Module):
    """A module that maps uint8 N×S×S×3 in RGB to (score, logit) for attack detection, or to unit embeddings."""

    def __init__(self, model: FinishedModel, members: Sequence[Message]) -> None:
        """Load the members' weights. Several members are averaged: by probability, or their unit embeddings."""
        super().__init__()
        self._setup, self._pad = model.setup, model.task == "pad"
        method = model.setup.method
        self._predict = method.prediction.exportable_predict or method.prediction.predict
        self._generator = torch_rng(model.recipe.runtime.seed, "inference")
        self.members = nn.ModuleList(_load_weights(model, weights) for weights in members)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the graph's outputs, in the order of their names in ``OUTPUTS``."""
        recipe = self._setup.recipe
        ready = colour_channels(images.permute(0, 3, 1, 2).to(torch.float32) / 255.0, recipe.input.colour)
        outputs = []
        for parts in self.members:
            assert isinstance(parts, nn.ModuleDict)
            outputs.append(self._predict(Member(parts, ready, self._generator, recipe)).float())
        if not self._pad:
            return (mean_direction(outputs),)
        logits = [output.clamp(-LIMIT, LIMIT) for output in outputs]
        logit = logits[0]
        if len(logits) > 1:  # the logit of the mean probability
            stacked = torch.stack(logits)
            live, attack = (torch.logsumexp(nn.functional.logsigmoid(sign * stacked), dim=0) for sign in (1, -1))
            logit = live - attack
        return torch.sigmoid(logit), logit


def write_graph(graph: Graph, path: Path, size: int) -> tuple[FoldedNorm, ...]:
    """Write the ONNX graph of a model, for any batch size, without metadata; return its folded BatchNorm layers."""
    try:
        import onnxscript  # noqa: F401  (the exporter imports it only after tracing the whole model)
    except ImportError:
        raise missing_extra("export", "onnxscript") from None
    # With one image the tracer would treat the batch size as a constant.
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    outputs = OUTPUTS["pad" if graph._pad else "recognition"]
    try:
        with without_warnings(), torch.no_grad():
            program = torch.onnx.export(
                graph.cpu().eval(),
                (example,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=list(outputs),
                dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
            )
    except (torch.onnx.errors.OnnxExporterError, torch._dynamo.exc.TorchDynamoException) as error:
        name = graph._setup.method.name
        reason = " ".join(str(error).split())[:200]
        raise RunFailed(f"the network of {name} cannot be written as a graph: {reason}") from error
    assert program is not None
    model: Any = program.model
    norms = _folded_norms(graph, model)
    # The source locations of operations contain paths of this machine.
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        for annotated in (node, *node.outputs):
            annotated.metadata_props.clear()
            annotated.doc_string = None
    program.save(path, external_data=False)
    return norms


def _folded_norms(graph: Graph, model: Any) -> tuple[FoldedNorm, ...]:
    """Return the BatchNorm layers that the exporter folded into the preceding operation.

    The resulting operation keeps the scope of the layer, which is the path of its module.
    """
    layers = {f"'{path}'": (path, module) for path, module in graph.named_modules() if isinstance(module, _BatchNorm)}
    records = []
    for node in model.graph.all_nodes():
        scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
        path, layer = next((layers[scope] for scope in layers if scope in scopes), ("", None))
        # Adaptation on a device scales the rows of the weight, which must be the layer's channels.
        transposed = node.attributes.get("transB")
        rows = node.op_type == "Conv" or (transposed is not None and transposed.as_int() == 1)
        if layer is None or not rows:
            continue
        _, number, *parts = path.split(".")
        prefix = f"member{int(number) + 1}/" if len(graph.members) > 1 else ""
        name = ".".join(part[:-1] if keyword.iskeyword(part[:-1]) else part for part in parts)
        records.append(FoldedNorm(node=node.name, layer=f"{prefix}{name}", epsilon=layer.eps))
    return tuple(records)


def _load_weights(model: FinishedModel, weights: Message) -> nn.ModuleDict:
    """Return a float32 copy of the delivered parts with a member's weights and with names that the tracer accepts."""
    parts = copy.deepcopy(model.scorer.net).cpu()
    load_parts(parts, weights)
    fold_adapters(parts)
    for module in parts.modules():
        # The tracer generates Python code, in which a keyword such as `global` cannot name a sub-module.
        module._modules = {
            f"{name}_" if keyword.iskeyword(name) else name: submodule for name, submodule in module._modules.items()
        }
    return parts.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload,no-any-return]


def mean_direction(embeddings: Sequence[Tensor]) -> Tensor:
    """Return the direction of an embedding, or of the mean of several at unit length, per image."""
    units = [nn.functional.normalize(embedding) for embedding in embeddings]
    return units[0] if len(units) == 1 else nn.functional.normalize(torch.stack(units).mean(dim=0))


@contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress the warnings of exporter and quantiser: both raise their errors, and the results are checked."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
