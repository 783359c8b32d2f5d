"""A conversion from beginning to end: read, lay beside, compare, write with its origin; all of it or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.conversion.checking import Agreement, compare
from fedvisage.conversion.converted import Converted
from fedvisage.conversion.layout import Colour
from fedvisage.conversion.networks import converted
from fedvisage.conversion.reading import Source, read_source
from fedvisage.errors import UserError
from fedvisage.files import json_key, write_tensors

FORMAT = 1
LONGEST_LICENCE = 100_000


@dataclass(frozen=True, eq=False)
class Conversion:
    """What was written, and what of it was looked at."""

    source: Source
    result: Converted
    destination: Path
    licence: str
    agreement: Agreement | None

    def lines(self) -> list[str]:
        """Say what maps to what, what was compared, and how a recipe starts from it."""
        one = self.result
        said = [*one.lines(), ""]
        said.append(
            f"{self.destination}: {len(one.weights)} tensors from {self.source.path.name}, as {one.project} writes them"
        )
        said.append(
            f"the source takes {one.colour.upper()}, {_pixels(one)}; the result RGB from 0 to 1, {one.size} pixels"
        )
        said += [f"note: {one.note}"] if one.note else []
        said.append(_compared(self.agreement))
        said += ["licence: not stated (--licence)"] if not self.licence else []
        return [*said, "a recipe that starts from it:", *(f"  {line}" for line in self.use.splitlines())]

    @property
    def use(self) -> str:
        """The lines of a recipe."""
        return self.result.use.replace("FILE", str(self.destination))

    def as_values(self) -> dict[str, Any]:
        """Return the same for programs."""
        one = self.result
        return {
            **about(self), "file": str(self.destination), "tensors": dict(one.pairs), "left_out": one.left_out,
            "note": one.note, "compared": None if self.agreement is None
            else {"pictures": self.agreement.pictures, "furthest": self.agreement.furthest}, "recipe": self.use,
        }  # fmt: skip


def convert(
    path: Path,
    name: str,
    destination: Path,
    *,
    size: int | None = None,
    colour: Colour | None = None,
    key: str | None = None,
    reference: Path | None = None,
    licence: str = "",
) -> Conversion:
    """Turn a file of another project's into a start for one of our networks; nothing is written unless all fits."""
    if destination.exists():
        raise UserError(str(destination), "exists; give the name of a new file")
    if not destination.parent.is_dir():
        raise UserError(str(destination.parent), "is no directory")
    if len(licence) > LONGEST_LICENCE:
        raise UserError("--licence", f"has {len(licence):,} letters; no licence has more than {LONGEST_LICENCE:,}")
    source = read_source(path, key)
    result = converted(source, name, size, colour)
    graph = reference or (path if source.format == "onnx" else None)
    done = Conversion(source, result, destination, licence, None if graph is None else compare(result, graph))
    write_tensors(destination, result.weights, json_key(about(done)))
    return done


def about(done: Conversion) -> dict[str, Any]:
    """Return what the file says of itself, beside its tensors."""
    one = done.result
    return {
        "format": FORMAT,
        "network": dict(one.network),
        "input": {"size": one.size, "colour": "rgb"},
        "source": {"name": done.source.path.name, "sha256": done.source.sha256, "project": one.project},
        "licence": done.licence,
    }


def _pixels(one: Converted) -> str:
    if set(one.mean) == set(one.std) == {0.5}:
        return "from -1 to 1"
    return f"less {_numbers(one.mean)}, by {_numbers(one.std)}"


def _numbers(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"


def _compared(agreement: Agreement | None) -> str:
    if agreement is None:
        return "compared with nothing: give --reference ONNX, a graph of the same weights"
    return (f"compared: features of {agreement.pictures} pictures are at most {agreement.furthest:.2g} from the "
            "graph's, at unit length")  # fmt: skip
