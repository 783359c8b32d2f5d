"""ViT: a vision transformer trained on the merged data of all data centres (Huang et al.'s row in FedSIS's Tables 1–3).

N. Alkhunaizi, K. Srivatsan, F. Almalik, I. Almakky, K. Nandakumar, "FedSIS: Federated Split Learning with Intermediate
Representation Sampling for Privacy-preserving Generalized Face Presentation Attack Detection", 2023, §3.1: a tokenizer,
L self-attention blocks and a linear head on the class token, M = T ∘ F ∘ H; trained with cross-entropy (Eq. 1).

Deviations from the paper: its ViT row is quoted from H.-P. Huang et al., ECCV 2022, who train with their own data
augmentation; here the recipe decides. The final LayerNorm of timm's network, which §3.1 does not mention, is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvisage.errors import UserError
from fedvisage.federation.method import Home, Member, Method
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.methods import averaging
from fedvisage.nn.pretrained import PLACE, load_pretrained
from fedvisage.nn.vit import PATCH, Transformer, class_token, cut, live_logit
from fedvisage.recipe import MethodOptions, Recipe

PAPER = "Alkhunaizi et al., FedSIS: Federated Split Learning with Intermediate Representation Sampling, 2023"
PARTS = ("tokenizer", "blocks", "norm", "head")


class Options(MethodOptions):
    """The network."""

    network: Transformer = Transformer()


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the four parts."""
    check_size(recipe)
    return cut(recipe.options(Options).network, recipe.input.colour, recipe.input.size, class_token=True)


def check_size(recipe: Recipe) -> None:
    """Refuse images that do not divide into tokens."""
    if recipe.input.size % PATCH:
        raise UserError("recipe.input.size", f"must be a multiple of {PATCH}, the side of a token")


def take_pretrained(s: Server) -> None:
    """Put the weights that the recipe names into the initial model; a resumed run has its own."""
    weights = s.recipe.options(Options).network.weights
    if weights == "none" or s.round:
        return
    if s.recipe.training.start is not None:
        raise UserError(PLACE, "and training.start both give initial weights; leave one of them out")
    load_pretrained(s.net, s.file(weights))


def server(s: Server) -> Iterator[None]:
    """Federated averaging from the pre-trained weights."""
    take_pretrained(s)
    yield from averaging.server(s)


def loss(site: Site, batch: Batch) -> Tensor:
    """Eq. 1 with cross-entropy over the two classes."""
    two = site.net["head"](class_token(site.net, site.net["tokenizer"](batch.images)))
    return cross_entropy(two.float(), batch.labels.long())


def user(member: Member) -> Tensor:
    """Return the live logit."""
    return live_logit(member.net["head"](features(member)).float())


def features(member: Member) -> Tensor:
    """Return the class token that the head receives."""
    return class_token(member.net, member.net["tokenizer"](member.images))


METHOD = Method(
    name="vit",
    title="ViT",
    paper=PAPER,
    task="pad",
    options=Options,
    network=network,
    home=dict.fromkeys(PARTS, Home.LENT),
    calls={"train": averaging.training_call(loss, *PARTS)},
    server=server,
    user=user,
    features=features,
    pooled=True,
    server_sees="everything",
)
