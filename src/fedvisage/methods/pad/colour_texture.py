"""Colour texture: local binary patterns in two colour spaces and a linear classifier, on the merged data of all sites.

Z. Boulkenafet, J. Komulainen, A. Hadid, "Face Spoofing Detection Using Colour Texture Analysis", 2016, and the same
authors' "Face Anti-Spoofing Based on Color Texture Analysis", 2015: concatenated histograms of uniform LBP(8, 1) of
each channel of HSV and of YCbCr reveal prints and screens by the colours that they cannot reproduce. It is one of the
centralised methods that FedGPAD's Table IV quotes. Pooling the data defeats the purpose of a federation, so it is a
simulation for comparison only.

The classifier is a linear support vector machine in its primal form: the mean hinge loss with a quadratic penalty on
the weights, minimised batch by batch with the recipe's optimizer. The live logit is the signed margin.

Deviations from the paper: images keep the recipe's size and crop instead of being scaled to 64×64; the method takes the
roots of the histograms (Hellinger's kernel) and maps a uniform histogram to zero, so that features have a known scale
and need no statistics of the data; the penalty is an option, whose default is the best of a few on the held-out
subjects of rendered sites; the journal's other descriptors (CoALBP, LPQ and more) are left out.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from fedvisage.federation.method import Home, Member, Method, Prediction
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms import fedavg
from fedvisage.nn.texture import TextureClassifier
from fedvisage.recipe import MethodOptions, Recipe


class Options(MethodOptions):
    """The penalty: small values fit the training images closely, large values keep the weights small."""

    penalty: float = Field(2e-3, ge=0)
    """Penalty on the squared weights of the linear classifier."""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the single part: histograms, which have no parameters, and a linear classifier."""
    return nn.ModuleDict({"model": TextureClassifier()})


def loss(site: Site, batch: Batch) -> Tensor:
    """Return the primal objective of a linear support vector machine."""
    options, model = site.recipe.options(Options), _model(site.net)
    margins = model(batch.images).float().squeeze(1)
    return hinge(margins, batch.labels) + options.penalty / 2 * model.plane.weight.square().sum()


def hinge(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the mean hinge loss: how far margins fall short of 1 on their own side."""
    return (1 - (2 * labels - 1) * margins).clamp(min=0).mean()


def predict(member: Member) -> Tensor:
    """Return the live logit."""
    margins: Tensor = member.net["model"](member.images)
    return margins.squeeze(1)


def exportable_predict(member: Member) -> Tensor:
    """Return the live logit using only operations that an exported graph supports."""
    model = _model(member.net)
    logits: Tensor = model.plane(model.texture.as_graph(member.images))
    return logits.squeeze(1)


def features(member: Member) -> Tensor:
    """Return the histograms."""
    histograms: Tensor = _model(member.net).texture(member.images)
    return histograms


def _model(net: nn.ModuleDict) -> TextureClassifier:
    model = net["model"]
    assert isinstance(model, TextureClassifier)
    return model


METHOD = Method(
    name="colour_texture",
    title="Colour texture",
    paper="Boulkenafet et al., Face Spoofing Detection Using Colour Texture Analysis, 2016",
    advice="Simulation only: a classical detector on all data in one place.",
    task="pad",
    options=Options,
    network=network,
    home={"model": Home.LENT},
    calls={"train": fedavg.training_call(loss, "model")},
    server=fedavg.server,
    prediction=Prediction(predict, features=features, exportable_predict=exportable_predict),
    members="pooled",
)
