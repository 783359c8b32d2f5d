"""The naive alternative to PrivacyFace, φ + Ŵ: independent noise on every class centre.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, A.2.2: each of
a site's n class centres is released with Gaussian noise at a sensitivity of 2. The budget of a round is split among n
queries, as the paper counts, so almost nothing of the centres remains.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`. Every released centre has the
margin ρ of a cluster, because the paper does not specify one; a class centre's own term has none, which corresponds to
a small ``rho``.
"""

from dataclasses import replace

from pydantic import Field

from fedvisage.federation.method import Call, Upload
from fedvisage.federation.privacy.accountant import Charge
from fedvisage.federation.privacy.clustering import directions
from fedvisage.federation.privacy.mechanisms import Budget, Draws, classic_standard_deviation, noise
from fedvisage.federation.record.releases import COST
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.models import face
from fedvisage.methods.recognition import privacyface
from fedvisage.methods.recognition.privacyface_loss import CLUSTERS, TRAIN, ClusterOptions, centres_at_start
from fedvisage.recipe import Recipe

SENSITIVITY = 2.0
"""Largest distance between two unit vectors."""


class Options(ClusterOptions):
    """The budget of a round, and the margin of every class centre of the others."""

    epsilon: float = Field(1.0, gt=0)
    """Budget ε of a round."""
    delta: float | None = Field(None, gt=0, lt=1)
    """Budget δ of a round; by default 1/people^1.1."""


def cluster(site: Site, message: Message) -> Message:
    """Release all class centres of the site, each with independent noise."""
    options = site.recipe.options(Options)
    centres, name = centres_at_start(site, message), f"round {site.round}, class centres"
    delta = options.delta if options.delta is not None else len(centres) ** -1.1
    budget, number = Budget(options.epsilon, delta), len(centres)
    sigma = classic_standard_deviation(budget.share(1 / number), SENSITIVITY)

    def mechanism(draws: Draws) -> Message:
        return {CLUSTERS: directions(centres.double() + noise(tuple(centres.shape), sigma, draws))}

    cost = Charge(name, "gaussian", budget.epsilon, budget.delta, "paper", SENSITIVITY, sigma, times=number)
    return site.release(name, mechanism, [cost])


def shape(recipe: Recipe) -> tuple[int, ...]:
    """Return the shape of one row per person of the site, for any number of people."""
    return -1, recipe.options(Options).network.embedding


METHOD = replace(
    privacyface.METHOD,
    name="privacyface-naive",
    title="Naive noise (φ + Ŵ)",
    options=Options,
    calls={"cluster": Call(cluster, (Upload(CLUSTERS, "dp", shape=shape), COST)), "train": TRAIN},
    check=face.check,
    least_identities=face.two_identities,
)
