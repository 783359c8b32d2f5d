"""FedProx on ViT-H: FedAvg on ViT-H, with sites held near the model that the server lent them (FedSIS, §5 and Table 1).

T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2, on the hybrid transformer of
N. Alkhunaizi et al., "FedSIS", 2023. With µ = 0 this is FedAvg on ViT-H.

Deviations from the paper: as in FedProx; FedSIS does not say its µ.
"""

from dataclasses import replace

from fedvisage.methods import averaging, fedavg_vit_h, fedprox, vit


class Options(fedavg_vit_h.Options, fedprox.Pull):
    """The options of FedAvg on ViT-H, and µ."""


METHOD = replace(
    fedavg_vit_h.METHOD,
    name="fedprox-vit-h",
    title="FedProx (ViT-H)",
    options=Options,
    calls={"train": averaging.training_call(fedprox.held_back(vit.loss), *vit.PARTS)},
)
