"""The order of steps and decisions, which the paper leaves open. A loop yields batches with their adapted scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedvisage.adapt.learner import Learner
from fedvisage.data.batches import Positions
from fedvisage.federation.scoring import Logits

Decided = Iterator[tuple[Positions, Logits]]


def two_pass(learner: Learner, batches: list[Positions]) -> Decided:
    """Step once on every batch, then decide on all of them together."""
    for positions in batches:
        learner.step(positions)
    if batches:
        yield np.concatenate(batches), np.concatenate([learner.decide(positions) for positions in batches])


def online(learner: Learner, batches: list[Positions]) -> Decided:
    """Decide on a batch and step on it in the same pass, as Tent does."""
    for positions in batches:
        yield positions, learner.step(positions)


def episodic(learner: Learner, batches: list[Positions]) -> Decided:
    """Begin every batch, here a video, with the source model: step, decide, forget."""
    for positions in batches:
        learner.reset()
        learner.step(positions)
        yield positions, learner.decide(positions)


LOOPS: dict[str, Callable[[Learner, list[Positions]], Decided]] = {
    "two-pass": two_pass,
    "online": online,
    "episodic": episodic,
}
