"""PrivacyFace: recognition in which sites exchange noisy positions of their people's class centres.

Q. Meng, F. Zhou, H. Ren, T. Feng, G. Liu, Y. Lin, "Improving federated learning face recognition via privacy-agnostic
clusters", ICLR 2022, Algorithm 2. At the start of a round each site computes clusters of its class centres W and
releases them under differential privacy (line 3, Algorithm 1); the server distributes all of them to all sites (line
4). A site then trains with a margin loss in which the others' clusters are negatives (line 7, Eq. 5), fine-tunes on
some public people ("Training"), and the server takes the uniform mean of the models (line 9). ``clustering: private``,
the default, is a mechanism whose claim holds end to end; ``paper`` is Algorithm 1 as printed, see
:mod:`fedvisage.federation.privacy.clustering`.

Deviations from the paper: W starts as the mean features of each identity, because a random W has no clusters; δ of the
private mechanism is a setting, because 1/|D|^1.1 would reveal the number of a site's people; the loss is the mean over
a batch; scale and margin, which are not printed, are those of ArcFace's and CosFace's papers; FedSGD (A.2.1) sends the
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
    BudgetSplit,
    Cluster,
    ClusteringSettings,
    densest_clusters,
    paper_charges,
    private_charges,
    release,
    sanitise_clusters,
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
    least_identities,
    pad_rows,
    public_people,
    warn_of_crowding,
)
from fedvisage.recipe import Recipe, Section

# Clusters of a site's class centres, their release and its cost (Algorithm 2, lines 2 and 3).
CANDIDATE_IMAGES = 4
"""Number of images per public person in the computation of that person's direction."""
SEVERAL = 2
"""Minimum number of public candidates, so that there is a choice; more candidates have no extra cost."""


class Spending(Section):
    """The private mechanism's use of a round's budget, and its relation between neighbouring sets."""

    relation: Literal["add-remove", "replace-one"] = "add-remove"
    """Neighbouring sets differ by one person more or less, or by one replaced person."""
    selection: float = Field(0.2, gt=0, lt=1)
    """Share of ε for the selection of candidates."""
    count: float = Field(0.5, gt=0)
    """Weight κ/r of the count."""


class Options(ClusterOptions):
    """The mechanism that finds clusters, and the budget (ε, δ) of a round."""

    clustering: Literal["private", "paper"] = "private"
    """Mechanism: ``private``, whose ε holds end to end, or ``paper``, Algorithm 1 as printed."""
    epsilon: float = Field(1.0, gt=0)
    """Budget ε of a round; ``privacy.epsilon`` is the run's."""
    delta: float | None = Field(None, gt=0, lt=1)
    """Budget δ of a round; required for ``clustering: private``, otherwise 1/people^1.1 by default."""
    private: Spending = Spending()
    """The private mechanism's use of the budget."""
    releases: Literal["every-round", "once"] = "every-round"
    """Clusters are released again in each round, or ``once`` and used in all rounds."""
    clustered: Literal["trained", "mean-features"] = "trained"
    """Vectors to cluster: W as trained, or each person's mean feature under the lent model, which depends on no other
    person."""
    project: int | None = Field(None, ge=2)
    """Number of public principal directions in which the private clustering works, so that fewer coordinates receive
    noise; at most the number of public images in use, four per person. None: all dimensions."""

    @model_validator(mode="after")
    def _delta_is_no_secret(self) -> Options:
        if self.clustering == "private" and self.delta is None:
            raise ValueError(
                "the private clustering needs delta, such as 5.9e-5; only clustering: paper derives it "
                "from the number of a site's people"
            )
        return self

    @model_validator(mode="after")
    def _refuse_ignored_options(self) -> Options:
        if self.clustering == "paper" and self.project is not None:
            raise ValueError("project applies to the private clustering, not to paper")
        if self.project is not None and self.project > self.network.embedding:
            raise ValueError(f"project is {self.project}, but features have {self.network.embedding} dimensions")
        return self


def cluster(site: Site, message: Message) -> Message:
    """Run lines 2 and 3: load the global model, find clusters of the site's class centres, release them."""
    options = site.recipe.options(Options)
    centres = centres_at_start(site, message)
    if options.clustered == "mean-features":
        centres = face.mean_features(site)
    name = "clusters" if options.releases == "once" else f"round {site.round}, clusters"
    # A resumed round returns the stored release instead of drawing and charging a second one.
    stored = site.released(name)
    if stored is not None:
        return stored
    delta = options.delta if options.delta is not None else len(centres) ** -1.1
    query = ClusteringSettings(options.rho, options.queries, options.minimum, Budget(options.epsilon, delta))
    mechanism, cost = (_paper_mechanism if options.clustering == "paper" else _private_mechanism)(
        site, centres, query, name
    )
    return site.release(name, mechanism, cost)


Mechanism = Callable[[Draws], Message]


