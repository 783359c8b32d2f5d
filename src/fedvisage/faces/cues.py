"""Compute cues: single numbers of a picture that depend on the camera, whatever the scene.

If a cue separates attacks from bona fide images in a set, a network can learn the camera instead of the presentation.
Each cue is a pure function of pixels: sharpness is the variance of the Laplacian; noise is the estimate of J. Immerkær
("Fast Noise Variance Estimation", 1996) with medians; blur is the width of the Gaussian that would give white noise the
same two derivatives; the JPEG grid is the ratio of the steps between blocks of eight pixels to all other steps.
"""

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Plane = npt.NDArray[np.float32]

SPECTRUM_PEAK = "spectrum peak"
NAMES = (
    *("sharpness", "noise", "blur", "contrast", "brightness", "black level", "white level", "JPEG grid"),
    *(SPECTRUM_PEAK, "saturation", "warmth", "tint"),
)
OF_A_CAMERA = tuple(name for name in NAMES if name != SPECTRUM_PEAK)
"""Cues that the camera alone can explain; periodic patterns come from screens and halftones."""

BLOCK = 8
MEDIAN_OF_NORMAL = 0.6745
"""Median of the absolute value of a standard normal number."""
_SECOND = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
_LEAST = 1e-3
RINGS = 24
"""Rings of the spectrum up to half a cycle per pixel; each ring has its own reference level."""


def cues(image: Image) -> dict[str, float]:
    """Return every cue of an RGB picture, S×S×3, in the order of `NAMES`.

    Sharpness, warmth and tint are logarithms: of the variance of the Laplacian; of mean red over mean blue, which a
    wrong white balance shifts; and of mean green over the geometric mean of mean red and mean blue.
    """
    grey = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.float32)
    red, green, blue = image.reshape(-1, 3).mean(0) + 1
    values = {
        "sharpness": np.log(cv2.Laplacian(grey, cv2.CV_32F).var() + _LEAST),
        "noise": noise(grey),
        "blur": blur(grey),
        "contrast": grey.std(),
        "brightness": grey.mean(),
        "black level": np.percentile(grey, 1),
        "white level": np.percentile(grey, 99),
        "JPEG grid": jpeg_grid(grey),
        SPECTRUM_PEAK: spectrum_peak(grey),
        "saturation": cv2.cvtColor(image, cv2.COLOR_RGB2HSV)[..., 1].mean() / 255,
        "warmth": np.log(red / blue),
        "tint": np.log(green / np.sqrt(red * blue)),
    }
    return {name: float(value) for name, value in values.items()}


def noise(grey: Plane) -> float:
    """Return the standard deviation of the noise in grey levels; edges have little effect on the median."""
    residue = cv2.filter2D(grey, cv2.CV_32F, _SECOND)[1:-1, 1:-1]
    return float(np.median(np.abs(residue)) / MEDIAN_OF_NORMAL / np.sqrt((_SECOND**2).sum()))


def blur(grey: Plane) -> float:
    """Return the width in pixels of a Gaussian that gives noise such steps: 3/2 var f' / var f'' = width² + 7/24.

    The second term is the first-order error of using differences of neighbouring pixels as derivatives.
    """
    first = [np.diff(grey, axis=axis).var() for axis in (0, 1)]
    second = [np.diff(grey, 2, axis=axis).var() for axis in (0, 1)]
    return float(np.sqrt(max(0.0, 1.5 * sum(first) / (sum(second) + _LEAST) - 7 / 24)))


def jpeg_grid(grey: Plane) -> float:
    """Return the logarithm of the steepness of steps on the lines of the likeliest grid, relative to the median grid.

    The crop may come from anywhere in the image, so every offset of the grid is tried. Medians keep a single edge of
    the scene from counting as a grid.
    """
    ratios = []
    for plane in (grey, grey.T):
        step = np.diff(plane, axis=1)
        bend = np.abs(step[:, 1:-1] - (step[:, :-2] + step[:, 2:]) / 2).mean(0)
        sums = np.array([np.median(bend[start::BLOCK]) for start in range(min(BLOCK, len(bend)))])
        ratios.append((sums.max() + _LEAST) / (np.median(sums) + _LEAST))
    return float(np.log(np.mean(ratios)))


def spectrum_peak(grey: Plane) -> float:
    """Return the logarithm of the highest spectral peak over its ring's median, at 0.1 to 0.5 cycles per pixel."""
    window = np.hanning(len(grey)).astype(np.float32)
    spectrum = np.abs(np.fft.rfft2((grey - grey.mean()) * window[:, None] * window[None, :]))
    down, across = np.fft.fftfreq(len(grey))[:, None], np.fft.rfftfreq(len(grey))[None, :]
    frequency = np.hypot(down, across)
    rings = (frequency * min(2 * RINGS, len(grey) // 2)).astype(int)
    typical = np.array([np.median(spectrum[rings == ring]) for ring in range(rings.max() + 1)])
    ratio = spectrum / (typical[rings] + _LEAST)
    return float(np.log(ratio[(frequency >= 0.1) & (frequency <= 0.5)].max() + _LEAST))
