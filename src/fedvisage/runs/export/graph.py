"""One module from an image's bytes to a score or an embedding, and its ONNX graph.

Colour space, normalisation, what a method's user computes, members' mean, sigmoid and length are all inside, so that a
device hands over the bytes of a crop and has nothing to get wrong.
"""

from __future__ import annotations

import copy
import keyword
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.streams import torch_rng
from fedvisage.device.exported import INPUT, OUTPUTS
from fedvisage.federation.declared import Member
from fedvisage.federation.wire.message import Message, load_parts
from fedvisage.nn.inputs import colour_channels
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.scoring import LIMIT

# Whether a graph says what torch says: on crops of a prepared set, one at a time and five together.


Crops = NDArray[np.uint8]
Compute = Callable[[Crops], NDArray[np.floating[Any]]]

SCORE, COSINE = 1e-4, 0.9999
"""How far scores, which are probabilities, may be apart; and how near embeddings must be."""

BATCHES = (1, 5)
LEAST = max(BATCHES)


@dataclass(frozen=True)
class Parity:
    """How near graph and torch are for batches of one size: for scores the largest difference, or the least cosine."""

    batch: int
    crops: int
    score_difference: float | None = None
    cosine: float | None = None

    @property
    def holds(self) -> bool:
        """Tell whether they are near enough; what is no number is not."""
        if self.score_difference is not None:
            return self.score_difference <= SCORE
        return self.cosine is not None and self.cosine >= COSINE

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def measure(graph: Compute, torch: Compute, crops: Crops, task: str) -> list[Parity]:
    """Compare a graph with torch, both in batches of one and of five; crops that make no five are left out of those."""
    found = []
    for batch in BATCHES:
        starts = range(0, len(crops) - batch + 1, batch)
        one, other = (np.concatenate([compute(crops[start : start + batch]) for start in starts]).astype(np.float64)
                      for compute in (graph, torch))  # fmt: skip
        if task == "pad":
            with np.errstate(invalid="ignore"):  # what is no number is refused below
                difference = float(np.abs(_probability(one) - _probability(other)).max())
            found.append(Parity(batch, len(one), score_difference=difference))
        else:
            lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
            found.append(Parity(batch, len(one), cosine=float(((one * other).sum(axis=1) / lengths).min())))
    return found


def require(found: list[Parity]) -> None:
    """Refuse a graph that says other things than torch."""
    for one in found:
        if not one.holds:
            said = f"scores differ by {one.score_difference:.2g}" if one.cosine is None else f"cosine {one.cosine:.6f}"
            limit = f"at most {SCORE:g}" if one.cosine is None else f"at least {COSINE:g}"
            raise RunFailed(f"the graph does not say what torch says: {said} in batches of {one.batch}, allowed is "
                            f"{limit}; nothing was written")  # fmt: skip


def _probability(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))


OPSET = 20


class Graph(nn.Module):
    """Uint8 N×S×S×3 in RGB to (score, logit) of attack detection, or to unit embeddings of recognition."""

    def __init__(self, model: FinishedModel, members: Sequence[Message]) -> None:
        """Take the members' weights; several are averaged by probability, as the method's scores are."""
        super().__init__()
        self._setup, self._pad = model.setup, model.task == "pad"
        method = model.setup.method
        self._user = method.user if method.as_graph is None else method.as_graph
        self._generator = torch_rng(model.recipe.runtime.seed, "inference")
        self.members = nn.ModuleList(_loaded(model, one) for one in members)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return what a device reads, in the order of the outputs."""
        recipe = self._setup.recipe
        ready = colour_channels(images.permute(0, 3, 1, 2).to(torch.float32) / 255.0, recipe.input.colour)
        found = [self._user(Member(self._parts(number), ready, self._generator, recipe)).float()
                 for number in range(len(self.members))]  # fmt: skip
        if not self._pad:
            return (nn.functional.normalize(found[0]),)
        logits = [one.clamp(-LIMIT, LIMIT) for one in found]
        logit = logits[0] if len(logits) == 1 else _mean(torch.stack(logits))
        return torch.sigmoid(logit), logit

    def _parts(self, number: int) -> nn.ModuleDict:
        parts = self.members[number]
        assert isinstance(parts, nn.ModuleDict)
        return parts


def write_graph(graph: Graph, path: Path, size: int, metadata: Mapping[str, str]) -> None:
    """Write the ONNX graph of a model, for any number of images, with texts beside it."""
    try:
        import onnxscript  # noqa: F401  (the exporter asks for it only when it has traced everything)
    except ImportError:
        raise UserError("export", "the exporter is not installed; install fedvisage[export]") from None
    # With one image the tracer would take the batch for a constant.
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    outputs = OUTPUTS["pad" if graph._pad else "recognition"]
    try:
        with _quietly():
            program = torch.onnx.export(
                graph.cpu().eval(), (example,), dynamo=True, verbose=False, opset_version=OPSET, input_names=[INPUT],
                output_names=list(outputs), dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
            )  # fmt: skip
    except (torch.onnx.errors.OnnxExporterError, torch._dynamo.exc.TorchDynamoException) as error:
        name = graph._setup.method.name
        said = " ".join(str(error).split())[:200]
        raise RunFailed(f"the network of {name} cannot be written as a graph: {said}") from error
    assert program is not None
    _without_traces(program.model)
    program.model.metadata_props.update(metadata)
    program.save(path, external_data=False)


def _without_traces(model: Any) -> None:
    """Take out where in which file of this machine each operation was written."""
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        for one in (node, *node.outputs):
            one.metadata_props.clear()
            one.doc_string = None


def _loaded(model: FinishedModel, weights: Message) -> nn.ModuleDict:
    """Return a copy of the delivered parts with a member's weights, in float32 and with names that a graph can have."""
    parts = copy.deepcopy(model.scorer.net).cpu()
    load_parts(parts, weights)
    model.setup.method.merged(parts)
    for module in parts.modules():
        # The tracer writes Python, in which a sub-module cannot be called `global`.
        module._modules = {
            f"{name}_" if keyword.iskeyword(name) else name: one for name, one in module._modules.items()
        }
    return parts.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload,no-any-return]


def _mean(logits: Tensor) -> Tensor:
    """Return the logit of the mean probability over the first axis."""
    live, attack = (torch.logsumexp(nn.functional.logsigmoid(sign * logits), dim=0) for sign in (1, -1))
    return live - attack


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter's notes about itself from people: what it cannot do it raises, and the result is compared."""
    loud = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(loud)
