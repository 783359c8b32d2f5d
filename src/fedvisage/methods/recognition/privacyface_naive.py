"""The naive alternative to PrivacyFace, φ + Ŵ: noise on every class centre by itself.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, A.2.2: each of
a site's n class centres is released with Gaussian noise at a sensitivity of 2. The budget of a round is split among n
queries, as the paper counts, so that next to nothing of the centres is left.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`. Every centre that is told has the
margin ρ of a cluster, for the paper does not say which; a class centre's own term has none, which a small ``rho``
comes to.
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
from fedvisage.methods.recognition import privacyface
from fedvisage.methods.recognition.privacyface_loss import CLUSTERS, TRAIN, ClusterOptions, centres_at_start
from fedvisage.recipe import Recipe

SENSITIVITY = 2.0
"""The largest distance of two unit vectors."""


class Options(ClusterOptions):
    """The budget of a round, and the margin that every class centre of the others is given."""

    epsilon: float = Field(1.0, gt=0)
    """A round's budget."""
    delta: float | None = Field(None, gt=0, lt=1)
    """By default 1/people^1.1."""


def cluster(site: Site, message: Message) -> Message:
    """Release all class centres of the site, each with noise of its own."""
    options = site.recipe.options(Options)
    centres, name = centres_at_start(site, message), f"round {site.round}, class centres"
    delta = options.delta if options.delta is not None else len(centres) ** -1.1
    whole, number = Budget(options.epsilon, delta), len(centres)
    sigma = classic_standard_deviation(whole.share(1 / number), SENSITIVITY)

    def mechanism(draws: Draws) -> Message:
        return {CLUSTERS: directions(centres.double() + noise(tuple(centres.shape), sigma, draws))}

    cost = Charge(name, "gaussian", whole.epsilon, whole.delta, "paper", SENSITIVITY, sigma, times=number)
    return site.release(name, mechanism, [cost])


def shape(recipe: Recipe) -> tuple[int, ...]:
    """Return one row for each of the site's people, however many there are."""
    return -1, recipe.options(Options).network.embedding


METHOD = replace(
    privacyface.METHOD,
    name="privacyface-naive",
    title="Naive noise (φ + Ŵ)",
    options=Options,
    calls={"cluster": Call(cluster, (Upload(CLUSTERS, "dp", shape=shape), COST)), "train": TRAIN},
    least_identities=lambda _: 2,
    warning=lambda _: None,
    prices=None,
)
