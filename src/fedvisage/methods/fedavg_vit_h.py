"""FedAvg on ViT-H: every site trains the whole hybrid transformer, and the server averages (FedSIS, §3.2, Eq. 2–3).

N. Alkhunaizi et al., "FedSIS", 2023, after H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks
from Decentralized Data", 2017. Sites count by their number of images, ρ_k = N_k / N.

Deviations from the paper: it leaves the amount of local training open; ``training.local`` says it.
"""

from dataclasses import replace
from typing import Literal

from fedvisage.federation.method import Method
from fedvisage.methods import averaging, vit_h


class Options(vit_h.Options, averaging.AveragingOptions):
    """ViT-H's options, and how sites count."""

    weight: Literal["uniform", "examples"] = "examples"


METHOD = replace(
    vit_h.METHOD,
    name="fedavg-vit-h",
    title="FedAvg (ViT-H)",
    options=Options,
    pooled=False,
    averages=True,
    server_sees=Method.server_sees,
)
