"""ViT: a vision transformer, M = T ∘ F ∘ H (FedSIS, §3.1).

N. Alkhunaizi, K. Srivatsan, F. Almalik, I. Almakky, K. Nandakumar, "FedSIS: Federated Split Learning with Intermediate
Representation Sampling for Privacy-preserving Generalized Face Presentation Attack Detection", 2023, §3.1: a tokenizer,
L self-attention blocks and a linear head on the class token, M = T ∘ F ∘ H, trained with cross-entropy (Eq. 1).

Deviations from the paper: the final LayerNorm of timm's network, which §3.1 does not mention, is kept.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.federation.server import Server
from fedvisage.methods.models.model import classifier_model
from fedvisage.nn.vit import (
    PATCH,
    PLACE,
    HybridTransformer,
    Transformer,
    class_token,
    load_pretrained,
    transformer_parts,
)
from fedvisage.recipe import MethodOptions, Recipe

PAPER = "Alkhunaizi et al., FedSIS: Federated Split Learning with Intermediate Representation Sampling, 2023"
PARTS = ("tokenizer", "blocks", "norm", "head")


class Options(MethodOptions):
    """The network."""

    network: Transformer = Transformer()


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the four parts."""
    return transformer_parts(recipe.options(Options).network, recipe.input.colour, recipe.input.size, class_token=True)


def check_size(recipe: Recipe) -> None:
    """Reject images whose side is not a multiple of a token's."""
    if recipe.input.size % PATCH:
        raise UserError("recipe.input.size", f"must be a multiple of {PATCH}, the side of a token")


def take_pretrained(s: Server) -> None:
    """Load the weights that the recipe names into the initial model."""
    weights = s.recipe.options(Options).network.weights
    if weights == "none":
        return
    if s.recipe.training.start is not None:
        raise UserError(PLACE, "and training.start both give initial weights; leave one of them out")
    load_pretrained(s.net, s.file(weights))


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the class token, the input of the head."""
    return class_token(net, net["tokenizer"](images))


def head(net: nn.ModuleDict, features: Tensor) -> Tensor:
    """Return the logits of the two classes, which Eq. 1 compares."""
    logits: Tensor = net["head"](features)
    return logits


MODEL = classifier_model(
    name="vit",
    title="ViT",
    advice="Attack detection: ViT-B/16 of FedSIS's comparison; large, so start from published weights.",
    options=Options,
    network=network,
    parts=PARTS,
    represent=represent,
    head=head,
    weight="examples",  # as in FedSIS (§3.2)
    check=check_size,
    begin=take_pretrained,
)


class HybridOptions(Options):
    """The network, with its convolutional tokenizer."""

    network: HybridTransformer = HybridTransformer()


VIT_H = replace(
    MODEL,
    name="vit-h",
    title="ViT-H",
    advice="Attack detection: ViT with a convolutional tokenizer, which preserves micro-texture.",
    options=HybridOptions,
)
"""ViT-H: the hybrid vision transformer (FedSIS, §3.3), whose tokens come from a truncated ResNet-50.

N. Alkhunaizi et al., "FedSIS", 2023. Micro-texture reveals attacks, and a convolution preserves it; blocks and head are
those of ViT.
"""
