"""The scene: people under conditions before their surroundings, as light at the camera, with exact depth and points."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fedvisage.base.streams import numpy_rng
from fedvisage.render.head import (
    DISTANCE,
    Hair,
    Head,
    add_catch_lights,
    glasses_window,
    make_hair,
    make_head,
    mouth_centre,
    mouth_corner_lift,
    mouth_half_width,
    paint_beard,
    paint_brows,
    paint_eyes,
    paint_glasses,
    paint_hair,
)
from fedvisage.render.light import colour_of, make_lamps, shade
from fedvisage.render.masks import MaskMaterial, mask_cover, wear
from fedvisage.render.noise import noise
from fedvisage.render.people import CLUTTER, GRADIENT, OUTDOOR, PLAIN, ROOM, Conditions, PersonBatch
from fedvisage.render.sheet import (
    UNITS_PER_FRAME,
    find_visible_points,
    halve,
    look_up,
    make_sheet,
    pixel_grid,
    project,
    rotation,
    step,
    tint,
    units_per_frame,
)
from fedvisage.render.skin import make_skin, pores_of, skin_colour

DEPTH_SIZE = 32
DEPTH_RANGE = 1.7
"""Head units from the nearest point of the face to the level 0 of its depth map."""


@dataclass(frozen=True)
class Scene:
    """The view in front of the camera.

    Attributes:
        radiance: B×3×H×W, linear light, RGB; mid grey under full light is about 0.18.
        depth: B×H×W in [0, 1]; 1 = nearest point of the face, 0 = not face.
        face: B×H×W in [0, 1], coverage of the head with hair and ears.
        points: B×5×2, pixel coordinates (x, y) of the eye on the image's left, the eye on its right, the tip of the
            nose, the left and the right corner of the mouth.

    """

    radiance: Tensor
    depth: Tensor
    face: Tensor
    points: Tensor


def render(people: PersonBatch, conditions: Conditions, size: int, mask: MaskMaterial | None = None) -> Scene:
    """Render one picture per row; a picture does not depend on the others in the batch.

    ``size`` is the even height and width in pixels; ``mask`` has B masks, or None for bare faces.
    """
    sheet = make_sheet(size)
    # Build, paint and light the head on the sheet.
    head = make_head(people, conditions, sheet)
    hair = make_hair(people, head, sheet)
    coat = make_skin(people, conditions, sheet)
    paint_beard(coat, people, head, sheet)
    paint_brows(coat, people, conditions, sheet)
    paint_eyes(coat, people, conditions, sheet)
    # The order of layers: the mask over skin, beard, brows and eyes; glasses and hair over the mask.
    relief = pores_of(people, sheet) * (0.0009 * people["pores"])[..., None]
    height = head.height
    if mask is not None:
        cover = mask_cover(mask, people, head.radius, sheet)
        relief = relief * (1.0 - cover) + wear(mask, cover, coat, skin_colour(people), sheet)
        height = height + cover * mask.thickness[:, None, None]
    frame = paint_glasses(coat, people, conditions, sheet)
    glasses_window(sheet).of(height).add_(frame, alpha=DISTANCE)
    paint_hair(coat, people, hair, sheet)
    height = torch.maximum(height, hair.height)
    relief = relief.addcmul_(hair.cover, hair.strands, value=0.012)
    # The sheet is in head axes, so the lights are turned into them.
    lamps = make_lamps(conditions, rotation(conditions))
    small = halve(height)
    radiance = shade(height, small, relief, coat, lamps, sheet)
    add_catch_lights(radiance, people, conditions, sheet, lamps.key, lamps.key_colour)
    # Radiance is multiplied by the outline, so that interpolation at its edge blends it with the background.
    maps = radiance.new_empty(len(people), 5, *height.shape[1:])
    torch.mul(radiance, hair.outline[:, None].expand_as(radiance), out=maps[:, :3])
    maps[:, 3] = hair.outline
    maps[:, 4] = face_cover(head, hair)
    # Look up the point of the sheet behind each pixel, and put the head before the surroundings.
    view = find_visible_points(height, small, conditions, size)
    pixels = look_up(maps, view.u, view.v, outside="zeros")
    outline, face = pixels[:, 3:4], pixels[:, 4]
    picture = make_backgrounds(conditions, size)
    draw_body(picture, people, conditions)
    picture = picture.mul_(1.0 - outline).add_(pixels[:, :3])
    points = project(landmarks(people, conditions, height), conditions, size)
    return Scene(picture, depth_map(view.near, face), outline[:, 0], points)


def face_cover(head: Head, hair: Hair) -> Tensor:
    """Return the cover of the bare face on the sheet, B×V×U in [0, 1]."""
    return step(0.985 - head.radius, 0.03).mul_(1.0 - hair.cover)


def depth_map(near: Tensor, face: Tensor) -> Tensor:
    """Return the depth map: 1 at the nearest point of the face, 0 off the face."""
    nearest = torch.where(face > 0.5, near, -10.0).amax(dim=(1, 2), keepdim=True)
    return (1.0 - (nearest - near) / DEPTH_RANGE).clamp(0.0, 1.0) * face


def small_depth(depth: Tensor) -> NDArray[np.uint8]:
    """Return depth maps in the form of prepared sets: B×32×32, 255 = nearest point of the face, 0 = not face."""
    small = adaptive_avg_pool2d(depth[:, None], DEPTH_SIZE)[:, 0]
    return np.asarray((small.clamp(0, 1) * 255).round().byte())


def landmarks(people: PersonBatch, conditions: Conditions, height: Tensor) -> Tensor:
    """Return the five points on the surface, B×5×3 (u, v, height)."""
    p = people
    centre, half = mouth_centre(p, conditions), mouth_half_width(p, conditions)
    corner = centre - 0.7 * mouth_corner_lift(p, conditions)
    eye, tilt, zero = p["eye_spacing"], p["asymmetry"], torch.zeros_like(centre)
    u = torch.cat([-eye, eye, zero, -half, half], 1)
    v = torch.cat([p["eye_lift"] - tilt, p["eye_lift"] + tilt, p["nose_length"], corner, corner], 1)
    lifted = look_up(height[:, None], u[:, None], v[:, None])[:, 0, 0]
    return torch.stack([u, v, lifted], dim=-1)


# The body behind the head: neck, shoulders and clothes.


def draw_body(picture: Tensor, people: PersonBatch, conditions: Conditions) -> None:
    """Draw neck and shoulders into the lower part of a picture (B×3×H×W), in place."""
    size = picture.shape[-1]
    x, y = pixel_grid(conditions, size)
    y = y[:, size * 2 // 5 :]
    edge = (units_per_frame(conditions) / size)[:, None, None]
    clothes = torch.tensor(np.stack([_draw_clothes(seed) for seed in conditions.seeds]), dtype=torch.float32)
    neck_half = people["neck_width"][..., None] + 0.25 * (y - 1.25).clamp(min=0.0)
    neck = step(neck_half - x.abs(), edge) * step(y - 0.2, 0.1)
    collar, opening = clothes[:, 3, None, None], clothes[:, 4, None, None]
    # Shoulders slope down from the neck; the neckline dips in front.
    shoulder = 1.18 + 0.42 * (x.abs() - 0.55).clamp(min=0.0)
    neckline = collar + opening * (1.0 - (x / 0.8) ** 2).clamp(min=0.0)
    fabric = step(y - torch.maximum(shoulder, neckline), edge)
    skin = (0.92 * skin_colour(people))[:, :, None, None]
    lit_neck = _irradiance(conditions, (x / neck_half).clamp(-0.98, 0.98))
    # Share of light on the neck, B×H×1: small under the chin, largest at the collar.
    lit_neck.mul_((0.30 + 0.60 * step(y - people["chin"][..., None] + 0.22, 0.42))[:, None])
    lower = picture[:, :, -y.shape[1] :]
    lower.lerp_(lit_neck.mul_(skin), neck[:, None])
    upright = _irradiance(conditions, (x / 2.2).clamp(-0.9, 0.9))
    # Shading by folds and weave in the lower rows of the picture, B×rows×columns.
    rows = y.shape[1]
    cell = UNITS_PER_FRAME / size
    folds = noise("coarse", conditions.seeds, "folds", rows, size, cell)
    weave = noise("fine", conditions.seeds, "weave", rows, size, cell)
    cloth = tint(folds.mul_(0.14).add_(weave, alpha=0.06).add_(1.0).clamp_(min=0.2), clothes[:, :3]).mul_(upright)
    lower.lerp_(cloth, fabric[:, None])


def _irradiance(conditions: Conditions, across: Tensor) -> Tensor:
    """Return the light on an upright cylinder, B×3×H×W, at a position across it (-1 left edge, 1 right edge)."""
    c = conditions
    forward = (1.0 - across * across).sqrt()
    facing = (across * c.key[:, 0, None, None] + forward * c.key[:, 2, None, None] + 0.08).clamp_(min=0.0)
    around = colour_of(c.ambient_kelvin) * (c.ambient_strength + 0.4 * c.fill_strength)[:, None]
    light = tint(facing, colour_of(c.key_kelvin) * c.key_strength[:, None])
    return light.add_(tint(forward.mul_(0.45).add_(0.55), around))


def _draw_clothes(seed: int) -> np.ndarray:
    """Draw colour (3), height of the collar and depth of the neckline."""
    rng = numpy_rng(seed, "clothes")
    brightness = np.exp(rng.uniform(np.log(0.02), np.log(0.6)))
    colour = np.clip(brightness * np.exp(rng.normal(0.0, 0.35, 3)), 0.01, 0.85)
    return np.concatenate([colour, [rng.uniform(1.05, 1.3), rng.uniform(0.0, 0.5)]])


# Backgrounds: plain walls, rooms, clutter and the open air, out of focus, from a seed. A background is a gradient, a
# number of soft rectangles (furniture, windows, distant people) and noise. Rectangles are products of a column and a
# row, so one matrix product computes any number of them.

RECTANGLES = 14
MEADOW = np.array([-0.60, -0.48, -0.70])
"""Ground and trees relative to a sky of mean 1: darker and greenish."""


@dataclass(frozen=True)
class BackgroundKind:
    """The appearance of a kind of background: rectangles, contrasts, colourfulness, blur, noise and horizon."""

    rectangles: int
    contrast: float
    gradient: float
    colourful: float
    blur: tuple[float, float]
    coarse: float
    fine: float
    horizon: bool = False


BACKGROUND_KINDS = {
    PLAIN: BackgroundKind(0, 0.0, 0.10, 0.06, (0.1, 0.2), 0.015, 0.008),
    GRADIENT: BackgroundKind(1, 0.2, 0.7, 0.12, (0.3, 0.6), 0.03, 0.008),
    ROOM: BackgroundKind(7, 0.65, 0.35, 0.12, (0.01, 0.06), 0.02, 0.01),
    CLUTTER: BackgroundKind(14, 0.75, 0.3, 0.25, (0.005, 0.03), 0.03, 0.03),
    OUTDOOR: BackgroundKind(6, 0.35, 0.5, 0.12, (0.01, 0.06), 0.22, 0.16, horizon=True),
}


def make_backgrounds(conditions: Conditions, size: int) -> Tensor:
    """Return the radiance of the surroundings, B×3×H×W."""
    drawn = [
        _draw(seed, int(kind)) for seed, kind in zip(conditions.seeds, conditions.background.tolist(), strict=True)
    ]
    base, slope, colours, boxes, softness, amounts = (
        torch.tensor(np.stack([background[part] for background in drawn]), dtype=torch.float32) for part in range(6)
    )
    t = (torch.arange(size) + 0.5) / size
    across = step(boxes[:, :, 2, None] - (t - boxes[:, :, 0, None]).abs(), softness[:, None, None])
    down = step(boxes[:, :, 3, None] - (t - boxes[:, :, 1, None]).abs(), softness[:, None, None])
    painted = torch.einsum("bkc,bkh,bkw->bchw", colours, down, across).contiguous()
    painted.add_(base[:, :, None, None] + (t - 0.5)[None, None, :, None] * slope[:, :, None, None])
    cell = UNITS_PER_FRAME / size
    rough = amounts[:, 0, None, None] * noise("coarse", conditions.seeds, "background", size, size, cell)
    rough.addcmul_(noise("medium", conditions.seeds, "background", size, size, cell), amounts[:, 1, None, None])
    # The sky is smooth: in scenes with a horizon, only the part below it is rough.
    rough.mul_((1.0 - amounts[:, 2, None] * (1.0 - down[:, 0]))[:, :, None])
    painted.mul_((1.0 + rough)[:, None])
    return painted.clamp_(min=0.02).mul_(conditions.background_level[:, None, None, None])


def _draw(seed: int, kind: int) -> tuple[np.ndarray, ...]:
    """Draw one background: base colour, vertical slope, colours and places of rectangles, softness, noise amounts."""
    recipe, rng = BACKGROUND_KINDS[kind], numpy_rng(seed, "background")
    base = np.clip(1.0 + recipe.colourful * rng.normal(0.0, 0.5, 3), 0.3, 1.8)
    slope = -recipe.gradient * rng.uniform(-0.3, 1.2) * (1.0 + recipe.colourful * rng.normal(0.0, 1.0, 3))
    used = (np.arange(RECTANGLES) < recipe.rectangles)[:, None]
    tint = rng.normal(0.0, 0.55, (RECTANGLES, 1)) + recipe.colourful * rng.normal(0.0, 0.5, (RECTANGLES, 3))
    colours = used * recipe.contrast * tint
    boxes = np.concatenate(
        [rng.uniform(0.0, 1.0, (RECTANGLES, 2)), np.exp(rng.uniform(np.log(0.03), np.log(0.45), (RECTANGLES, 2)))], 1
    )
    softness = np.array(rng.uniform(*recipe.blur))
    if recipe.horizon:
        colours[0] = MEADOW + rng.normal(0.0, 0.06, 3)
        boxes[0] = (0.5, 1.0, 1.0, rng.uniform(0.25, 0.75))
    return base, slope, colours, boxes, softness, np.array([recipe.coarse, recipe.fine, float(recipe.horizon)])
