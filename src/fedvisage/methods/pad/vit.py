"""ViT: a vision transformer trained on the merged data of all data centres (Huang et al.'s row in FedSIS's Tables 1–3).

N. Alkhunaizi et al., "FedSIS", 2023, §3.1. Pooling the data defeats the purpose of a federation, so it is a simulation
for comparison only.

Deviations from the paper: its ViT row is quoted from H.-P. Huang et al., ECCV 2022, who train with their own data
augmentation; here the recipe decides.
"""

from dataclasses import replace

from fedvisage.methods.algorithms.fedavg import fedavg
from fedvisage.methods.models import vit

METHOD = replace(
    fedavg(vit.MODEL),
    name="vit",
    title="ViT",
    paper=vit.PAPER,
    options=vit.Options,
    members="pooled",
)
