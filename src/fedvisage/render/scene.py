"""The scene: people under conditions, rendered as light at the camera, with exact depth and points."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

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
from fedvisage.render.light import make_lamps, shade
from fedvisage.render.masks import MaskMaterial, mask_cover, wear
from fedvisage.render.people import Conditions, PersonBatch
from fedvisage.render.sheet import Sheet, find_visible_points, halve, look_up, make_sheet, project, rotation, step
from fedvisage.render.skin import make_skin, pores_of, skin_colour
from fedvisage.render.surroundings import draw_body, make_backgrounds

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
        cover = mask_cover(mask, people, conditions, head.radius, sheet)
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
    points = project(landmarks(people, conditions, height, sheet), conditions, size)
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


def landmarks(people: PersonBatch, conditions: Conditions, height: Tensor, sheet: Sheet) -> Tensor:
    """Return the five points on the surface, B×5×3 (u, v, height)."""
    p = people
    centre, half = mouth_centre(p, conditions), mouth_half_width(p, conditions)
    corner = centre - 0.7 * mouth_corner_lift(p, conditions)
    eye, tilt, zero = p["eye_spacing"], p["asymmetry"], torch.zeros_like(centre)
    u = torch.cat([-eye, eye, zero, -half, half], 1)
    v = torch.cat([p["eye_lift"] - tilt, p["eye_lift"] + tilt, p["nose_length"], corner, corner], 1)
    lifted = look_up(height[:, None], u[:, None], v[:, None])[:, 0, 0]
    return torch.stack([u, v, lifted], dim=-1)
