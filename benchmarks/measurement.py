"""What a benchmark returns, and the small sets that they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedvisage.data.sources import resolve


@dataclass(frozen=True)
class Measurement:
    """One claim, what was measured in one run, and whether the bound holds; None where this machine cannot tell."""

    claim: str
    bound: str
    measured: str
    holds: bool | None


def rendered(cache: Path, domain: str, subjects: int, size: int) -> Path:
    """Return a small rendered set."""
    return resolve(f"synth: {domain} subjects={subjects} size={size}", cache, workers=2)
