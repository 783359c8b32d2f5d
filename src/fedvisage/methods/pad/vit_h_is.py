"""ViT-H-IS: ViT-H with intermediate representation sampling, trained on all data centres' merged data (FedSIS, §3.3).

N. Alkhunaizi et al., "FedSIS", 2023. A sampler draws one of the L blocks; the patch tokens after it, s_ℓ = F_{1:ℓ}(s),
pass through an adapter that all blocks share, z̃ = A(s_ℓ), and the head classifies this pseudo-class token. Tokens have
positions but no class token, which no part would use. Predictions are random, as inference samples blocks too.

Deviations from the paper: a prediction averages ``inference.draws`` drawn blocks per image (1 is the paper's), or with
``inference.blocks: all`` every block of the range, the limit of many draws; it averages probabilities. Blocks beyond
the range are not built. Pixels range from -1 to 1, as timm's weights expect, where the authors' code uses ImageNet's
mean and deviation; ``adapter: residual`` and ``head: normed`` are that code's networks. The paper does not specify how
often the centralised training draws; here, every batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from fedvisage.federation.method import Home, Member, Prediction
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import vit
from fedvisage.nn.vit import Adapter, live_logit, normed_head, transformer_parts
from fedvisage.recipe import Recipe, Section

PARTS = ("tokenizer", "blocks", "adapter", "head")


class Range(Section):
    """The blocks of the sampler, from ``first`` to ``last``; none is the network's last block."""

    first: int = Field(1, ge=1)
    """The first block."""
    last: int | None = Field(None, ge=1)
    """The last block; by default the network's last."""


class Inference(Section):
    """The prediction mode: blocks drawn for each image, or all blocks of the range, which is deterministic."""

    blocks: Literal["sampled", "all"] = "sampled"
    """``sampled`` averages several draws per image, ``all`` every block of the range; ``metrics.json`` reports the
    ``draw_spread`` of probabilities over them."""
    draws: int = Field(5, ge=1)
    """Number of draws per image; 1 is the paper's."""


class Options(vit.HybridOptions):
    """ViT-H's options, the sampler's range, the prediction mode, and adapter and head of the text or of the code."""

    unset: ClassVar[frozenset[str]] = frozenset({"adapter", "head"})
    blocks: Range = Range()
    """The blocks that the sampler draws from."""
    inference: Inference = Inference()
    """The prediction mode."""
    adapter: Literal["plain", "residual"] | None = None
    """The text's adapter (``plain``, the default), or the authors' code's, with a shortcut around its convolutions."""
    head: Literal["linear", "normed"] | None = None
    """The text's linear head (the default), or the authors' code's, with LayerNorm before it."""

    @model_validator(mode="after")
    def _the_range_is_within_the_network(self) -> Options:
        first, last = self.range
        if not first <= last <= self.network.depth:
            raise ValueError(f"blocks must be a range within 1 … {self.network.depth}, got {first} … {last}")
        return self

    @property
    def range(self) -> tuple[int, int]:
        """The first and the last block that can be drawn, counted from 1."""
        return self.blocks.first, self.blocks.last or self.network.depth


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the four parts, with only the blocks that can be drawn."""
    options, settings = recipe.options(Options), recipe.input
    parts = transformer_parts(
        options.network, settings.colour, settings.size, class_token=False, depth=options.range[1]
    )
    parts["adapter"] = Adapter(options.network.width, residual=options.adapter == "residual")
    if options.head == "normed":
        parts["head"] = normed_head(options.network.width)
    return nn.ModuleDict({part: parts[part] for part in PARTS})


def draw_blocks(options: Options, count: int, generator: Generator) -> Tensor:
    """Draw blocks uniformly from the range, counted from 1."""
    first, last = options.range
    return torch.randint(first, last + 1, (count,), generator=generator, device=generator.device)


def pseudo_class_token(net: nn.ModuleDict, tokens: Tensor, depth: int) -> Tensor:
    """Return z̃ = A(F_{1:ℓ}(s)); blocks after the ℓ-th are not computed."""
    for block in list(net["blocks"].children())[:depth]:
        tokens = block(tokens)
    pseudo: Tensor = net["adapter"](tokens)
    return pseudo


def loss(site: Site, batch: Batch) -> Tensor:
    """Return Eq. 4 for one batch, with one block drawn for it."""
    generator = site.held.setdefault("blocks", site.rng("blocks"))
    (depth,) = draw_blocks(site.recipe.options(Options), 1, generator).tolist()
    logits = site.net["head"](pseudo_class_token(site.net, site.net["tokenizer"](batch.images), depth))
    return cross_entropy(logits.float(), batch.labels.long())


def block_weights(options: Options, images: int, generator: Generator) -> Tensor:
    """Return the weight of each block in each image's prediction: images × blocks; every row sums to 1."""
    first, last = options.range
    if options.inference.blocks == "all":
        counts = torch.ones(images, last, device=generator.device)
        counts[:, : first - 1] = 0
    else:
        drawn = draw_blocks(options, images * options.inference.draws, generator).reshape(images, -1)
        counts = torch.nn.functional.one_hot(drawn - 1, last).sum(dim=1).float()
    return counts / counts.sum(dim=1, keepdim=True)


