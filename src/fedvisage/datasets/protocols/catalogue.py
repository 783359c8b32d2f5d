"""The list of protocols, and what ``fedvisage data protocols`` says of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedvisage.datasets.protocols import attacks, large, ocim, oulu, within
from fedvisage.datasets.protocols.protocol import Protocol
from fedvisage.errors import UserError

PROTOCOLS: Mapping[str, Protocol] = {
    protocol.name: protocol
    for family in (oulu, ocim, within, attacks, large)
    for protocol in family.PROTOCOLS
}  # fmt: skip

WIDE = 100


def list_protocols() -> list[str]:
    """Return a line for each protocol, with the users or folds that it has."""
    longest = max(len(name) for name in PROTOCOLS)
    return [f"{name:{longest}}  {one.title} [{' '.join(one.folds)}]" for name, one in PROTOCOLS.items()]


def describe_protocol(name: str, sets: Path, user: str = "") -> list[str]:
    """Return the sections ``data`` and ``evaluation`` of a recipe, and as comments how the sets are imported."""
    protocol = protocol_of(name, "NAME")
    if not user and len(protocol.folds) > 1:
        raise UserError("--user", f"{name} has {len(protocol.folds)}; choose one of {', '.join(protocol.folds)}")
    fold = user or next(iter(protocol.folds))
    if fold not in protocol.folds:
        raise UserError("--user", f"{name} has no {fold!r}; choose one of {', '.join(protocol.folds)}")
    tree = yaml.safe_dump(sections(protocol, fold, sets), sort_keys=False, allow_unicode=True, width=10_000)
    return [*_comments(protocol, fold, sets), *tree.rstrip("\n").split("\n")]


def protocol_of(name: str, place: str) -> Protocol:
    """Return the protocol that is called so."""
    if name not in PROTOCOLS:
        raise UserError(place, f"{name!r} is no known protocol; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def sections(protocol: Protocol, fold: str, sets: Path) -> dict[str, Any]:
    """Return what a recipe says of a protocol, as plain values."""
    one = protocol.folds[fold]
    return {
        "data": {
            "sites": {site: located(text, sets) for site, text in one.sites.items()},
            "user": located(one.user, sets),
            "user_name": f"user-{fold}" if fold in one.sites else fold,
        },
        "evaluation": {"threshold": protocol.threshold, "level": protocol.level},
    }


def located(entry: str, sets: Path) -> str:
    """Return an entry of a protocol with a directory in the place of the set's name."""
    name, *rest = entry.split(" ", 1)
    return " ".join([str(sets / name), *rest])


def _comments(protocol: Protocol, fold: str, sets: Path) -> list[str]:
    said = [f"{protocol.name}: {protocol.title}", f"after {protocol.source}"]
    said += [f"note: {note}" for note in protocol.notes]
    if protocol.size is not None:
        said.append(f"the images have {protocol.size} pixels: input.size says so")
    commands = [
        f"fedvisage data import {one.kind} DIRECTORY {sets / name} {one.options}".rstrip()
        for name, one in protocol.of_fold(fold).items()
    ]
    lines = [line for text in said for line in textwrap.wrap(text, WIDE, subsequent_indent="  ")]
    return [f"# {line}" for line in [*lines, *commands]]
