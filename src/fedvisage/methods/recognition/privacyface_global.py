"""Global training: one model trained on all sites' people at once, an upper bound.

Q. Meng et al., "Improving federated learning face recognition via privacy-agnostic clusters", ICLR 2022, "Baselines".
Pooling the data defeats the purpose of a federation; it is a simulation only, and is refused between organisations.

Deviations from the paper: those of :mod:`fedvisage.methods.recognition.privacyface`.
"""

from dataclasses import replace

from fedvisage.methods.models import face
from fedvisage.methods.recognition import conventional

METHOD = replace(
    conventional.METHOD,
    name="privacyface-global",
    title="Global training",
    prediction=face.GENERIC_ONLY,
    members="pooled",
)
