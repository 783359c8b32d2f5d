"""What a panel does to light: its primaries, and the bands of a dimmed back-light."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Chromaticities = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
D65 = (0.3127, 0.3290)
SRGB: Chromaticities = ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060))
P3: Chromaticities = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060))
OFFICE: Chromaticities = ((0.590, 0.345), (0.325, 0.560), (0.153, 0.110))
"""A plain laptop's panel, which has somewhat more than half of sRGB's triangle."""


def to_xyz(primaries: Chromaticities, white: tuple[float, float] = D65) -> NDArray[np.float64]:
    """Return the matrix from linear RGB of these primaries to CIE XYZ, white having Y = 1."""
    columns = np.array([[x / y, 1, (1 - x - y) / y] for x, y in primaries]).T
    target = np.array([white[0] / white[1], 1, (1 - white[0] - white[1]) / white[1]])
    return np.asarray(columns * np.linalg.solve(columns, target))


def between_primaries(shown: Chromaticities, seen: Chromaticities = SRGB) -> Tensor:
    """Return the matrix by which RGB meant for a panel is seen by a camera of other primaries; white stays white."""
    return torch.from_numpy(np.linalg.solve(to_xyz(seen), to_xyz(shown))).float()


_PANELS = tuple(between_primaries(panel) for panel in (OFFICE, SRGB, P3))


def on_panel(light: Tensor, gamut: Tensor) -> Tensor:
    """Return linear light, B×3×H×W, as a panel shows it that does not manage colours: 0 office, 1 sRGB, 2 wide."""
    small, plain, wide = _PANELS
    below, above = gamut.clamp(0, 1)[:, None, None], (gamut - 1).clamp(0, 1)[:, None, None]
    matrix = torch.lerp(torch.lerp(small, plain, below), wide, above)
    return torch.einsum("bij,bjhw->bihw", matrix, light).clamp_min(0)


def band_strength(depth: Tensor, frequency: Tensor, exposure: Tensor) -> Tensor:
    """Return the amplitude of bands from a back-light that is dimmed at a frequency, exposed for so long a line.

    An exposure averages the light: what is left is |sinc|, nothing where it lasts whole periods.
    """
    return depth * torch.sinc(frequency * exposure).abs()
