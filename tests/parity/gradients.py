"""Gradients of losses, by torch and by central differences."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


def value_and_gradients(loss: Tensor, *inputs: Tensor) -> tuple[float, list[Array]]:
    return loss.item(), [gradient.numpy() for gradient in torch.autograd.grad(loss, inputs)]


def gradient_by_differences(function: Callable[[Array], float], point: Array) -> Array:
    gradient = np.zeros_like(point)
    for place in np.ndindex(point.shape):
        step = np.zeros_like(point)
        step[place] = 1e-6
        gradient[place] = (function(point + step) - function(point - step)) / 2e-6
    return gradient


def unit(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
