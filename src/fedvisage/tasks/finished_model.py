"""Finished models, opened from their files, to score images or to inspect the network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedvisage import recipe as recipes
from fedvisage.base.arguments import wrong_argument
from fedvisage.base.errors import UserError
from fedvisage.base.progress import format_count
from fedvisage.base.streams import torch_rng
from fedvisage.faces.cropping import MARGIN
from fedvisage.federation.method import Member, Method
from fedvisage.federation.server import members_of, separate_models
from fedvisage.federation.wire.message import Message
from fedvisage.methods import find, reader_of
from fedvisage.metrics.operating_point import choose_point
from fedvisage.metrics.threshold import Threshold
from fedvisage.nn.compute import report_nondeterminism
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
        generator = torch_rng(recipe.runtime.seed, "inference", device=images.device)
        return self._setup.method.prediction.predict(Member(self.parts, ready, generator, recipe)).float()


Faces = Tensor | NDArray[np.uint8]
"""Face crops in RGB: a uint8 tensor of B×3×H×W, or an array of B×H×W×3."""


@dataclass(frozen=True, eq=False, repr=False)
class FinishedModel:
    """A model with its recipe, weights, thresholds and network; it prints as a summary of a few lines."""

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

    def at(self, point: str) -> FinishedModel:
        """Return the model with the threshold of an operating point, such as ``bpcer=1%`` or ``eer``.

        The threshold is chosen on the sites' averaged error rates, which the model keeps.
        """
        chosen = choose_point(self.saved.curves, point, self.setup.task.name, str(self.directory))
        return replace(self, saved=replace(self.saved, thresholds={"": chosen}))

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

    @report_nondeterminism()
    def score(self, images: Faces) -> NDArray[Any]:
        """Return the bona fide logit of each face crop, with members' scores averaged.

        The crops are RGB: a uint8 tensor of B×3×H×W, or a NumPy array of B×H×W×3.
        """
        self._require("pad", "score", "embed")
        crops, logits = self._as_tensor(images, "images"), []
        for weights in self._members().values():
            self.scorer.load(weights)
            logits.append(self.scorer.score_images(crops).double().cpu().numpy())
        return mean_score(logits) if len(logits) > 1 else logits[0]

    def is_live(self, images: Faces) -> NDArray[np.bool_]:
        """Return for each face crop, as in :meth:`score`, whether its score reaches the model's threshold."""
        self._require("pad", "is_live", "embed")
        least = self.threshold.value
        return np.asarray(self.score(images) >= least)

    @report_nondeterminism()
    def embed(self, faces: Faces) -> Tensor:
        """Return the feature of each aligned face, as in :meth:`score`, at unit length."""
        self._require("recognition", "embed", "score")
        crops = self._as_tensor(faces, "faces")
        self.scorer.load(next(iter(separate_models(self.setup.method, self.saved.finished).values())))
        return torch.nn.functional.normalize(self.scorer.score_images(crops).cpu())

    def _members(self) -> dict[str, Message]:
        return dict(sorted(members_of(self.saved.finished).items()))

    def _require(self, task: str, verb: str, other: str) -> None:
        if self.task != task:
            raise UserError(f"model.{verb}", f"this model is for {self.task}; use model.{other}")

    def _as_tensor(self, faces: Faces, argument: str) -> Tensor:
        """Return face crops as a tensor of B×3×H×W."""
        size = self.recipe.input.size
        channels_last = isinstance(faces, np.ndarray) and faces.dtype == np.uint8
        crops = torch.tensor(faces).movedim(-1, 1) if channels_last and faces.ndim == 4 else faces
        if not isinstance(crops, Tensor) or crops.dtype != torch.uint8 or crops.shape[1:] != (3, size, size):
            accepted = f"RGB in uint8, a tensor of shape (B, 3, {size}, {size}) or an array of (B, {size}, {size}, 3)"
            raise wrong_argument(argument, accepted, faces)
        return crops

    def __repr__(self) -> str:
        """Return a summary of a few lines."""
        width = max(map(len, self._summary))
        return "\n".join(f"{key:{width}}  {value}" for key, value in self._summary.items())

    def _repr_html_(self) -> str:
        """Return the summary as a small table for a notebook."""
        rows = (f"<tr><th>{key}</th><td>{escape(value)}</td></tr>" for key, value in self._summary.items())
        return f"<table>{''.join(rows)}</table>"

    @property
    def _summary(self) -> dict[str, str]:
        """The method, training, thresholds and weights of the model, in words."""
        recipe, members = self.recipe, self._members()
        weights = sum(tensor.numel() for tensor in next(iter(members.values())).values())
        sites, rounds = format_count(len(recipe.data.sites), "site"), format_count(recipe.training.rounds, "round")
        limits = {f"{limit.value:.3f} ({limit.rule})" for limit in self.thresholds.values()}
        return {
            "model": f"{self.setup.method.title} ({self.task})",
            "directory": str(self.directory),
            "input": f"{recipe.input.size}×{recipe.input.size} pixels, {recipe.input.colour}",
            "training": f"{sites}, {rounds}",
            "threshold": limits.pop() if len(limits) == 1 else "one per site" if limits else "none",
            "weights": f"{weights:,}" + (f" in each of {len(members)} models" if len(members) > 1 else ""),
        }


def open_model(
    directory: Path,
    adapt: str | None = None,
    pairs: Path | None = None,
    method: Method | None = None,
    at: str | None = None,
) -> FinishedModel:
    """Read a finished model, or a converted start, and build its network, without access to training data.

    The directory of a run must contain the unchanged files of that run. ``method`` is the method of the run, if the
    catalogue does not contain it. ``at`` is an operating point, as for :meth:`FinishedModel.at`.
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
    model = FinishedModel(directory, setup, saved, setup.scorer())
    return model if at is None else model.at(at)


def _recipe_of(saved: saved_model.SavedModel, adapt: str | None, pairs: Path | None, method: Method | None) -> Recipe:
    """Return a model's recipe with this machine's device instead of the training device, and with these options."""
    runtime, evaluation = (_section(saved.recipe, name) for name in ("runtime", "evaluation"))
    if adapt is not None:
        evaluation["adapt"] = adapt
    if pairs is not None:
        evaluation["recognition"] = {**_section(evaluation, "recognition"), "pairs": str(pairs)}
    tree = {**saved.recipe, "runtime": {**runtime, "device": "auto"}, "evaluation": evaluation}
    return recipes.validate(tree, reader_of(method))


def _section(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = tree.get(name) or {}
    if not isinstance(section, dict):
        raise UserError(f"recipe.{name}", "must be a section (key: value)")
    return dict(section)
