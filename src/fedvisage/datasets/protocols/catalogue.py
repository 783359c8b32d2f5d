"""The list of protocols, and their descriptions for ``fedvisage data protocols``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedvisage.base.errors import UserError, choice_hint
from fedvisage.datasets.protocols import attacks, large, ocim, oulu, within
from fedvisage.datasets.protocols.people import PEOPLE, PeopleProtocol
from fedvisage.datasets.protocols.protocol import Import, Protocol

PROTOCOLS: Mapping[str, Protocol] = {
    protocol.name: protocol for family in (oulu, ocim, within, attacks, large) for protocol in family.PROTOCOLS
}

WIDE = 100


def list_protocols() -> list[str]:
    """Return a line for each protocol, with its targets or folds; protocols of recognition have only one."""
    longest = max(len(name) for name in (*PROTOCOLS, *PEOPLE))
    lines = [f"{name:{longest}}  {protocol.title} [{' '.join(protocol.folds)}]" for name, protocol in PROTOCOLS.items()]
    return [*lines, *(f"{name:{longest}}  {protocol.title}" for name, protocol in PEOPLE.items())]


def describe_protocol(name: str, sets: Path, target: str = "") -> list[str]:
    """Return the sections ``data`` and ``evaluation`` of a recipe, and the commands of the imports as comments."""
    if name in PEOPLE:
        return _of_people(PEOPLE[name], sets, target)
    protocol = protocol_of(name, "NAME")
    if not target and len(protocol.folds) > 1:
        raise UserError("--target", f"{name} has {len(protocol.folds)}; choose one of {', '.join(protocol.folds)}")
    fold = target or next(iter(protocol.folds))
    if fold not in protocol.folds:
        raise UserError("--target", f"{name} has no {fold!r}; choose one of {', '.join(protocol.folds)}")
    lines = [f"{protocol.name}: {protocol.title}", f"after {protocol.source}"]
    lines += [f"note: {note}" for note in protocol.notes]
    if protocol.size is not None:
        lines.append(f"images have {protocol.size} pixels: set by input.size")
    return [*_as_comments(lines, protocol.of_fold(fold), sets), *_as_yaml(sections(protocol, fold, sets))]


def _of_people(protocol: PeopleProtocol, sets: Path, target: str) -> list[str]:
    if target:
        raise UserError("--target", f"{protocol.name} has a single split; leave out --target")
    lines = [f"{protocol.name}: {protocol.title}", f"after {protocol.source}"]
    lines += [f"note: {note}" for note in protocol.notes]
    lines.append("recognition uses RGB images of 112 pixels: set by input")
    return [*_as_comments(lines, protocol.sets, sets), *_as_yaml(protocol.sections(sets))]


def _as_yaml(tree: dict[str, Any]) -> list[str]:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=10_000).rstrip("\n").split("\n")


def protocol_of(name: str, place: str) -> Protocol:
    """Return the protocol with this name."""
    if name not in PROTOCOLS:
        raise UserError(place, f"{name!r} is not a known protocol{choice_hint(name, (*PROTOCOLS, *PEOPLE))}")
    return PROTOCOLS[name]


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


def _as_comments(remarks: list[str], imports: Mapping[str, Import], sets: Path) -> list[str]:
    commands = [
        f"fedvisage data import {spec.kind} DIRECTORY {sets / name} {spec.options}".rstrip()
        for name, spec in imports.items()
    ]
    lines = [line for text in remarks for line in textwrap.wrap(text, WIDE, subsequent_indent="  ")]
    return [f"# {line}" for line in [*lines, *commands]]
