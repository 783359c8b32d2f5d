"""The capture: the same cameras photograph living faces and attacks.

One wide distribution of cameras, exposures, white balances, focus, motion, stray light and storage serves bona fide
images and attacks alike, so that the capture does not reveal the class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fedvisage.render.camera import Camera, CameraShots, draw_shots, expose, luminance
from fedvisage.render.media import Sampling
from fedvisage.render.noise import Range, between, column, uniform_numbers

CAPTURE_VERSION = 3
"""Increases whenever photographs get other pixels. Version 1 left bona fide images unchanged; version 2 cut out paper
masks with edges too sharp for a camera."""

PORTRAIT = (1.45, 1.0, 0.75)
"""Mean linear red, green and blue of crops of faces, relative to green."""

_WIDE = {
    "exposure": (-0.8, 0.7),
    "warmth": (-0.18, 0.18),
    "tint": (-0.10, 0.10),
    "saturation": (0.55, 1.45),
    "contrast": (0.0, 0.6),
    "vignette": (0.0, 0.25),
    "sharpening": (0.0, 0.9),
}


def _camera(name: str, pixels: Range, blur: Range, noise: Range, quality: Range) -> Camera:
    return Camera(name, pixels, blur=blur, noise=noise, quality=quality, **_WIDE)


CAMERAS = (
    _camera("old webcam", (90, 180), (0.5, 1.0), (0.006, 0.022), (50, 85)),
    _camera("webcam", (160, 360), (0.3, 0.7), (0.004, 0.016), (60, 92)),
    _camera("front of a phone", (200, 480), (0.3, 0.6), (0.004, 0.016), (70, 95)),
    _camera("back of a phone", (350, 800), (0.25, 0.5), (0.002, 0.012), (75, 96)),
    _camera("system camera", (450, 900), (0.25, 0.5), (0.001, 0.008), (80, 97)),
)
"""Kinds of cameras. Their effects on light and colour come from the same wide ranges for all kinds."""


@dataclass(frozen=True)
class CaptureConditions:
    """Effects before and after the exposure; ranges are of videos, lengths are shares of the crop's side."""

    motion: Range = (0.0, 0.012)  # path of the picture over the sensor during the exposure
    focus: Range = (0.0, 0.006)  # radius of the disc into which the lens blurs a point
    balance: Range = (0.6, 1.0)  # share by which automatic white balance corrects the mean to that of usual portraits
    levels: Range = (0.75, 1.0)  # share by which the camera's software darkens the darkest parts to black
    flare: Range = (0.0, 0.3)  # remaining or added haze, relative to the mean light of the picture
    stored: Range = (0.7, 1.0)  # size of an intermediate copy, before the final resampling
    quality: Range = (65, 97)  # JPEG quality of that copy


@dataclass(frozen=True)
class Capture:
    """One draw of all settings for each image: tensors of B numbers."""

    shots: CameraShots
    motion: Tensor
    angle: Tensor
    focus: Tensor
    balance: Tensor
    levels: Tensor
    flare: Tensor
    stored: Tensor
    quality: Tensor

    def sampling(self, size: int) -> Sampling:
        """Return the sampling grid of the scene, in sensor pixels: motion and defocus add to the lens blur."""
        spread = (self.focus**2 / 4 + self.motion**2 / 12).sqrt() * self.shots.pixels
        return Sampling(self.shots.pixels, (self.shots.blur**2 + spread**2).sqrt())


def draw_camera(seed: int, among: Sequence[Camera] = CAMERAS) -> Camera:
    """Return the kind of camera of a video."""
    return among[int(len(among) * uniform_numbers([seed], "capture/camera").item())]


def draw_capture(cameras: Sequence[Camera], seeds: Sequence[int], around: CaptureConditions | None = None) -> Capture:
    """Draw the capture of each image; images of one video share a seed, hence their settings."""
    ranges = around or CaptureConditions()
    drawn = {
        name: between(seeds, f"capture/{name}", getattr(ranges, name))
        for name in CaptureConditions.__dataclass_fields__
    }
    angle = between(seeds, "capture/angle", (0.0, math.pi))
    return Capture(draw_shots(cameras, seeds), angle=angle, **drawn)


