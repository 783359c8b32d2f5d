"""A method with two exchanges per round, as PrivacyFace: each site sends a statistic, then trains with all of them.

Each site sends the mean of its bona fide features; in training all sites pull theirs towards the common mean.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedvisage.federation.method import Call, Home, Method, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import resnet18
from fedvisage.methods.pad import fedpad
from fedvisage.nn.resnet import pooled_features
from fedvisage.recipe import Recipe


class Options(resnet18.Options):
    """Weight of the pull."""

    pull: float = 0.1


def width(recipe: Recipe) -> tuple[int, ...]:
    return (8 * recipe.options(Options).network.width,)


def centre(site: Site, message: Message) -> Message:
    """Return the mean feature of the bona fide images of this round's batches."""
    site.load(message)
    model = site.net["model"].eval()
    with torch.no_grad():
        actual = [pooled_features(model, batch.images)[batch.labels == 1] for batch in site.batches()]
    return {"centre": torch.cat(actual).mean(dim=0)}


def train(site: Site, message: Message) -> Message:
    centres = [value for name, value in sorted(message.items()) if name.startswith("centre/")]
    site.held["middle"] = torch.stack(centres).mean(dim=0)
    return fedavg.local_training(loss, "model")(site, message)


def loss(site: Site, batch: Batch) -> Tensor:
    model = site.net["model"]
    features = pooled_features(model, batch.images)
    logits = model.get_submodule("fc")(features).squeeze(1)
    distance: Tensor = (features[batch.labels == 1] - site.held["middle"]).square().mean()
    classify = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
    return classify + site.recipe.options(Options).pull * distance


def server(s: Server) -> Iterator[None]:
    for _ in s.rounds():
        with s.quorum():
            centres = {f"centre/{name}": reply["centre"] for name, reply in s.ask("centre", s.lent()).items()}
            s.load(s.reduce("train", s.lent() | centres).value)
        yield


def centres_of_all(recipe: Recipe) -> tuple[Upload, ...]:
    return tuple(Upload(f"centre/{name}", "activation", shape=width) for name in recipe.data.sites)


METHOD = Method(
    name="two-exchanges",
    title="Two exchanges",
    paper="none",
    task="pad",
    options=Options,
    network=resnet18.network,
    home={"model": Home.LENT},
    calls={
        "centre": Call(centre, (Upload("centre", "activation", shape=width, guarantee="a mean feature"),)),
        "train": Call(train, fedpad.TRAIN.uploads, takes=centres_of_all),
    },
    server=server,
    prediction=resnet18.MODEL.prediction,
)
