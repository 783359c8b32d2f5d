"""Conventional federated learning for face recognition, φ: the baseline that PrivacyFace is measured against.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, "Baselines"
and Fig. 1a: sites train with a margin loss on their own people, fine-tune on some public ones, and the server takes the
uniform mean. It is PrivacyFace in which nobody tells of clusters.

Deviations from the paper: those of :mod:`fedvisage.methods.privacyface`.
"""

from dataclasses import replace

from fedvisage.federation.method import Call, Message
from fedvisage.federation.site import Site
from fedvisage.methods import averaging, privacyface
from fedvisage.methods.consensus import TRAIN, ConsensusOptions, trained


class Options(ConsensusOptions):
    """The loss and the public fine-tuning."""


def train(site: Site, message: Message) -> Message:
    """One round without clusters."""
    return trained(site, message, None)


METHOD = replace(
    privacyface.METHOD,
    name="conventional",
    title="Conventional FL (φ)",
    options=Options,
    calls={"train": Call(train, TRAIN.uploads)},
    server=averaging.server,
    averages=True,
    least_identities=lambda _: 2,
    warning=lambda _: None,
    prices=None,
)
