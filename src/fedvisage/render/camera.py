"""The camera: a lens, a sensor and its software turn incoming light into a photograph.

Radiance (linear, B×3×H×W, mid grey about 0.18) becomes an 8-bit sRGB photograph: vignetting and exposure, optics and
pixel aperture, sampling at the sensor's own resolution, shot and read noise, white balance and saturation, tone curve,
sharpening, JPEG at the sensor's resolution, and finally the resize to the size of the crop, as for a face crop from a
video. All steps except JPEG are vectorised over the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.render.noise import Range, between, column, normal_field, uniform_numbers

LUMA = (0.2126, 0.7152, 0.0722)
TONE_STEPS = 4096  # a sensor's twelve bits: the tone curve is a table, as in real cameras


@dataclass(frozen=True)
class Camera:
    """A kind of camera; each video draws its values from these ranges."""

    name: str
    pixels: Range  # sensor pixels across the face crop
    blur: Range = (0.25, 0.45)  # standard deviation of the lens blur, in sensor pixels
    exposure: Range = (-0.2, 0.3)  # stops relative to the metered exposure
    warmth: Range = (-0.05, 0.05)  # error of the white balance: + is red
    tint: Range = (-0.02, 0.02)  # error of the white balance: + is green
    saturation: Range = (0.95, 1.1)
    contrast: Range = (0.0, 0.3)  # share of an S-shaped curve in the tone curve
    noise: Range = (0.004, 0.010)  # standard deviation at mid grey in linear light
    vignette: Range = (0.0, 0.1)  # loss of light at the corners
    sharpening: Range = (0.1, 0.4)
    quality: Range = (80, 95)  # JPEG


@dataclass(frozen=True)
class CameraShots:
    """The settings of one photograph per image, each a tensor of B numbers."""

    pixels: Tensor
    blur: Tensor
    exposure: Tensor
    warmth: Tensor
    tint: Tensor
    saturation: Tensor
    contrast: Tensor
    noise: Tensor
    vignette: Tensor
    sharpening: Tensor
    quality: Tensor


def draw_shots(cameras: Sequence[Camera], seeds: Sequence[int]) -> CameraShots:
    """Draw the settings of each image's camera; images of one video share a seed, hence their settings."""
    return CameraShots(
        **{
            name: between(seeds, f"camera/{name}", [getattr(camera, name) for camera in cameras])
            for name in CameraShots.__dataclass_fields__
        }
    )


def luminance(images: Tensor) -> Tensor:
    """Return B×1×H×W luminance of linear B×3×H×W."""
    weights = images.new_tensor(LUMA)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def encode(linear: Tensor) -> Tensor:
    """Apply the sRGB transfer curve to linear light in [0, 1]."""
    linear = linear.clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clamp_min(1e-6) ** (1 / 2.4) - 0.055)


def decode(encoded: Tensor) -> Tensor:
    """Return the linear light of sRGB values in [0, 1]."""
    return torch.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055).clamp_min(0) ** 2.4)


