"""A linear detector without BatchNorm, for tests in which the weights are set by hand."""

from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.federation.method import Member, Method, Prediction
from fedvisage.federation.site import Batch, Site
from fedvisage.methods import METHODS
from fedvisage.methods.algorithms import fedavg
from fedvisage.recipe import Recipe


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build a detector on the mean of each channel."""
    return nn.ModuleDict({"model": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 1))})


def loss(site: Site, batch: Batch) -> Tensor:
    """Binary cross-entropy."""
    return binary_cross_entropy_with_logits(site.net["model"](batch.images).float().squeeze(1), batch.labels)


def predict(member: Member) -> Tensor:
    """Return the live logit."""
    logits: Tensor = member.net["model"](member.images)
    return logits.squeeze(1)


def linear_detector(name: str) -> Method:
    """Return a method of the catalogue with this network in place of its own."""
    train = fedavg.training_call(loss, "model")
    return replace(METHODS[name], network=network, prediction=Prediction(predict), calls={"train": train})
