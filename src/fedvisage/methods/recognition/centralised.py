"""Centralised: one model trained on all images, the public ones and the sites' (last row of FedFR's Table 1).

Merging the data defeats the purpose of a federation; this method measures the cost of federating. The sites' data
become one pseudo-site, which also trains on all public images, by CosFace over all classes. It is a simulation only,
and is refused between organisations.

Deviations from the paper: it starts from the pre-trained model if the recipe has one, and uses the recipe's rounds and
local epochs; the paper does not specify how long it was trained.
"""

from dataclasses import replace

from pydantic import Field

from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr


class Options(fedfr.Options):
    """FedFR's options with all public images and without the parts that need a federation."""

    hard_negatives: float | None = Field(-1.0, ge=-1, lt=1)
    contrast: fedfr.ContrastSettings = fedfr.ContrastSettings(weight=0)
    customisation: fedfr.Customisation = fedfr.Customisation(weight=0)


METHOD = replace(
    fedfr.METHOD,
    name="centralised",
    title="Centralised",
    options=Options,
    prediction=face.GENERIC_ONLY,
    members="pooled",
)
