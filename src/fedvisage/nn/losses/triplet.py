"""The triplet loss over all triplets of a batch, with the squared distances of features of unit length."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def triplet(features: Tensor, classes: Tensor, margin: float) -> Tensor:
    """Return the mean of ‖a − p‖² − ‖a − n‖² + margin over the triplets where this is positive; 0 without any.

    a and p are features of two images of a class, n those of an image of another class, all scaled to unit length.
    """
    units = normalize(features)
    distances = 2 - 2 * units @ units.T
    same = classes[:, None] == classes
    positive = same & ~torch.eye(len(classes), dtype=torch.bool, device=classes.device)
    # Anchors × positives × negatives.
    violations = (distances[:, :, None] - distances[:, None, :] + margin).clamp_min(0)
    violations = violations * (positive[:, :, None] & ~same[:, None, :])
    return violations.sum() / (violations > 0).sum().clamp_min(1)
