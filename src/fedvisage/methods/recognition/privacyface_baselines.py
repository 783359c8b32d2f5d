"""The other rows of PrivacyFace's comparison: conventional, local and global training, and other values to release.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, "Baselines"
and A.2. Deviations from the paper are those of :mod:`fedvisage.methods.recognition.privacyface`, and those named below.
"""

from dataclasses import replace

import torch
from pydantic import Field

from fedvisage.federation.method import Call, Upload
from fedvisage.federation.privacy.accountant import Charge
from fedvisage.federation.privacy.clustering import ClusteringSettings, densest_clusters, directions
from fedvisage.federation.privacy.mechanisms import Budget, Draws, classic_standard_deviation, noise
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import COST
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import face
from fedvisage.methods.pad import fedpad
from fedvisage.methods.recognition import fedface, privacyface
from fedvisage.methods.recognition.privacyface_loss import (
    CLUSTERS,
    PAPER,
    TRAIN,
    ClusterOptions,
    ConsensusOptions,
    centres_at_start,
    cluster_shape,
    pad_rows,
    train_model,
)
from fedvisage.recipe import Recipe


class ConventionalOptions(ConsensusOptions):
    """The loss and the public fine-tuning."""


def train_without_clusters(site: Site, message: Message) -> Message:
    """Train for one round without clusters."""
    return train_model(site, message, None)


CONVENTIONAL = replace(
    privacyface.METHOD,
    name="conventional",
    title="Conventional FL (φ)",
    advice="The baseline of privacyface: the same training, nothing released besides weights.",
    options=ConventionalOptions,
    calls={"train": Call(train_without_clusters, TRAIN.uploads)},
    server=fedavg.server,
    supports=frozenset({"one_mean"}),
    check=face.check,
    least_identities=face.two_identities,
)
"""Conventional federated learning for face recognition, φ: the baseline of PrivacyFace.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, "Baselines"
and Fig. 1a: sites train with a margin loss on their own people, fine-tune on some public ones, and the server takes the
uniform mean. It is PrivacyFace without the exchange of clusters.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`.
"""

LOCAL = replace(
    CONVENTIONAL,
    name="privacyface-local",
    title="Local training only",
    advice="Each site alone, from the same first model and with the same loss as privacyface.",
    server=fedpad.train_alone,
    prediction=face.LOCAL_ONLY,
    members="each",
    supports=frozenset(),
)
"""Local training only: the result of a site without a federation, from the same first model and with the same loss.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, A.2.3 and
Table 4: each model is fine-tuned on one site's people, and evaluated on its own group.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`; the public fine-tuning, which the
paper describes for models that the server collects, can be switched off with ``public_epochs: 0``.
"""

GLOBAL = replace(
    CONVENTIONAL,
    name="privacyface-global",
    title="Global training",
    advice="Simulation only: all people in one place.",
    prediction=face.GENERIC_ONLY,
    members="pooled",
)
"""Global training: one model trained on all sites' people at once, an upper bound.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, "Baselines".
Pooling the data defeats the purpose of a federation; it is a simulation only, and is refused between organisations.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`.
"""


class WithoutNoiseOptions(ClusterOptions):
    """The options of clusters."""


UNUSED = Budget(1.0, 0.5)
"""A budget for the clustering, which needs one; without noise it has no effect."""


def send_cluster_means(site: Site, message: Message) -> Message:
    """Find clusters of the site's class centres and send them without noise."""
    options = site.recipe.options(WithoutNoiseOptions)
    centres = centres_at_start(site, message)
    clusters = densest_clusters(centres, ClusteringSettings(options.rho, options.queries, options.minimum, UNUSED))
    rows = torch.stack([group.mean for group in clusters]) if clusters else centres[:0].double()
    return {CLUSTERS: pad_rows(directions(rows), options.queries)}


CLUSTER_MEANS = Upload(
    CLUSTERS, "statistic", shape=cluster_shape, guarantee="means of class centres; nothing protects them"
)

