"""Clusters of a site's class centres: how they are found and released, and what that costs (PrivacyFace).

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, Algorithm 2,
lines 2 and 3: Algorithm 1 to the letter (``clustering: paper``), or the private mechanism whose claim holds end to end,
see :mod:`fedvisage.privacy.clustering` and ``private_clustering``. Deviations from the paper are listed in
:mod:`fedvisage.methods.privacyface`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.errors import UserError
from fedvisage.federation.method import Message
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import digest_of, under
from fedvisage.methods.consensus import (
    CLUSTERS,
    ClusterOptions,
    centres_at_start,
    filled,
    public_people,
)
from fedvisage.methods.models import face
from fedvisage.privacy.accountant import Charge
from fedvisage.privacy.clustering import Cluster, Clustering, densest, paper_charges, sanitised
from fedvisage.privacy.draws import Draws
from fedvisage.privacy.gaussian import Budget
from fedvisage.privacy.private_clustering import Privately, private_charges, release
from fedvisage.privacy.projection import principal_directions
from fedvisage.recipe import Recipe, Section

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
