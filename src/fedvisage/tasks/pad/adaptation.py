"""Test-time adaptation of a finished model to the target, without labels.

R. Shao, B. Zhang, P. C. Yuen, V. M. Patel, "Federated Test-Time Adaptive Face Presentation Attack Detection with
Dual-Phase Privacy Preservation", 2021, §III-B; after D. Wang et al., "Tent", 2021. The loop minimises the entropy of
predictions over the scale and shift of normalisation layers (Adam, rate 5e-3); everything else stays fixed. The paper
leaves the order of steps and decisions open, so this module has four loops. With a gate (``metrics/gate.py``), the
source model decides on images that are unsuitable for adaptation, and wherever an adaptation failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from fedvisage.base.errors import UserError
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import Positions, View, mixed_batches
from fedvisage.federation.server import join_members, members_of
from fedvisage.federation.wire.message import Message
from fedvisage.metrics.gate import SourcePredictions, collapse_reason, refusal_reason, sample_batches
from fedvisage.nn.batchnorm import StatisticsMeter, batch_statistics, batchnorms, collect_statistics
from fedvisage.nn.optimizers import Adam
from fedvisage.recipe import Adapt
from fedvisage.tasks.scoring import Logits, Scorer, as_logits, combine


def entropy(logits: Tensor) -> Tensor:
    """Return -p log p - (1 - p) log(1 - p) with p the logit's sigmoid, as a mean over the batch, in nats."""
    return (softplus(logits) - logits * logits.sigmoid()).mean()


KEPT = 0.25
"""The share of the sites' BatchNorm statistics in a model of the ``settled`` loop, chosen on held-out subjects."""


class Learner:
    """A context in which a scorer's network is adapted; the exit restores the network.

    Only the scale and shift of normalisation layers learn, by gradient descent on the entropy.
    """

    def __init__(self, scorer: Scorer, view: View, settings: Adapt) -> None:
        """Select the parameters that learn; the network does not change before the context is entered."""
        self.scorer, self.view, self.settings = scorer, view, settings
        self._learns = affine(scorer.net, settings.over)
        changing = [*self._learns, *(buffer for layer in batchnorms(scorer.net) for buffer in layer.buffers())]
        self._learned = [parameter.requires_grad for parameter in scorer.net.parameters()]
        self._source: list[tuple[Tensor, Tensor]] = [(tensor, tensor.detach().clone()) for tensor in changing]

    def __enter__(self) -> Learner:
        """Begin the adaptation: only scale and shift receive gradients."""
        for parameter in self.scorer.net.parameters():
            parameter.requires_grad_(False)
        for parameter in self._learns:
            parameter.requires_grad_(True)
        self.reset()
        return self

    def __exit__(self, *error: object) -> None:
        """End the adaptation and restore the source model."""
        self.reset()
        for parameter, learned in zip(self.scorer.net.parameters(), self._learned, strict=True):
            parameter.requires_grad_(learned)

    def reset(self) -> None:
        """Restore the source model and create a new optimizer."""
        with torch.no_grad():
            for tensor, value in self._source:
                tensor.copy_(value)
        self._optimizer = Adam(self._learns, lr=self.settings.lr)

    def with_batch_statistics(self) -> AbstractContextManager[None]:
        """Make BatchNorm use batch statistics, in steps and decisions (the paper, and Tent)."""
        return batch_statistics(self.scorer.net)

    def collecting(self) -> AbstractContextManager[None]:
        """Make BatchNorm use batch statistics in steps, and store a mixture of them for the decisions."""
        return collect_statistics(self.scorer.net, KEPT)

    def step(self, positions: Positions) -> Logits:
        """Take one gradient step on the batch's entropy, and return the logits from before the step."""
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
        kind: [parameter for layer in modules for parameter in layer.parameters(recurse=False)]
        for kind, modules in layers.items()
    }
    if learn[over]:
        return learn[over]
    alternative = next((kind for kind, parameters in learn.items() if parameters), None)
    if alternative is None:
        raise UserError(
            "evaluation.adapt",
            "this model has no BatchNorm and no LayerNorm whose scale and shift could be trained; leave adaptation out",
        )
    raise UserError("evaluation.adapt.over", f"this model has no {over} layers to adapt; choose {alternative}")


