"""Two neighbouring data sets, which differ in the group of the last identity."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def two_groups(extra: int) -> Tensor:
    """Return 512 vectors at 0.2 rad around e₁, 512 around e₂, and one more of the group that ``extra`` names."""
    axes = torch.eye(512, dtype=torch.float64)
    aside = math.sin(0.2) * torch.cat([axes[2:258], -axes[2:258]])
    groups = [math.cos(0.2) * axes[number] + aside for number in (0, 1)]
    return torch.cat([*groups, groups[extra][:1]])
