"""The model while it is adapted: only scale and shift of normalisation layers learn, by steps down the entropy."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from fedvisage.data.batches import Positions, View
from fedvisage.errors import UserError
from fedvisage.nn.batchnorm import batch_statistics, batchnorms, collected_statistics
from fedvisage.recipe import Adapt
from fedvisage.tasks.pad.adapt.entropy import entropy
from fedvisage.tasks.scoring import Logits, Scorer, as_logits

KEPT = 0.25
"""The share of the sites' BatchNorm statistics in a settled model, chosen on the sites' held-out subjects."""


class Learner:
    """A scorer's network in adaptation; afterwards the network is what it was before."""

    def __init__(self, scorer: Scorer, view: View, settings: Adapt) -> None:
        """Find what is to learn; nothing is changed before the learner is entered."""
        self.scorer, self.view, self.settings = scorer, view, settings
        self._learns = affine(scorer.net, settings.over)
        changing = [*self._learns, *(buffer for layer in batchnorms(scorer.net) for buffer in layer.buffers())]
        self._learned = [parameter.requires_grad for parameter in scorer.net.parameters()]
        self._source: list[tuple[Tensor, Tensor]] = [(tensor, tensor.detach().clone()) for tensor in changing]

    def __enter__(self) -> Learner:
        """Begin: nothing but scale and shift gets gradients."""
        for parameter in self.scorer.net.parameters():
            parameter.requires_grad_(False)
        for parameter in self._learns:
            parameter.requires_grad_(True)
        self.reset()
        return self

    def __exit__(self, *error: object) -> None:
        """End: the source model is back."""
        self.reset()
        for parameter, learned in zip(self.scorer.net.parameters(), self._learned, strict=True):
            parameter.requires_grad_(learned)

    def reset(self) -> None:
        """Go back to the source model, with a fresh optimizer."""
        with torch.no_grad():
            for tensor, value in self._source:
                tensor.copy_(value)
        self._optimizer = torch.optim.Adam(self._learns, lr=self.settings.lr)

    def with_batch_statistics(self) -> AbstractContextManager[None]:
        """Let BatchNorm look at the batch, in steps and decisions (the paper, and Tent)."""
        return batch_statistics(self.scorer.net)

    def collecting(self) -> AbstractContextManager[None]:
        """Let BatchNorm look at the batch in steps, and store a mixture of what it saw for the decisions."""
        return collected_statistics(self.scorer.net, KEPT)

    def step(self, positions: Positions) -> Logits:
        """Take one step down the batch's entropy, and return its logits from before the step."""
        logits = self.scorer.live(self.view, positions)
        self._optimizer.zero_grad(set_to_none=True)
        entropy(logits).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return as_logits(logits.detach())

    def decide(self, positions: Positions) -> Logits:
        """Return a batch's logits."""
        with torch.inference_mode():
            return as_logits(self.scorer.live(self.view, positions))


def affine(net: nn.Module, over: str) -> list[nn.Parameter]:
    """Return the scale and shift of all normalisation layers of a kind."""
    layers: dict[str, list[nn.Module]] = {
        "batchnorm": list(batchnorms(net)),
        "layernorm": [module for module in net.modules() if isinstance(module, nn.LayerNorm)],
    }
    learn = {
        kind: [one for layer in found for one in layer.parameters(recurse=False)] for kind, found in layers.items()
    }
    if learn[over]:
        return learn[over]
    other = next((kind for kind, parameters in learn.items() if parameters), None)
    if other is None:
        raise UserError("evaluation.adapt", "this model has no normalisation layers, whose scale and shift "
                        "would learn; leave adaptation out")  # fmt: skip
    raise UserError("evaluation.adapt.over", f"this model has no {over} layers to adapt; choose {other}")
