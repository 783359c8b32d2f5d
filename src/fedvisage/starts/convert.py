"""Convert another project's weights to a start: read, map, compare with a reference, write with the origin.

A conversion writes its file only when every step succeeds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from fedvisage.base.errors import UserError
from fedvisage.base.files import json_key, read_plain, write_tensors
from fedvisage.base.onnx_graphs import LARGEST, open_session, runtime_errors, short
from fedvisage.base.streams import torch_rng
from fedvisage.starts.files import REMEDY, WeightsFile, read_source
from fedvisage.starts.layouts import Colour, ConvertedNetwork
from fedvisage.starts.networks import convert_to_network
from fedvisage.starts.texts import read_directions

# Comparison with a reference: features of the same pictures from the converted network and from an ONNX graph.

PICTURES = 4
COARSE = 7
"""Patches of colour along each side of a picture. Smoothing and some grain give features that networks tell apart."""

OPTION = "--reference"


@dataclass(frozen=True)
class FeatureDistance:
    """The largest distance between our features and the reference's, at unit length."""

    pictures: int
    furthest: float


def make_pictures(size: int, count: int = PICTURES) -> Tensor:
    """Return the pictures for the comparison: RGB from 0 to 1."""
    draw = torch_rng(0, "pictures of a conversion")
    smooth = interpolate(torch.rand(count, 3, COARSE, COARSE, generator=draw), size=(size, size), mode="bilinear")
    return (0.9 * smooth + 0.1 * torch.rand(count, 3, size, size, generator=draw)).clamp(0, 1)


def compare_features(converted: ConvertedNetwork, reference: Path) -> FeatureDistance:
    """Compare features of pictures with a reference's, and refuse a reference whose features differ."""
    images = make_pictures(converted.size)
    with torch.inference_mode():
        our_features = normalize(converted.net(images).float())
    reference_features = normalize(_reference_features(converted, reference, images, our_features.shape[1]))
    furthest = float((our_features - reference_features).norm(dim=1).max())
    if not furthest <= converted.tolerance:
        raise UserError(
            OPTION,
            f"{reference} computes different features: at unit length they differ by up to {furthest:.3g}, "
            f"but rounding explains {converted.tolerance:g} only; does it have these weights and the colour "
            f"order {converted.colour}?",
        )
    return FeatureDistance(len(images), furthest)


def _reference_features(converted: ConvertedNetwork, reference: Path, shown: Tensor, length: int) -> Tensor:
    """Return the reference graph's features for the pictures, one row per picture."""
    layout = converted.fitted.layout
    mean, std = (torch.tensor(values)[:, None, None] for values in (layout.mean, layout.std))
    # The reference expects its own order of colours and its own normalisation.
    ordered = shown if converted.colour == "rgb" else shown.flip(1)
    inputs = ((ordered - mean) / std).numpy()
    session = open_session(str(reference), read_plain(reference, LARGEST), threads=1, remedy=REMEDY)
    graph_inputs = session.get_inputs()
    if len(graph_inputs) != 1 or graph_inputs[0].type != "tensor(float)":
        raise UserError(OPTION, f"{reference} must have one input, a float tensor with a batch of images")
    try:
        # One picture per run: the graph may have a fixed batch size of one.
        answers = [session.run(None, {graph_inputs[0].name: inputs[index : index + 1]}) for index in range(len(inputs))]
    except runtime_errors() as error:
        raise UserError(
            OPTION, f"{reference} does not accept images of {converted.size} pixels ({short(error)})"
        ) from error
    # The features are the first output with the right number of values.
    for position, output in enumerate(answers[0]):
        if output.reshape(-1).shape == (length,):
            return torch.stack([torch.from_numpy(answer[position]).reshape(-1).float() for answer in answers])
    raise UserError(OPTION, f"{reference} does not output features of length {length}, as the converted network does")


FORMAT = 1
LONGEST_LICENCE = 100_000