# Loops: the order of steps and decisions, which the paper leaves open.
#
# A loop receives the target's images in units and yields units with their adapted scores. ``adapt: paper`` selects
# ``two-pass``. ``settled`` is ours: it steps on mixed batches of its own, so that the order of images does not matter,
# and then decides image by image with fixed statistics.

Units = list[Positions]
Decisions = Iterator[tuple[Positions, Logits]]


def adapt_settled(learner: Learner, units: Units) -> Decisions:
    """Step on mixed batches of all images, then fix BatchNorm's statistics and decide, on a sample first.

    If the caller resets the learner because of the sample, the source model decides on the other images.
    """
    for unit in units:
        batches = parts_of(unit, learner.view, learner.settings, learner.scorer.recipe.runtime.seed)
        with learner.collecting():
            for positions in batches:
                learner.step(positions)
        first = len(sample_batches(batches))
        for part in (batches[:first], batches[first:]):
            if part:
                yield np.concatenate(part), np.concatenate([learner.decide(positions) for positions in part])


def adapt_two_pass(learner: Learner, units: Units) -> Decisions:
    """Step once on every batch, then decide on all batches."""
    with learner.with_batch_statistics():
        for positions in units:
            learner.step(positions)
        if units:
            yield np.concatenate(units), np.concatenate([learner.decide(positions) for positions in units])


def adapt_online(learner: Learner, units: Units) -> Decisions:
    """Decide on a batch and step on it in the same pass, as Tent does."""
    with learner.with_batch_statistics():
        for positions in units:
            yield positions, learner.step(positions)


def adapt_episodic(learner: Learner, units: Units) -> Decisions:
    """Start every video from the source model: take one step, then decide."""
    with learner.with_batch_statistics():
        for positions in units:
            learner.reset()
            learner.step(positions)
            yield positions, learner.decide(positions)


LOOPS: dict[str, Callable[[Learner, Units], Decisions]] = {
    "settled": adapt_settled,
    "two-pass": adapt_two_pass,
    "online": adapt_online,
    "episodic": adapt_episodic,
}


def units_of(view: View, settings: Adapt, seed: int) -> Units:
    """Return the units of the gate's decisions: batches of the stream, videos, or all images for ``settled``."""
    order = np.arange(len(view), dtype=np.int64)
    if settings.loop == "settled":
        return [order] if len(order) else []
    if settings.loop == "episodic":
        _, first, video = np.unique(view.videos, return_index=True, return_inverse=True)
        return [np.flatnonzero(video == number) for number in np.argsort(first)]
    if settings.stream == "shuffled":
        order = _stream(seed).permutation(order)
    elif settings.stream == "sorted-by-label":
        order = np.argsort(view.labels, kind="stable").astype(np.int64)
    return [order[start : start + settings.batch] for start in range(0, len(order), settings.batch)]


def parts_of(unit: Positions, view: View, settings: Adapt, seed: int) -> Units:
    """Return the batches of a unit for the network: the unit itself, or mixed batches of all images for ``settled``."""
    return mixed_batches(view, _stream(seed), settings.batch) if settings.loop == "settled" else [unit]


def _stream(seed: int) -> np.random.Generator:
    return numpy_rng(seed, "user", "adaptation")


@dataclass(frozen=True)
class AdaptationSource:
    """The sites' information on a model besides its weights: its threshold, and the scatter of held-out batches."""

    threshold: float
    scatter: float


@dataclass
class AdaptationOutcome:
    """The result of an adaptation, as counts of images: adapted to, skipped by the gate, or taken back afterwards."""

    adapted: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    taken_back: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for metrics.json."""
        return {
            "adapted": self.adapted,
            "skipped": dict(sorted(self.skipped.items())),
            "taken_back": dict(sorted(self.taken_back.items())),
        }


def adapt_and_score(
    scorer: Scorer, finished: Message, view: View, settings: Adapt, sources: Mapping[str, AdaptationSource]
) -> tuple[dict[str, Logits], dict[str, AdaptationOutcome]]:
    """Adapt every member on its own; return bona fide logits like ``Scorer.scores``, and each member's outcome."""
    logits, outcomes = {}, {}
    for name, member in sorted(members_of(finished).items()):
        scorer.load(member)
        source = sources.get(name) or sources[""]
        logits[name], outcomes[name] = adapt_to_view(scorer, view, settings, source)
    return logits if scorer.method.members == "each" else {"": combine(list(logits.values()))}, outcomes


