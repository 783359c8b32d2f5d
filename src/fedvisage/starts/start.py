"""Weights of a file put into a network that begins: what fits, what does not, and where they come from, by name.

A file must fit whole, part by part, unless the recipe says ``strict: false``: then what fits is taken, and what does
not is told. So one file of a large model starts models that have other heads, or fewer parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError, choice
from fedvisage.base.files import parse_json, read_tensors
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Start

PLACE = "recipe.training.start"
FEW = 3
"""Names that are given before the rest is counted."""


@dataclass(frozen=True)
class Started:
    """What a network takes from a file, whole parts, and what the file and the network have beside it."""

    file: str
    weights: Message
    """Of each part that takes something all of it: from the file, and the rest as it was drawn."""
    taken: tuple[str, ...]
    lacking: tuple[str, ...] = ()
    """What the network has in these parts and the file has not."""
    unknown: tuple[str, ...] = ()
    """What the file has and the network has not."""
    reshaped: tuple[str, ...] = ()
    """What both have in other shapes."""
    untouched: tuple[str, ...] = ()
    """Parts of the network of which the file has nothing."""
    origin: Mapping[str, Any] | None = None
    """What a converted file says of its source and its licence."""

    def lines(self) -> list[str]:
        """Say what fits and what does not."""
        parts = ", ".join(sorted({name.split(".")[0] for name in self.taken}))
        said = [f"{self.file} gives {len(self.taken)} tensors of {parts}"]
        for names, what in (
            (self.untouched, "has nothing of"),
            (self.lacking, "lacks"),
            (self.reshaped, "has in another shape"),
            (self.unknown, "has, and this network has not,"),
        ):
            said += [f"{self.file} {what} {named(names)}"] if names else []
        if self.untouched or self.lacking or self.reshaped:
            said.append("what the file does not give begins at random")
        return [f"note: training.start: {line}" for line in said]

    def as_json(self) -> dict[str, Any]:
        """Return the same for a run's files."""
        lists = {key: list(getattr(self, key)) for key in ("taken", "lacking", "unknown", "reshaped", "untouched")}
        return {"file": self.file, **lists, "origin": None if self.origin is None else dict(self.origin)}


def named(names: Collection[str]) -> str:
    """Name a few, and count the rest."""
    shown = sorted(names)[:FEW]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def started(path: Path, start: Start, present: Message) -> Started:
    """Read a file of weights beside a network as it was drawn; what a strict start cannot take is refused by name."""
    found, about = read_tensors(path)
    origin = _origin(about)
    if start.parts is not None:
        known = {name.split(".")[0] for name in present}
        for part in start.parts:
            if part not in known:
                raise UserError(f"{PLACE}.parts", f"{part!r} is no part of this network{choice(part, known)}")
    wanted = {name: value for name, value in present.items() if _asked(name, start.parts)}
    offered = {name: value for name, value in found.items() if _asked(name, start.parts)}
    if start.strict:
        _check_whole(path, offered, wanted, start.parts, origin)
    fits = [name for name in wanted if name in offered and offered[name].shape == wanted[name].shape]
    if not fits:
        raise UserError(PLACE, f"{path} has nothing that fits this network{_hint(origin)}")
    touched = {name.split(".")[0] for name in fits}
    inside = {name: value for name, value in wanted.items() if name.split(".")[0] in touched}
    return Started(
        str(path),
        {**inside, **{name: offered[name] for name in fits}},
        tuple(fits),
        tuple(sorted(inside.keys() - offered.keys())),
        tuple(sorted(offered.keys() - wanted.keys())),
        tuple(sorted(name for name in offered.keys() & wanted.keys() if name not in set(fits))),
        tuple(sorted({name.split(".")[0] for name in wanted} - touched)),
        origin,
    )


def _asked(name: str, parts: Iterable[str] | None) -> bool:
    return parts is None or name.split(".")[0] in parts


def _check_whole(
    path: Path, weights: Message, expected: Message, parts: tuple[str, ...] | None, origin: Mapping[str, Any] | None
) -> None:
    """Refuse a file in which a tensor fits none of the network's, or of which a part does not come whole."""
    loosely = "; strict: false takes what fits"
    for name, tensor in weights.items():
        if name not in expected:
            raise UserError(PLACE, f"{path} has tensor {name}, unknown to this network{loosely}{_hint(origin)}")
        if tensor.shape != expected[name].shape:
            raise UserError(PLACE, f"{path}: {name} has shape {tuple(tensor.shape)}, "
                            f"the network's is {tuple(expected[name].shape)}{_hint(origin)}")  # fmt: skip
    whole = set(parts or ()) | {name.split(".")[0] for name in weights}
    missing = [name for name in expected if name.split(".")[0] in whole and name not in weights]
    if missing or not weights:
        raise UserError(PLACE, f"{path} lacks {', '.join(missing[:FEW]) or 'any tensor'}{loosely}{_hint(origin)}")


def _origin(about: str) -> Mapping[str, Any] | None:
    """Return what a converted file says of itself; other files say nothing, or other things."""
    if not about:
        return None
    try:
        said = parse_json(about)
    except ValueError:
        return None
    return said if isinstance(said, dict) and isinstance(said.get("network"), dict) else None


def _hint(origin: Mapping[str, Any] | None) -> str:
    """Say which network a converted file is for."""
    if origin is None:
        return ""
    network = ", ".join(f"{key}: {value}" for key, value in origin["network"].items())
    size = origin.get("input", {}).get("size") if isinstance(origin.get("input"), dict) else None
    return f"; the file was converted for network {{{network}}} and pictures of {size} pixels"
