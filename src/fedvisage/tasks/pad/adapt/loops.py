"""The order of steps and decisions, which the paper leaves open.

A loop gets the user's images in units and yields units with their adapted scores: ``two-pass`` is the reading that
``adapt: paper`` stands for, ``settled`` is ours. It steps on batches of its own drawing, so that the order in which the
images come does not matter, and then decides image by image with a model that no longer looks at batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedvisage.data.batches import Positions, View, mixed_batches
from fedvisage.recipe import Adapt
from fedvisage.streams import numpy_rng
from fedvisage.tasks.pad.adapt.gate import sampled
from fedvisage.tasks.pad.adapt.learner import Learner
from fedvisage.tasks.scoring import Logits

Units = list[Positions]
Decided = Iterator[tuple[Positions, Logits]]


def settled(learner: Learner, units: Units) -> Decided:
    """Step on mixed batches of all images, then settle BatchNorm's statistics and decide, on a sample first.

    If the learner has to go back because of the sample, the rest is decided by the source model.
    """
    for unit in units:
        batches = parts_of(unit, learner.view, learner.settings, learner.scorer.recipe.runtime.seed)
        with learner.collecting():
            for positions in batches:
                learner.step(positions)
        first = len(sampled(batches))
        for part in (batches[:first], batches[first:]):
            if part:
                yield np.concatenate(part), np.concatenate([learner.decide(positions) for positions in part])


def two_pass(learner: Learner, units: Units) -> Decided:
    """Step once on every batch, then decide on all of them together."""
    with learner.with_batch_statistics():
        for positions in units:
            learner.step(positions)
        if units:
            yield np.concatenate(units), np.concatenate([learner.decide(positions) for positions in units])


def online(learner: Learner, units: Units) -> Decided:
    """Decide on a batch and step on it in the same pass, as Tent does."""
    with learner.with_batch_statistics():
        for positions in units:
            yield positions, learner.step(positions)


def episodic(learner: Learner, units: Units) -> Decided:
    """Begin every video with the source model: step, decide, forget."""
    with learner.with_batch_statistics():
        for positions in units:
            learner.reset()
            learner.step(positions)
            yield positions, learner.decide(positions)


LOOPS: dict[str, Callable[[Learner, Units], Decided]] = {
    "settled": settled,
    "two-pass": two_pass,
    "online": online,
    "episodic": episodic,
}


def units_of(view: View, settings: Adapt, seed: int) -> Units:
    """Return what the gate judges at a time: a batch of the stream, a video, or everything where order is no matter."""
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
    """Return the batches in which a unit passes through the network: itself, or mixed batches of everything."""
    return mixed_batches(view, _stream(seed), settings.batch) if settings.loop == "settled" else [unit]


def _stream(seed: int) -> np.random.Generator:
    return numpy_rng(seed, "user", "adaptation")
