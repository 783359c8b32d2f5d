"""FedFace in PrivacyFace's comparison: conventional training, with class centres that the server spreads out.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, A.2.5 and
Table 6. Sites train as in conventional federated learning, with the same margin loss, scale and fine-tuning on public
people; they send their class centres, which the server drives apart as in :mod:`fedvisage.methods.recognition.fedface`.
The rows of the table therefore differ only in the values that sites send.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface` and of
:mod:`fedvisage.methods.recognition.fedface`.
"""

from dataclasses import replace

from fedvisage.federation.method import Call
from fedvisage.methods.models import face
from fedvisage.methods.recognition import conventional, fedface
from fedvisage.methods.recognition.privacyface_loss import PAPER, TRAIN, ConsensusOptions


class Options(ConsensusOptions):
    """The loss and the public fine-tuning of all methods of the paper, and FedFace's regulariser."""

    spreadout: fedface.Spreadout = fedface.Spreadout()
    """FedFace's regulariser."""


METHOD = replace(
    fedface.METHOD,
    name="privacyface-fedface",
    title="FedFace (φ + spreadout)",
    paper=PAPER,
    options=Options,
    calls={**fedface.METHOD.calls, "train": Call(conventional.train, TRAIN.uploads)},
    server=fedface.program(lambda recipe: recipe.options(Options).spreadout),
    least_identities=face.two_identities,
)
