"""Vectors that sites release under PrivacyFace: class centres W, cluster means p, and noisy means p̂ at several ε.

The attacks compute them from the finished model, which everyone has, and from the sites' images, which only a
simulation has. W holds the mean features of each identity. One run therefore shows the effect of each kind of release.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.audit.finding import AuditedRun
from fedvisage.base.streams import torch_rng
from fedvisage.data.batches import View
from fedvisage.federation.privacy.clustering import (
    BudgetSplit,
    ClusteringSettings,
    densest_clusters,
    directions,
    release,
    sanitise_clusters,
)
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, principal_directions
from fedvisage.federation.server import separate_models
from fedvisage.methods.models.face import means_of
from fedvisage.methods.recognition.privacyface import Options
from fedvisage.methods.recognition.privacyface_loss import ClusterOptions
from fedvisage.metrics.similarity import Faces
from fedvisage.nn.inputs import as_float
from fedvisage.tasks.scoring import Scorer

EPSILONS = (0.3, 1.0, 8.0)
CENTRES, MEANS = "class centres W", "clusters without noise p"
BATCH = 256
DRAWS = 20
"""Number of noisy releases per kind and site, so that the figures do not depend on a single draw."""


@dataclass(frozen=True, eq=False)
class ReleasedVectors:
    """Vectors of one kind from one site, each with the identities that it represents."""

    kind: str
    site: str
    vectors: NDArray[np.float32]
    right: list[frozenset[int]]


@dataclass(frozen=True, eq=False)
class FeatureModel:
    """The people of a simulation as the finished model represents them."""

    scorer: Scorer
    names: list[str]

    def faces(self, view: View) -> Faces:
        """Return the features of a view at unit length, with the numbers of their identities."""
        features = normalize(self.scorer.embeddings(view).float()).numpy()
        return Faces(features, np.searchsorted(self.names, view.subjects).astype(np.int64))


@dataclass(frozen=True, eq=False)
class SitePeople:
    """The people of a site: their class centres, their mean photographs, and the cosine at a cluster's margin."""

    centres: Tensor
    means: Tensor
    cosine: float

    def behind(self, released: ReleasedVectors) -> Tensor:
        """Return the mean photograph of the people that each vector represents; black if there are none.

        A class centre represents its person. A cluster represents all people of the site within its margin.
        """
        within = torch.eye(len(self.centres))
        if released.kind != CENTRES:
            within = (torch.from_numpy(released.vectors).to(self.centres) @ self.centres.T >= self.cosine).float()
        faces = within @ self.means.flatten(1) / within.sum(1, keepdim=True).clamp(min=1)
        return faces.reshape(-1, *self.means.shape[1:])


def obstacle(subject: AuditedRun) -> str:
    """Return what a run lacks for these attacks, or an empty string."""
    if subject.data.people is None:
        return "nobody's identity is learned"
    if subject.data.people.public is None:
        return "there are no public people for an attacker to learn from"
    return ""


def uploads_sentence(subject: AuditedRun) -> str:
    """Return a sentence naming the vectors that the run's method declares as uploads; others stay at the sites."""
    declared = {upload.name for call in subject.method.calls.values() for upload in call.uploads}
    sent = [name for upload, name in (("centres", "class centres"), ("clusters", "clusters")) if upload in declared]
    if sent:
        return f"In this run sites send {' and '.join(sent)}."
    return "In this run sites send none of these: the numbers describe what they would reveal."


def open_feature_model(subject: AuditedRun) -> FeatureModel:
    """Open the finished model; for a run with several members, the first member's."""
    scorer = subject.setup.scorer()
    scorer.load(next(iter(separate_models(subject.method, subject.saved.finished).values())))
    # The people of the sites, of the public set and of the benchmark.
    sites = [view for site in subject.people.apart.values() for view in (site.train, site.heldout)]
    others = [view for view in (*subject.people.strangers.values(), subject.data.target) if view is not None]
    subjects = [view.subjects for view in (*sites, subject.public, *others)]
    return FeatureModel(scorer, np.unique(np.concatenate(subjects)).tolist())


