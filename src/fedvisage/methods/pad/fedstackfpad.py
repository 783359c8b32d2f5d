"""Fed-StackFPAD: one classifier per site on frozen features, and a stacked combination of them all, in one round.

"Fed-StackFPAD: Federated Learning for Face Presentation Attack Detection With Stacking to Tackle Data Heterogeneity",
IEEE Access 13, 2025, pp. 190354–190370: features of a pre-trained transformer, a federated model, models of single data
centres, and a meta-model that combines them. This is its cheapest form. A site fits a linear classifier on the features
of a frozen timm network (call ``fit``), receives the classifiers of all sites, and fits a combination of their logits
and the logit of their mean, the federated model (call ``stack``); the server averages the combinations. The logits of a
site's own classifier on its own images are out of fold, by subjects, because a classifier is overconfident on the
images that it was fitted on.

Deviations from the paper, which was read in its abstract alone: no layer of the network is fine-tuned, so all is one
round of closed form (logistic regression by Newton's method with a quadratic penalty and equal weights of both
classes); the federated model is the mean of the sites' classifiers; the meta-model is linear, and averaged over the
sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Member, Method, Prediction, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.nn.adapters import AdaptedNetwork, adapted_network
from fedvisage.nn.stacking import Heads, Plane, logistic, loss_of, normalise_features
from fedvisage.nn.timm_network import TimmNetwork, check_architecture
from fedvisage.recipe import Recipe

PAPER = "Fed-StackFPAD: Federated Learning for Face Presentation Attack Detection With Stacking, IEEE Access, 2025"
FOLDS = 2
FEATURES = "features of the site's images"


class Options(fedavg.AveragingOptions):
    """The frozen network, the penalties of the sites' classifiers and their combination, and the weights of sites."""

    network: TimmNetwork
    """The frozen network."""
    penalty: float = Field(1e-2, gt=0)
    """Penalty on the squared weights of a site's classifier."""
    stack_penalty: float = Field(1e-2, gt=0)
    """Penalty on the squared weights of the combination."""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the frozen network, a site's classifier, the classifiers of all sites, and their combination."""
    settings = recipe.options(Options).network
    body = adapted_network(AdaptedNetwork(arch=settings.arch, weights=settings.weights, rank=0), recipe.input)
    width, sites = body.frozen.width, len(recipe.data.sites)
    return nn.ModuleDict(
        {"body": body, "head": nn.Linear(width, 1), "heads": Heads(sites, width), "stack": nn.Linear(sites + 1, 1)}
    )


def check(recipe: Recipe) -> str | None:
    """Reject an unknown architecture and initial weights that the fit would replace; warn about further rounds."""
    check_architecture(recipe.options(Options).network.arch)
    if recipe.training.start is not None:
        raise UserError(
            "recipe.training.start", "gives weights that this method fits itself; use method.network.weights"
        )
    if recipe.training.rounds == 1:
        return None
    return "fedstackfpad needs only one round; further rounds repeat the same fit"


def fit(site: Site, _: Message) -> Message:
    """Fit the site's own classifier."""
    features, labels = _features(site), _labels(site)
    plane = logistic(features, labels, site.recipe.options(Options).penalty)
    _load_plane(site.net["head"], plane)
    site.losses.append(loss_of(plane, features, labels))
    return site.tensors("head") | site.statistics()


def stack(site: Site, message: Message) -> Message:
    """Fit the combination of all sites' classifiers on the site's images."""
    site.load(message)
    options, features, labels = site.recipe.options(Options), _features(site), _labels(site)
    with torch.no_grad():
        logits = site.net["heads"](features.to(site.compute.device)).double().cpu()
    column = sorted(site.recipe.data.sites).index(site.name)
    logits[:, column] = _out_of_fold(site, features, labels, options.penalty)
    logits[:, -1] = logits[:, :-1].mean(dim=1)
    plane = logistic(logits, labels, options.stack_penalty)
    _load_plane(site.net["stack"], plane)
    site.losses.append(loss_of(plane, logits, labels))
    return site.tensors("stack") | site.statistics()


def _features(site: Site) -> Tensor:
    """Return the scaled features of the site's images, computed once per round."""
    if FEATURES not in site.scratch:
        site.scratch[FEATURES] = normalise_features(site.embed(site.net["body"], site.data))
    features: Tensor = site.scratch[FEATURES]
    return features


def _labels(site: Site) -> Tensor:
    return torch.from_numpy(site.data.labels.astype(np.int64))


def _out_of_fold(site: Site, features: Tensor, labels: Tensor, penalty: float) -> Tensor:
    """Return the logits of each image by a classifier that was fitted on other subjects."""
    folds = torch.from_numpy(np.searchsorted(site.data.identities, site.data.subjects) % FOLDS)
    logits = torch.zeros(len(features), dtype=torch.float64)
    for fold in range(FOLDS):
        held, others = folds == fold, folds != fold
        if not bool(others.any()):  # a site with one subject
            others = held
        logits[held] = logistic(features[others], labels[others], penalty).logits(features[held].double())
    return logits


def _load_plane(layer: nn.Module, plane: Plane) -> None:
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(plane.weight[None])
        layer.bias.copy_(plane.bias[None])


def server(s: Server) -> Iterator[None]:
    """Collect the classifiers, distribute them all, and average the combinations."""
    for _ in s.rounds():
        with s.quorum():
            s.load(join_classifiers(s.names, s.ask("fit")))
            s.load(s.reduce("stack", s.tensors("heads"), weight=fedavg.weight_of(s.recipe)).value)
        yield


def join_classifiers(names: Sequence[str], replies: Mapping[str, Message]) -> Message:
    """Return all classifiers as one part; the mean replaces the classifier of a site that sent none."""
    sent = {name: torch.cat([reply["head.weight"][0], reply["head.bias"]]) for name, reply in replies.items()}
    mean = torch.stack([*sent.values()]).mean(0)
    rows = torch.stack([sent.get(name, mean) for name in names])
    return {"heads.weight": rows[:, :-1], "heads.bias": rows[:, -1]}


def predict(member: Member) -> Tensor:
    """Return the live logit."""
    logits: Tensor = member.net["stack"](member.net["heads"](features(member)))
    return logits.squeeze(1)


def features(member: Member) -> Tensor:
    """Return the frozen network's features."""
    frozen_features: Tensor = member.net["body"](member.images)
    return frozen_features


METHOD = Method(
    name="fedstackfpad",
    title="Fed-StackFPAD",
    paper=PAPER,
    advice="When only one round is possible: linear classifiers on frozen features, then stacking.",
    task="pad",
    options=Options,
    network=network,
    home=dict.fromkeys(("body", "head", "heads", "stack"), Home.LENT),
    calls={
        "fit": Call(fit, (Upload("weights", "weights", parts=("head",)), EXAMPLES, LOSS)),
        "stack": Call(stack, (Upload("weights", "weights", parts=("stack",)), EXAMPLES, LOSS)),
    },
    server=server,
    prediction=Prediction(predict, features=features),
    delivered=("body", "heads", "stack"),
    check=check,
)
