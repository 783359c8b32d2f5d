"""FedFR's protocol of personalised recognition: clients, public people, and the impostors of each client.

Liu et al., "FedFR: Joint optimization federated framework for generic and personalized face recognition", AAAI 2022.
The impostors of a client are the test photographs of all others, which only a simulation can pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvisage.datasets.protocols.protocol import Import

CLIENTS, PUBLIC, GENERIC = "clients", "public", "ijbc"
SITES = 40


@dataclass(frozen=True)
class PeopleProtocol:
    """A published division of people among clients and the public; the generic model has a benchmark."""

    name: str
    title: str
    source: str
    sets: Mapping[str, Import]
    notes: tuple[str, ...] = field(default=())

    def sections(self, sets: Path) -> dict[str, Any]:
        """Return the recipe sections of the protocol, as plain values."""
        return {
            "data": {
                "sites": {f"client[1-{SITES}]": f"{sets / CLIENTS} part=*/{SITES}"},
                "public": str(sets / PUBLIC),
                "benchmarks": {GENERIC: str(sets / GENERIC)},
            },
            "evaluation": {"recognition": {"impostors": "pooled", "counting": "published"}},
        }


def _sets(part: str) -> dict[str, Import]:
    return {
        CLIENTS: Import("rec", f"--size 112 --split {part}-clients"),
        PUBLIC: Import("rec", f"--size 112 --split {part}-public"),
        GENERIC: Import("ijb-c", "--size 112"),
    }


SOURCE = "Liu et al., AAAI 2022"
ALL_OF_MS1MV2 = "rec is MS1MV2 (faces_emore); sites may be fewer or more: part=*/100 has forty people at each"
PEOPLE: Mapping[str, PeopleProtocol] = {
    protocol.name: protocol
    for protocol in (
        PeopleProtocol(
            "fedfr",
            "FedFR: 40 clients of 100 people, who train on 60 photographs of each and test with 40",
            SOURCE,
            _sets("fedfr"),
            (ALL_OF_MS1MV2, "whom the authors chose is not published: people are drawn, by --seed"),
        ),
        PeopleProtocol(
            "fedfr-released",
            "FedFR's released division: the first 40 photographs test, 61 to 69 train",
            f"{SOURCE}, released code",
            _sets("fedfr-released"),
            (ALL_OF_MS1MV2, "part=7/40 has the people of the seventh client of the released division"),
        ),
    )
}
"""Protocols of recognition, by name; each has one fold."""
