"""t-SNE: places points in the plane so that neighbours stay neighbours.

L. van der Maaten, G. Hinton, "Visualizing Data using t-SNE", JMLR 9, 2008: the joint probabilities of §3.1, the
gradient of Eq. 5, and momentum, gains and early exaggeration of §3.4.

Deviations from the paper: the start is the first two principal components instead of random numbers, as in
scikit-learn, so that the result repeats itself; learning rate, gains and exaggeration are scikit-learn's. The gradient
is exact, which for a report's hundreds of points takes less time than loading scikit-learn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Points = NDArray[np.float64]

COMPONENTS, PERPLEXITY = 50, 30.0
SPREAD = 1e-4
"""Standard deviation of the start along its first axis."""
EXAGGERATION, EXAGGERATED, STEPS = 12.0, 250, 1000
"""Factor on the joint probabilities in the first steps, their number, and the number of all steps."""
MOMENTUM, FIRST_MOMENTUM = 0.8, 0.5
SLOWEST, LEAST_GAIN = 50.0, 0.01
BISECTIONS = 64


def tsne(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Place points, one per row, in two dimensions.

    One thread only: the threads of a product synchronise at every step, so that other processes on the same cores slow
    down all of them.
    """
    with threadpool_limits(limits=1):
        points = principal_components(values)
        joint = joint_probabilities(points, min(PERPLEXITY, (len(points) - 1) / 3))
        start = points[:, :2] * (SPREAD / (points[:, 0].std() or 1.0))
        return _descend(joint.astype(np.float32), start.astype(np.float32))


def principal_components(values: NDArray[np.float32]) -> Points:
    """Return the first principal components of points; the largest entry of each axis is positive."""
    centred = values - values.mean(axis=0, dtype=np.float64)
    left, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))
    return np.asarray((left * lengths * signs[:, 0])[:, :COMPONENTS])


def joint_probabilities(points: Points, perplexity: float) -> Points:
    """Return p_ij of §3.1; bisection finds the precision with which a point's neighbours have the perplexity."""
    count, squares = len(points), (points**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0)
    # The smallest distance of each row is subtracted, which changes no probability and prevents underflow.
    np.fill_diagonal(distances, np.inf)
    distances -= distances.min(axis=1, keepdims=True)
    low, high, precision = np.zeros(count), np.full(count, np.inf), np.ones(count)
    for _ in range(BISECTIONS):
        weights = np.exp(-precision[:, None] * distances)
        total = weights.sum(axis=1)
        products = weights * np.where(np.isfinite(distances), distances, 0)
        entropy = np.log(total) + precision * products.sum(axis=1) / total
        flat = entropy > np.log(perplexity)
        low, high = np.where(flat, precision, low), np.where(flat, high, precision)
        precision = np.where(np.isfinite(high), (low + high) / 2, 2 * precision)
    conditional = weights / total[:, None]
    return np.asarray((conditional + conditional.T) / (2 * count))


def _descend(joint: NDArray[np.float32], place: NDArray[np.float32]) -> NDArray[np.float32]:
    """Minimise the Kullback-Leibler divergence from the places' similarities q to p by gradient descent."""
    count = len(place)
    rate = np.float32(max(count / EXAGGERATION / 4, SLOWEST))
    step, gains, pull = np.zeros_like(place), np.ones_like(place), joint * np.float32(EXAGGERATION)
    near, force = np.empty_like(joint), np.empty_like(joint)
    ones = np.ones((count, 1), np.float32)
    for number in range(STEPS):
        if number == EXAGGERATED:
            pull = joint
        # near = 1 / (1 + |y_i - y_j|²), with the sum of three terms as one product
        squares = (place**2).sum(axis=1, keepdims=True)
        np.matmul(np.hstack([-2 * place, squares + 1, ones]), np.hstack([place, ones, squares]).T, out=near)
        np.reciprocal(near, out=near)
        np.fill_diagonal(near, 0)
        # force = (p - q) · near; the gradient is 4 Σ_j force_ij (y_i - y_j), Eq. 5
        np.multiply(near, -1 / near.sum(), out=force)
        force += pull
        force *= near
        sums = force @ np.hstack([place, ones])
        gradient = 4 * (sums[:, 2:] * place - sums[:, :2])
        gains = np.maximum(np.where(step * gradient < 0, gains + 0.2, gains * 0.8), LEAST_GAIN)
        step = (MOMENTUM if number >= EXAGGERATED else FIRST_MOMENTUM) * step - rate * gains * gradient
        place = place + step
    return place
