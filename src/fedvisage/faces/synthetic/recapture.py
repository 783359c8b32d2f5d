"""Re-capture of flat media: photographs of faces become photographs of prints, cut prints and displays.

Works on any face photographs, rendered or real: what it needs beside them is a room to hold the medium up in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.faces.synthetic.camera import Shots, expose
from fedvisage.faces.synthetic.domain import Attack
from fedvisage.faces.synthetic.gratings import Sampling, sampling_of
from fedvisage.faces.synthetic.presenting import View, align, hold, locate, medium_coordinates, show
from fedvisage.faces.synthetic.printing import Printer, cut_attack, print_attack
from fedvisage.faces.synthetic.replay import Display, replay_attack


@dataclass(frozen=True)
class Photographs:
    """Pictures that an attacker has: sRGB in [0, 1] (B×3×S×S) and five points of the face in pixels (B×5×2).

    `framing` is the size of their faces against the size that faces have in the crops of the set.
    """

    images: Tensor
    points: Tensor
    framing: float = 1.0


@dataclass(frozen=True)
class Setting:
    """Where the medium is held up: radiance of the room; for cut prints also of a face behind, with its points."""

    room: Tensor
    face: Tensor | None = None
    points: Tensor | None = None


def recapture(
    photographs: Photographs,
    attacks: Sequence[Attack],
    setting: Setting,
    shots: Shots,
    videos: Sequence[int],
    frames: Sequence[int],
    shown: Tensor | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Present the photographs and photograph them again.

    All attacks of a batch are of one species; `videos` and `frames` seed what stays the same in a video and what
    changes from frame to frame. Where `shown` (B×1×S×S, on the photograph) is 0 the result is blacked out.
    Returns images (uint8 B×S×S×3) and where the five points are seen (B×5×2).
    """
    size = photographs.images.shape[-1]
    holdings = [attack.instrument.holding for attack in attacks if attack.instrument]
    view = hold(holdings, videos, frames, size, photographs.framing)
    seen = locate(view, medium_coordinates(photographs.points, size))
    radiance = present(photographs, attacks, setting, view, seen, sampling_of(shots), videos, frames)
    if shown is not None:
        radiance = radiance * show(shown, view).clamp(0, 1)
    return expose(radiance, shots, frames), np.asarray(seen, np.float32)


def present(
    photographs: Photographs,
    attacks: Sequence[Attack],
    setting: Setting,
    view: View,
    seen: Tensor,
    grid: Sampling,
    videos: Sequence[int],
    frames: Sequence[int],
) -> Tensor:
    """Return the radiance of the presented media, all of one species; `seen` is where the five points are."""
    images, room = photographs.images, setting.room
    displays = [attack.instrument for attack in attacks if isinstance(attack.instrument, Display)]
    printers = [attack.instrument for attack in attacks if isinstance(attack.instrument, Printer)]
    if attacks[0].species == "replay":
        return replay_attack(images, displays, room, grid, view, videos, frames)
    if setting.face is None or setting.points is None:
        return print_attack(images, printers, room, grid, view, videos)
    eyes = medium_coordinates(photographs.points[:, :2], images.shape[-1])
    behind = align(setting.face, setting.points[:, :2], seen[:, :2])
    return cut_attack(images, printers, room, grid, view, videos, eyes=eyes, behind=behind)
