"""PrivacyFace: recognition in which sites tell each other where their people's class centres lie, with noise on it.

Q. Meng, F. Zhou, H. Ren, T. Feng, G. Liu, Y. Lin, "Improving federated learning face recognition via privacy-agnostic
clusters", ICLR 2022, Algorithm 2. At the start of a round each site finds clusters of its class centres W and releases
them under differential privacy (line 3, Algorithm 1); the server hands all of them to all sites (line 4). A site then
trains with a margin loss in which the others' clusters are negatives (line 7, Eq. 5), fine-tunes on some public people
("Training"), and the server takes the uniform mean of the models (line 9). ``clustering: private``, the default, is a
mechanism whose claim holds end to end; ``paper`` is Algorithm 1 to the letter, see :mod:`fedvisage.privacy.clustering`.

Deviations from the paper: W begins as the mean features of each identity, for a random W has no clusters; δ of the
private mechanism is a setting, because 1/|D|^1.1 would tell the number of a site's people; the loss is the mean over a
batch; scale and margin, which are not printed, are those of ArcFace's and CosFace's papers; FedSGD (A.2.1) sends the
model after one step down the mean gradient, whose mean over sites is one step down the mean of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import pi
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.data.batches import View
from fedvisage.errors import UserError
from fedvisage.federation.message import digest_of, under
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Message, Method, Upload
from fedvisage.federation.releases import COST
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site, TrainingBroke
from fedvisage.methods import faces
from fedvisage.nn import optimizers
from fedvisage.nn.losses.arcface import arcface_logits
from fedvisage.nn.losses.consensus import cluster_logits, consensus_aware
from fedvisage.nn.losses.cosface import cosface_logits
from fedvisage.nn.losses.cosines import cosines
from fedvisage.privacy.accountant import BudgetSpent, Charge
from fedvisage.privacy.caps import crowding
from fedvisage.privacy.clustering import Clustering, densest, paper_charges, sanitised
from fedvisage.privacy.draws import Draws
from fedvisage.privacy.gaussian import Budget
from fedvisage.privacy.private_clustering import Privately, private_charges, release
from fedvisage.recipe import Recipe
from fedvisage.settings import Section

PAPER = "Meng et al., Improving Federated Learning Face Recognition via Privacy-Agnostic Clusters, 2022"
CLUSTERS = "clusters"
PUBLIC_CENTRES = "public W"
CANDIDATE_IMAGES = 4


class ConsensusOptions(faces.CosFaceOptions):
    """What all of the paper's methods share: the loss, the public fine-tuning, and how a site trains.

    Scale and margin are ArcFace's; CosFace's paper has a margin of 0.35.
    """

    weight: Literal["uniform", "examples"] = "uniform"
    loss: Literal["arcface", "cosface"] = "arcface"
    scale: float = Field(64.0, gt=0)
    margin: float = Field(0.5, ge=0, lt=1)
    public_epochs: int = Field(1, ge=0)
    public_identities: int = Field(100, ge=2)
    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"


class Spending(Section):
    """How the private mechanism spends a round's budget, and what is a neighbour of what."""

    relation: Literal["add-remove", "replace-one"] = "add-remove"
    selection: float = Field(0.2, gt=0, lt=1)
    count: float = Field(0.5, gt=0)


class ClusterOptions(ConsensusOptions):
    """What clusters are: their margin ρ, their least size T, and how many queries Q a site makes."""

    rho: float = Field(1.3, gt=0, le=pi / 2)
    minimum: int = Field(512, ge=1)
    queries: int = Field(1, ge=1)


class Options(ClusterOptions):
    """Which mechanism finds clusters, and the budget (ε, δ) of a round."""

    clustering: Literal["private", "paper"] = "private"
    epsilon: float = Field(1.0, gt=0)
    delta: float | None = Field(None, gt=0, lt=1)
    private: Spending = Spending()
    releases: Literal["every-round", "once"] = "every-round"

    @model_validator(mode="after")
    def _delta_is_no_secret(self) -> Options:
        if self.clustering == "private" and self.delta is None:
            raise ValueError(
                "the private clustering needs delta, such as 5.9e-5; only clustering: paper derives it "
                "from the number of a site's people"
            )
        return self


