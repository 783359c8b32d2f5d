"""Studies: a grid of recipes that makes one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedvisage.datasets.cache import CACHE
from fedvisage.progress import Reporter
from fedvisage.shipped import locate
from fedvisage.studies import conduct
from fedvisage.tasks.checks import Checks


@dataclass(frozen=True)
class Studied:
    """A finished study: where it lies, and its table."""

    directory: Path
    table: dict[str, Any]

    def __str__(self) -> str:
        """Return the table as Markdown."""
        return (self.directory / "table.md").read_text(encoding="utf-8")

    def _repr_markdown_(self) -> str:
        return str(self)


def study(
    path: str | Path,
    *,
    out: str | Path | None = None,
    changes: Sequence[str] = (),
    smoke: bool = False,
    workers: int = 1,
    root: str | Path | None = None,
    sets: str | Path | None = None,
    cache: str | Path = CACHE,
    quiet: bool = False,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
) -> Studied:
    """Run what is missing of a study, a file or a shipped name, and return its table.

    Below ``root`` lie datasets; what lacks is imported into ``sets``. ``allow_mixed_crops`` takes sets that were
    cropped in different ways, ``allow_overlap`` pictures that are at two places, such as a site and the user.
    """
    where = Path(out) if out is not None else Path("runs") / f"{Path(path).stem}{'-smoke' if smoke else ''}"
    say = Reporter(Console(highlight=False), quiet=quiet).say
    file = locate(Path(path), verb="study")
    table = conduct(
        file, where, Path(cache), say, changes=changes, smoke=smoke, workers=workers,
        root=None if root is None else Path(root), sets=None if sets is None else Path(sets),
        checks=Checks(allow_mixed_crops, allow_overlap),
    )  # fmt: skip
    return Studied(where, table)
