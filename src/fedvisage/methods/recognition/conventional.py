"""Conventional federated learning for face recognition, φ: the baseline of PrivacyFace.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, "Baselines"
and Fig. 1a: sites train with a margin loss on their own people, fine-tune on some public ones, and the server takes the
uniform mean. It is PrivacyFace without the exchange of clusters.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`.
"""

from dataclasses import replace

from fedvisage.federation.method import Call
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import face
from fedvisage.methods.recognition import privacyface
from fedvisage.methods.recognition.privacyface_loss import TRAIN, ConsensusOptions, train_model


class Options(ConsensusOptions):
    """The loss and the public fine-tuning."""


def train(site: Site, message: Message) -> Message:
    """Train for one round without clusters."""
    return train_model(site, message, None)


METHOD = replace(
    privacyface.METHOD,
    name="conventional",
    title="Conventional FL (φ)",
    options=Options,
    calls={"train": Call(train, TRAIN.uploads)},
    server=fedavg.server,
    supports=frozenset({"one_mean"}),
    check=face.check,
    least_identities=face.two_identities,
)
