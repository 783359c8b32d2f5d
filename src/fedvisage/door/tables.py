"""Tables as people look at them: pandas' where it is installed, and a list of rows where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedvisage.federation.record.ledger import read_lines
from fedvisage.metrics.scores import whole_rows


def table(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame, or as they are."""
    if find_spec("pandas") is None:
        return list(rows)
    from pandas import DataFrame

    return DataFrame(rows)


def lines_of(path: Path) -> Any:
    """Return a file of JSON lines as a table; a last line that was cut off is left out."""
    return table(read_lines(path))


def columns_of(path: Path) -> Any:
    """Return a CSV file as a table, with numbers where all of a column are."""
    rows: list[dict[str, Any]] = list(whole_rows(path)[1])
    for column in rows[0] if rows else ():
        for kind in (int, float):
            with suppress(ValueError):
                numbers = [kind(row[column]) for row in rows]
                for row, number in zip(rows, numbers, strict=True):
                    row[column] = number
                break
    return table(rows)
