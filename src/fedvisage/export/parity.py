"""Whether a graph says what torch says: on crops of a prepared set, one at a time and five together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.errors import RunFailed

Crops = NDArray[np.uint8]
Compute = Callable[[Crops], NDArray[np.floating[Any]]]

SCORE, COSINE = 1e-4, 0.9999
"""How far scores, which are probabilities, may be apart; and how near embeddings must be."""

BATCHES = (1, 5)
LEAST = max(BATCHES)


@dataclass(frozen=True)
class Parity:
    """How near graph and torch are for batches of one size: for scores the largest difference, or the least cosine."""

    batch: int
    crops: int
    score_difference: float | None = None
    cosine: float | None = None

    @property
    def holds(self) -> bool:
        """Tell whether they are near enough; what is no number is not."""
        if self.score_difference is not None:
            return self.score_difference <= SCORE
        return self.cosine is not None and self.cosine >= COSINE

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def measure(graph: Compute, torch: Compute, crops: Crops, task: str) -> list[Parity]:
    """Compare a graph with torch, both in batches of one and of five; crops that make no five are left out of those."""
    found = []
    for batch in BATCHES:
        starts = range(0, len(crops) - batch + 1, batch)
        one, other = (np.concatenate([compute(crops[start : start + batch]) for start in starts]).astype(np.float64)
                      for compute in (graph, torch))  # fmt: skip
        if task == "pad":
            with np.errstate(invalid="ignore"):  # what is no number is refused below
                difference = float(np.abs(_probability(one) - _probability(other)).max())
            found.append(Parity(batch, len(one), score_difference=difference))
        else:
            lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
            found.append(Parity(batch, len(one), cosine=float(((one * other).sum(axis=1) / lengths).min())))
    return found


def require(found: list[Parity]) -> None:
    """Refuse a graph that says other things than torch."""
    for one in found:
        if not one.holds:
            said = f"scores differ by {one.score_difference:.2g}" if one.cosine is None else f"cosine {one.cosine:.6f}"
            limit = f"at most {SCORE:g}" if one.cosine is None else f"at least {COSINE:g}"
            raise RunFailed(f"the graph does not say what torch says: {said} in batches of {one.batch}, allowed is "
                            f"{limit}; nothing was written")  # fmt: skip


def _probability(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))
