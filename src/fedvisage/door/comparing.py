"""Runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.door.runs import Run
from fedvisage.report.compare import Comparison, as_values
from fedvisage.report.compare import compare as compared
from fedvisage.report.side_by_side import as_text


@dataclass(frozen=True)
class Comparisons:
    """A comparison: mean ± std over seeds, and differences to the first group with t intervals over targets."""

    rows: tuple[Comparison, ...]

    def values(self) -> list[dict[str, Any]]:
        """Return all figures as plain values."""
        return as_values(self.rows)

    def __str__(self) -> str:
        """Return the tables as Markdown."""
        return as_text(self.rows)

    def _repr_markdown_(self) -> str:
        return as_text(self.rows)


def compare(runs: Sequence[Run | str | Path]) -> Comparisons:
    """Compare finished runs."""
    return Comparisons(tuple(compared([one.directory if isinstance(one, Run) else Path(one) for one in runs])))
