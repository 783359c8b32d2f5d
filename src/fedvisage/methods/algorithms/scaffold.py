"""SCAFFOLD: control variates take the drift of each site out of its steps.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020, Algorithm 1. A site steps down g_i(y) − c_i + c, and its variate becomes the mean of
the gradients g_i(y) that it met on the way; for plain SGD that is option II, c_i⁺ = c_i − c + (x − y)/(Kη). It sends y
and c_i⁺ − c_i. The server averages models, and moves c by |S|/N times the mean of what it gets. The correction is a
term of the loss, ⟨c − c_i, y⟩, with that gradient. With ``correction: 0`` this is FedAvg, and so it is in the first
round, where all variates are zero.

Deviations from the paper: the global rate is 1, and sites count as ``weight`` says. The paper's theory is of plain SGD;
other optimizers get the corrected gradient in the place of theirs. A reported loss contains the correction. Variates
are of what is averaged and trained by a gradient; BatchNorm's statistics and a site's class centres have none. Where a
round is lost its sites have moved c_i and the server has not moved c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from fedvisage.federation.method import Method, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message, plain, under
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Loss, Model
from fedvisage.nn.optimizers import gathered
from fedvisage.recipe import MethodOptions

PAPER = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020"
CONTROL = "control/"
"""Stands before the variates' tensors: on the wire, and among the private state of sites and server."""


class Correction(MethodOptions):
    """How much of the correction a step takes; 0 is FedAvg."""

    correction: float = Field(1.0, ge=0, le=1)
    """How much of the correction by control variates a step takes; 0 is FedAvg."""


def corrected(own: Loss) -> Loss:
    """Return a loss whose gradient is g_i(y) − c_i + c."""

    def loss(site: Site, batch: Batch) -> Tensor:
        total, strength = own(site, batch), site.recipe.options(Correction).correction
        if not strength:
            return total
        weights = dict(site.net.named_parameters())
        for name, term in site.held["correction"].items():
            total = total + strength * (term * weights[name]).sum()
        return total

    return loss


def controlled(turn: fedavg.Turn) -> fedavg.Turn:
    """Return a turn with the correction at hand, after which the site's variate is renewed."""

    def train(site: Site, message: Message) -> Message:
        common, strength = under(CONTROL, message), site.recipe.options(Correction).correction
        own = {name: site.kept.get(f"{CONTROL}{name}", torch.zeros_like(value).cpu()).to(value)
               for name, value in common.items()}  # fmt: skip
        site.held["correction"] = {name: value - own[name] for name, value in common.items()}
        with gathered(dict(site.net.named_parameters())) as sums:
            reply = turn(site, message)
        for name, correction in site.held["correction"].items():
            renewed = sums[name] / len(site.losses) - strength * correction
            site.kept[f"{CONTROL}{name}"] = plain(renewed)
            reply[f"{CONTROL}{name}"] = renewed - own[name]
        return reply

    return train


def server(s: Server) -> Iterator[None]:
    """Average the models, and move the common variate by what the sites' variates moved."""
    shapes = {f"{CONTROL}{name}": value.shape for name, value in s.net.named_parameters()}
    for _ in s.rounds():
        common = {name: s.kept.get(name, torch.zeros(shape)) for name, shape in shapes.items()}
        with s.quorum():
            told = s.reduce("train", s.lent() | common, weight=fedavg.weight_of(s.recipe))
            s.load(told.value)
            share = len(told.replied) / len(s.names)
            s.kept |= {name: value + share * told.value[name] for name, value in common.items()}
        yield


def scaffold(model: Model) -> Method:
    """Return SCAFFOLD on a model."""
    moved = "what the site's control variate moved by"
    control = Upload("control", "gradient", parts=model.parts, prefix=CONTROL, trained=True, guarantee=moved)
    averaged = fedavg.on_model(
        model,
        fedavg.options_on(model, Correction),
        name="scaffold",
        title="SCAFFOLD",
        paper=PAPER,
        loss=corrected(model.loss),
        around=controlled,
        more=(control,),
    )
    calls = {"train": replace(averaged.calls["train"], takes=lambda _: (control,))}
    return replace(averaged, calls=calls, server=server, averages=False, pulls=False, steps_at_server=False)
