"""Random augmentation of training images, drawn from a given generator.

`augment` translates images by whole pixels only, because scaling or rotation would blur the fine texture that
distinguishes a print or a screen from skin. Intentional blurring is in `degrade`, which simulates cameras and channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate

from fedvisage.nn.compute import to_device
from fedvisage.nn.inputs import shift_hue
from fedvisage.recipe import Augment, Change

NEUTRAL = 6500.0
"""Colour temperature, in kelvin, of light that does not change colours."""


@dataclass(frozen=True)
class AugmentedBatch:
    """Images after all changes; `donors` holds the source image of each pasted square, or −1."""

    images: Tensor
    depth: Tensor | None
    donors: Tensor


def degrade(
    images: Tensor, depth: Tensor | None, labels: Tensor, changes: Mapping[str, Change], generator: Generator
) -> AugmentedBatch:
    """Simulate cameras and channels: B×3×S×S images in [0, 1], each changed with its own strength.

    The changes apply in order; disabled ones draw no random numbers. Unlike translations by whole pixels, these changes
    blur and resample on purpose: a detector trained on images of one channel learns that channel. Cut-out hides a
    square. CutMix pastes a square of an attack into a bona fide face, which then counts as an attack, because masks and
    prints often cover only a part. Depth is 0 where attacks were pasted.
    """
    donors = torch.full((len(images),), -1)
    for name, change in changes.items():
        selected = torch.rand(len(images), generator=generator) < change.probability
        amounts = change.least + (change.most - change.least) * torch.rand(len(images), generator=generator)
        if name == "cutmix":
            # The donor of a bona fide image is an attack of the batch; attacks have none.
            attacks = (labels.cpu() == 0).nonzero()[:, 0]
            uniform = torch.rand(len(labels), generator=generator)
            if len(attacks):
                pasted = selected & (labels.cpu() == 1)
                donors = torch.where(pasted, attacks[(uniform * len(attacks)).long()], -1)
            images, depth = paste_squares(images, depth, donors, _squares(amounts, images.shape[-1], generator))
        elif name == "cutout":
            inside = _masks(_squares(amounts, images.shape[-1], generator), images.shape[-1])
            hidden = selected[:, None, None] & inside
            images = torch.where(hidden[:, None].to(images.device), images.new_tensor(0.5), images)
        elif name == "noise":
            noise = torch.randn(images.shape, generator=generator) * (amounts * selected)[:, None, None, None]
            images = (images + noise.to(images)).clamp(0, 1)
        elif name == "gains":
            deviations = (2 * torch.rand(len(images), 3, generator=generator) - 1) * (amounts * selected)[:, None]
            images = (images * (1 + deviations)[:, :, None, None].to(images)).clamp(0, 1)
        elif selected.any():
            rows = selected.nonzero()[:, 0].tolist()
            changed_images = [_ONE_BY_ONE[name](images[row : row + 1].cpu(), float(amounts[row])) for row in rows]
            images = images.index_copy(
                0, selected.nonzero()[:, 0].to(images.device), torch.cat(changed_images).to(images)
            )
            if name in _GEOMETRIC and depth is not None:
                depth_crops = [
                    _ONE_BY_ONE[name](depth[row : row + 1, None].float().cpu(), float(amounts[row]))[:, 0]
                    for row in rows
                ]
                depth = depth.index_copy(0, selected.nonzero()[:, 0].to(depth.device), torch.cat(depth_crops).to(depth))
    return AugmentedBatch(images, depth, donors)


def margin(images: Tensor, amount: float) -> Tensor:
    """Cut this share off each side and enlarge the rest to the original size."""
    size = images.shape[-1]
    off = round(amount * size)
    if not off:
        return images
    return interpolate(images[..., off : size - off, off : size - off], size, mode="bilinear", align_corners=False)


def turn(images: Tensor, amount: float) -> Tensor:
    """Rotate anticlockwise about the centre by this angle in degrees; the border is mirrored."""
    size = images.shape[-1]
    middle = (size - 1) / 2
    matrix = cv2.getRotationMatrix2D((middle, middle), amount, 1.0)
    planes = [cv2.warpAffine(plane, matrix, (size, size), borderMode=cv2.BORDER_REFLECT) for plane in images[0].numpy()]
    return torch.from_numpy(np.stack([*planes]))[None]


def resample(images: Tensor, amount: float) -> Tensor:
    """Shrink images by this factor and enlarge them again."""
    size = images.shape[-1]
    small = max(4, round(amount * size))
    if small == size:
        return images
    reduced = interpolate(images, small, mode="bilinear", antialias=True, align_corners=False)
    return interpolate(reduced, size, mode="bicubic", align_corners=False).clamp(0, 1)


def blur(images: Tensor, amount: float) -> Tensor:
    """Apply a Gaussian blur with this standard deviation in pixels."""
    planes = [cv2.GaussianBlur(plane, (0, 0), amount) for plane in images[0].numpy()] if amount else images[0].numpy()
    return torch.from_numpy(np.stack([*planes]))[None]


def sharpen(images: Tensor, amount: float) -> Tensor:
    """Add this multiple of the difference between an image and its blurred copy (an unsharp mask)."""
    return (images + amount * (images - blur(images, 1.0))).clamp(0, 1)


def gamma(images: Tensor, amount: float) -> Tensor:
    """Raise pixel values to this power."""
    return images**amount


def temperature(images: Tensor, amount: float) -> Tensor:
    """Simulate light of this colour temperature in kelvin.

    The gains follow black bodies by Wien's law at three wavelengths, with green unchanged.
    """
    wavelengths = torch.tensor([610.0, 550.0, 465.0])
    exponent = 1.4388e7 / wavelengths * (1 / NEUTRAL - 1 / amount)
    gains = torch.exp(exponent - exponent[1])
    return (images * gains[:, None, None] ** (1 / 2.2)).clamp(0, 1)


def jpeg(images: Tensor, amount: float) -> Tensor:
    """Compress as JPEG with this quality and decompress."""
    bytes_ = (images[0].permute(1, 2, 0) * 255).round().byte().numpy()[:, :, ::-1]
    _, stored = cv2.imencode(".jpg", bytes_, [cv2.IMWRITE_JPEG_QUALITY, round(amount)])
    read = np.asarray(cv2.imdecode(stored, cv2.IMREAD_COLOR), np.uint8)[:, :, ::-1]
    return torch.from_numpy(read.copy()).permute(2, 0, 1)[None].float() / 255


def paste_squares(
    images: Tensor, depth: Tensor | None, donors: Tensor, squares: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Paste a square of each donor into its image at the same position; depth maps are 0 there."""
    rows = (donors >= 0).nonzero()[:, 0]
    inside = _masks(squares, images.shape[-1])[rows][:, None].to(images.device)
    mixed = torch.where(inside, images[donors[rows]], images[rows])
    images = images.index_copy(0, rows.to(images.device), mixed)
    if depth is not None:
        masks = _masks(squares * (depth.shape[-1] / images.shape[-1]), depth.shape[-1])[rows].to(depth.device)
        masked_depth = torch.where(masks, torch.zeros_like(depth[rows]), depth[rows])
        depth = depth.index_copy(0, rows.to(depth.device), masked_depth)
    return images, depth


