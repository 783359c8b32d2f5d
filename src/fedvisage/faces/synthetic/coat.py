"""The coat: what the surface on the sheet is made of, as far as light is concerned."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.faces.synthetic.sheet import Window


@dataclass(frozen=True)
class Finish:
    """How a material reflects besides its colour.

    Attributes:
        gloss: strength of the mirror-like reflection at the surface.
        sharpness: exponent of the highlight; larger is a smaller, brighter spot.
        scatter: how far light travels under the surface, 1 = living skin, 0 = paper or plaster.

    """

    gloss: float
    sharpness: float
    scatter: float = 0.0


@dataclass(frozen=True)
class Coat:
    """Reflectance on the sheet.

    Attributes:
        albedo: B×3×V×U, share of the light that is scattered back, linear RGB.
        finish: B×3×V×U, gloss, sharpness and scatter (see ``Finish``).

    """

    albedo: Tensor
    finish: Tensor

    @property
    def gloss(self) -> Tensor:
        """Return B×V×U."""
        return self.finish[:, 0]

    @property
    def sharpness(self) -> Tensor:
        """Return B×V×U."""
        return self.finish[:, 1]

    @property
    def scatter(self) -> Tensor:
        """Return B×V×U."""
        return self.finish[:, 2]

    def cover(self, window: Window, share: Tensor, albedo: Tensor, finish: Finish | Tensor) -> None:
        """Lay another material over a share (0 to 1, of the window's shape) of this coat, in place.

        In place because a coat is painted in a dozen layers, most of them small: copies would cost more than paint.
        """
        if isinstance(finish, Finish):
            finish = torch.tensor([finish.gloss, finish.sharpness, finish.scatter])[:, None, None]
        part = share[:, None]
        window.of(self.albedo).lerp_(albedo.expand_as(window.of(self.albedo)), part)
        window.of(self.finish).lerp_(finish.expand_as(window.of(self.finish)), part)

    def darken(self, window: Window, share: Tensor) -> None:
        """Take away a share (0 to 1, of the window's shape) of the albedo, in place."""
        window.of(self.albedo).mul_(1.0 - share[:, None])
