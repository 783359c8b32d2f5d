"""Settings of adaptation, and a detector built by hand with known decisions on every processor."""

from dataclasses import replace

import torch
from tests.toy import Sets, recipe_of, tree
from torch import nn

from fedvisage.federation.method import Member, Prediction
from fedvisage.methods import METHODS
from fedvisage.nn.compute import resolve_compute
from fedvisage.recipe import Adapt, Recipe
from fedvisage.tasks.pad.adaptation import AdaptationSource
from fedvisage.tasks.scoring import Scorer

PAPER = Adapt(loop="two-pass", gate=False, batch=8)
FORMS = (
    Adapt(batch=18),
    Adapt(gate=False, batch=8),
    Adapt(loop="two-pass", batch=18),
    PAPER,
    Adapt(loop="online", batch=18),
    Adapt(loop="online", gate=False, batch=8),
    Adapt(loop="episodic", gate=False),
)

LIGHT, DARK = 119.5 / 255, 94.5 / 255
"""The mean brightness of the toy sets' images, and of prints among them; single images differ by less than 0.02."""

MEAN, DEVIATION, BIAS = 0.45, 0.05, 3.0
"""The statistics of the detector's only BatchNorm layer, and the live logit of an image at their mean brightness."""


def live_at(brightness: float) -> float:
    """Return the live logit of an image of some brightness."""
    return BIAS + (brightness - MEAN) / DEVIATION


SOURCE = AdaptationSource(threshold=live_at((LIGHT + DARK) / 2), scatter=0.0)
"""The sites' information on the detector: its threshold is far from every image."""

RUINOUS = 50.0
"""A learning rate whose first step exchanges dark and light.

The bias makes every image look live, dark ones least. So entropy falls as these become as light as the others, and the
layer's scale has to shrink. A step of Adam is as long as its rate: at 50 the scale is negative, at 0.005 almost one.
"""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the detector: an image's mean over red, green and blue; BatchNorm; a bias."""
    look, norm, head = nn.Conv2d(6, 1, 1, bias=False), nn.BatchNorm2d(1), nn.Linear(1, 1)
    with torch.no_grad():
        look.weight.copy_(torch.tensor([1 / 3] * 3 + [0.0] * 3).reshape(1, 6, 1, 1))
        head.weight.fill_(1.0)
        head.bias.fill_(BIAS)
    norm.load_state_dict(
        norm.state_dict() | {"running_mean": torch.tensor([MEAN]), "running_var": torch.tensor([DEVIATION**2])}
    )
    return nn.ModuleDict({"model": nn.Sequential(look, nn.AdaptiveAvgPool2d(1), norm, nn.Flatten(), head)})


def predict(member: Member) -> torch.Tensor:
    """Return the live logit."""
    logits: torch.Tensor = member.net["model"](member.images)
    return logits.squeeze(1)


def detector(sets: Sets) -> Scorer:
    """Return the detector, ready to score."""
    method = replace(METHODS["fedpad"], network=network, prediction=Prediction(predict))
    return Scorer(method, recipe_of(tree(sets)), resolve_compute("cpu", "fp32"))
