"""A frozen image tower with adapters, whose classifier compares its embeddings with texts (FLIP).

``network: {arch: vit_base_patch16_clip_224, weights: FILE, rank: 8}`` names an image tower of CLIP or OpenCLIP, and a
file with its weights, its projection into the space of texts, and a direction per class. ``fedvisage model convert``
with ``--texts`` writes this file; the package has no text encoder. Adapters and the scale of the logits are trained,
sent and averaged; tower and texts stay as they are (:mod:`fedvisage.nn.text_head`).

K. Srivatsan, M. Naseer, K. Nandakumar, "FLIP: Cross-domain Face Anti-spoofing with Language Guidance", ICCV 2023: the
loss is the cross-entropy of the scaled cosines (FLIP-IT). Only its authors' released code was read.

Deviations from this code: it fine-tunes both encoders, here adapters change the image tower alone and embeddings of
texts are constant. FLIP-MCL's contrastive losses are left out.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.methods.models.model import classifier_model
from fedvisage.nn.adapters import AdaptedNetwork, adapted_network
from fedvisage.nn.text_head import TextHead
from fedvisage.nn.timm_network import PLACE, check_architecture
from fedvisage.recipe import MethodOptions, Recipe


class AnchoredNetwork(AdaptedNetwork):
    """A frozen image tower with adapters, and the scale of cosines with texts."""

    embedding: int = Field(512, ge=1, le=8192)
    """Length of the embeddings of images and texts: 512 for CLIP's ViT-B, 768 for ViT-L."""
    scale: float = Field(100.0, gt=0, le=1000)
    """Factor of the cosines at the start; CLIP's own is at most 100."""
    learn_scale: bool = True
    """Train the factor as well."""


class Options(MethodOptions):
    """The network, its adapters, and the scale."""

    network: AnchoredNetwork


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the two lent parts; the first contains the frozen tower, the second the frozen texts."""
    settings = recipe.options(Options).network
    tower = adapted_network(settings, recipe.input, outputs=settings.embedding)
    head = TextHead(settings.embedding, settings.scale, learned=settings.learn_scale)
    return nn.ModuleDict({"adapters": tower, "head": head})


def check(recipe: Recipe) -> None:
    """Reject an unknown architecture, and settings that leave an algorithm nothing to train."""
    settings, algorithm = recipe.options(Options).network, recipe.method.name
    check_architecture(settings.arch)
    adapted = settings.rank > 0 or settings.biases
    if not adapted and not settings.learn_scale:
        raise UserError(f"{PLACE}.learn_scale", "is false, and rank is 0: nothing would be trained; change one of them")
    if algorithm in ("fedrep", "fedbabu") and not (adapted and settings.learn_scale):
        problem = f"{algorithm} trains body and last layer in turn, which are the adapters and the scale here"
        raise UserError(f"{PLACE}.learn_scale", f"{problem}; leave it true, and rank above 0")


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the embeddings of images in the space of texts."""
    embeddings: Tensor = net["adapters"](images)
    return embeddings


def head(net: nn.ModuleDict, features: Tensor) -> Tensor:
    """Return the logits of attack and live."""
    logits: Tensor = net["head"](features)
    return logits


MODEL = classifier_model(
    name="text-anchored",
    title="text-anchored",
    advice="Attack detection: as adapters on CLIP, with classes from texts whose embeddings you supply.",
    options=Options,
    network=network,
    parts=("adapters", "head"),
    represent=represent,
    head=head,
    check=check,
)