def released_vectors(subject: AuditedRun, model: FeatureModel) -> Iterator[ReleasedVectors]:
    """Yield the vectors that each site would release, kind by kind."""
    features, options = torch.from_numpy(model.faces(subject.public).features), subject.recipe.method
    candidates, basis = means_of(features, subject.public), None
    if isinstance(options, Options) and options.project is not None:  # the run clusters in public directions
        basis = principal_directions(features, options.project)
    for site, data in sorted(subject.people.apart.items()):
        faces = model.faces(data.train)
        numbers = np.unique(faces.identity).tolist()
        centres = means_of(torch.from_numpy(faces.features), data.train)
        yield ReleasedVectors(CENTRES, site, centres.numpy(), [frozenset({int(number)}) for number in numbers])
        everyone = frozenset(int(number) for number in numbers)
        for kind, rows in clusters_of(subject, site, centres, candidates, basis):
            yield ReleasedVectors(kind, site, rows.numpy(), [everyone] * len(rows))


def people_of(subject: AuditedRun, model: FeatureModel, site: str) -> SitePeople:
    """Return the people of a site with their mean photographs; it reads images in batches, as a site may have many."""
    view, size = subject.people.apart[site].train, subject.recipe.input.size
    faces = model.faces(view)
    numbers, person, counts = np.unique(faces.identity, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(numbers), 3 * size * size)
    for rows in np.array_split(np.arange(len(view)), 1 + len(view) // BATCH):
        sums.index_add_(0, torch.from_numpy(person[rows]), as_float(view.batch(rows).images).flatten(1))
    means = (sums / torch.from_numpy(counts)[:, None]).reshape(-1, 3, size, size)
    centres = means_of(torch.from_numpy(faces.features), view)
    return SitePeople(centres, means, clustering_of(subject, len(centres))[0].cosine)


def clusters_of(
    subject: AuditedRun, site: str, centres: Tensor, candidates: Tensor, basis: Tensor | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield clusters without noise, then noisy clusters by Algorithm 1 and by the private mechanism, for each ε."""
    query, how = clustering_of(subject, len(centres))
    clusters = densest_clusters(centres, query)
    if clusters:
        yield MEANS, directions(torch.stack([cluster.mean for cluster in clusters]))
    for epsilon in EPSILONS:
        priced = replace(query, budget=Budget(epsilon, query.budget.delta))
        draws = DerivedDraws(torch_rng(subject.recipe.runtime.seed, "audit", site, str(epsilon)))
        if clusters:
            rows = [sanitise_clusters(clusters, priced, centres.shape[1], draws) for _ in range(DRAWS)]
            yield f"p̂ of Algorithm 1, ε {epsilon:g}", torch.cat(rows)
        rows = [release(centres, candidates, priced, how, draws, basis).centres for _ in range(DRAWS)]
        drawn = torch.cat(rows)
        if bool((nonempty := drawn.any(dim=1)).any()):
            yield f"p̂, private, ε {epsilon:g}", drawn[nonempty]


def clustering_of(subject: AuditedRun, people: int) -> tuple[ClusteringSettings, BudgetSplit]:
    """Return the run's clustering, or the paper's for methods without one, with a T that the site can reach."""
    options = subject.recipe.method
    clusters = options if isinstance(options, ClusterOptions) else ClusterOptions(name=options.name)
    least = min(clusters.minimum, max(1, people // 4)) if clusters is not options else clusters.minimum
    budget = Budget(1.0, people**-1.1 if people > 1 else 0.5)
    how = BudgetSplit()
    if isinstance(options, Options):
        how = BudgetSplit(**options.private.model_dump())
        budget = Budget(options.epsilon, options.delta or budget.delta)
    return ClusteringSettings(clusters.rho, clusters.queries, min(least, people), budget), how
