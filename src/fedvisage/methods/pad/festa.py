"""FeSTA: federated split task-agnostic learning, with a single task: presentation attack detection.

S. Park, G. Kim, J. Kim, B. Kim, J. C. Ye, "Federated Split Task-Agnostic Vision Transformer for COVID-19 CXR
Diagnosis", NeurIPS 2021, as the baseline of N. Alkhunaizi et al., "FedSIS", 2023, §5. The network is ViT-H, cut in
three: sites hold tokenizer and head, the server holds the blocks, and the head receives the class token after the last
block. The blocks step once per round; tokenizers and heads are averaged from time to time
(:mod:`fedvisage.methods.pad.split`).

Deviations from the paper: it has convolutional heads and task-specific tails for several tasks on radiographs; here, as
in FedSIS's comparison, they are ViT-H's tokenizer and linear head, and there is a single task.
"""

from dataclasses import replace
from functools import partial

from fedvisage.federation.method import Home
from fedvisage.federation.server import Server
from fedvisage.methods.models import vit
from fedvisage.methods.pad import split, vit_h_is
from fedvisage.nn.vit import class_token


class Options(split.Options, vit.HybridOptions):
    """The options of ViT-H and of split learning."""


def represent(s: Server, name: str) -> split.Represent:
    """Pass tokens through all blocks and return the class token."""
    return partial(class_token, s.net)


METHOD = replace(
    vit_h_is.VIT_H,
    name="festa",
    title="FeSTA",
    advice="The baseline of fedsis: the same cut, without sampling of blocks.",
    paper="Park et al., Federated Split Task-Agnostic Vision Transformer for COVID-19 CXR Diagnosis, 2021",
    options=Options,
    home={"tokenizer": Home.SITE, "blocks": Home.SERVER, "norm": Home.SERVER, "head": Home.SITE},
    calls=split.calls(class_token=True),
    server=split.program(split.ServerSide(represent, encoder=("blocks", "norm"))),
    delivered=vit.PARTS,
    members="one",
    supports=frozenset(),
    server_sees=split.SERVER_SEES,
    check=split.check,
)
