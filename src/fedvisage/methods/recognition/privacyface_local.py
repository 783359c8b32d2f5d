"""Local training only: the result of a site without a federation, from the same first model and with the same loss.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, A.2.3 and
Table 4: each model is fine-tuned on one site's people, and evaluated on its own group.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`; the public fine-tuning, which the
paper describes for models that the server collects, can be switched off with ``public_epochs: 0``.
"""

from dataclasses import replace

from fedvisage.methods.models import face
from fedvisage.methods.pad import single
from fedvisage.methods.recognition import conventional

METHOD = replace(
    conventional.METHOD,
    name="privacyface-local",
    title="Local training only",
    server=single.server,
    prediction=face.LOCAL_ONLY,
    members="each",
    supports=frozenset(),
)
