"""Start a network from a file of weights, and report by name what fits, what does not, and the file's origin.

A file must fit completely, part by part. With ``strict: false`` in the recipe, the network takes what fits, and the run
reports the rest. So one file of a large model can start models that have other heads, or fewer parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedvisage.base.errors import UserError, choice_hint
from fedvisage.base.files import parse_json, read_tensors
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Start

PLACE = "recipe.training.start"
REAL = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
WHOLE = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
FEW = 3
"""Names that a message lists before it counts the rest."""


@dataclass(frozen=True)
class StartWeights:
    """The tensors that a network takes from a file, and the mismatches on either side."""

    file: str
    weights: Message
    """All tensors of each part that takes any: from the file, or else as initialised."""
    taken: tuple[str, ...]
    lacking: tuple[str, ...] = ()
    """Tensors that these parts of the network have and the file lacks."""
    unknown: tuple[str, ...] = ()
    """Tensors that the file has and the network lacks."""
    reshaped: tuple[str, ...] = ()
    """Tensors whose shapes in file and network differ."""
    untouched: tuple[str, ...] = ()
    """Parts of the network of which the file has nothing."""
    origin: Mapping[str, Any] | None = None
    """A converted file's metadata about its source and licence."""

    def lines(self) -> list[str]:
        """Return notes about what fits and what does not."""
        parts = ", ".join(sorted({part_of(name) for name in self.taken}))
        sentences = [f"{self.file} gives {len(self.taken)} tensors of {parts}"]
        for names, verb in (
            (self.untouched, "has nothing of"),
            (self.lacking, "lacks"),
            (self.reshaped, "has in another shape"),
            (self.unknown, "has, and this network has not,"),
        ):
            sentences += [f"{self.file} {verb} {shorten_names(names)}"] if names else []
        if self.untouched or self.lacking or self.reshaped:
            sentences.append("all other parts are initialised randomly")
        return [f"note: training.start: {line}" for line in sentences]

    def as_json(self) -> dict[str, Any]:
        """Return the same facts for a run's files."""
        lists = {key: list(getattr(self, key)) for key in ("taken", "lacking", "unknown", "reshaped", "untouched")}
        return {"file": self.file, **lists, "origin": None if self.origin is None else dict(self.origin)}


def shorten_names(names: Collection[str]) -> str:
    """Return the first few names and the number of the others."""
    shown = sorted(names)[:FEW]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def read_start(path: Path, start: Start, present: Message) -> StartWeights:
    """Read a file of weights for a network as initialised; refuse by name what a strict start cannot take."""
    tensors, about = read_tensors(path)
    origin = origin_of(about)
    if start.parts is not None:
        part_names = {part_of(name) for name in present}
        for part in start.parts:
            if part not in part_names:
                raise UserError(
                    f"{PLACE}.parts", f"{part!r} is not a part of this network{choice_hint(part, part_names)}"
                )
    expected = {name: value for name, value in present.items() if start.parts is None or part_of(name) in start.parts}
    offered = {name: value for name, value in tensors.items() if start.parts is None or part_of(name) in start.parts}
    for name in sorted(expected.keys() & offered.keys()):
        is_real, given = expected[name].is_floating_point(), offered[name].dtype
        if given not in (REAL if is_real else WHOLE):
            found, wanted = str(given).removeprefix("torch."), "float32" if is_real else "int64"
            raise UserError(PLACE, f"{path}: {name} has values of type {found}; save them as {wanted}")
    if start.strict:
        # Refuse a file with a tensor that the network cannot take, or with an incomplete part.
        advice = "; strict: false loads only the matching tensors"
        for name, tensor in offered.items():
            if name not in expected:
                raise UserError(PLACE, f"{path} has tensor {name}, unknown to this network{advice}{_hint(origin)}")
            if tensor.shape != expected[name].shape:
                raise UserError(
                    PLACE,
                    f"{path}: {name} has shape {tuple(tensor.shape)}, "
                    f"but the network expects {tuple(expected[name].shape)}{_hint(origin)}",
                )
        complete_parts = set(start.parts or ()) | {part_of(name) for name in offered}
        missing = [name for name in expected if part_of(name) in complete_parts and name not in offered]
        if missing or not offered:
            raise UserError(PLACE, f"{path} lacks {', '.join(missing[:FEW]) or 'any tensor'}{advice}{_hint(origin)}")
    fitting = [name for name in expected if name in offered and offered[name].shape == expected[name].shape]
    if not fitting:
        raise UserError(PLACE, f"{path} contains no tensor that matches this network{_hint(origin)}")
    # A part that takes any tensor is returned completely: its other tensors keep their initial values.
    touched = {part_of(name) for name in fitting}
    complete = {name: value for name, value in expected.items() if part_of(name) in touched}
    return StartWeights(
        str(path),
        {**complete, **{name: offered[name] for name in fitting}},
        tuple(fitting),
        tuple(sorted(complete.keys() - offered.keys())),
        tuple(sorted(offered.keys() - expected.keys())),
        tuple(sorted((offered.keys() & expected.keys()) - set(fitting))),
        tuple(sorted({part_of(name) for name in expected} - touched)),
        origin,
    )


def part_of(name: str) -> str:
    """Return the part of the network to which a tensor belongs."""
    return name.partition(".")[0]


def origin_of(about: str) -> Mapping[str, Any] | None:
    """Return a converted file's metadata; other files have none, or another kind."""
    if not about:
        return None
    try:
        metadata = parse_json(about)
    except ValueError:
        return None
    return metadata if isinstance(metadata, dict) and isinstance(metadata.get("network"), dict) else None


def _hint(origin: Mapping[str, Any] | None) -> str:
    """Return the end of a message: the network that a converted file is for."""
    if origin is None:
        return ""
    network = ", ".join(f"{key}: {value}" for key, value in origin["network"].items())
    size = origin.get("input", {}).get("size") if isinstance(origin.get("input"), dict) else None
    return f"; the file was converted for network {{{network}}} and images of {size} pixels"
