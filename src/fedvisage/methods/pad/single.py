"""Single: each data centre trains alone, and its model is judged at the user (first rows of FedPAD's Table III).

The reference for what a federation is worth. All sites train in one run with the rounds and local work of the recipe,
so that a site sees exactly as many batches as under FedPAD; no weights of one site reach another (under ``fused``
they do, as they reach every user). Figures are
reported for each member and as their mean, every member with the threshold of its own site.

Deviations from the paper: none known; the paper does not say how long the single models were trained.
"""

from collections.abc import Iterator
from dataclasses import replace

from fedvisage.federation.server import Server
from fedvisage.methods.models.resnet18 import DetectorOptions
from fedvisage.methods.pad import fedpad


def server(s: Server) -> Iterator[None]:
    """Every site continues its own model."""
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
    averages=False,
    pulls=False,
    steps_at_server=False,
    members="each",
)
