"""PrivacyFace's clustering: against Algorithm 1 as anybody would write it, and against bare products of blocks."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measurement import Measurement, processor_seconds
from fedvisage.federation.privacy.clustering import BLOCK, ClusteringSettings, densest_clusters
from fedvisage.federation.privacy.mechanisms import Budget

DIMENSION, MARGIN, QUERIES, GROUPS = 512, 1.3, 3, 8
SMALL, LARGE = 7_000, 100_000
CHILD = "import sys; from benchmarks.clustering import densest_memory; print(densest_memory(int(sys.argv[1])))"


def measure(cache: Path, number: int = SMALL) -> Measurement:
    """Time both on the same class centres, and see that they find the same clusters."""
    centres, asked = class_centres(number), asking()
    sizes: list[list[int]] = []
    ours = processor_seconds(lambda: sizes.append([one.size for one in densest_clusters(centres, asked)]))
    theirs = processor_seconds(lambda: sizes.append(direct(centres, asked)))
    if sizes[0] != sizes[1]:
        raise AssertionError(f"sizes differ: {sizes}")
    return Measurement(
        f"clusters of {number:,} class centres against the direct Algorithm 1 (speed)",
        "≥ 3",
        f"{theirs / ours:.2f} ({theirs:.2f} / {ours:.2f} s of processor, Q = {QUERIES}, {DIMENSION} dimensions)",
        theirs / ours >= 3,
    )


def measure_large(cache: Path, number: int = LARGE) -> Measurement:
    """Time against the product of all blocks with all blocks; measure memory in a process of its own."""
    centres = class_centres(number)
    bare = processor_seconds(lambda: products(centres))
    ours = processor_seconds(lambda: densest_clusters(centres, asking()))
    memory = int(subprocess.check_output([sys.executable, "-c", CHILD, str(number)], text=True))
    return Measurement(
        f"clusters of {number:,} class centres against the bare blocked product (time); peak memory",
        "≤ 1.5; < 1 GB",
        f"{ours / bare:.2f} ({ours:.1f} / {bare:.1f} s of processor, Q = {QUERIES}); {memory / 1e6:.0f} MB",
        ours / bare <= 1.5 and memory < 1e9,
    )


def asking() -> ClusteringSettings:
    """Return the paper's settings, with three queries."""
    return ClusteringSettings(MARGIN, QUERIES, minimum=1, budget=Budget(1.0, 1e-5))


def class_centres(number: int) -> Tensor:
    """Return unit vectors in groups, whose members are about the margin apart."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.nn.functional.normalize(torch.randn(GROUPS, DIMENSION, generator=generator), dim=1)
    centres = torch.randn(number, DIMENSION, generator=generator).mul_(1 / math.sqrt(DIMENSION))
    whose = torch.randint(GROUPS, (number,), generator=generator)
    for rows in torch.arange(number).split(BLOCK):  # a copy of all would be the peak of memory
        centres[rows] += 0.6 * groups[whose[rows]]
        centres[rows] /= centres[rows].norm(dim=1, keepdim=True)
    return centres


def direct(centres: Tensor, asked: ClusteringSettings) -> list[int]:
    """Lines 1 to 8 of Algorithm 1 on a whole matrix of angles; return the sizes of the clusters."""
    angles = torch.arccos((centres @ centres.T).clamp(-1, 1))
    left, sizes = torch.arange(len(centres)), []
    for _ in range(asked.queries):
        near = angles[left][:, left] <= asked.margin
        counts = near.sum(dim=1)
        members = left[near[int(counts.numpy().argmax())]]
        sizes.append(len(members))
        mean = centres[members].mean(dim=0)
        covered = torch.arccos((centres[left] @ (mean / mean.norm())).clamp(-1, 1)) <= asked.margin
        left = left[~covered]
    return sizes


def products(centres: Tensor) -> None:
    """Multiply all blocks with all blocks, and drop the products."""
    for rows in torch.split(centres, BLOCK):  # type: ignore[no-untyped-call]
        for columns in torch.split(centres, BLOCK):  # type: ignore[no-untyped-call]
            rows @ columns.T


def densest_memory(number: int) -> int:
    """Return the most bytes that this process ever held, after clustering.

    The kernel's own line for it: what ``getrusage`` tells a child includes its parent, from before the child was
    another program.
    """
    densest_clusters(class_centres(number), asking())
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
