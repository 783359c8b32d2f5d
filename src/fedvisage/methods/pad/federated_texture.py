"""Federated colour texture: colour_texture's histograms, scaled over all sites, and an averaged linear classifier.

Z. Boulkenafet, J. Komulainen, A. Hadid, "Face Spoofing Detection Using Colour Texture Analysis", 2016, adapted to a
federation. In the first round each site sends its number of images and, for each of the 354 features, the sum and the
sum of squares; the server adds them up and lends the mean and the scale over all sites' images, exactly those of a
scaler on the merged data. All rounds then average the linear classifier (McMahan et al., 2017): the sites minimise
colour_texture's primal objective of a linear support vector machine on scaled features.

Deviations from the paper: those of colour_texture, except that features are scaled by statistics of the data, as in
most implementations. The moments cover images as used in training, augmented if the recipe says so. The server sees the
moments of each site: means of histograms, which reveal nothing about a single image unless a site has very few.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedvisage.federation.method import EXAMPLES, Call, Home, Member, Method, Prediction, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.pad.colour_texture import Options as Penalty
from fedvisage.methods.pad.colour_texture import hinge
from fedvisage.nn.texture import FEATURES, ColourTexture
from fedvisage.recipe import Recipe

LEAST_SCALE = 1e-3
"""Smallest scale, so that a feature with the same value on all images is not amplified."""


class Options(Penalty, fedavg.AveragingOptions):
    """The penalty of colour_texture, and the weights of sites."""


class Scaler(nn.Module):
    """Standardise features by their mean and scale; gradients train nothing in it."""

    mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        """Start as the identity."""
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("scale", torch.ones(FEATURES))

    def forward(self, features: Tensor) -> Tensor:
        """Scale B×354 features."""
        return (features - self.mean) / self.scale


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the histograms, which have no parameters, the scaler and the linear classifier."""
    return nn.ModuleDict({"texture": ColourTexture(), "scaler": Scaler(), "plane": nn.Linear(FEATURES, 1)})


def moments(site: Site, message: Message) -> Message:
    """Return the site's number of images, and the sum and the sum of squares of each feature."""
    count, total, squares = 0, torch.zeros(FEATURES).double(), torch.zeros(FEATURES).double()
    for batch in site.batches_of(site.data, epochs=1, purpose="moments"):
        features = site.net["texture"](batch.images).double().cpu()
        count, total, squares = count + len(features), total + features.sum(0), squares + features.square().sum(0)
    return {"examples": torch.tensor(count), "total": total, "squares": squares}


def scaler_of(replies: list[Message]) -> Message:
    """Return the scaler over all sites' images."""
    count = sum(int(reply["examples"]) for reply in replies)
    mean = torch.stack([reply["total"] for reply in replies]).sum(0) / count
    square = torch.stack([reply["squares"] for reply in replies]).sum(0) / count
    scale = (square - mean.square()).clamp_min(0).sqrt().clamp_min(LEAST_SCALE)
    return {"scaler.mean": mean.float(), "scaler.scale": scale.float()}


def loss(site: Site, batch: Batch) -> Tensor:
    """Return the primal objective of a linear support vector machine on scaled features."""
    options, plane = site.recipe.options(Options), site.net["plane"]
    margins = plane(site.net["scaler"](site.net["texture"](batch.images))).float().squeeze(1)
    assert isinstance(plane, nn.Linear)
    return hinge(margins, batch.labels) + options.penalty / 2 * plane.weight.square().sum()


def server(s: Server) -> Iterator[None]:
    """Compute the scaler once, from the sites of the first round, and average the linear classifier in every round."""
    for _ in s.rounds():
        with s.quorum():
            s.load(s.once("scaler", lambda: scaler_of([*s.ask("moments").values()])))
            s.load(s.reduce("train", s.tensors("scaler", "plane"), weight=fedavg.weight_of(s.recipe)).value)
        yield


def predict(member: Member) -> Tensor:
    """Return the live logit: the signed margin."""
    margins: Tensor = member.net["plane"](features(member))
    return margins.squeeze(1)


def exportable_predict(member: Member) -> Tensor:
    """Return the live logit using only operations that an exported graph supports."""
    texture = member.net["texture"]
    assert isinstance(texture, ColourTexture)
    logits: Tensor = member.net["plane"](member.net["scaler"](texture.as_graph(member.images)))
    return logits.squeeze(1)


def features(member: Member) -> Tensor:
    """Return the scaled histograms."""
    scaled: Tensor = member.net["scaler"](member.net["texture"](member.images))
    return scaled


METHOD = Method(
    name="federated_texture",
    title="Colour texture, federated",
    paper="Boulkenafet et al., Face Spoofing Detection Using Colour Texture Analysis, 2016",
    advice="When attacks come from printers, screens and cameras that no site has; colour histograms and a "
    "linear classifier, no network.",
    task="pad",
    options=Options,
    network=network,
    home={"texture": Home.LENT, "scaler": Home.LENT, "plane": Home.LENT},
    calls={
        "moments": Call(
            moments,
            (
                EXAMPLES,
                Upload("total", "statistic", shape=(FEATURES,), dtype="float64", guarantee="sum of each texture"),
                Upload("squares", "statistic", shape=(FEATURES,), dtype="float64", guarantee="sum of their squares"),
            ),
        ),
        "train": fedavg.training_call(loss, "plane"),
    },
    server=server,
    prediction=Prediction(predict, features=features, exportable_predict=exportable_predict),
)
