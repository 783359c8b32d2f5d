"""Finished models, opened from their files, to score images or to inspect the network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.streams import torch_rng
from fedvisage.faces.cropping import MARGIN
from fedvisage.federation.declared import Member
from fedvisage.federation.method import Method
from fedvisage.federation.server import members_of
from fedvisage.federation.wire.message import Message
from fedvisage.methods import find, read_method
from fedvisage.metrics.threshold import Threshold
from fedvisage.nn.inputs import colour_channels
from fedvisage.recipe import Recipe
from fedvisage.tasks import saved_model
from fedvisage.tasks.catalogue import Setup, set_up
from fedvisage.tasks.opened import notices_of_model
from fedvisage.tasks.saved_model import check_fits
from fedvisage.tasks.scoring import Scorer, mean_score
from fedvisage.tasks.seal import SETTINGS, check_seal


class Delivered(nn.Module):
    """The delivered parts as one module, from RGB in [0, 1], B×3×H×W, to bona fide logits or features."""

    def __init__(self, setup: Setup, parts: nn.ModuleDict) -> None:
        """Take the parts, with their weights."""
        super().__init__()
        self.parts = parts
        self._setup = setup

    def forward(self, images: Tensor) -> Tensor:
        """Return the method's prediction; a method with random draws repeats the same draws at every call."""
        recipe = self._setup.recipe
        ready = colour_channels(images, recipe.input.colour)
        generator = torch_rng(recipe.runtime.seed, "inference", device=images.device.type)
        return self._setup.method.prediction.predict(Member(self.parts, ready, generator, recipe)).float()


@dataclass(frozen=True, eq=False)
class FinishedModel:
    """A model with its recipe, weights, thresholds and network."""

    directory: Path
    setup: Setup
    saved: saved_model.SavedModel
    scorer: Scorer

    @property
    def recipe(self) -> Recipe:
        """The recipe of the model, adjusted to this machine and to the options of :func:`open_model`."""
        return self.setup.recipe

    @property
    def task(self) -> str:
        """The task of the model: ``pad`` or ``recognition``."""
        return self.setup.task.name

    @property
    def margin(self) -> float:
        """The side of a crop over the longer side of the face box, as in the training data."""
        margins = {crop.margin for crop in self.saved.crops if crop.margin is not None}
        if len(margins) > 1:
            stated = ", ".join(f"{margin:g}" for margin in sorted(margins))
            raise UserError(
                str(self.directory), f"was trained on crops of several margins ({stated}); train it on sets of one"
            )
        return margins.pop() if margins else MARGIN

    @property
    def thresholds(self) -> dict[str, Threshold]:
        """The thresholds that the sites chose, by member; a single model is the member with the empty name."""
        return self.saved.thresholds

    @property
    def threshold(self) -> Threshold:
        """The threshold of a model with a single operating point: its value, its rule and its rates at the sites."""
        if "" not in self.thresholds:
            sites = ", ".join(sorted(self.thresholds))
            each = f"this model has one threshold per site; use model.thresholds ({sites})"
            none = "this model has no threshold; train it with a source- rule in evaluation.threshold"
            raise UserError("model.threshold", each if sites else none)
        return self.thresholds[""]

    @property
    def notices(self) -> list[str]:
        """Notices about the crops of the training data, usually none."""
        data = self.recipe.data
        entries = [*data.sites.values(), *([data.public] if data.public else [])]
        return notices_of_model(self.saved.crops, entries, str(self.directory))

    @property
    def net(self) -> Delivered:
        """The network, a plain module in evaluation mode, with the weights of the model or of its first member."""
        self.scorer.load(next(iter(self._members().values())))
        return Delivered(self.setup, copy.deepcopy(self.scorer.net)).eval()

    def score(self, images: Tensor) -> NDArray[Any]:
        """Return the bona fide logit of each face crop, uint8 B×3×H×W in RGB, with members' scores averaged."""
        self._require("pad", "score", "embed")
        logits = []
        for weights in self._members().values():
            self.scorer.load(weights)
            logits.append(self.scorer.score_images(self._require_size(images)).double().cpu().numpy())
        return mean_score(logits) if len(logits) > 1 else logits[0]

    def is_live(self, images: Tensor) -> NDArray[np.bool_]:
        """Return for each face crop, uint8 B×3×H×W in RGB, whether its score reaches the model's threshold."""
        self._require("pad", "is_live", "embed")
        least = self.threshold.value
        return np.asarray(self.score(images) >= least)

    def embed(self, faces: Tensor) -> Tensor:
        """Return the feature of each aligned face, uint8 B×3×H×W in RGB, at unit length."""
        self._require("recognition", "embed", "score")
        self.scorer.load(next(iter(self._members().values())))
        return torch.nn.functional.normalize(self.scorer.score_images(self._require_size(faces)).cpu())

    def _members(self) -> dict[str, Message]:
        return dict(sorted(members_of(self.saved.finished).items()))

    def _require(self, task: str, verb: str, other: str) -> None:
        if self.task != task:
            raise UserError(f"model.{verb}", f"this model is for {self.task}; use model.{other}")

    def _require_size(self, images: Tensor) -> Tensor:
        size = self.recipe.input.size
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1:] != (3, size, size):
            got = f"{str(images.dtype).removeprefix('torch.')} {tuple(images.shape)}"
            raise UserError("images", f"must be uint8 of shape (B, 3, {size}, {size}), got {got}")
        return images


def open_model(
    directory: Path, adapt: str | None = None, pairs: Path | None = None, method: Method | None = None
) -> FinishedModel:
    """Read a finished model, or a converted start, and build its network, without access to training data.

    The directory of a run must contain the unchanged files of that run. ``method`` is the method of the run, if the
    catalogue does not contain it.
    """
    if directory.is_file():
        saved = saved_model.load_start(directory)
    else:
        check_seal(directory)
        saved = saved_model.load(directory)
    try:
        recipe = _recipe_of(saved, adapt, pairs, method)
        resolved = method or find(recipe.method)
        if resolved.task != saved.task:
            raise UserError(
                "recipe.method", f"{resolved.name} is for {resolved.task}, but the model is for {saved.task}"
            )
    except UserError as error:
        if adapt is not None or pairs is not None:
            raise  # the fault may be in these options
        raise UserError(str(directory / SETTINGS), f"contains an invalid recipe: {error}") from error
    check_fits(directory, saved.finished, resolved, recipe)
    setup = set_up(recipe, resolved)
    return FinishedModel(directory, setup, saved, setup.scorer())


def _recipe_of(saved: saved_model.SavedModel, adapt: str | None, pairs: Path | None, method: Method | None) -> Recipe:
    """Return a model's recipe with this machine's device instead of the training device, and with these options."""
    runtime, evaluation = (_section(saved.recipe, name) for name in ("runtime", "evaluation"))
    if adapt is not None:
        evaluation["adapt"] = adapt
    if pairs is not None:
        evaluation["recognition"] = {**_section(evaluation, "recognition"), "pairs": str(pairs)}
    tree = {**saved.recipe, "runtime": {**runtime, "device": "auto"}, "evaluation": evaluation}
    return recipes.validate(tree, read_method if method is None else method.options.model_validate)


def _section(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = tree.get(name) or {}
    if not isinstance(section, dict):
        raise UserError(f"recipe.{name}", "must be a section (key: value)")
    return dict(section)
