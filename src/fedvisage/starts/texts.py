"""Embeddings of prompts from a file, as one direction per class."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_tensors
from fedvisage.nn.text_head import CLASSES

OPTION = "--texts"
LARGEST = 64 << 20
"""Bytes of a file: thousands of prompts."""


def read_directions(path: Path) -> Tensor:
    """Return the directions of attack and live: the means of their prompts' embeddings, at unit length.

    The means are of the embeddings as they are, as in FLIP's released code.
    """
    if not path.is_file():
        raise UserError(OPTION, f"{path} does not exist; give a safetensors file with tensors attack and live")
    if (size := path.stat().st_size) > LARGEST:
        raise UserError(OPTION, f"{path} has {size:,} bytes; embeddings of prompts have {LARGEST:,} at most")
    tensors, _ = read_tensors(path)
    if tensors.keys() != set(CLASSES):
        names = ", ".join(sorted(tensors)[:4]) or "none"
        raise UserError(OPTION, f"{path} must have exactly the tensors attack and live, got {names}")
    for name, value in tensors.items():
        if value.ndim != 2 or 0 in value.shape:
            raise UserError(OPTION, f"{path}: {name} must have a row per prompt, got shape {tuple(value.shape)}")
        if not (value.is_floating_point() and bool(torch.isfinite(value).all())):
            raise UserError(OPTION, f"{path}: {name} has values that are not finite numbers; compute it again")
    widths = [tensors[name].shape[1] for name in CLASSES]
    if len({*widths}) > 1:
        raise UserError(OPTION, f"{path}: embeddings of attack and live have lengths {widths[0]} and {widths[1]}")
    means = torch.stack([tensors[name].double().mean(dim=0) for name in CLASSES])
    if bool((means.norm(dim=1) < 1e-6).any()):
        raise UserError(OPTION, f"{path}: the embeddings of a class add up to zero, which has no direction")
    directions = normalize(means)
    if float(directions[0] @ directions[1]) > 1 - 1e-9:
        raise UserError(OPTION, f"{path}: attack and live have the same direction, which separates no images")
    return directions.float()
