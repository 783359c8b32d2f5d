"""PrivacyFace: recognition in which sites tell each other where their people's class centres lie, with noise on it.

Q. Meng, F. Zhou, H. Ren, T. Feng, G. Liu, Y. Lin, "Improving federated learning face recognition via privacy-agnostic
clusters", ICLR 2022, Algorithm 2. At the start of a round each site finds clusters of its class centres W and releases
them under differential privacy (line 3, Algorithm 1); the server hands all of them to all sites (line 4). A site then
trains with a margin loss in which the others' clusters are negatives (line 7, Eq. 5), fine-tunes on some public people
("Training"), and the server takes the uniform mean of the models (line 9). ``clustering: private``, the default, is a
mechanism whose claim holds end to end; ``paper`` is Algorithm 1 to the letter, see
:mod:`fedvisage.federation.privacy.clustering`.

Deviations from the paper: W begins as the mean features of each identity, for a random W has no clusters; δ of the
private mechanism is a setting, because 1/|D|^1.1 would tell the number of a site's people; the loss is the mean over a
batch; scale and margin, which are not printed, are those of ArcFace's and CosFace's papers; FedSGD (A.2.1) sends the
model after one step down the mean gradient, whose mean over sites is one step down the mean of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.base.errors import UserError
from fedvisage.federation.method import Call, Home, Method, Upload
from fedvisage.federation.privacy.accountant import BudgetSpent, Charge
from fedvisage.federation.privacy.clustering import (
    Cluster,
    Clustering,
    Privately,
    densest,
    paper_charges,
    private_charges,
    release,
    sanitised,
)
from fedvisage.federation.privacy.mechanisms import Budget, Draws, principal_directions
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message, digest_of, under
from fedvisage.federation.wire.schema import COST
from fedvisage.methods.models import face
from fedvisage.methods.recognition.privacyface_loss import (
    CLUSTERS,
    PAPER,
    TRAIN,
    ClusterOptions,
    ConsensusOptions,
    centres_at_start,
    cluster_shape,
    crowded,
    filled,
    least_identities,
    public_people,
)
from fedvisage.recipe import Recipe, Section

# Clusters of a site's class centres: how they are found and released, and what that costs (PrivacyFace).
#
# Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, Algorithm
# 2,
# lines 2 and 3: Algorithm 1 to the letter (``clustering: paper``), or the private mechanism whose claim holds end to
# end,
# see :mod:`fedvisage.federation.privacy.clustering` and ``private_clustering``. Deviations from the paper are listed in
# :mod:`fedvisage.methods.recognition.privacyface`.


CANDIDATE_IMAGES = 4
SEVERAL = 2
"""Public candidates, so that there is a choice; more of them cost no more."""


class Spending(Section):
    """How the private mechanism spends a round's budget, and what is a neighbour of what."""

    relation: Literal["add-remove", "replace-one"] = "add-remove"
    """What neighbouring sets are: one person more or less, or one replaced."""
    selection: float = Field(0.2, gt=0, lt=1)
    """Share of ε for the selection of candidates."""
    count: float = Field(0.5, gt=0)
    """Weight κ/r of the count."""


class Options(ClusterOptions):
    """Which mechanism finds clusters, and the budget (ε, δ) of a round."""

    clustering: Literal["private", "paper"] = "private"
    """The mechanism whose ε holds end to end, or Algorithm 1 as printed (``paper``)."""
    epsilon: float = Field(1.0, gt=0)
    """A round's budget; ``privacy.epsilon`` is the run's."""
    delta: float | None = Field(None, gt=0, lt=1)
    """It must be given for ``clustering: private``, else it is 1/people^1.1."""
    private: Spending = Spending()
    """How the private mechanism spends it."""
    releases: Literal["every-round", "once"] = "every-round"
    """Clusters are told anew in each round, or ``once`` and used in all."""
    clustered: Literal["trained", "mean-features"] = "trained"
    """W as it was trained, or each person's mean feature under the lent model, which no other person has a part in."""
    project: int | None = Field(None, ge=2)
    """How many public principal directions the private clustering works in, so that fewer coordinates get noise; at
    most as many as there are public images, of which four a person are used. None: all dimensions."""

    @model_validator(mode="after")
    def _delta_is_no_secret(self) -> Options:
        if self.clustering == "private" and self.delta is None:
            raise ValueError(
                "the private clustering needs delta, such as 5.9e-5; only clustering: paper derives it "
                "from the number of a site's people"
            )
        return self

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Options:
        if self.clustering == "paper" and self.project is not None:
            raise ValueError("project is for the private clustering; paper does not go by it")
        if self.project is not None and self.project > self.network.embedding:
            raise ValueError(f"project is {self.project}, but features have {self.network.embedding} dimensions")
        return self


