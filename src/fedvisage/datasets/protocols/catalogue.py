"""The list of protocols, and their descriptions for ``fedvisage data protocols``.

FedFR's protocol of personalised recognition: clients, public people, and the impostors of each client. Liu et al.,
"FedFR: Joint optimization federated framework for generic and personalized face recognition", AAAI 2022. The impostors
of a client are the test photographs of all others, which only a simulation can pool.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedvisage.base.errors import UserError, choice_hint
from fedvisage.datasets.protocols import across, within
from fedvisage.datasets.protocols.protocol import Import, Protocol

CLIENTS, PUBLIC, GENERIC = "clients", "public", "ijbc"
CLIENT_COUNT = 40


@dataclass(frozen=True)
class PeopleProtocol:
    """A published division of people among clients and the public; the generic model has a benchmark."""

    name: str
    title: str
    source: str
    sets: Mapping[str, Import]
    notes: tuple[str, ...] = ()

    def sections(self, sets: Path) -> dict[str, Any]:
        """Return the recipe sections of the protocol, as plain values."""
        return {
            "data": {
                "sites": {f"client[1-{CLIENT_COUNT}]": f"{sets / CLIENTS} part=*/{CLIENT_COUNT}"},
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

PROTOCOLS: Mapping[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        *within.OULU_PROTOCOLS,
        *across.OCIM_PROTOCOLS,
        *within.PROTOCOLS,
        *across.ATTACK_PROTOCOLS,
        *across.LARGE_PROTOCOLS,
    )
}

WIDE = 100


def list_protocols() -> list[str]:
    """Return a line for each protocol, with its targets or folds; protocols of recognition have only one."""
    longest = max(len(name) for name in (*PROTOCOLS, *PEOPLE))
    lines = [f"{name:{longest}}  {protocol.title} [{' '.join(protocol.folds)}]" for name, protocol in PROTOCOLS.items()]
    return [*lines, *(f"{name:{longest}}  {protocol.title}" for name, protocol in PEOPLE.items())]


def describe_protocol(name: str, sets: Path, target: str = "") -> list[str]:
    """Return the sections ``data`` and ``evaluation`` of a recipe, and the commands of the imports as comments."""
    protocol = PEOPLE.get(name) or PROTOCOLS.get(name)
    if protocol is None:
        raise UserError("NAME", f"{name!r} is not a known protocol{choice_hint(name, (*PROTOCOLS, *PEOPLE))}")
    lines = [f"{protocol.name}: {protocol.title}", f"after {protocol.source}"]
    lines += [f"note: {note}" for note in protocol.notes]
    if isinstance(protocol, PeopleProtocol):
        if target:
            raise UserError("--target", f"{name} has a single split; leave out --target")
        lines.append("recognition uses RGB images of 112 pixels: set by input")
        imports, tree = protocol.sets, protocol.sections(sets)
    else:
        if not target and len(protocol.folds) > 1:
            raise UserError("--target", f"{name} has {len(protocol.folds)}; choose one of {', '.join(protocol.folds)}")
        fold = target or next(iter(protocol.folds))
        if fold not in protocol.folds:
            raise UserError("--target", f"{name} has no {fold!r}; choose one of {', '.join(protocol.folds)}")
        if protocol.size is not None:
            lines.append(f"images have {protocol.size} pixels: set by input.size")
        imports, tree = protocol.of_fold(fold), sections(protocol, fold, sets)
    comments = [line for text in lines for line in textwrap.wrap(text, WIDE, subsequent_indent="  ")]
    comments += [
        f"fedvisage data import {spec.kind} DIRECTORY {sets / set_name} {spec.options}".rstrip()
        for set_name, spec in imports.items()
    ]
    recipe = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=10_000)
    return [*(f"# {line}" for line in comments), *recipe.rstrip("\n").split("\n")]


def sections(protocol: Protocol, fold: str, sets: Path) -> dict[str, Any]:
    """Return the recipe sections of a protocol, as plain values."""
    entries = protocol.folds[fold]
    return {
        "data": {
            "sites": {site: locate_entry(text, sets) for site, text in entries.sites.items()},
            "target": locate_entry(entries.target, sets),
            "target_name": f"target-{fold}" if fold in entries.sites else fold,
        },
        "evaluation": {"threshold": protocol.threshold, "level": protocol.level},
    }


def locate_entry(entry: str, sets: Path) -> str:
    """Return an entry of a protocol with the directory of the set instead of its name."""
    name, *rest = entry.split(" ", 1)
    return " ".join([str(sets / name), *rest])
