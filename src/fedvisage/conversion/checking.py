"""Whether a converted network is the one of the file: features of pictures, here and by the source's own ONNX graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from fedvisage.conversion.converted import Converted
from fedvisage.conversion.graphs import REMEDY
from fedvisage.errors import UserError
from fedvisage.files import read_plain
from fedvisage.graphs.checks import LARGEST
from fedvisage.graphs.session import open_session, runtime_errors, short
from fedvisage.streams import torch_rng

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
