"""SCAFFOLD: control variates remove the drift of each site from its steps.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020, Algorithm 1. A site steps along −(g_i(y) − c_i + c), and its variate becomes the
mean of the gradients g_i(y) of its steps; for plain SGD that is option II, c_i⁺ = c_i − c + (x − y)/(Kη). It sends y
and c_i⁺ − c_i. The server averages the models, and moves c by |S|/N times the mean of the variates' changes. The
correction is a term of the loss, ⟨c − c_i, y⟩, which has that gradient. With ``correction: 0`` this is FedAvg; the
first round always is, because all variates are zero.

Deviations from the paper: the global rate is 1, and sites count according to ``weight``. The paper's theory covers
plain SGD; other optimizers receive the corrected gradient in place of their own. The reported loss includes the
correction. Variates exist for averaged tensors with a gradient; BatchNorm's statistics and a site's class centres have
none. If a round or a reply is lost, sites have moved c_i and the server has not moved c.
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
from fedvisage.nn.optimizers import sum_gradients
from fedvisage.recipe import MethodOptions

PAPER = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020"
CONTROL = "control/"
"""Prefix of the variates on the wire and in the private state of sites and server."""


class CorrectionOptions(MethodOptions):
    """The strength of the correction in each step; 0 is FedAvg."""

    correction: float = Field(1.0, ge=0, le=1)
    """Strength of the correction by control variates in each step; 0 is FedAvg."""


def with_correction(own: Loss) -> Loss:
    """Return a loss whose gradient is g_i(y) − c_i + c."""

    def loss(site: Site, batch: Batch) -> Tensor:
        total, strength = own(site, batch), site.recipe.options(CorrectionOptions).correction
        if not strength:
            return total
        weights = dict(site.net.named_parameters())
        for name, term in site.held["correction"].items():
            total = total + strength * (term * weights[name]).sum()
        return total

    return loss


def with_variate(turn: fedavg.Turn) -> fedavg.Turn:
    """Return local work with the correction applied, which then renews the site's variate."""

    def train(site: Site, message: Message) -> Message:
        common, strength = under(CONTROL, message), site.recipe.options(CorrectionOptions).correction
        local = {
            name: site.kept.get(f"{CONTROL}{name}", torch.zeros_like(value).cpu()).to(value)
            for name, value in common.items()
        }
        site.held["correction"] = {name: value - local[name] for name, value in common.items()}
        # The gathered gradients include the correction; the renewed variate leaves it out.
        with sum_gradients(dict(site.net.named_parameters())) as sums:
            reply = turn(site, message)
        for name, correction in site.held["correction"].items():
            renewed = sums[name] / len(site.losses) - strength * correction
            site.kept[f"{CONTROL}{name}"] = plain(renewed)
            reply[f"{CONTROL}{name}"] = renewed - local[name]
        return reply

    return train


def server(s: Server) -> Iterator[None]:
    """Average the models, and move the common variate by the changes of the sites' variates."""
    shapes = {f"{CONTROL}{name}": value.shape for name, value in s.net.named_parameters()}
    for _ in s.rounds():
        common = {name: s.kept.get(name, torch.zeros(shape)) for name, shape in shapes.items()}
        with s.quorum():
            reduced = s.reduce("train", s.lent() | common, weight=fedavg.weight_of(s.recipe))
            s.load(reduced.value)
            share = len(reduced.replied) / len(s.names)
            s.kept |= {name: value + share * reduced.value[name] for name, value in common.items()}
        yield


def scaffold(model: Model) -> Method:
    """Return SCAFFOLD on a model."""
    moved = "what the site's control variate moved by"
    control = Upload("control", "gradient", parts=model.parts, prefix=CONTROL, trained=True, guarantee=moved)
    averaged = fedavg.on_model(
        model,
        fedavg.options_on(model, CorrectionOptions),
        name="scaffold",
        title="SCAFFOLD",
        paper=PAPER,
        advice="When sites train with SGD and their data differ: control variates remove drift; doubles the upload.",
        loss=with_correction(model.loss),
        wrap_turn=with_variate,
        more=(control,),
        server=server,
        supports=frozenset({"micro_batch"}),
    )
    return replace(averaged, calls={"train": replace(averaged.calls["train"], takes=lambda _: (control,))})
