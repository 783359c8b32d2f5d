"""ViT-H: a hybrid vision transformer trained on the merged data of all data centres (FedSIS, §3.3 and Tables 1–3).

N. Alkhunaizi et al., "FedSIS", 2023. Pooling the data defeats the purpose of a federation, so it is a simulation for
comparison only.

Deviations from the paper: as in ViT.
"""

from dataclasses import replace

from fedvisage.methods.models import vit_h
from fedvisage.methods.pad import vit

METHOD = replace(vit.METHOD, name="vit-h", title="ViT-H", options=vit_h.Options)
