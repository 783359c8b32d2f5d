"""Centralised: one model trained on everybody's images, public and the sites' (last row of FedFR's Table 1).

It violates what a federation is for, and shows what that costs. The sites' data become one pseudo-site which trains on
all public images beside them by CosFace over all classes: a simulation only, refused between real organisations.

Deviations from the paper: it starts from the pre-trained model where the recipe has one, and takes the recipe's rounds
and local epochs; the paper does not say how long it was trained.
"""

from dataclasses import replace

from pydantic import Field

from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr


class Options(fedfr.Options):
    """FedFR's options with everything public and nothing that is a federation's."""

    hard_negatives: float | None = Field(-1.0, ge=-1, lt=1)
    contrast: fedfr.Contrast = fedfr.Contrast(weight=0)
    customisation: fedfr.Customisation = fedfr.Customisation(weight=0)


METHOD = replace(
    fedfr.METHOD,
    name="centralised",
    title="Centralised",
    options=Options,
    pooled=True,
    averages=False,
    personal={"generic": face.GENERIC},
    server_sees="everything",
)
