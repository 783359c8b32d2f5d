"""PrivacyFace without noise, φ + p: it measures the cost of the noise, and reveals the means of people to all sites.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, "Baselines":
Algorithm 1 without its line 7. The released means are unprotected, and the ledger records this.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`.
"""

from dataclasses import replace

import torch

from fedvisage.federation.method import Call, Upload
from fedvisage.federation.privacy.clustering import ClusteringSettings, densest_clusters, directions
from fedvisage.federation.privacy.mechanisms import Budget
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.recognition import privacyface
from fedvisage.methods.recognition.privacyface_loss import (
    CLUSTERS,
    TRAIN,
    ClusterOptions,
    centres_at_start,
    cluster_shape,
    pad_rows,
)


class Options(ClusterOptions):
    """The options of clusters."""


UNUSED = Budget(1.0, 0.5)
"""A budget for the clustering, which needs one; without noise it has no effect."""


def cluster(site: Site, message: Message) -> Message:
    """Find clusters of the site's class centres and send them without noise."""
    options = site.recipe.options(Options)
    centres = centres_at_start(site, message)
    clusters = densest_clusters(centres, ClusteringSettings(options.rho, options.queries, options.minimum, UNUSED))
    rows = torch.stack([group.mean for group in clusters]) if clusters else centres[:0].double()
    return {CLUSTERS: pad_rows(directions(rows), options.queries)}


CLUSTER_MEANS = Upload(
    CLUSTERS, "statistic", shape=cluster_shape, guarantee="means of class centres; nothing protects them"
)

METHOD = replace(
    privacyface.METHOD,
    name="privacyface-without-noise",
    title="PrivacyFace without noise (φ + p)",
    options=Options,
    calls={"cluster": Call(cluster, (CLUSTER_MEANS,)), "train": TRAIN},
)
