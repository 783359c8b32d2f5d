"""A conversion from beginning to end: read, lay beside, compare, write with its origin; all of it or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from fedvisage.base.errors import UserError
from fedvisage.base.files import json_key, read_plain, write_tensors
from fedvisage.base.onnx_graphs import LARGEST, open_session, runtime_errors, short
from fedvisage.base.streams import torch_rng
from fedvisage.starts.files import REMEDY, Source, read_source
from fedvisage.starts.layouts import Colour, Converted
from fedvisage.starts.networks import converted

# Whether a converted network is the one of the file: features of pictures, here and by the source's own ONNX graph.


PICTURES = 4
COARSE = 7
"""Pictures are this many patches of colour a side, made smooth, with some grain: what a network can tell apart."""

OPTION = "--reference"


@dataclass(frozen=True)
class Agreement:
    """How near the features of some pictures are to the reference's, at unit length."""

    pictures: int
    furthest: float


def pictures(size: int) -> Tensor:
    """Return the pictures that both look at: RGB from 0 to 1."""
    draw = torch_rng(0, "pictures of a conversion")
    smooth = interpolate(torch.rand(PICTURES, 3, COARSE, COARSE, generator=draw), size=(size, size), mode="bilinear")
    return (0.9 * smooth + 0.1 * torch.rand(PICTURES, 3, size, size, generator=draw)).clamp(0, 1)


def compare(converted: Converted, reference: Path) -> Agreement:
    """Compare features of pictures with a reference's; another network is refused."""
    shown = pictures(converted.size)
    with torch.inference_mode():
        ours = normalize(converted.net(shown).float())
    theirs = normalize(_answers(converted, reference, shown, ours.shape[1]))
    furthest = float((ours - theirs).norm(dim=1).max())
    if not furthest <= converted.tolerance:
        raise UserError(OPTION, f"{reference} sees other features: at unit length they are up to {furthest:.3g} apart, "
                        f"and {converted.tolerance:g} is what rounding explains; is it of these weights, in the order "
                        f"of colours {converted.colour}?")  # fmt: skip
    return Agreement(len(shown), furthest)


def _answers(converted: Converted, reference: Path, shown: Tensor, length: int) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (converted.mean, converted.std))
    turned = shown if converted.colour == "rgb" else shown.flip(1)
    given = ((turned - mean) / std).numpy()
    session = open_session(str(reference), read_plain(reference, LARGEST), threads=1, remedy=REMEDY)
    wanted = session.get_inputs()
    if len(wanted) != 1 or wanted[0].type != "tensor(float)":
        raise UserError(OPTION, f"{reference} must take one tensor of floats, a batch of pictures")
    try:
        answers = [session.run(None, {wanted[0].name: given[index : index + 1]}) for index in range(len(given))]
    except runtime_errors() as error:
        raise UserError(OPTION, f"{reference} does not take pictures of {converted.size} pixels "
                        f"({short(error)})") from error  # fmt: skip
    for position, one in enumerate(answers[0]):
        if one.reshape(-1).shape == (length,):
            return torch.stack([torch.from_numpy(answer[position]).reshape(-1).float() for answer in answers])
    raise UserError(OPTION, f"{reference} gives no features of {length} numbers, as the network here does")


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