def cluster(site: Site, message: Message) -> Message:
    """Lines 2 and 3: take the global model, find clusters of the site's class centres, release them."""
    options = site.recipe.options(Options)
    centres = centres_at_start(site, message)
    name = "clusters" if options.releases == "once" else f"round {site.round}, clusters"
    known = site.released(name)
    if known is not None:
        return known
    delta = options.delta if options.delta is not None else len(centres) ** -1.1
    asked = Clustering(options.rho, options.queries, options.minimum, Budget(options.epsilon, delta))
    mechanism, cost = (_printed if options.clustering == "paper" else _private)(site, centres, asked, name)
    return site.release(name, mechanism, cost)


Mechanism = Callable[[Draws], Message]


def _printed(site: Site, centres: Tensor, asked: Clustering, name: str) -> tuple[Mechanism, Sequence[Charge]]:
    """Algorithm 1; fewer clusters than Q are made up with rows of zeros."""
    found = densest(centres, asked)

    def mechanism(draws: Draws) -> Message:
        rows = sanitised(found, asked, centres.shape[1], draws)
        return {CLUSTERS: filled(rows, asked.queries)}

    return mechanism, paper_charges(found, asked, name)


def _private(site: Site, centres: Tensor, asked: Clustering, name: str) -> tuple[Mechanism, Sequence[Charge]]:
    """The mechanism whose claim holds; its candidates are the public people's directions."""
    how = Privately(**site.recipe.options(Options).private.model_dump())
    candidates = public_directions(site)

    def mechanism(draws: Draws) -> Message:
        return {CLUSTERS: release(centres, candidates, asked, how, draws).centres}

    return mechanism, private_charges(asked, how, len(candidates), name)


def public_directions(site: Site) -> Tensor:
    """Return mean features of public people under the model that was lent: the same at every site.

    A few images of each are enough, since any directions will do. The sites of a process share what they work out.
    """
    people = public_people(site)
    whose = np.searchsorted(people.identities, people.subjects)
    few = people.subset(np.flatnonzero(turn_of(whose) < CANDIDATE_IMAGES).astype(np.int64))
    lent = digest_of(under("model.", site.lent))
    if site.common.get("directions of") != lent:
        site.common["directions of"] = lent
        site.common["directions"] = faces.means_of(normalize(site.embed(site.net["model"], few)), few)
    found: Tensor = site.common["directions"]
    return found