def adapt_weights(
    scorer: Scorer, finished: Message, view: View, settings: Adapt, sources: Mapping[str, AdaptationSource]
) -> tuple[Message, dict[str, AdaptationOutcome]]:
    """Adapt every member on its own with the ``settled`` loop, and return the weights; other loops leave no model.

    Members keep their weights if the gate skipped images or if the adaptation was taken back.
    """
    if settings.loop != "settled":
        raise UserError(
            "evaluation.adapt.loop", f"{settings.loop} adapts during evaluation and keeps no model; use settled"
        )
    members, outcomes = {}, {}
    for name, member in sorted(members_of(finished).items()):
        scorer.load(member)
        adapted: list[Message] = []

        def keep(weights: list[Message] = adapted) -> None:
            weights.append({name: value.detach().cpu().clone() for name, value in scorer.net.state_dict().items()})

        source = sources.get(name) or sources[""]
        _, outcome = adapt_to_view(scorer, view, settings, source, keep)
        rejected = outcome.skipped or outcome.taken_back
        members[name] = member if rejected or not adapted else {**member, **adapted[0]}
        outcomes[name] = outcome
    return join_members(members), outcomes


def adapt_to_view(
    scorer: Scorer, view: View, settings: Adapt, source: AdaptationSource, settled: Callable[[], None] = lambda: None
) -> tuple[Logits, AdaptationOutcome]:
    """Return the adapted model's bona fide logits of a view's images; the scorer keeps the source model.

    The source model first scores a sample. It scores all other images only if they keep its decisions. ``settled`` is
    called after the last decision, while the scorer still holds the adapted model.
    """
    units, outcome = units_of(view, settings, scorer.recipe.runtime.seed), AdaptationOutcome()
    # Scores of the source model; NaN for images that it has not scored. `_closed` fills in the sample of each unit.
    source_logits = np.full(len(view), np.nan)
    passed = []
    for unit in units:
        reason = _reason_to_skip(scorer, view, unit, settings, source, source_logits)
        if reason:
            outcome.skipped[reason] += len(unit)
        else:
            passed.append(unit)
    logits, decided, reason = source_logits.copy(), np.isfinite(source_logits), ""
    with Learner(scorer, view, settings) as learner:
        for positions, adapted in LOOPS[settings.loop](learner, passed):
            gated = settings.gate and bool(np.isfinite(source_logits[positions]).all())
            if gated:
                reason = collapse_reason(source_logits[positions], adapted, source.threshold)
            if gated and reason:
                learner.reset()  # from here on the source model decides
            else:
                logits[positions], decided[positions] = adapted, True
            if reason:
                outcome.taken_back[reason] += len(positions)
            else:
                outcome.adapted += len(positions)
        settled()
    # Images that the gate skipped and the rest of a unit without a decision keep the source model's scores.
    if not decided.all():
        logits[~decided] = scorer.logits(view.subset(np.flatnonzero(~decided)))
    return logits, outcome


def _reason_to_skip(
    scorer: Scorer, view: View, unit: Positions, settings: Adapt, source: AdaptationSource, opinion: Logits
) -> str:
    """Return the reason to skip a unit, or an empty text; store the source model's scores of a sample in `opinion`."""
    if not settings.gate:
        return "a single image" if len(unit) == 1 else ""
    sample = sample_batches(parts_of(unit, view, settings, scorer.recipe.runtime.seed))
    with torch.inference_mode(), StatisticsMeter(scorer.net) as meter:
        for positions in sample:
            opinion[positions] = as_logits(scorer.live(view, positions))
    glimpse = SourcePredictions(opinion[np.concatenate(sample)], len(np.unique(view.videos[unit])), meter.shift)
    return refusal_reason(glimpse, source.threshold, source.scatter)
