"""Scores of a finished model on a view of images: the same code at a site, at the user and in ``predict``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedvisage.data.batches import View, mixed_batches
from fedvisage.errors import RunFailed, UserError
from fedvisage.federation.declared import Declared, Member
from fedvisage.federation.members import members_of
from fedvisage.federation.wire.message import Message, load_parts, under
from fedvisage.nn.batchnorm import StatisticsMeter
from fedvisage.nn.inputs import prepare
from fedvisage.nn.precision import Compute
from fedvisage.recipe import Recipe
from fedvisage.streams import numpy_rng, scoped, torch_rng

Logits = NDArray[np.float64]
MIXED = 64
"""Images a batch where BatchNorm statistics of batches are compared."""

NO_NUMBER = "the model gives what is no number: it was damaged, or its training diverged (lower the learning rate)"
LIMIT = 40.0
"""Logits are cut here; float64 still tells such a probability from 0 and 1."""


class Scorer:
    """The delivered parts of a method's network, ready to score images."""

    def __init__(self, method: Declared, recipe: Recipe, compute: Compute) -> None:
        """Build the delivered parts; their weights come with each member."""
        self.method, self.recipe, self.compute = method, recipe, compute
        with scoped(recipe.runtime.seed, "initial weights"):
            whole = method.network(recipe)
        self.net = nn.ModuleDict({part: whole[part] for part in method.finished}).eval()
        compute.place(self.net)

    def load(self, member: Message) -> None:
        """Put one member's weights in."""
        for name in self.net:
            if self.net[name].state_dict() and not under(f"{name}.", member):
                raise UserError("model", f"has no weights of part {name}")
        load_parts(self.net, member)

    def scores(self, finished: Message, view: View) -> dict[str, Logits]:
        """Return live logits by member; for methods that average members, only the average's."""
        logits = {}
        for name, member in sorted(members_of(finished).items()):
            self.load(member)
            logits[name] = self.logits(view)
        return {"": mean_score(list(logits.values()))} if self.method.members == "mean" else logits

    def logits(self, view: View) -> Logits:
        """Score a view's images in order with the weights that are loaded."""
        with torch.inference_mode():
            parts = [as_logits(self.live(view, at)) for at in self._positions(view)]
        return np.concatenate(parts) if parts else np.empty(0)

    def live(self, view: View, positions: NDArray[np.int64]) -> Tensor:
        """Return the live logits of some images, with gradients where the caller wants them."""
        return self._through(self.method.user, view, positions).float()

    def features(self, view: View) -> Tensor:
        """Return the features of a view's images in order, for figures."""
        if self.method.features is None:
            raise ValueError(f"{self.method.name} has no features to show")
        return self._all(self.method.features, view)

    def embeddings(self, view: View) -> Tensor:
        """Return what a recognition method's user computes of a view's images, in order: their features."""
        return self._all(self.method.user, view)

    def spread(self, view: View) -> float | None:
        """Return how far apart the draws of a prediction lie, as a mean over images; None where nothing is drawn."""
        return None if self.method.spread is None else float(self._all(self.method.spread, view).mean())

    def scatter(self, finished: Message, view: View) -> float:
        """Return how far mixed batches lie from each other in BatchNorm statistics, as a mean over members."""
        distances = []
        for _, member in sorted(members_of(finished).items()):
            self.load(member)
            with torch.inference_mode(), StatisticsMeter(self.net) as meter:
                for positions in mixed_batches(view, numpy_rng(self.recipe.runtime.seed, "scatter"), MIXED):
                    self.live(view, positions)
            distances.append(meter.scatter or 0.0)
        return float(np.mean(distances))

    def scores_and_scatter(self, finished: Message, view: View) -> tuple[Logits, float]:
        """Return what ``scores`` and ``scatter`` give together, from one pass: the images go by in mixed batches.

        Not for a method that draws: another batch would draw otherwise.
        """
        by_member, distances = [], []
        for _, member in sorted(members_of(finished).items()):
            self.load(member)
            logits = np.empty(len(view))
            with torch.inference_mode(), StatisticsMeter(self.net) as meter:
                for positions in mixed_batches(view, numpy_rng(self.recipe.runtime.seed, "scatter"), MIXED):
                    logits[positions] = as_logits(self.live(view, positions))
            by_member.append(logits)
            distances.append(meter.scatter or 0.0)
        together = mean_score(by_member) if self.method.members == "mean" else by_member[0]
        return together, float(np.mean(distances))

    def score_images(self, images: Tensor) -> Tensor:
        """Score uint8 RGB images of the network's size."""
        ready = prepare(images, self.recipe.input.colour, self.compute.device, self.compute.layout)
        generator = torch_rng(self.recipe.runtime.seed, "inference", device=self.compute.device.type)
        with torch.inference_mode(), self.compute.autocast():
            found = self.method.user(Member(self.net, ready, generator, self.recipe)).float()
        if not bool(torch.isfinite(found).all()):
            raise RunFailed(NO_NUMBER)
        return found

    def score_alone(self, crops: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Score crops (H×W×3, RGB, of the network's size) in batches, each as if it came alone.

        In float32 a batch gives what one by one gives up to rounding, below 1e-6 in probability. A method that draws
        would draw otherwise for the second image of a batch, so its images do come alone.
        """
        size = self.recipe.evaluation.batch if self.method.spread is None else 1
        batches = (np.stack(crops[start : start + size]) for start in range(0, len(crops), size))
        return torch.cat([self.score_images(torch.from_numpy(one).permute(0, 3, 1, 2)).cpu() for one in batches])

    def _all(self, function: Callable[[Member], Tensor], view: View) -> Tensor:
        with torch.inference_mode():
            return torch.cat([self._through(function, view, at).float().cpu() for at in self._positions(view)])

    def _through(self, function: Callable[[Member], Tensor], view: View, positions: NDArray[np.int64]) -> Tensor:
        images = view.batch(positions).images
        ready = prepare(images, self.recipe.input.colour, self.compute.device, self.compute.layout)
        generator = torch_rng(self.recipe.runtime.seed, "inference", int(positions[0]), device=self.compute.device.type)
        with self.compute.autocast():
            return function(Member(self.net, ready, generator, self.recipe))

    def _positions(self, view: View) -> list[NDArray[np.int64]]:
        size = self.recipe.evaluation.batch
        return [np.arange(start, min(start + size, len(view))) for start in range(0, len(view), size)]


def as_logits(logits: Tensor) -> Logits:
    """Return a network's logits as numbers, cut to the range that is kept."""
    values: Logits = np.clip(logits.double().cpu().numpy(), -LIMIT, LIMIT)
    return values


def mean_score(logits: list[Logits]) -> Logits:
    """Average members by probability (the papers' fused scores) and return the result as a logit."""
    live = np.mean([np.exp(-np.logaddexp(0.0, -values)) for values in logits], axis=0)
    attack = np.mean([np.exp(-np.logaddexp(0.0, values)) for values in logits], axis=0)
    return np.asarray(np.log(live) - np.log(attack))
