"""Measure the share of other sites' clusters in a site's softmax (PrivacyFace's Eq. 5), and the clusters' positions.

This is not an attack; it shows whether the consensus can teach anything. Class centres W are the mean features of each
identity under the finished model. Clusters are those that Algorithm 1 finds among them, without noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import cos

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.audit.finding import Audit, AuditedRun, Finding
from fedvisage.audit.released import clustering_of, obstacle, open_feature_model
from fedvisage.federation.privacy.clustering import densest_clusters, directions
from fedvisage.methods.models.face import means_of
from fedvisage.methods.recognition.privacyface_loss import ConsensusOptions
from fedvisage.nn.losses.consensus import cluster_logits

MARGINS = (0.3, 0.6, 0.9, 1.0, 1.3)
"""Margins ρ of the loss; the clusters always use the run's own ρ."""


@dataclass(frozen=True, eq=False)
class SiteData:
    """The data of a site: its images' features and classes, its class centres, and its clusters."""

    features: Tensor
    labels: Tensor
    centres: Tensor
    clusters: Tensor


def attack(subject: AuditedRun) -> Finding:
    """Measure the shares at every site, and the angles between clusters."""
    options = subject.recipe.method
    loss = options if isinstance(options, ConsensusOptions) else ConsensusOptions(name=options.name)
    model, edge = open_feature_model(subject), 0.0  # the edge is the cosine at the edge of a cap
    sites = {}
    for site, data in sorted(subject.people.apart.items()):
        faces = model.faces(data.train)
        features, labels = torch.from_numpy(faces.features), np.unique(faces.identity, return_inverse=True)[1]
        centres = normalize(means_of(features, data.train))
        query, _ = clustering_of(subject, len(centres))
        dense, edge = densest_clusters(centres, query), cos(query.margin)
        clusters = directions(torch.stack([cluster.mean for cluster in dense])).float() if dense else centres[:0]
        sites[site] = SiteData(features, torch.from_numpy(labels), centres, clusters)
    rows: list[dict[str, str | float]] = []
    for margin in MARGINS:
        measured = []
        for site, held in sites.items():
            remote = torch.cat([other.clusters for name, other in sites.items() if name != site])
            measured.append(shares(held, remote, margin, loss.scale))
        means = {name: float(np.mean([share[name] for share in measured])) for name in measured[0]}
        rows.append({"ρ of the loss": margin, **means})
    says = (
        "Shares of the softmax of Eq. 5, without the margin of the own class: of the own class, of the "
        "site's other people, and of the other sites' clusters. Where clusters take nearly all of it, a "
        "site's people hardly repel each other."
    )
    return Finding(says, cluster_geometry(sites, edge), rows)


def shares(held: SiteData, clusters: Tensor, margin: float, scale: float) -> dict[str, float]:
    """Return the mean probabilities of an image's own class, of its site's other people, and of others' clusters."""
    own_logits = scale * held.features @ held.centres.T
    logits = torch.cat([own_logits, cluster_logits(held.features, clusters, margin, scale)], dim=1)
    chances = logits.double().softmax(dim=1)
    own_class, own_site = chances.gather(1, held.labels[:, None]).sum(dim=1), chances[:, : len(held.centres)].sum(dim=1)
    means = own_class.mean(), (own_site - own_class).mean(), (1 - own_site).mean()
    return dict(zip(("own class", "own site's others", "clusters"), map(float, means), strict=True))


def cluster_geometry(sites: Mapping[str, SiteData], edge: float) -> dict[str, float]:
    """Return the mean cosine of two sites' clusters, and the shares of a site's own and of other people in its caps."""
    samples: dict[str, list[float]] = {}
    for (name, site), (held_name, held) in product(sites.items(), sites.items()):
        whose = "own people in a cap" if name == held_name else "other sites' people in a cap"
        if len(site.clusters):
            samples.setdefault(whose, []).append(float((held.centres @ site.clusters.T >= edge).float().mean()))
        if name < held_name and len(site.clusters) and len(held.clusters):
            cosine = float((site.clusters @ held.clusters.T).mean())
            samples.setdefault("cosine of two sites' clusters", []).append(cosine)
    return {name: float(np.mean(values)) for name, values in samples.items()}


AUDIT = Audit("softmax-shares", "What clusters leave of a site's softmax", obstacle, attack)