def expose(radiance: Tensor, shots: CameraShots, noise_seeds: Sequence[int]) -> NDArray[np.uint8]:
    """Photograph the scene: B×3×S×S linear radiance to uint8 B×S×S×3 (RGB)."""
    size = radiance.shape[-1]
    # A sensor finer than the crop is binned, which averages its blur and its noise too.
    pixels = shots.pixels.round().clamp(8, size)
    binning = (shots.pixels / pixels).clamp_min(1.0)
    # B×1×S×S transmission of the lens, 1 at the centre.
    axis = torch.linspace(-1, 1, size) ** 2
    transmission = 1 - column(shots.vignette) * (axis[:, None] + axis[None, :]) / 2
    # The gain brings the centre-weighted mean to middle grey, plus the photographer's error.
    sparse = radiance[..., ::4, ::4]
    axis = torch.linspace(-1, 1, sparse.shape[-1])
    central = torch.exp(-(axis[:, None] ** 2 + axis[None, :] ** 2))
    mean = (luminance(sparse) * central).sum((1, 2, 3)) / central.sum()
    light = radiance * (transmission * column(0.2 * 2**shots.exposure / mean.clamp_min(1e-4)))
    sampled = _apply_separable(light, _sampling(size, pixels, shots.blur / binning))
    # Add noise with a shot part (variance grows with light) and a read part; its level is the deviation at mid grey.
    deviation = (sampled.clamp_min(0) * (0.75 / 0.18)).add_(0.25).sqrt_().mul_(column(shots.noise / binning))
    noisy = torch.addcmul(sampled, deviation, normal_field(noise_seeds, "camera/noise", *sampled.shape[1:]))
    developed = _develop(noisy, shots)
    # B×S×S rows of a Gaussian blur within the first n of S pixels.
    index = torch.arange(size)
    weight = torch.exp(-((index[:, None] - index[None, :]) ** 2) / 2).expand(len(pixels), -1, -1)
    weight = weight * (index[None, None, :] < pixels[:, None, None])
    soft = _apply_separable(developed, _normalise_rows(weight, pixels))
    sharp = developed + column(shots.sharpening) * (developed - soft)
    raw = (sharp.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
    offsets = [int(8 * value) for value in uniform_numbers(noise_seeds, "camera/block").tolist()]
    settings = zip(raw, pixels.int().tolist(), shots.quality.round().int().tolist(), offsets, strict=True)
    return np.stack([_compress(image[:n, :n], quality, offset, size) for image, n, quality, offset in settings])


def _sampling(size: int, pixels: Tensor, blur: Tensor) -> Tensor:
    """Return B×S×S rows: the weights with which each of n sensor pixels gathers S samples; the other rows are 0.

    The lens is Gaussian, the pixel square.
    """
    width = size / pixels[:, None, None]
    centre = (torch.arange(size)[None, :, None] + 0.5) * width
    position = torch.arange(size)[None, None, :] + 0.5
    spread = (blur[:, None, None] * width).clamp_min(0.05) * 2**0.5
    half = width / 2
    weight = torch.erf((position - centre + half) / spread) - torch.erf((position - centre - half) / spread)
    return _normalise_rows(weight, pixels)


def _normalise_rows(weight: Tensor, pixels: Tensor) -> Tensor:
    # Far weights underflow to denormal numbers, which slow down products many times.
    weight = torch.where(weight > 1e-7, weight, 0.0)
    row_used = torch.arange(weight.shape[1])[None, :, None] < pixels[:, None, None]
    return weight / weight.sum(2, keepdim=True).clamp_min(1e-6) * row_used


def _apply_separable(images: Tensor, matrices: Tensor) -> Tensor:
    """Apply one matrix per image to the rows and to the columns of all its channels."""
    # One product per image is faster than a batched one, and its rounding cannot depend on the batch size.
    return torch.stack([matrix @ image @ matrix.T for matrix, image in zip(matrices, images, strict=True)])


def _develop(light: Tensor, shots: CameraShots) -> Tensor:
    """Apply white balance and saturation (one colour matrix) and the tone curve: linear light to values in [0, 1]."""
    gains = torch.stack([1 + shots.warmth, 1 + shots.tint, 1 - shots.warmth], dim=1)
    grey = torch.tensor(LUMA).expand(3, 3)
    mixing = torch.lerp(grey, torch.eye(3), shots.saturation[:, None, None]) * gains[:, None, :] * TONE_STEPS
    curves = torch.lerp(_TONE_CURVE, _TONE_CURVE**2 * (3 - 2 * _TONE_CURVE), shots.contrast[:, None])
    developed = [
        curve[(matrix @ image.flatten(1)).clamp_(0, 2 * TONE_STEPS).int()]
        for matrix, image, curve in zip(mixing, light, curves, strict=True)
    ]
    return torch.stack(developed).view_as(light)


_LIGHT = torch.arange(2 * TONE_STEPS + 1) / TONE_STEPS
_TONE_CURVE = encode(torch.where(_LIGHT > 0.6, 0.6 + 0.4 * torch.tanh((_LIGHT - 0.6) / 0.6), _LIGHT))
"""The encoded value of light from 0 to twice white: sRGB with a soft shoulder above 0.6."""


def _compress(image: NDArray[np.uint8], quality: int, offset: int, size: int) -> NDArray[np.uint8]:
    """Store as JPEG and read back, then resize; the 8×8 blocks start anywhere, as in a crop from a larger frame."""
    padded = cv2.copyMakeBorder(image, offset, 0, offset, 0, cv2.BORDER_REFLECT)
    _, stored = cv2.imencode(".jpg", padded[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    read = np.asarray(cv2.imdecode(stored, cv2.IMREAD_COLOR), np.uint8)[offset:, offset:, ::-1]
    if len(read) == size:
        return np.ascontiguousarray(read)
    return np.asarray(cv2.resize(read, (size, size), interpolation=cv2.INTER_LINEAR), np.uint8)