@dataclass(frozen=True, eq=False)
class Conversion:
    """A written file, its source, and the result of the comparison."""

    source: WeightsFile
    result: ConvertedNetwork
    destination: Path
    licence: str
    agreement: FeatureDistance | None

    def lines(self) -> list[str]:
        """Return a summary, the comparison, and the lines of a recipe that starts from the file."""
        result, fitted, layout = self.result, self.result.fitted, self.result.fitted.layout
        lines = [
            f"{self.destination}: {len(result.weights)} tensors from {self.source.path.name}, "
            f"as {layout.project} writes them"
        ]
        lines += [f"left out: {', '.join(fitted.left_out)}"] if fitted.left_out else []
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (layout.mean, layout.std))
        pixels = f"less ({mean}), by ({std})"
        if set(layout.mean) == set(layout.std) == {0.5}:
            pixels = "from -1 to 1"
        elif set(layout.std) == {1 / 255}:
            pixels = "from 0 to 255"
        lines.append(
            f"the source expects {result.colour.upper()}, {pixels}; "
            f"the result RGB from 0 to 1, {result.size} pixels"
            + ("" if result.margin is None else f", crops of {result.margin:g} times the face box")
        )
        lines += [f"note: {result.note}"] if result.note else []
        if self.agreement is None:
            lines.append("not verified: give --reference ONNX, a graph with the same weights")
        else:
            lines.append(
                f"compared: features of {self.agreement.pictures} pictures are at most {self.agreement.furthest:.2g} "
                "from the graph's, at unit length"
            )
        lines += ["licence: not stated (--licence)"] if not self.licence else []
        return [*lines, "a recipe that starts from it:", *(f"  {line}" for line in self.use.splitlines())]

    @property
    def use(self) -> str:
        """The lines of a recipe that starts from the file."""
        return self.result.use.replace("FILE", str(self.destination))

    def as_values(self) -> dict[str, Any]:
        """Return the same facts for programs."""
        result = self.result
        return {
            **metadata_of(self),
            "file": str(self.destination),
            "tensors": dict(result.fitted.pairs),
            "left_out": result.fitted.left_out,
            "note": result.note,
            "compared": None if self.agreement is None else asdict(self.agreement),
            "recipe": self.use,
        }


def convert(
    path: Path,
    name: str,
    destination: Path,
    *,
    size: int | None = None,
    colour: Colour | None = None,
    key: str | None = None,
    margin: float | None = None,
    texts: Path | None = None,
    reference: Path | None = None,
    licence: str = "",
) -> Conversion:
    """Convert another project's file to a start for one of our networks; write nothing unless everything fits."""
    if destination.exists():
        raise UserError(str(destination), "exists; give a new file name")
    if not destination.parent.is_dir():
        raise UserError(str(destination.parent), "is not a directory")
    if len(licence) > LONGEST_LICENCE:
        raise UserError("--licence", f"has {len(licence):,} characters; the limit is {LONGEST_LICENCE:,}")
    directions = None if texts is None else read_directions(texts)
    source = read_source(path, key)
    result = convert_to_network(source, name, size, colour, margin, directions)
    # An ONNX source is its own reference.
    graph = reference or (path if source.format == "onnx" else None)
    conversion = Conversion(
        source, result, destination, licence, None if graph is None else compare_features(result, graph)
    )
    write_tensors(destination, result.weights, json_key(metadata_of(conversion)))
    return conversion


def metadata_of(done: Conversion) -> dict[str, Any]:
    """Return the metadata that the file keeps beside its tensors."""
    result = done.result
    return {
        "format": FORMAT,
        "network": dict(result.network),
        "input": {"size": result.size, "colour": "rgb", **({} if result.margin is None else {"margin": result.margin})},
        "source": {
            "name": done.source.path.name,
            "sha256": done.source.sha256,
            "project": result.fitted.layout.project,
        },
        "licence": done.licence,
    }