def _squares(amounts: Tensor, size: int, generator: Generator) -> Tensor:
    """Return B×4 (left, top, right, bottom): squares with these shares of the side, centred near the middle."""
    side = amounts * size
    centre = size * (0.25 + 0.5 * torch.rand(len(amounts), 2, generator=generator))
    return torch.cat([centre - side[:, None] / 2, centre + side[:, None] / 2], dim=1)


def _masks(squares: Tensor, size: int) -> Tensor:
    """Return a B×S×S mask of the pixels whose centres lie in the squares."""
    place = torch.arange(size) + 0.5
    across = (place >= squares[:, :1]) & (place < squares[:, 2:3])
    down = (place >= squares[:, 1:2]) & (place < squares[:, 3:])
    return down[:, :, None] & across[:, None, :]


_ONE_BY_ONE: dict[str, Callable[[Tensor, float], Tensor]] = {
    "margin": margin,
    "turn": turn,
    "resample": resample,
    "blur": blur,
    "sharpen": sharpen,
    "gamma": gamma,
    "temperature": temperature,
    "jpeg": jpeg,
}
_GEOMETRIC = ("margin", "turn")
"""Changes that move pixels, and with them the depth map."""


GREY = (0.299, 0.587, 0.114)


def augment(
    images: Tensor, depth: Tensor | None, options: Augment, generator: Generator
) -> tuple[Tensor, Tensor | None]:
    """Augment a batch of RGB images in [0, 1]; depth maps are mirrored and translated with their images.

    Disabled changes are skipped and draw no random numbers.
    """
    if options.flip:
        chosen = _draw_mirrored(len(images), options, generator)
        images = _mirror(images, chosen)
        depth = None if depth is None else _mirror(depth[:, None], chosen)[:, 0]
    if options.shift:
        size = images.shape[-1]
        limit = max(1, round(options.shift * size))
        # Depth maps are smaller than their images, so their offsets shrink with them.
        offsets = torch.randint(0, 2 * limit + 1, (len(images), 2), generator=generator) - limit
        images = _translate(images, offsets)
        if depth is not None:
            depth = _translate(depth[:, None], (offsets * depth.shape[-1] / size).round().long())[:, 0]
    if options.brightness:
        images = images * _factor(images, options.brightness, generator)
    if options.contrast:
        mean = _grey(images).mean(dim=(-2, -1), keepdim=True)
        images = images.sub(mean).mul_(_factor(images, options.contrast, generator)).add_(mean)
    if options.saturation:
        grey = _grey(images)
        images = images.sub(grey).mul_(_factor(images, options.saturation, generator)).add_(grey)
    # Hue is defined for valid colours only, so clamping comes before it.
    images = images.clamp(0, 1)
    if options.hue:
        turns = (2 * torch.rand(len(images), generator=generator) - 1) * options.hue
        images = shift_hue(images, to_device(turns, images.device).to(images))
    return images, depth


