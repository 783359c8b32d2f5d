"""Cues: single numbers of a picture that a camera changes, whatever stands before it.

A set in which one of them tells attacks from bona fide images lets a network learn the camera instead of the
presentation. Each is a pure function of pixels: sharpness is the variance of the Laplacian, noise the estimate of
J. Immerkær ("Fast Noise Variance Estimation", 1996) by medians, blur the width of the Gaussian that would give white
noise the same two derivatives, the JPEG grid how much steeper the steps between blocks of eight pixels are than the
others.
"""

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Plane = npt.NDArray[np.float32]

SPECTRUM_PEAK = "spectrum peak"
BLOCK = 8
MEDIAN_OF_NORMAL = 0.6745
"""Median of the absolute value of a standard normal number."""
_SECOND = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
_LEAST = 1e-3
RINGS = 24
"""Parts of the spectrum up to half a cycle a pixel, within which it is compared with itself."""


def cues(image: Image) -> dict[str, float]:
    """Return every cue of an RGB picture, S×S×3."""
    grey = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.float32)
    return {name: cue(grey) for name, cue in _OF_GREY.items()} | {name: cue(image) for name, cue in _OF_COLOUR.items()}


def sharpness(grey: Plane) -> float:
    """Return the logarithm of the variance of the Laplacian."""
    return float(np.log(cv2.Laplacian(grey, cv2.CV_32F).var() + _LEAST))


def noise(grey: Plane) -> float:
    """Return the standard deviation of noise in levels; edges count little in a median."""
    residue = cv2.filter2D(grey, cv2.CV_32F, _SECOND)[1:-1, 1:-1]
    return float(np.median(np.abs(residue)) / MEDIAN_OF_NORMAL / np.sqrt((_SECOND**2).sum()))


def blur(grey: Plane) -> float:
    """Return the width in pixels of a Gaussian that gives noise such steps: 3/2 var f' / var f'' = width² + 7/24.

    The second term is what differences of neighbouring pixels add to derivatives, to first order.
    """
    first = [np.diff(grey, axis=axis).var() for axis in (0, 1)]
    second = [np.diff(grey, 2, axis=axis).var() for axis in (0, 1)]
    return float(np.sqrt(max(0.0, 1.5 * sum(first) / (sum(second) + _LEAST) - 7 / 24)))


def contrast(grey: Plane) -> float:
    """Return the standard deviation of grey levels."""
    return float(grey.std())


def brightness(grey: Plane) -> float:
    """Return the mean grey level."""
    return float(grey.mean())


def black_level(grey: Plane) -> float:
    """Return the grey level below which a hundredth of the picture lies."""
    return float(np.percentile(grey, 1))


def white_level(grey: Plane) -> float:
    """Return the grey level above which a hundredth of the picture lies."""
    return float(np.percentile(grey, 99))


def jpeg_grid(grey: Plane) -> float:
    """Return the logarithm of how steep steps are on the lines of the likeliest grid, against all others.

    The crop may have been cut out anywhere, so every place of the grid is tried; one edge of the scene is no grid.
    """
    ratios = []
    for plane in (grey, grey.T):
        step = np.diff(plane, axis=1)
        bend = np.abs(step[:, 1:-1] - (step[:, :-2] + step[:, 2:]) / 2).mean(0)
        sums = np.array([np.median(bend[start::BLOCK]) for start in range(min(BLOCK, len(bend)))])
        ratios.append((sums.max() + _LEAST) / (np.median(sums) + _LEAST))
    return float(np.log(np.mean(ratios)))


def spectrum_peak(grey: Plane) -> float:
    """Return the logarithm of the highest peak of the spectrum above frequencies about as high, 0.1 cycles and up."""
    window = np.hanning(len(grey)).astype(np.float32)
    spectrum = np.abs(np.fft.rfft2((grey - grey.mean()) * window[:, None] * window[None, :]))
    down, across = np.fft.fftfreq(len(grey))[:, None], np.fft.rfftfreq(len(grey))[None, :]
    frequency = np.hypot(down, across)
    rings = (frequency * min(2 * RINGS, len(grey) // 2)).astype(int)
    usual = np.array([np.median(spectrum[rings == ring]) for ring in range(rings.max() + 1)])
    above = spectrum / (usual[rings] + _LEAST)
    return float(np.log(above[(frequency >= 0.1) & (frequency <= 0.5)].max() + _LEAST))


def saturation(image: Image) -> float:
    """Return the mean saturation of HSV, 0 to 1."""
    return float(cv2.cvtColor(image, cv2.COLOR_RGB2HSV)[..., 1].mean() / 255)


def warmth(image: Image) -> float:
    """Return the logarithm of red over blue, of means: a white balance that is off moves it."""
    red, _, blue = image.reshape(-1, 3).mean(0) + 1
    return float(np.log(red / blue))


def tint(image: Image) -> float:
    """Return the logarithm of green over the geometric mean of red and blue, of means."""
    red, green, blue = image.reshape(-1, 3).mean(0) + 1
    return float(np.log(green / np.sqrt(red * blue)))


_OF_GREY: dict[str, Callable[[Plane], float]] = {
    "sharpness": sharpness,
    "noise": noise,
    "blur": blur,
    "contrast": contrast,
    "brightness": brightness,
    "black level": black_level,
    "white level": white_level,
    "JPEG grid": jpeg_grid,
    SPECTRUM_PEAK: spectrum_peak,
}
_OF_COLOUR: dict[str, Callable[[Image], float]] = {"saturation": saturation, "warmth": warmth, "tint": tint}
NAMES = (*_OF_GREY, *_OF_COLOUR)
OF_A_CAMERA = tuple(name for name in NAMES if name != SPECTRUM_PEAK)
"""What a camera alone can explain: periodic patterns come from screens and halftones."""
