"""A training step over many identities with a sampled softmax: does its time or its memory grow with them?

A step is all that a site does with the centres: draw classes, forward and backward through CosFace, and a step of SGD
with momentum and weight decay. Each number of identities is measured in a process of its own; its memory is what it
used at most above what the centres themselves take: their momentum is as large as they are, a gradient of all would be
that again.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.measurement import Measurement, processor_seconds
from fedvisage.nn.losses.cosface import cosface
from fedvisage.nn.partial import Sampler
from fedvisage.runs.directory import peak_rss_mb

DIMENSION, FEATURES, SAMPLED, STEPS = 512, 64, 1_000, 20
CHILD = "import sys; from benchmarks.softmax import steps; print(*steps(*map(int, sys.argv[1:])))"


def measure(cache: Path, counts: tuple[int, ...] = (10_000, 100_000, 1_000_000)) -> Measurement:
    """Time steps over sampled classes as identities grow, beside one over all of the fewest."""
    whole, whole_memory = _apart(counts[0], 0)
    sampled = [_apart(count, SAMPLED) for count in counts]
    said = ", ".join(
        f"{1000 * seconds:.1f} ms and {memory:.0f} MiB at {count:,}"
        for count, (seconds, memory) in zip(counts, sampled, strict=True)
    )
    (first, _), (last, memory) = sampled[0], sampled[-1]
    return Measurement(
        f"step of CosFace and SGD over {SAMPLED:,} sampled classes as identities grow ({FEATURES} features): processor "
        "time, and memory beside the centres",
        "≤ 2 times as long at a hundred times the identities; ≤ 1.1 times the centres",
        f"{said}; over all {counts[0]:,}: {1000 * whole:.1f} ms and {whole_memory:.0f} MiB",
        last <= 2 * first and memory <= 1.1 * _centres_mb(counts[-1]),
    )


def steps(identities: int, sampled: int) -> tuple[float, float]:
    """Return the median processor time of a step after the first, and the memory that steps took, in MiB."""
    centres = nn.Parameter(torch.randn(identities, DIMENSION, generator=torch.Generator().manual_seed(0)))
    features = torch.randn(FEATURES, DIMENSION, requires_grad=True)
    optimizer = torch.optim.SGD([centres], lr=0.1, momentum=0.9, weight_decay=5e-4)
    rng = np.random.default_rng(0)
    sampler = Sampler(optimizer, [centres], sampled, rng) if sampled else None
    before, times = peak_rss_mb(), list[float]()

    def step(labels: torch.Tensor) -> None:
        rows, own = (centres, labels) if sampler is None else sampler.of(labels)[:2]
        optimizer.zero_grad(set_to_none=True)
        cosface(features, rows, own).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(STEPS):
        labels = torch.from_numpy(rng.integers(0, identities, FEATURES))
        times.append(processor_seconds(lambda labels=labels: step(labels)))  # type: ignore[misc]
    return statistics.median(times[1:]), peak_rss_mb() - before


def _apart(identities: int, sampled: int) -> tuple[float, float]:
    said = subprocess.check_output([sys.executable, "-c", CHILD, str(identities), str(sampled)], text=True)
    seconds, memory = said.split()
    return float(seconds), float(memory)


def _centres_mb(identities: int) -> float:
    return identities * DIMENSION * 4 / 2**20
