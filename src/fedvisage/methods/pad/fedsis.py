"""FedSIS: federated split learning with intermediate representation sampling.

N. Alkhunaizi, K. Srivatsan, F. Almalik, I. Almakky, K. Nandakumar, "FedSIS: Federated Split Learning with Intermediate
Representation Sampling for Privacy-preserving Generalized Face Presentation Attack Detection", IJCB 2023, §3.3. The
network is ViT-H-IS, cut in three: sites hold tokenizer and head, the server holds blocks and adapter. For every site
and round the server draws a block ℓ, and minimises Eq. 4 with the sites, batch after batch: head, adapter and tokenizer
step after every backward pass, the blocks once per round; tokenizers and heads are averaged from time to time
(:mod:`fedvisage.methods.pad.split`).

Deviations from the paper: predictions average several draws (see ViT-H-IS). A round is a pass over each site's data
(``training.local: {epochs: 1}``) in recipes of paper size; ``batches: 1`` follows §3.3 literally, and causes a warning
if it cannot train anything. The authors' code is ``encoder_update: average``, ``weight: uniform``,
``adapter: residual``, ``head: normed`` and blocks 1 to 6 (the recipe fedsis-released), without its error of overwriting
the sampled representation. A site's Adam starts anew at every visit unless ``training.optimizer.state`` is ``kept``,
which is the right setting here: the paper has one Adam for all rounds.
"""

from dataclasses import replace

from fedvisage.federation.method import Home
from fedvisage.federation.server import Server
from fedvisage.methods.pad import split, vit_h_is
from fedvisage.methods.pad.vit_h_is import draw_blocks, pseudo_class_token


class Options(split.Options, vit_h_is.Options):
    """The options of ViT-H-IS and of split learning."""


def represent(s: Server, name: str) -> split.Represent:
    """Draw the block for a site and round; tokens pass through the blocks up to it, then through the adapter."""
    (depth,) = draw_blocks(s.recipe.options(Options), 1, s.rng("block", name)).tolist()
    return lambda tokens: pseudo_class_token(s.net, tokens, depth)


METHOD = replace(
    vit_h_is.METHOD,
    name="fedsis",
    title="FedSIS",
    advice="A transformer cut between site and server; tokens and gradients cross the wire in every batch.",
    options=Options,
    home={"tokenizer": Home.SITE, "blocks": Home.SERVER, "adapter": Home.SERVER, "head": Home.SITE},
    calls=split.calls(class_token=False),
    server=split.program(split.ServerSide(represent, encoder=("blocks",), every_batch=("adapter",))),
    delivered=vit_h_is.PARTS,
    members="one",
    supports=frozenset(),
    server_sees=split.SERVER_SEES,
    check=split.check,
)