def cluster(site: Site, message: Message) -> Message:
    """Lines 2 and 3: take the global model, find clusters of the site's class centres, release them."""
    options = site.recipe.options(Options)
    centres = centres_at_start(site, message)
    if options.clustered == "mean-features":
        centres = face.mean_features(site)
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
    clusters = densest(centres, asked)

    def mechanism(draws: Draws) -> Message:
        rows = sanitised(clusters, asked, centres.shape[1], draws)
        return {CLUSTERS: filled(rows, asked.queries)}

    return mechanism, paper_charges(clusters, asked, name)


def _private(site: Site, centres: Tensor, asked: Clustering, name: str) -> tuple[Mechanism, Sequence[Charge]]:
    """The mechanism whose claim holds; its candidates are the public people's directions."""
    options = site.recipe.options(Options)
    how = Privately(**options.private.model_dump())
    candidates, features = public_directions(site)
    basis = None if options.project is None else principal_directions(features, options.project)
    if len(candidates) < SEVERAL and site.recipe.federation.dp is not None:  # prices would not cover it
        raise UserError("recipe.data.public", f"has one person; clusters need {SEVERAL} to choose among")

    def mechanism(draws: Draws) -> Message:
        return {CLUSTERS: release(centres, candidates, asked, how, draws, basis).centres}

    return mechanism, private_charges(asked, how, len(candidates), name)


def prices(recipe: Recipe, times: int) -> tuple[Charge, ...]:
    """Return what so many releases of a site cost at most; joint accounts need to know it before anything is told."""
    options, place = recipe.options(Options), "recipe.federation.dp"
    if options.delta is None:
        raise UserError("recipe.method.delta", f"is not known before sites tell it; {place} needs it for its account")
    asked = Clustering(options.rho, options.queries, options.minimum, Budget(options.epsilon, options.delta))
    if options.clustering == "paper":
        charges = paper_charges((Cluster(torch.zeros(0), options.minimum),) * options.queries, asked, CLUSTERS)
    elif options.clustered == "trained":
        raise UserError(
            place,
            "has no joint account with class centres that were trained together, as each person had a part in all of "
            "them; set method.clustered: mean-features",
        )
    else:
        charges = private_charges(asked, Privately(**options.private.model_dump()), SEVERAL, CLUSTERS)
    number = min(times, 1) if options.releases == "once" else times
    return tuple(
        replace(one, epsilon=one.epsilon * number, delta=one.delta * number, times=one.times * number)
        for one in charges
    )


def public_directions(site: Site) -> tuple[Tensor, Tensor]:
    """Return mean features of public people under the model that was lent, and the features: the same at every site.

    A few images of each are enough, since any directions will do. The sites of a process share what they work out.
    """
    people = public_people(site)
    whose = np.searchsorted(people.identities, people.subjects)
    few = people.subset(np.flatnonzero(turn_of(whose) < CANDIDATE_IMAGES).astype(np.int64))
    lent = digest_of(under("model.", site.lent))
    if site.common.get("directions of") != lent:
        site.common["directions of"] = lent
        features = normalize(site.embed(site.net["model"], few))
        site.common["directions"] = face.means_of(features, few), features
    shared: tuple[Tensor, Tensor] = site.common["directions"]
    return shared


def turn_of(whose: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many images of the same person come before each."""
    order = np.argsort(whose, kind="stable")
    turns = np.empty(len(whose), np.int64)
    turns[order] = np.arange(len(whose)) - np.searchsorted(whose[order], whose[order])
    return turns


def server(s: Server) -> Iterator[None]:
    """Algorithm 2; where a site's budget does not allow another release, the run ends with the model that there is.

    A budget that does not allow the first one is refused: nothing would have been trained.
    """
    options = s.recipe.options(ConsensusOptions)
    for _ in s.rounds():
        try:
            with s.quorum():
                told = {f"{CLUSTERS}/{name}": reply[CLUSTERS] for name, reply in s.ask("cluster", s.lent()).items()}
                s.load(s.reduce("train", told, weight=options.weight).value)
        except BudgetSpent as spent:
            if s.round == 1:
                raise
            s.end_before_this_round(str(spent))
            return
        yield


METHOD = Method(
    name="privacyface",
    title="PrivacyFace",
    paper=PAPER,
    task="recognition",
    options=Options,
    network=face.network,
    home={"model": Home.LENT},
    calls={
        "cluster": Call(cluster, (Upload(CLUSTERS, "dp", shape=cluster_shape), COST)),
        "train": TRAIN,
    },
    server=server,
    user=face.user,
    check=face.check,
    begin=face.begin,
    features=face.user,
    personal=face.LOCALLY,
    least_identities=least_identities,
    prices=prices,
    warning=crowded,
)
