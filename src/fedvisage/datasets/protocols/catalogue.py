"""The list of protocols, and what ``fedvisage data protocols`` says of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedvisage.base.errors import UserError
from fedvisage.datasets.protocols import attacks, large, ocim, oulu, within
from fedvisage.datasets.protocols.people import PEOPLE, PeopleProtocol
from fedvisage.datasets.protocols.protocol import Import, Protocol

PROTOCOLS: Mapping[str, Protocol] = {
    protocol.name: protocol
    for family in (oulu, ocim, within, attacks, large)
    for protocol in family.PROTOCOLS
}  # fmt: skip

WIDE = 100


def list_protocols() -> list[str]:
    """Return a line for each protocol, with the users or folds that it has; those of recognition have one."""
    longest = max(len(name) for name in (*PROTOCOLS, *PEOPLE))
    lines = [f"{name:{longest}}  {one.title} [{' '.join(one.folds)}]" for name, one in PROTOCOLS.items()]
    return [*lines, *(f"{name:{longest}}  {one.title}" for name, one in PEOPLE.items())]


def describe_protocol(name: str, sets: Path, user: str = "") -> list[str]:
    """Return the sections ``data`` and ``evaluation`` of a recipe, and as comments how the sets are imported."""
    if name in PEOPLE:
        return _of_people(PEOPLE[name], sets, user)
    protocol = protocol_of(name, "NAME")
    if not user and len(protocol.folds) > 1:
        raise UserError("--user", f"{name} has {len(protocol.folds)}; choose one of {', '.join(protocol.folds)}")
    fold = user or next(iter(protocol.folds))
    if fold not in protocol.folds:
        raise UserError("--user", f"{name} has no {fold!r}; choose one of {', '.join(protocol.folds)}")
    return [*_comments(protocol, fold, sets), *_as_yaml(sections(protocol, fold, sets))]


def _of_people(protocol: PeopleProtocol, sets: Path, user: str) -> list[str]:
    if user:
        raise UserError("--user", f"{protocol.name} has one division; leave --user out")
    said = [f"{protocol.name}: {protocol.title}", f"after {protocol.source}"]
    said += [f"note: {note}" for note in protocol.notes]
    said.append("the images have 112 pixels, and recognition looks at rgb: input says so")
    return [*_as_comments(said, protocol.sets, sets), *_as_yaml(protocol.sections(sets))]


def _as_yaml(tree: dict[str, Any]) -> list[str]:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=10_000).rstrip("\n").split("\n")


def protocol_of(name: str, place: str) -> Protocol:
    """Return the protocol that is called so."""
    if name not in PROTOCOLS:
        raise UserError(place, f"{name!r} is no known protocol; choose one of {', '.join((*PROTOCOLS, *PEOPLE))}")
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
    return _as_comments(said, protocol.of_fold(fold), sets)


def _as_comments(said: list[str], imports: Mapping[str, Import], sets: Path) -> list[str]:
    commands = [
        f"fedvisage data import {one.kind} DIRECTORY {sets / name} {one.options}".rstrip()
        for name, one in imports.items()
    ]
    lines = [line for text in said for line in textwrap.wrap(text, WIDE, subsequent_indent="  ")]
    return [f"# {line}" for line in [*lines, *commands]]
