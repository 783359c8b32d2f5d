"""The coat: what the surface on the sheet is made of, as far as light is concerned."""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Coat:
    """Reflectance on the sheet.

    Attributes:
        albedo: B×3×V×U, share of the light that is scattered back, linear RGB.
        gloss: B×V×U, strength of the mirror-like reflection at the surface.
        sharpness: B×V×U, exponent of the highlight; larger is a smaller, brighter spot.
        scatter: B×V×U in [0, 1], how far light travels under the surface (1 = living skin, 0 = paper, plaster).

    """

    albedo: Tensor
    gloss: Tensor
    sharpness: Tensor
    scatter: Tensor

    def covered(self, share: Tensor, albedo: Tensor, gloss: float, sharpness: float, scatter: float = 0.0) -> "Coat":
        """Return this coat with another material over a share (B×V×U) of it; albedo is anything like B×3×V×U."""
        return replace(
            self,
            albedo=self.albedo + share[:, None] * (albedo - self.albedo),
            gloss=self.gloss + share * (gloss - self.gloss),
            sharpness=self.sharpness + share * (sharpness - self.sharpness),
            scatter=self.scatter + share * (scatter - self.scatter),
        )
