"""What a benchmark returns, and the small sets that they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedvisage.datasets.sources import resolve


@dataclass(frozen=True)
class Measurement:
    """One claim, what was measured in one run, and whether the bound holds; None where this machine cannot tell."""

    claim: str
    bound: str
    measured: str
    holds: bool | None


def rendered(cache: Path, domain: str, subjects: int, size: int) -> Path:
    """Return a small rendered set."""
    return rendered_line(cache, f"{domain} subjects={subjects} size={size}", workers=2)


def rendered_line(cache: Path, line: str, workers: int = 1) -> Path:
    """Return the rendered set that a line names."""
    return resolve(f"synth: {line}", cache, workers=workers)


def middle(values: Sequence[float], unit: str = "s") -> str:
    """Return a median with the least and the largest value, which say how far it can be believed."""
    return f"{median(values):.3g} {unit} ({min(values):.3g} to {max(values):.3g})"


def in_turn(repeats: int, *works: Callable[[], float]) -> list[list[float]]:
    """Return what each of some works measures, so many times, in turn: what disturbs one disturbs all."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for values, work in zip(found, works, strict=True):
            values.append(work())
    return found


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the processor time that this process takes for some work.

    Other programs on a shared machine disturb it much less than the clock on the wall. Waiting, as for a disk, is not
    in it; with several threads, idle ones that spin are.
    """
    began = time.process_time()
    work()
    return time.process_time() - began
