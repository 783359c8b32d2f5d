"""ViT-H: a hybrid vision transformer trained on the merged data of all data centres (FedSIS, §3.3 and Tables 1–3).

N. Alkhunaizi et al., "FedSIS", 2023. A truncated ResNet-50 makes the tokens, because micro-texture betrays attacks and
a convolution keeps it; blocks and head are ViT's.

Deviations from the paper: as in ViT.
"""

from dataclasses import replace

from fedvisage.methods import vit
from fedvisage.nn.vit import HybridTransformer


class Options(vit.Options):
    """The network, with its convolutional tokenizer."""

    network: HybridTransformer = HybridTransformer()


METHOD = replace(vit.METHOD, name="vit-h", title="ViT-H", options=Options)
