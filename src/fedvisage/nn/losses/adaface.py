"""AdaFace: a margin that follows image quality.

M. Kim, A. K. Jain, X. Liu, "AdaFace: Quality Adaptive Margin for Face Recognition", CVPR 2022, §3.3. The length of a
feature stands for the quality of its image. Standardised by running statistics, times h and clipped to [−1, 1], it is
ẑ; the own class gets s·(cos(θ + g_angle) − g_add) with g_angle = −m·ẑ and g_add = m·ẑ + m. That is ArcFace's margin at
ẑ = −1 and CosFace's at ẑ = 0. No gradient flows through ẑ.

How the statistics run (from 20 and 100, a hundredth of each batch) and the limits of lengths and angles are those of
the authors' code.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.nn.losses.cosines import angle, cosines, own, with_own

SHORTEST, LONGEST = 1e-3, 100.0
EDGE = 1e-3  # the angle with its margin stays this far from 0 and π, as in the authors' code


class Lengths(NamedTuple):
    """Running mean and standard deviation of feature lengths."""

    mean: Tensor
    std: Tensor


def initial() -> Lengths:
    """Return the statistics before the first batch."""
    return Lengths(torch.tensor(20.0), torch.tensor(100.0))


def updated(lengths: Lengths, features: Tensor, momentum: float = 0.99) -> Lengths:
    """Return the statistics after a batch: `momentum` of the old ones, the rest from the batch.

    One image has no standard deviation, and leaves it as it was.
    """
    norms = _length(features)
    std = norms.std() if len(norms) > 1 else lengths.std
    return Lengths(
        *(momentum * old + (1 - momentum) * new for old, new in zip(lengths, (norms.mean(), std), strict=True))
    )


def quality(features: Tensor, lengths: Lengths, concentration: float) -> Tensor:
    """Return ẑ of each feature: by how many standard deviations it is longer than the mean, times h, clipped."""
    distance = (_length(features) - lengths.mean) / (lengths.std + EDGE)
    return (distance * concentration).clamp(-1, 1)


def adaface_logits(cosine: Tensor, labels: Tensor, z: Tensor, scale: float, margin: float) -> Tensor:
    """Return s·(cos(θ_y + g_angle) − g_add) for the own class, s·cos θ_j for the others."""
    by_angle, by_addition = -margin * z, margin * z + margin
    turned = (angle(own(cosine, labels)) + by_angle[:, None]).clamp(EDGE, math.pi - EDGE).cos()
    return scale * with_own(cosine, labels, turned - by_addition[:, None])


def adaface(
    features: Tensor,
    centres: Tensor,
    labels: Tensor,
    lengths: Lengths,
    *,
    scale: float = 64.0,
    margin: float = 0.4,
    concentration: float = 0.333,
) -> Tensor:
    """Return the mean loss over the batch for given statistics (`updated` makes them); the defaults are the paper's."""
    z = quality(features, lengths, concentration)
    return cross_entropy(adaface_logits(cosines(features, centres), labels, z, scale, margin), labels)


def _length(features: Tensor) -> Tensor:
    norms: Tensor = features.detach().norm(dim=1)
    return norms.clamp(SHORTEST, LONGEST)
