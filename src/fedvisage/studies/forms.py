"""A study's table as CSV and LaTeX: made of the Markdown's rows, so that all forms say the same."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from fedvisage.report.tables import Table

NAMES = 3
"""Columns before the figures: method, sites, user."""
SPREAD = " ± "
MISSING = "–"
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "ε": r"$\varepsilon$",
    "λ": r"$\lambda$", "ρ": r"$\rho$", "φ": r"$\varphi$", "δ": r"$\delta$", "Φ": r"$\Phi$", "Ŵ": r"$\hat W$",
}  # fmt: skip
"""What LaTeX takes for something else, or has by another name."""


def rows_of(text: str) -> list[list[str]]:
    """Return the titles and rows of a Markdown table, without what makes letters bold."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip().replace("**", "") for cell in line.strip("|").split("|")] for line in lines]


def notes_of(text: str) -> list[str]:
    """Return what stands below a Markdown table."""
    _, _, below = text.rpartition("\n|")
    return [line.removeprefix("- ") for line in below.splitlines()[1:] if line.strip()]


def as_table(text: str) -> Table:
    """Return the Markdown's table for a page."""
    head, *rows = rows_of(text)
    return Table("", tuple(head), tuple(map(tuple, rows)), NAMES)


def as_csv(text: str) -> str:
    """Return numbers alone in cells: a mean and its deviation have a column each, what was not measured is empty."""
    head, *rows = rows_of(text)
    spread = [any(SPREAD in row[at] for row in rows) for at in range(len(head))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for title, two in zip(head, spread, strict=True)
                     for name in ([title, f"{title}, standard deviation"] if two else [title])])  # fmt: skip
    for row in rows:
        writer.writerow([part for cell, two in zip(row, spread, strict=True) for part in _parts(cell, two)])
    return out.getvalue()


def _parts(cell: str, two: bool) -> list[str]:
    known = "" if cell == MISSING else cell
    if not two:
        return [known]
    mean, _, deviation = known.partition(SPREAD)
    return [mean, deviation]


def as_latex(text: str) -> str:
    """Return a tabular; captions and labels are the author's."""
    head, *rows = rows_of(text)
    columns = "l" * NAMES + "r" * (len(head) - NAMES)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", _line(head), r"\hline"]
    return "\n".join([*lines, *map(_line, rows), r"\hline", r"\end{tabular}", ""])


def _line(cells: Sequence[str]) -> str:
    special = re.compile("|".join(map(re.escape, LATEX)))
    return " & ".join(special.sub(lambda found: LATEX[found[0]], cell) for cell in cells) + r" \\"
