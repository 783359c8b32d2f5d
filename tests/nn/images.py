"""Random images for tests of networks."""

import torch
from torch import Generator, Tensor


def random_images(
    count: int = 2, size: int = 32, channels: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw images with values from 0 to 1."""
    return torch.rand(count, channels, size, size, generator=Generator().manual_seed(seed), dtype=dtype)
