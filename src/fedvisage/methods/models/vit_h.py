"""ViT-H: the hybrid vision transformer (FedSIS, §3.3), whose tokens come from a truncated ResNet-50.

N. Alkhunaizi et al., "FedSIS", 2023. Micro-texture reveals attacks, and a convolution preserves it; blocks and head are
those of ViT.
"""

from dataclasses import replace

from fedvisage.methods.models import vit
from fedvisage.nn.vit import HybridTransformer


class Options(vit.Options):
    """The network, with its convolutional tokenizer."""

    network: HybridTransformer = HybridTransformer()


MODEL = replace(vit.MODEL, name="vit-h", title="ViT-H", options=Options)
