"""A head whose class weights are texts: it compares images' embeddings with the direction of each class's prompts.

K. Srivatsan, M. Naseer, K. Nandakumar, "FLIP: Cross-domain Face Anti-spoofing with Language Guidance", ICCV 2023, the
variant FLIP-IT as in its authors' released code. The logit of class c for an image with embedding f is

    s · cos(f, t_c),    t_c = m_c / ‖m_c‖,    m_c = (1 / n_c) Σ_j e_cj

where e_cj is the embedding of prompt j of the class, and the scale s = exp(p) is the inverse of a temperature.

Both directions are frozen, and only p is trained. They are no part of the state that is sent, averaged or clipped.
"""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_tensors
from fedvisage.nn.adapters import FaceBackbone, FrozenNetwork
from fedvisage.nn.timm_network import PLACE

CLASSES = ("attack", "live")
"""The classes in the order of the outputs."""
TEXTS = "texts"
"""Name of the directions' tensor in a converted file: one row per class."""


class TextClassifier(FaceBackbone):
    """The frozen directions of the classes; random ones until `load_directions` reads a file."""

    def __init__(self, embedding: int) -> None:
        """Draw a direction per class for embeddings of this length."""
        super().__init__(nn.Linear(embedding, len(CLASSES), bias=False), len(CLASSES))
        with torch.no_grad():
            self.directions.copy_(normalize(self.directions))

    @property
    def directions(self) -> Tensor:
        """One row per class; an export multiplies them by the scale."""
        return cast(Tensor, self.network.weight)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the cosines with each class; products of single numbers stay exact under mixed precision."""
        units = normalize(embeddings.float())
        return (units[:, None] * self.directions).sum(dim=-1)


class TextHead(FrozenNetwork):
    """Scaled cosines of embeddings with the classes; its state is the logarithm of the scale, if that is trained."""

    log_scale: Tensor

    def __init__(self, embedding: int, scale: float, *, learned: bool) -> None:
        """Freeze random directions, and start at this scale."""
        super().__init__(TextClassifier(embedding), {}, {})
        log_scale = torch.tensor([math.log(scale)])
        if learned:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale, persistent=False)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return one logit per class."""
        cosines: Tensor = self.frozen(embeddings)
        return self.log_scale.exp() * cosines

    def fold_adapters(self) -> TextClassifier:
        """Return an equivalent classifier whose directions have the length of the scale."""
        classifier = cast(TextClassifier, deepcopy(self.frozen))
        with torch.no_grad():
            classifier.directions.mul_(self.log_scale.exp())
        return classifier


def load_directions(classifier: TextClassifier, path: Path) -> None:
    """Load the directions that `fedvisage model convert --texts` wrote beside the weights of an image tower."""
    place = f"{PLACE}.weights"
    weights, _ = read_tensors(path)
    if TEXTS not in weights:
        remedy = "write one with `fedvisage model convert --texts`"
        raise UserError(place, f"{path} has no {TEXTS}, the directions of the classes; {remedy}")
    directions, expected = weights[TEXTS], classifier.directions
    if directions.shape != expected.shape:
        shapes = f"{tuple(directions.shape)}, but the recipe expects {tuple(expected.shape)}"
        raise UserError(place, f"{path}: {TEXTS} has shape {shapes}; set method.network.embedding to its second number")
    lengths = directions.double().norm(dim=1)
    if not torch.allclose(lengths, torch.ones_like(lengths), atol=1e-3):
        raise UserError(place, f"{path}: {TEXTS} must have rows of length 1, got {lengths.tolist()}; convert it again")
    with torch.no_grad():
        expected.copy_(directions)
