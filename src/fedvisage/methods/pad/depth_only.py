"""Depth only: a depth-estimating network without a classifier, trained on the merged data of all sites.

Y. Liu, A. Jourabloo, X. Liu, "Learning Deep Models for Face Anti-Spoofing: Binary or Auxiliary Supervision", CVPR 2018:
a CNN learns the depth of living faces and a flat map for attacks, and the squared norm of the estimated map is part of
the score. "Auxiliary (Depth Only)" uses that part alone; it is one of the centralised methods that FedGPAD's Table IV
quotes. Pooling the data defeats the purpose of a federation, so it is a simulation for comparison only.

The live logit is the logarithm of the map's mean square over ``UNDECIDED``: it grows with the norm, and the probability
is mean square / (mean square + ``UNDECIDED``).

Deviations from the paper: the network is FedGPAD's, its encoder up to the third pooling and its depth estimator, so
that the two can be compared, and so is the loss, the mean squared error; the exact depth of rendered faces, or a fitted
average face, replaces a fitted 3-D morphable model; there is no part for heartbeat signals (rPPG).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedvisage.federation.method import Home, Member, Method, Prediction
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.pad.fedgpad import check_size, depth_error, depth_of
from fedvisage.nn.fedgpad import DepthNetwork, Width, initialise
from fedvisage.nn.inputs import CHANNELS
from fedvisage.recipe import MethodOptions, Recipe

UNDECIDED = 0.036
"""Mean square of a map half as deep as that of a living face: a quarter of 0.145, the mean over rendered faces."""
LEAST = 1e-12


class Options(MethodOptions):
    """The network, and the species with real depth that the loss leaves out."""

    network: Width = Width()
    without_depth: tuple[str, ...] = ()
    """Species with a real shape, such as ``[mask]``; the depth loss leaves them out."""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the network as a single part, for the image sizes of FedGPAD, with which it is compared."""
    check_size(recipe)
    model = DepthNetwork(CHANNELS[recipe.input.colour], recipe.options(Options).network.width)
    initialise(model)
    return nn.ModuleDict({"model": model})


def loss(site: Site, batch: Batch) -> Tensor:
    """Return the mean squared error of the estimated maps."""
    without = site.recipe.options(Options).without_depth
    return depth_error(site.net["model"](batch.images).float(), depth_of(batch, site), batch.species, "mean", without)


def predict(member: Member) -> Tensor:
    """Return the live logit."""
    return live_logit(member.net["model"](member.images).float())


def live_logit(maps: Tensor) -> Tensor:
    """Return the logarithm of each map's mean square over ``UNDECIDED``."""
    return torch.log(maps.square().mean(dim=(1, 2)).clamp(min=LEAST) / UNDECIDED)


def features(member: Member) -> Tensor:
    """Return the estimated maps."""
    maps: Tensor = member.net["model"](member.images)
    return maps.flatten(1)


METHOD = Method(
    name="depth_only",
    title="Depth only",
    paper="Liu et al., Learning Deep Models for Face Anti-Spoofing: Binary or Auxiliary Supervision, 2018",
    advice="Simulation only: a depth estimator on all data in one place; needs depth maps.",
    task="pad",
    options=Options,
    network=network,
    home={"model": Home.LENT},
    calls={"train": fedavg.training_call(loss, "model")},
    server=fedavg.server,
    prediction=Prediction(predict, features=features),
    members="pooled",
)