def turn_of(whose: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many images of the same person come before each."""
    order = np.argsort(whose, kind="stable")
    turns = np.empty(len(whose), np.int64)
    turns[order] = np.arange(len(whose)) - np.searchsorted(whose[order], whose[order])
    return turns


def centres_at_start(site: Site, message: Message) -> Tensor:
    """Take the model that begins a round, keep it until training, and return class centres at unit length."""
    site.load(message)
    site.scratch["model"] = {name: value.cpu() for name, value in message.items()}
    return normalize(faces.own_centres(site).detach().cpu())


def filled(rows: Tensor, number: int) -> Tensor:
    """Return so many rows, those that are missing as zeros."""
    return torch.cat([rows, rows.new_zeros(number - len(rows), rows.shape[1])])


def public_people(site: Site) -> View:
    """Return the images of the first of the public identities."""
    if site.public is None:
        raise UserError("recipe.data.public", f"{site.recipe.method.name} needs public people; name a set of them")
    number = site.recipe.options(ConsensusOptions).public_identities
    return site.public.of_people(site.public.identities[:number])


def train(site: Site, message: Message) -> Message:
    """Lines 7 and 8 with the others' clusters, on the model that the round began with."""
    if "model" not in site.scratch:
        raise TrainingBroke("took no part in this round's clusters")
    others = [value for name, value in sorted(under(f"{CLUSTERS}/", message).items()) if name != site.name]
    return trained(site, site.scratch["model"], torch.cat(others) if others else None)


def trained(site: Site, model: Message, clusters: Tensor | None) -> Message:
    """Train a model with clusters as negatives, fine-tune it on public people, and return it."""
    options = site.recipe.options(ConsensusOptions)
    site.load({name: value.to(site.compute.device) for name, value in model.items()})
    faces.own_centres(site)
    (_one_step if options.algorithm == "fedsgd" else _many_steps)(site, clusters)
    statistics = site.statistics()
    if options.public_epochs:
        fine_tune(site, public_people(site), options.public_epochs)
    faces.keep_local(site)
    return site.tensors("model") | statistics


def _many_steps(site: Site, clusters: Tensor | None) -> None:
    """FedAvg: a step a batch."""
    optimizer = site.optimizer("model", own=(faces.OWN_CENTRES,))
    for batch in site.batches_of(site.data):
        site.step(optimizer, loss(site, batch, faces.own_centres(site), clusters))


def _one_step(site: Site, clusters: Tensor | None) -> None:
    """FedSGD (A.2.1): the model stays as it is while gradients gather, then takes one step down their mean."""
    optimizer = site.optimizer("model", own=(faces.OWN_CENTRES,))
    optimizer.zero_grad(set_to_none=True)
    for batch in site.batches_of(site.data):
        value = loss(site, batch, faces.own_centres(site), clusters)
        value.backward()  # type: ignore[no-untyped-call]
        site.losses.append(value.detach())
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        parameter.grad.div_(len(site.losses))
    optimizers.step(optimizer, site.recipe.training.optimizer.clip_norm)


def fine_tune(site: Site, view: View, epochs: int) -> None:
    """Fine-tune the model on public people, with class centres of theirs that stay at the site."""
    centres = site.own(PUBLIC_CENTRES, lambda: faces.means_of(normalize(site.embed(site.net["model"], view)), view))
    optimizer = site.optimizer("model", own=(PUBLIC_CENTRES,))
    for batch in site.batches_of(view, epochs=epochs, purpose="public"):
        assert batch.identities is not None
        labels = batch.identities - len(site.data.identities)
        site.step(optimizer, loss(site, replace(batch, identities=labels), centres, None))


def loss(site: Site, batch: Batch, centres: Tensor, clusters: Tensor | None) -> Tensor:
    """Eq. 5, with CosFace's or ArcFace's margin; without clusters the margin loss itself."""
    assert batch.identities is not None
    options = site.recipe.options(ConsensusOptions)
    features = faces.features_of(site, batch.images)
    logits = arcface_logits if options.loss == "arcface" else cosface_logits
    own = logits(cosines(features, centres), batch.identities, options.scale, options.margin)
    if clusters is None:
        clusters = features.new_empty(0, features.shape[1])
    rho = options.rho if isinstance(options, ClusterOptions) else 0.0
    return consensus_aware(own, batch.identities, cluster_logits(features, clusters, rho, options.scale))


def server(s: Server) -> Iterator[None]:
    """Algorithm 2; where a site's budget does not allow another release, the run ends with the model that there is."""
    options = s.recipe.options(ConsensusOptions)
    for _ in s.rounds():
        try:
            with s.quorum():
                told = {f"{CLUSTERS}/{name}": reply[CLUSTERS] for name, reply in s.ask("cluster", s.lent()).items()}
                s.load(s.reduce("train", told, weight=options.weight).value)
        except BudgetSpent as spent:
            s.end_before_this_round(str(spent))
            return
        yield


def cluster_shape(recipe: Recipe) -> tuple[int, ...]:
    """Return the shape of what a site tells, which is the same whatever it finds."""
    options = recipe.options(ClusterOptions)
    return options.queries, options.network.embedding


def crowded(recipe: Recipe) -> str | None:
    """Theorem 1: warn when clusters could fill the sphere."""
    options = recipe.options(ClusterOptions)
    return crowding(options.rho, options.network.embedding, options.queries * len(recipe.data.sites))


def least_identities(recipe: Recipe) -> int:
    """A site needs as many people as its least cluster."""
    return max(2, recipe.options(ClusterOptions).minimum)


WEIGHTS = Upload("weights", "weights", parts=("model",))

TRAIN = Call(train, (WEIGHTS, EXAMPLES, LOSS))

METHOD = Method(
    name="privacyface",
    title="PrivacyFace",
    paper=PAPER,
    task="recognition",
    options=Options,
    network=faces.network,
    home={"model": Home.LENT},
    calls={
        "cluster": Call(cluster, (Upload(CLUSTERS, "dp", shape=cluster_shape), COST)),
        "train": TRAIN,
    },
    server=server,
    user=faces.user,
    features=faces.user,
    personal=faces.LOCALLY,
    least_identities=least_identities,
    warning=crowded,
)
