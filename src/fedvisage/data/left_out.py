"""The files that a set's import left out, by reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.base.files import read_json
from fedvisage.base.progress import format_count
from fedvisage.data.prepared import REPORT

COPY = "the same content as"
"""The beginning of the reason against a copy; the other file's name follows."""

REASONS = 5
"""The most frequent reasons that a line names."""


@dataclass(frozen=True)
class LeftOut:
    """The files of an import that its set lacks, by reason, and the presentations without a response, by species.

    The latter are videos, or single pictures, that can be read but show no usable face; None in earlier sets.
    """

    files: int
    reasons: dict[str, int]
    unanswered: dict[str, int] | None = None

    @property
    def count(self) -> int:
        """The number of files that were left out."""
        return sum(self.reasons.values())

    @property
    def line(self) -> str:
        """The numbers of files that count and that do not, with the most frequent reasons."""
        most = sorted(self.reasons.items(), key=lambda entry: (-entry[1], entry[0]))
        shown = [f"{reason} ({count:,})" for reason, count in most[:REASONS]]
        shown += [f"other reasons ({sum(count for _, count in most[REASONS:]):,})"] if len(most) > REASONS else []
        used = f"{self.files - self.count:,} of {format_count(self.files, 'file')} used, {self.count:,} left out"
        return f"{used}{': ' if shown else ''}{', '.join(shown)}"

    @staticmethod
    def of(report: dict[str, Any]) -> LeftOut:
        """Return the account of an import's report; names and sizes in reasons do not count as differences."""
        reasons = Counter(re.sub(rf"(?<=^{COPY}) .*| \([^)]*\)", "", entry["reason"]) for entry in report["skipped"])
        reasons = Counter({f"{name} another file" if name == COPY else name: n for name, n in reasons.items()})
        return LeftOut(report["files"], dict(reasons), report.get("unanswered"))


def read_left_out(directory: Path) -> LeftOut | None:
    """Return the account of a set's import; None for a set that was not imported."""
    path = directory / REPORT
    return LeftOut.of(read_json(path)) if path.is_file() else None