def photograph(radiance: Tensor, capture: Capture, frames: Sequence[int]) -> NDArray[np.uint8]:
    """Photograph B×3×S×S radiance: defocus and motion, automatic balance and black, the camera, and storage."""
    size = radiance.shape[-1]
    processed = with_flare(with_black_level(balance_colours(radiance, capture.balance), capture.levels), capture.flare)
    light = blur_in_motion(processed, capture.focus * size, capture.motion * size, capture.angle)
    images = expose(light.clamp_min(0), capture.shots, frames)
    storage = zip(images, capture.stored.tolist(), capture.quality.round().int().tolist(), strict=True)
    return np.stack([store_small(image, share, quality) for image, share, quality in storage])


def balance_colours(light: Tensor, strength: Tensor) -> Tensor:
    """Move the mean colour of each picture towards that of usual portraits; the green channel is unchanged."""
    mean = light.mean((2, 3), keepdim=True).clamp_min(1e-4)
    portrait = light.new_tensor(PORTRAIT)[:, None, None] * mean[:, 1:2]
    return light * (portrait / mean) ** column(strength)


def with_black_level(light: Tensor, strength: Tensor) -> Tensor:
    """Move the light of the darkest hundredth towards black, by a share; the mean is unchanged."""
    grey = luminance(light).flatten(1)
    black = column(torch.quantile(grey, 0.01, dim=1) * strength)
    mean = grey.mean(1)[:, None, None, None]
    return (light - black).clamp_min(0) * (mean / (mean - black).clamp_min(1e-4))


def with_flare(radiance: Tensor, share: Tensor) -> Tensor:
    """Spread a share of the mean light evenly over the picture: the mean is unchanged, black gets lighter."""
    return torch.lerp(radiance, radiance.mean((2, 3), keepdim=True), column(share))


def blur_in_motion(light: Tensor, radius: Tensor, length: Tensor, angle: Tensor) -> Tensor:
    """Return the light behind a defocused lens (a disc of this radius) in motion (a line of this length), in pixels.

    The transfer functions are 2 J1(x)/x for the disc and sinc for the line; borders are mirrored.
    """
    size, most = light.shape[-1], int(max(radius.max().item(), length.max().item() / 2)) + 2
    padded = pad(light, (most,) * 4, mode="reflect")
    side = padded.shape[-1]
    down, across = torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side)[None, :]
    disc = 2 * math.pi * radius[:, None, None] * torch.hypot(down, across)
    out_of_focus = torch.where(disc > 1e-4, 2 * torch.special.bessel_j1(disc) / disc.clamp_min(1e-4), 1.0)
    along = angle.cos()[:, None, None] * across + angle.sin()[:, None, None] * down
    transfer = out_of_focus * torch.sinc(length[:, None, None] * along)
    filtered: Tensor = torch.fft.irfft2(torch.fft.rfft2(padded) * transfer[:, None], s=(side, side))
    return filtered[..., most : most + size, most : most + size]


def store_small(image: NDArray[np.uint8], share: float, quality: int) -> NDArray[np.uint8]:
    """Return a picture after storage as a smaller JPEG and enlargement to its old size."""
    size = len(image)
    small = max(8, round(share * size))
    smaller = image if small == size else np.asarray(cv2.resize(image, (small, small), interpolation=cv2.INTER_AREA))
    _, stored = cv2.imencode(".jpg", smaller[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    read = np.asarray(cv2.imdecode(stored, cv2.IMREAD_COLOR), np.uint8)[:, :, ::-1]
    if small == size:
        return np.ascontiguousarray(read)
    return np.asarray(cv2.resize(read, (size, size), interpolation=cv2.INTER_CUBIC), np.uint8)