WITHOUT_NOISE = replace(
    privacyface.METHOD,
    name="privacyface-without-noise",
    title="PrivacyFace without noise (φ + p)",
    advice="Research only: clusters without noise; all sites see the means of people.",
    options=WithoutNoiseOptions,
    calls={"cluster": Call(send_cluster_means, (CLUSTER_MEANS,)), "train": TRAIN},
)
"""PrivacyFace without noise, φ + p: it measures the cost of the noise, and reveals the means of people to all sites.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, "Baselines":
Algorithm 1 without its line 7. The released means are unprotected, and the ledger records this.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`.
"""

SENSITIVITY = 2.0
"""Largest distance between two unit vectors."""


class NaiveOptions(ClusterOptions):
    """The budget of a round, and the margin of every class centre of the others."""

    epsilon: float = Field(1.0, gt=0)
    """Budget ε of a round."""
    delta: float | None = Field(None, gt=0, lt=1)
    """Budget δ of a round; by default 1/people^1.1."""


def release_centres(site: Site, message: Message) -> Message:
    """Release all class centres of the site, each with independent noise."""
    options = site.recipe.options(NaiveOptions)
    centres, name = centres_at_start(site, message), f"round {site.round}, class centres"
    delta = options.delta if options.delta is not None else len(centres) ** -1.1
    budget, number = Budget(options.epsilon, delta), len(centres)
    sigma = classic_standard_deviation(budget.share(1 / number), SENSITIVITY)

    def mechanism(draws: Draws) -> Message:
        return {CLUSTERS: directions(centres.double() + noise(tuple(centres.shape), sigma, draws))}

    cost = Charge(name, "gaussian", budget.epsilon, budget.delta, "paper", SENSITIVITY, sigma, times=number)
    return site.release(name, mechanism, [cost])


def centres_shape(recipe: Recipe) -> tuple[int, ...]:
    """Return the shape of one row per person of the site, for any number of people."""
    return -1, recipe.options(NaiveOptions).network.embedding


NAIVE = replace(
    privacyface.METHOD,
    name="privacyface-naive",
    title="Naive noise (φ + Ŵ)",
    advice="Research only: noise on each class centre, which leaves almost no signal.",
    options=NaiveOptions,
    calls={"cluster": Call(release_centres, (Upload(CLUSTERS, "dp", shape=centres_shape), COST)), "train": TRAIN},
    check=face.check,
    least_identities=face.two_identities,
)
"""The naive alternative to PrivacyFace, φ + Ŵ: independent noise on every class centre.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, A.2.2: each of
a site's n class centres is released with Gaussian noise at a sensitivity of 2. The budget of a round is split among n
queries, as the paper counts, so almost nothing of the centres remains.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`. Every released centre has the
margin ρ of a cluster, because the paper does not specify one; a class centre's own term has none, which corresponds to
a small ``rho``.
"""


class FedFaceOptions(ConsensusOptions):
    """The loss and the public fine-tuning of all methods of the paper, and FedFace's regulariser."""

    spreadout: fedface.Spreadout = fedface.Spreadout()
    """FedFace's regulariser."""


FEDFACE = replace(
    fedface.METHOD,
    name="privacyface-fedface",
    title="FedFace (φ + spreadout)",
    paper=PAPER,
    advice="Research only: class centres are sent and spread out, in privacyface's comparison.",
    options=FedFaceOptions,
    calls={**fedface.METHOD.calls, "train": Call(train_without_clusters, TRAIN.uploads)},
    server=fedface.program(lambda recipe: recipe.options(FedFaceOptions).spreadout),
    least_identities=face.two_identities,
)
"""FedFace in PrivacyFace's comparison: conventional training, with class centres that the server spreads out.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, A.2.5 and
Table 6. Sites train as in conventional federated learning, with the same margin loss, scale and fine-tuning on public
people; they send their class centres, which the server drives apart as in :mod:`fedvisage.methods.recognition.fedface`.
The rows of the table therefore differ only in the values that sites send.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface` and of
:mod:`fedvisage.methods.recognition.fedface`.
"""
