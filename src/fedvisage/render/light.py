"""Light: the appearance of a coated surface on the sheet under a key light, a fill light and ambient light.

Diffuse light follows Lambert, softened by scattering in skin: red light travels farthest under the skin, so the edge of
a shadow is blurred and reddish. The mirror-like part is a Blinn-Phong lobe. Shadows are found by walking a few steps
from each cell towards the light; ambient light is dimmed in hollows.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as nnf
from torch import Tensor

from fedvisage.render.people import Conditions
from fedvisage.render.sheet import Sheet, Window, blur, enlarge, halve, look_up, tint

# The coat: the optical properties of the surface on the sheet.


@dataclass(frozen=True)
class Finish:
    """Reflection of a material apart from its colour.

    Attributes:
        gloss: strength of the mirror-like reflection at the surface.
        sharpness: exponent of the highlight; larger values give a smaller, brighter spot.
        scatter: distance that light travels under the surface, 1 = living skin, 0 = paper or plaster.

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

    def cover(self, window: Window, share: Tensor, albedo: Tensor, finish: Finish | Tensor) -> None:
        """Cover a share (0 to 1, of the window's shape) of this coat with another material, in place.

        A coat is painted in a dozen layers, most of them small, and copies would cost more time than the painting.
        """
        if isinstance(finish, Finish):
            finish = torch.tensor([finish.gloss, finish.sharpness, finish.scatter])[:, None, None]
        part = share[:, None]
        window.of(self.albedo).lerp_(albedo.expand_as(window.of(self.albedo)), part)
        window.of(self.finish).lerp_(finish.expand_as(window.of(self.finish)), part)

    def darken(self, window: Window, share: Tensor) -> None:
        """Remove a share (0 to 1, of the window's shape) of the albedo, in place."""
        window.of(self.albedo).mul_(1.0 - share[:, None])


SHADOW_DISTANCES = (0.07, 0.15, 0.27, 0.45, 0.70)
SCATTER_WRAP = (0.24, 0.09, 0.05)
"""Reach of each colour beyond the terminator in skin."""
SCATTER_SHARE = torch.tensor([0.65, 0.35, 0.22])
"""Share of each colour's reflected light that has scattered under the skin."""
HOLLOW_REDNESS = torch.tensor([0.35, 0.05, 0.0])
"""Relative gain of each colour in hollows of the skin, from light between their walls."""


@dataclass(frozen=True)
class Lamps:
    """The lights in head axes, with colours.

    Attributes:
        key: B×3 direction; key_colour: B×3 irradiance.
        fill: B×3 direction; fill_colour: B×3 irradiance.
        up: B×3, the direction of the sky.
        ambient_colour: B×3 irradiance.
        viewer: B×3, direction to the camera.
        softness: B in [0, 1], size of the key light.

    """

    key: Tensor
    key_colour: Tensor
    fill: Tensor
    fill_colour: Tensor
    up: Tensor
    ambient_colour: Tensor
    viewer: Tensor
    softness: Tensor


def colour_of(kelvin: Tensor) -> Tensor:
    """Return linear RGB of a black body (B → B×3) relative to 6500 K, with green at 1."""
    warm = 6500.0 / kelvin - 1.0
    return torch.stack([1.0 + 0.62 * warm, torch.ones_like(warm), (1.0 - 0.78 * warm).clamp(min=0.05)], dim=-1)


def make_lamps(conditions: Conditions, turn: Tensor) -> Lamps:
    """Return the lights in the axes of a head with these rotations (B×3×3, head to camera axes)."""
    c = conditions

    def to_head(direction: Tensor) -> Tensor:
        return torch.einsum("bji,bj->bi", turn, direction)

    ambient = colour_of(c.ambient_kelvin)
    batch = len(c)
    return Lamps(
        key=to_head(c.key),
        key_colour=colour_of(c.key_kelvin) * c.key_strength[:, None],
        fill=to_head(c.fill),
        fill_colour=ambient * c.fill_strength[:, None],
        up=to_head(torch.tensor([[0.0, -1.0, 0.0]]).expand(batch, 3)),
        ambient_colour=ambient * c.ambient_strength[:, None],
        viewer=to_head(torch.tensor([[0.0, 0.0, 1.0]]).expand(batch, 3)),
        softness=c.key_softness,
    )