def draw_mirrored_only(count: int, options: Augment, generator: Generator) -> Tensor | None:
    """Return the mask of images that :func:`augment` mirrors with the same stream; None if it changes more."""
    if any((options.shift, options.brightness, options.contrast, options.saturation, options.hue, options.changes)):
        return None
    return _draw_mirrored(count, options, generator) if options.flip else torch.zeros(count, dtype=torch.bool)


def _draw_mirrored(count: int, options: Augment, generator: Generator) -> Tensor:
    return torch.rand(count, generator=generator) < options.flip


def _factor(images: Tensor, strength: float, generator: Generator) -> Tensor:
    factors = 1 + strength * (2 * torch.rand(len(images), 1, 1, 1, generator=generator) - 1)
    return to_device(factors, images.device).to(images)


def _grey(images: Tensor) -> Tensor:
    return torch.einsum("bchw,c->bhw", images, to_device(torch.tensor(GREY), images.device).to(images))[:, None]


def _mirror(images: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(to_device(chosen, images.device)[:, None, None, None], images.flip(-1), images)


def _translate(images: Tensor, offsets: Tensor) -> Tensor:
    """Translate each image by its own whole number of pixels; the border is mirrored."""
    size, limit = images.shape[-1], int(offsets.abs().max())
    padded = torch.nn.functional.pad(images, (limit, limit, limit, limit), mode="reflect")
    corners = (offsets + limit).tolist()
    return torch.stack(
        [image[:, top : top + size, left : left + size] for image, (top, left) in zip(padded, corners, strict=True)]
    )