def at_every_depth(net: nn.ModuleDict, images: Tensor, wanted: Tensor) -> Tensor:
    """Return pseudo-class tokens, images × blocks × width, from one pass through the blocks; unwanted ones are zero."""
    tokens, by_block = net["tokenizer"](images), []
    for number, block in enumerate(net["blocks"].children()):
        if not wanted[:, number:].any():
            break
        tokens, chosen = block(tokens), wanted[:, number].nonzero().squeeze(1)
        pseudo = tokens.new_zeros(len(images), tokens.shape[2])
        if len(chosen):
            pseudo = pseudo.index_copy(0, chosen, net["adapter"](tokens[chosen]).to(pseudo))
        by_block.append(pseudo)
    return torch.stack(by_block, dim=1)


def predict(member: Member) -> Tensor:
    """Return the live logit of the mean probability over blocks."""
    pseudo, share = _pseudo_tokens(member)
    logits = live_logit(member.net["head"](pseudo).float())
    live = torch.logsumexp(share.log() + logsigmoid(logits), dim=1)
    attack = torch.logsumexp(share.log() + logsigmoid(-logits), dim=1)
    return live - attack


def exportable_predict(member: Member) -> Tensor:
    """Return the live logit of the mean probability over all blocks of the range, regardless of ``inference``."""
    first, last = member.recipe.options(Options).range
    tokens, logits = member.net["tokenizer"](member.images), []
    for number, block in enumerate(list(member.net["blocks"].children())[:last], 1):
        tokens = block(tokens)
        if number >= first:
            logits.append(live_logit(member.net["head"](member.net["adapter"](tokens)).float()))
    every = torch.stack(logits, dim=1)
    return torch.logsumexp(logsigmoid(every), dim=1) - torch.logsumexp(logsigmoid(-every), dim=1)


def draw_spread(member: Member) -> Tensor:
    """Return the standard deviation of the live probability over the blocks of an image's prediction."""
    pseudo, share = _pseudo_tokens(member)
    live = torch.sigmoid(live_logit(member.net["head"](pseudo).float()))
    mean = (share * live).sum(dim=1, keepdim=True)
    return (share * (live - mean).square()).sum(dim=1).sqrt()


def features(member: Member) -> Tensor:
    """Return the mean over blocks of the head's inputs."""
    pseudo, share = _pseudo_tokens(member)
    return (pseudo * share[:, :, None]).sum(dim=1)


def _pseudo_tokens(member: Member) -> tuple[Tensor, Tensor]:
    """Return pseudo-class tokens and weights, images × blocks, up to the deepest block in use."""
    weights = block_weights(member.recipe.options(Options), len(member.images), member.generator)
    pseudo = at_every_depth(member.net, member.images, weights > 0)
    return pseudo, weights[:, : pseudo.shape[1]]


VIT = replace(
    fedavg.fedavg(vit.MODEL),
    name="vit",
    title="ViT",
    paper=vit.PAPER,
    advice="Simulation only: ViT on all data in one place.",
    options=vit.Options,
    members="pooled",
)
"""ViT: a vision transformer trained on the merged data of all data centres (Huang et al.'s row in FedSIS's Tables 1–3).

N. Alkhunaizi et al., "FedSIS", 2023, §3.1. Pooling the data defeats the purpose of a federation, so it is a simulation
for comparison only.

Deviations from the paper: its ViT row is quoted from H.-P. Huang et al., ECCV 2022, who train with their own data
augmentation; here the recipe decides.
"""

VIT_H = replace(
    VIT,
    name="vit-h",
    title="ViT-H",
    advice="Simulation only: ViT-H on all data in one place.",
    options=vit.HybridOptions,
)
"""ViT-H: a hybrid vision transformer trained on the merged data of all data centres (FedSIS, §3.3 and Tables 1–3).

N. Alkhunaizi et al., "FedSIS", 2023. Pooling the data defeats the purpose of a federation, so it is a simulation for
comparison only.

Deviations from the paper: as in ViT.
"""

METHOD = replace(
    VIT_H,
    name="vit-h-is",
    title="ViT-H-IS",
    advice="Simulation only: fedsis's network on all data in one place.",
    options=Options,
    network=network,
    home=dict.fromkeys(PARTS, Home.LENT),
    calls={"train": fedavg.training_call(loss, *PARTS)},
    prediction=Prediction(predict, features=features, exportable_predict=exportable_predict, draw_spread=draw_spread),
    supports=frozenset({"l2sp", "server_optimizer"}),
)