def shade(height: Tensor, small: Tensor, relief: Tensor, coat: Coat, lamps: Lamps, sheet: Sheet) -> Tensor:
    """Return the radiance from the surface to the camera, B×3×V×U.

    Slowly varying parts (ambient light, light scattered under the skin, shadows) are computed at half the resolution,
    on the shape (``height``) as it is in ``small``. The ``relief`` is fine structure such as pores, which changes only
    the direction of the surface.
    """
    # Half resolution: shadows, scattered and ambient light.
    lit = _cast_shadow(small, lamps, sheet)
    sparse = coat.finish[:, :, ::2, ::2]
    soft_light, glint = _soft_light(small, sparse[:, 2], sparse[:, 0], lit, lamps, sheet)
    # Full resolution: direct light and highlights, which follow the fine relief.
    slopes = slopes_of(height + relief, sheet.cell)
    grid = height.shape[1:]
    lit = enlarge(lit, *grid)
    direct = cosine(slopes, lamps.key).clamp_(min=0.0)
    # Mirror-like reflection (Blinn-Phong, energy kept over the sharpness), B×V×U.
    half = nnf.normalize(lamps.key + lamps.viewer, dim=1)
    gloss, sharpness, scatter = coat.finish.unbind(1)
    sharpness = sharpness * (1.0 - 0.5 * lamps.softness)[:, None, None]
    lobe = cosine(slopes, half).sub_(1.0).clamp_(max=0.0).mul_(sharpness).exp_()
    facing = (direct * 4.0).clamp_(max=1.0)
    shine = lobe.mul_(facing).mul_(gloss).mul_(sharpness.mul_(0.06).add_(0.25)).mul_(lit).add_(enlarge(glint, *grid))
    key = lamps.key_colour
    # Scattered light is in soft_light already, so direct light loses that share.
    light = tint(scatter, -SCATTER_SHARE * key).add_(key[:, :, None, None])
    light.mul_(direct.mul_(lit)[:, None]).add_(enlarge(soft_light, *grid))
    return light.mul_(coat.albedo).addcmul_(shine[:, None].expand_as(light), key[:, :, None, None])


def _soft_light(
    small: Tensor, scatter: Tensor, gloss: Tensor, lit: Tensor, lamps: Lamps, sheet: Sheet
) -> tuple[Tensor, Tensor]:
    """Return slowly varying irradiance (B×3×V×U) and grazing gloss (B×V×U) on the halved sheet."""
    cell = 2 * sheet.cell
    soft = slopes_of(blur(small, 0.035 / cell), cell)
    # Share of the surroundings visible from a cell: less where the surface around it is higher.
    near = blur(small, 0.06 / cell) - small
    coarse = halve(small)
    wide = enlarge(blur(coarse, 0.22 / (2 * cell)) - coarse, *small.shape[1:])
    hollow = 3.5 * near.clamp(min=0.0) + 2.4 * wide.clamp(min=0.0)
    sky_seen = 1.0 / (1.0 + hollow)
    fill = (0.5 + 0.5 * cosine(soft, lamps.fill)).square_() * sky_seen
    sky = (0.80 + 0.20 * cosine(soft, lamps.up)) * sky_seen
    around = tint(sky, lamps.ambient_colour).add_(tint(fill, lamps.fill_colour))
    # Light that leaves a hollow of the skin is redder.
    around.mul_(tint(scatter * (1.0 - sky_seen), HOLLOW_REDNESS.expand(len(small), 3)).add_(1.0))
    facing = cosine(soft, lamps.key)
    through = scatter * lit
    for colour, (wrap, share) in enumerate(zip(SCATTER_WRAP, SCATTER_SHARE.tolist(), strict=True)):
        under = (facing + wrap).clamp_(min=0.0).mul_(through)
        around[:, colour].addcmul_(under, (share / (1.0 + wrap)) * lamps.key_colour[:, colour, None, None])
    grazing = (1.0 - cosine(soft, lamps.viewer).clamp_(min=0.0)) ** 3
    return around, (0.5 * gloss * grazing * sky_seen).mul_(lamps.ambient_colour[:, 1, None, None])


def slopes_of(height: Tensor, cell: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the unit normals' three components, each B×V×U, by central differences."""
    padded = nnf.pad(height, (1, 1, 1, 1), mode="replicate").mul_(0.5 / cell)
    du = padded[:, 1:-1, :-2] - padded[:, 1:-1, 2:]
    dv = padded[:, :-2, 1:-1] - padded[:, 2:, 1:-1]
    scale = torch.addcmul(du * du, dv, dv).add_(1.0).rsqrt_()
    return du.mul_(scale), dv.mul_(scale), scale


def cosine(normal: tuple[Tensor, Tensor, Tensor], direction: Tensor) -> Tensor:
    """Return the cosine between normals and one direction per person, B×V×U."""
    x, y, z = direction[:, :, None, None].unbind(1)
    return (normal[0] * x).addcmul_(normal[1], y).addcmul_(normal[2], z)


def _cast_shadow(small: Tensor, lamps: Lamps, sheet: Sheet) -> Tensor:
    """Return the share of the key light that reaches each cell of the halved sheet, B×V×U in [0, 1]."""
    slope = (lamps.key[:, 2].clamp(min=0.12) / lamps.key[:, :2].norm(dim=1).clamp(min=0.05))[:, None, None]
    along = nnf.normalize(lamps.key[:, :2], dim=1)
    u, v = nnf.avg_pool1d(sheet.u[None], 2)[0], nnf.avg_pool1d(sheet.v[None], 2)[0]
    u, v = u[:, None, :].expand(len(small), v.shape[1], -1), v[:, :, None].expand(len(small), -1, u.shape[1])
    penumbra = (0.12 + 0.45 * lamps.softness)[:, None, None]
    lit = torch.ones_like(small)
    for distance in SHADOW_DISTANCES:
        at = distance * along
        blocker = look_up(small[:, None], u + at[:, :1, None], v + at[:, 1:, None])[:, 0]
        clearance = (small - blocker) / distance + slope
        lit = torch.minimum(lit, (clearance / penumbra + 0.9).clamp(0.0, 1.0))
    return blur(lit, 0.02 / sheet.cell)
