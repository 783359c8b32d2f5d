"""Random numbers per image, named by what they are for.

Every image has its own seed, and every quantity its own stream below that seed. So an image does not depend on what
else is in its batch, nor on which quantities were drawn before: adding a parameter leaves all other draws as they are.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedvisage.streams import derive, torch_rng

Range = tuple[float, float]


def unit(seeds: Sequence[int], name: str) -> Tensor:
    """Return one number in [0, 1) for each seed."""
    drawn = {seed: derive(seed, name) / 2.0**63 for seed in set(seeds)}  # frames of a video share its seed
    return torch.tensor([drawn[seed] for seed in seeds], dtype=torch.float64).float()


def between(seeds: Sequence[int], name: str, ranges: Sequence[Range] | Range) -> Tensor:
    """Return one number for each seed, uniform in its range (one range for all, or one per seed)."""
    bounds = torch.tensor(ranges, dtype=torch.float32).expand(len(seeds), 2)
    return bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * unit(seeds, name)


def bell(seeds: Sequence[int], name: str) -> Tensor:
    """Return one standard normal number for each seed."""
    radius = torch.sqrt(-2 * torch.log1p(-unit(seeds, f"{name}/radius").double()))
    return (radius * torch.cos(2 * math.pi * unit(seeds, f"{name}/angle").double())).float()


def field(seeds: Sequence[int], name: str, *shape: int) -> Tensor:
    """Return one standard normal array of this shape for each seed."""
    return torch.stack([torch.randn(shape, generator=torch_rng(seed, name)) for seed in seeds])


def column(values: Tensor) -> Tensor:
    """Shape numbers, one per image, so that they multiply B×C×H×W images."""
    return values[:, None, None, None]
