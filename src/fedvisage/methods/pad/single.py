"""Single: each data centre trains alone, and its model is evaluated on the target (first rows of FedPAD's Table III).

The baseline for the benefit of a federation. All sites train in one run with the rounds and local work of the recipe,
so a site sees exactly as many batches as under FedPAD. No weights of one site reach another, except under ``fused``,
where they reach every target. Results are reported for each member and as their mean, with each member's threshold from
its own site.

Deviations from the paper: none known; the paper does not specify how long the single models were trained.
"""

from collections.abc import Iterator
from dataclasses import replace

from fedvisage.federation.server import Server
from fedvisage.methods.models.resnet18 import DetectorOptions
from fedvisage.methods.pad import fedpad


def server(s: Server) -> Iterator[None]:
    """Continue each site's own model in every round."""
    for _ in s.rounds():
        with s.quorum():
            for name, reply in s.ask("train", each={name: s.member(name) for name in s.present}).items():
                s.keep_member(name, reply)
        yield


METHOD = replace(
    fedpad.METHOD,
    name="single",
    title="Single",
    options=DetectorOptions,
    server=server,
    members="each",
    supports=frozenset({"micro_batch"}),
)