def _paper_mechanism(
    site: Site, centres: Tensor, asked: ClusteringSettings, name: str
) -> tuple[Mechanism, Sequence[Charge]]:
    """Return Algorithm 1 and its cost; rows of zeros replace missing clusters."""
    clusters = densest_clusters(centres, asked)

    def mechanism(draws: Draws) -> Message:
        rows = sanitise_clusters(clusters, asked, centres.shape[1], draws)
        return {CLUSTERS: pad_rows(rows, asked.queries)}

    return mechanism, paper_charges(clusters, asked, name)


def _private_mechanism(
    site: Site, centres: Tensor, asked: ClusteringSettings, name: str
) -> tuple[Mechanism, Sequence[Charge]]:
    """Return the mechanism with a proven claim and its cost; its candidates are the public people's directions."""
    options = site.recipe.options(Options)
    how = BudgetSplit(**options.private.model_dump())
    candidates, features = public_directions(site)
    basis = None if options.project is None else principal_directions(features, options.project)
    if len(candidates) < SEVERAL and site.recipe.federation.dp is not None:  # prices would not cover it
        raise UserError("recipe.data.public", f"has one person; clusters need {SEVERAL} to choose among")

    def mechanism(draws: Draws) -> Message:
        return {CLUSTERS: release(centres, candidates, asked, how, draws, basis).centres}

    return mechanism, private_charges(asked, how, len(candidates), name)


def release_costs(recipe: Recipe, times: int) -> tuple[Charge, ...]:
    """Return the maximum cost of this many releases of a site; joint accounts need it before the first release."""
    options, place = recipe.options(Options), "recipe.federation.dp"
    if options.delta is None:
        raise UserError("recipe.method.delta", f"is not known before sites report it; {place} needs it for its account")
    query = ClusteringSettings(options.rho, options.queries, options.minimum, Budget(options.epsilon, options.delta))
    if options.clustering == "paper":
        charges = paper_charges((Cluster(torch.zeros(0), options.minimum),) * options.queries, query, CLUSTERS)
    elif options.clustered == "trained":
        raise UserError(
            place,
            "has no joint account with jointly trained class centres, because each person contributed to all of "
            "them; set method.clustered: mean-features",
        )
    else:
        charges = private_charges(query, BudgetSplit(**options.private.model_dump()), SEVERAL, CLUSTERS)
    number = min(times, 1) if options.releases == "once" else times
    return tuple(
        replace(charge, epsilon=charge.epsilon * number, delta=charge.delta * number, times=charge.times * number)
        for charge in charges
    )


def public_directions(site: Site) -> tuple[Tensor, Tensor]:
    """Return mean features of public people under the lent model, and the features; they are equal at all sites.

    A few images per person are enough, because any directions will do. The sites of a process share the result.
    """
    people = public_people(site)
    persons = np.searchsorted(people.identities, people.subjects)
    view = people.subset(np.flatnonzero(rank_within_person(persons) < CANDIDATE_IMAGES).astype(np.int64))
    # The digest of the lent model marks the shared result as outdated when the model changes.
    lent = digest_of(under("model.", site.lent))
    if site.common.get("directions of") != lent:
        site.common["directions of"] = lent
        features = normalize(site.embed(site.net["model"], view))
        site.common["directions"] = face.means_of(features, view), features
    shared: tuple[Tensor, Tensor] = site.common["directions"]
    return shared


def rank_within_person(whose: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each image the number of earlier images of the same person."""
    order = np.argsort(whose, kind="stable")
    turns = np.empty(len(whose), np.int64)
    turns[order] = np.arange(len(whose)) - np.searchsorted(whose[order], whose[order])
    return turns


def server(s: Server) -> Iterator[None]:
    """Run Algorithm 2; if a site's budget does not allow another release, end the run with the present model.

    A budget that does not allow even the first release is an error: nothing would have been trained.
    """
    options = s.recipe.options(ConsensusOptions)
    for _ in s.rounds():
        try:
            with s.quorum():
                clusters = {f"{CLUSTERS}/{name}": reply[CLUSTERS] for name, reply in s.ask("cluster", s.lent()).items()}
                s.load(s.reduce("train", clusters, weight=options.weight).value)
        except BudgetSpent as spent:
            if s.round == 1:
                raise
            s.end_before_this_round(str(spent))
            return
        yield


def check(recipe: Recipe) -> str | None:
    """Reject an invalid backbone; warn of clusters that dominate the loss or leave no room for people."""
    face.check(recipe)
    return warn_of_crowding(recipe)


METHOD = Method(
    name="privacyface",
    title="PrivacyFace",
    paper=PAPER,
    advice="Noisy clusters of class centres with an (ε, δ) guarantee; no gain was seen at demo size.",
    task="recognition",
    options=Options,
    network=face.network,
    home={"model": Home.LENT},
    calls={
        "cluster": Call(cluster, (Upload(CLUSTERS, "dp", shape=cluster_shape), COST), release_costs=release_costs),
        "train": TRAIN,
    },
    server=server,
    prediction=face.WITH_LOCAL,
    check=check,
    begin=face.begin,
    least_identities=least_identities,
)
