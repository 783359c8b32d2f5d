"""Tables: rows of named cells, written as Markdown, HTML, CSV or LaTeX. Cell texts are untrusted and escaped."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

MISSING = "–"
SPREAD = " ± "
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "–": "--",
    "ε": r"$\varepsilon$",
    "λ": r"$\lambda$",
    "ρ": r"$\rho$",
    "φ": r"$\varphi$",
    "δ": r"$\delta$",
    "Φ": r"$\Phi$",
    "Ŵ": r"$\hat W$",
}
"""Characters that LaTeX interprets or names differently."""
NARROW = 40
"""Number of letters that fit a phone's screen; wider tables become cards there."""
NAME, GAP = 16, 2


@dataclass(frozen=True)
class Table:
    """A caption, column titles, and rows of finished text; columns after `names` hold figures."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1
    note: str = ""


def table(
    caption: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    names: int = 1,
    note: str = "",
) -> Table:
    """Make a table from dictionaries; `columns` maps keys to titles, and absent values become a dash."""
    cells = tuple(tuple(text(row.get(key)) for key in columns) for row in rows)
    return Table(caption, tuple(columns.values()), cells, names, note)


def text(value: Any) -> str:
    """Return a cell's text: strings unchanged, whole numbers with thin spaces, None as a dash."""
    if value is None:
        return MISSING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}".replace(",", "\u202f")
    return str(value)


def percent(value: float | None, bounds: Sequence[float] | None = None) -> str:
    """Return a share as per cent with two decimals, followed by its interval if there is one."""
    if value is None:
        return MISSING
    interval = f" [{100 * bounds[0]:.2f}, {100 * bounds[1]:.2f}]" if bounds else ""
    return f"{100 * value:.2f}{interval}"


def size(count: float | None) -> str:
    """Return a number of bytes in a suitable unit (powers of 1000)."""
    if count is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def markdown(content: Table) -> str:
    """Write a table in Markdown; pipes and line ends in cells are escaped."""
    rule = ["---"] * content.names + ["---:"] * (len(content.columns) - content.names)
    lines = [f"**{_inline(content.caption)}**", ""] if content.caption else []
    lines += [f"| {' | '.join(map(_inline, row))} |" for row in (content.columns, rule, *content.rows)]
    return "\n".join([*lines, *(["", _inline(content.note)] if content.note else []), ""])


def html(content: Table) -> Markup:
    """Write a table in HTML with every text escaped."""
    head = Markup("").join(_cell("th", index, title, content) for index, title in enumerate(content.columns))
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(_cell("td", i, cell, content) for i, cell in enumerate(row)))
        for row in content.rows
    )
    note = Markup('<p class="note">{}</p>').format(content.note) if content.note else Markup("")
    wide = Markup(' class="wide"') if width_of(content) > NARROW else Markup("")
    return Markup(
        '<div class="scroll" tabindex="0"><table{}><caption>{}</caption><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>{}"
    ).format(wide, content.caption, head, body, note)


def width_of(content: Table) -> int:
    """Return the approximate width in letters that keeps each figure on one line, and names on a few lines."""
    columns = list(zip(content.columns, *content.rows, strict=True))
    names = [min(NAME, max(map(len, cells))) for cells in columns[: content.names]]
    figures = [max(len(cell) for cell in (*cells[1:], *cells[0].split())) for cells in columns[content.names :]]
    return sum(names) + sum(figures) + GAP * len(columns)


def _cell(tag: str, index: int, cell: str, content: Table) -> Markup:
    """Write a cell; on a phone each row of a wide table is a card, and figures follow their column's title."""
    style = Markup(' class="figure"') if index >= content.names else Markup("")
    title = content.columns[index]
    cell = cell.replace("e-", "e\u2011") if tag == "th" else cell  # 1e-6 is one word
    label = Markup(' data-title="{}"').format(title) if tag == "td" and index > 0 and title else Markup("")
    return Markup("<{0}{1}{2}>{3}</{0}>").format(Markup(tag), style, label, escape(cell))


def _inline(cell: str) -> str:
    harmless = str(cell).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
    return " ".join(harmless.split())


def as_csv(content: Table) -> str:
    """Write a table as CSV of plain numbers: means and deviations in separate columns, missing values empty."""
    spread = [any(SPREAD in row[at] for row in content.rows) for at in range(len(content.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            name
            for title, two in zip(content.columns, spread, strict=True)
            for name in ([title, f"{title}, standard deviation"] if two else [title])
        ]
    )
    for row in content.rows:
        cells: list[str] = []
        for cell, two in zip(row, spread, strict=True):
            mean, _, deviation = ("" if cell == MISSING else cell).partition(SPREAD)
            cells += [mean, deviation] if two else [mean]
        writer.writerow(cells)
    return out.getvalue()


def as_latex(content: Table) -> str:
    """Write a table as a LaTeX tabular, without caption and label."""
    columns = "l" * content.names + "r" * (len(content.columns) - content.names)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", _latex_row(content.columns), r"\hline"]
    return "\n".join([*lines, *map(_latex_row, content.rows), r"\hline", r"\end{tabular}", ""])


def _latex_row(cells: Sequence[str]) -> str:
    special = re.compile("|".join(map(re.escape, LATEX)))
    return " & ".join(special.sub(lambda match: LATEX[match[0]], cell) for cell in cells) + r" \\"
