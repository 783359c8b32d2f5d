"""A method whose sites release one figure per round under differential privacy: the bona fide faces of a batch.

All sites then train with the noisy share as their classifier's prior, so that the release changes the weights.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.federation.method import Call, Home, Method, Upload
from fedvisage.federation.privacy.accountant import Charge
from fedvisage.federation.privacy.mechanisms import Budget, Draws, noise, standard_deviation
from fedvisage.federation.record.releases import COST
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import resnet18
from fedvisage.methods.pad import fedpad

BUDGET = Budget(2.0, 1e-3)
SIGMA = standard_deviation(BUDGET, 1.0)


def tell(site: Site, message: Message) -> Message:
    name = f"round {site.round}, bona fide"
    count = torch.tensor(float(site.batch(0).labels.sum()), dtype=torch.float64)

    def mechanism(draws: Draws) -> Message:
        return {"count": count + noise((), SIGMA, draws)}

    charge = Charge(name, "gaussian", BUDGET.epsilon, BUDGET.delta, "replace-one", 1.0, SIGMA)
    return site.release(name, mechanism, [charge])


def train(site: Site, message: Message) -> Message:
    site.held["prior"] = message.pop("prior")
    return fedavg.local_training(loss, "model")(site, message)


def loss(site: Site, batch: Batch) -> Tensor:
    logits = site.net["model"](batch.images).float().squeeze(1)
    return binary_cross_entropy_with_logits(logits + 0.01 * site.held["prior"].float(), batch.labels)


def server(s: Server) -> Iterator[None]:
    for _ in s.rounds():
        with s.quorum():
            counts = [reply["count"] for _, reply in sorted(s.ask("tell").items())]
            s.load(s.reduce("train", s.lent() | {"prior": torch.stack(counts).mean()}).value)
        yield


METHOD = Method(
    name="released",
    title="Released",
    paper="none",
    task="pad",
    options=resnet18.Options,
    network=resnet18.network,
    home={"model": Home.LENT},
    calls={
        "tell": Call(tell, (Upload("count", "dp", dtype="float64"), COST)),
        "train": Call(train, fedpad.TRAIN.uploads, takes=lambda _: (Upload("prior", "statistic", dtype="float64"),)),
    },
    server=server,
    prediction=resnet18.MODEL.prediction,
)
