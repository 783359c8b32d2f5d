"""Light: how a coated surface on the sheet looks under a key light, a fill light and light from all around.

Diffuse light follows Lambert, softened where skin scatters it: red light travels farthest under the skin, so the edge
of a shadow is blurred and reddish there. The mirror-like part is a Blinn-Phong lobe. Shadows are found by walking a
few steps from each cell towards the light; ambient light is dimmed in hollows.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as nnf
from torch import Tensor

from fedvisage.faces.synthetic.coat import Coat
from fedvisage.faces.synthetic.conditions import Conditions
from fedvisage.faces.synthetic.sheet import Sheet, blur, enlarge, halve, look_up

SHADOW_DISTANCES = (0.07, 0.15, 0.27, 0.45, 0.70)
SCATTER_WRAP = torch.tensor([0.24, 0.09, 0.05])
"""How far round the terminator each colour reaches in skin."""
SCATTER_BLUR = torch.tensor([0.65, 0.35, 0.22])
"""How much of each colour's shading comes from the smoothed surface in skin."""
UNSCATTERED_WRAP = 0.02


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
    """Return the lights as a head sees them that is turned by these rotations (B×3×3, head to camera axes)."""
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


def shade(height: Tensor, relief: Tensor, coat: Coat, lamps: Lamps, sheet: Sheet) -> Tensor:
    """Return the radiance that the surface sends to the camera, B×3×V×U.

    Args:
        height: B×V×U, the shape.
        relief: B×V×U, fine structure such as pores, added to the shape for the direction of the surface only.
        coat: what the surface is made of.
        lamps: the lights.
        sheet: the grid.

    """
    small = halve(height)
    normal = normals(height + relief, sheet.cell)
    soft = normals(blur(small, 0.035 / (2 * sheet.cell)), 2 * sheet.cell)
    lit = _cast_shadow(small, lamps, sheet)
    open_sky = enlarge(_openness(small, 2 * sheet.cell), height)
    key = _diffuse(normal, soft, lamps.key, coat.scatter) * enlarge(lit, height)[:, None]
    fill = (0.5 + 0.5 * _cosine(normal, lamps.fill)).square_() * open_sky
    sky = (0.80 + 0.20 * _cosine(normal, lamps.up)) * open_sky
    # Light that enters a hollow of the skin leaves it redder.
    bounce = 1.0 + (coat.scatter * (1.0 - open_sky))[:, None] * torch.tensor([0.35, 0.05, 0.0])[:, None, None]
    around = (sky[:, None] * _colour(lamps.ambient_colour) + fill[:, None] * _colour(lamps.fill_colour)) * bounce
    diffuse = coat.albedo * (key * _colour(lamps.key_colour) + around)
    shine = _gloss(normal, coat, lamps.key, lamps.viewer, lamps.softness)
    mirrored = shine * enlarge(lit, height)
    rim = coat.gloss * (1.0 - _cosine(normal, lamps.viewer).clamp(min=0.0)).pow(3) * open_sky
    mirror = mirrored[:, None] * _colour(lamps.key_colour) + 0.6 * rim[:, None] * _colour(lamps.ambient_colour)
    return diffuse + mirror


def _colour(colour: Tensor) -> Tensor:
    """Return a colour a person as something that broadcasts over the sheet."""
    return colour[:, :, None, None]


def normals(height: Tensor, cell: float) -> Tensor:
    """Return unit normals B×3×V×U by central differences."""
    padded = nnf.pad(height[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    du = (padded[:, 1:-1, :-2] - padded[:, 1:-1, 2:]) / (2 * cell)
    dv = (padded[:, :-2, 1:-1] - padded[:, 2:, 1:-1]) / (2 * cell)
    scale = torch.rsqrt(du * du + dv * dv + 1.0)
    return torch.stack([du * scale, dv * scale, scale], dim=1)


def _cosine(normal: Tensor, direction: Tensor) -> Tensor:
    """Return the cosine between normals and one direction a person, B×V×U."""
    return (normal * direction[:, :, None, None]).sum(1)


def _diffuse(normal: Tensor, soft: Tensor, direction: Tensor, scatter: Tensor) -> Tensor:
    """Return Lambert's cosine for each colour, wrapped and smoothed where light scatters under the surface."""
    sharp = _cosine(normal, direction)
    smooth = enlarge(_cosine(soft, direction), sharp)
    mix, wrap = SCATTER_BLUR[:, None, None], SCATTER_WRAP[:, None, None]
    reach = UNSCATTERED_WRAP + scatter[:, None] * wrap
    cosine = sharp[:, None] + (scatter * (smooth - sharp))[:, None] * mix
    return ((cosine + reach) / (1.0 + reach)).clamp_(min=0.0)


def _gloss(normal: Tensor, coat: Coat, light: Tensor, viewer: Tensor, softness: Tensor) -> Tensor:
    """Return the mirror-like reflection (Blinn-Phong, with the energy kept over the sharpness), B×V×U."""
    half = nnf.normalize(light + viewer, dim=1)
    sharpness = coat.sharpness * (1.0 - 0.5 * softness)[:, None, None]
    lobe = torch.exp((_cosine(normal, half).clamp(max=1.0) - 1.0) * sharpness)
    facing = (_cosine(normal, light) * 4.0).clamp_(0.0, 1.0)
    return coat.gloss * lobe * facing * (0.25 + 0.06 * sharpness)


def _cast_shadow(small: Tensor, lamps: Lamps, sheet: Sheet) -> Tensor:
    """Return how much of the key light reaches each cell of the halved sheet, B×V×U in [0, 1]."""
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


def _openness(small: Tensor, cell: float) -> Tensor:
    """Return how much of the surroundings a cell sees: less where the surface around it stands higher."""
    near = blur(small, 0.06 / cell) - small
    coarse = nnf.avg_pool2d(small[:, None], 2)[:, 0]
    wide = enlarge(blur(coarse, 0.22 / (2 * cell)) - coarse, small)
    hollow = 5.0 * near.clamp(min=0.0) + 2.4 * wide.clamp(min=0.0)
    return 1.0 / (1.0 + hollow)
