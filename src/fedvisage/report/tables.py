"""Tables of a report: rows of named cells, written as Markdown or as HTML. Names in cells are not trusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

MISSING = "–"


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
    """Make a table of dictionaries; `columns` maps keys to titles, and absent values become a dash."""
    cells = tuple(tuple(text(row.get(key)) for key in columns) for row in rows)
    return Table(caption, tuple(columns.values()), cells, names, note)


def text(value: Any) -> str:
    """Return a cell's text: figures come formatted, whole numbers get thin spaces, None is a dash."""
    if value is None:
        return MISSING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}".replace(",", "\u202f")
    return str(value)


def percent(value: float | None, bounds: Sequence[float] | None = None) -> str:
    """Return a share as per cent with two decimals, and its interval if there is one."""
    if value is None:
        return MISSING
    interval = f" [{100 * bounds[0]:.2f}, {100 * bounds[1]:.2f}]" if bounds else ""
    return f"{100 * value:.2f}{interval}"


def size(count: float | None) -> str:
    """Return a number of bytes in the unit that suits it (powers of 1000)."""
    if count is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def markdown(content: Table) -> str:
    """Write a table in Markdown; pipes and line ends in cells are made harmless."""
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
    return Markup(
        '<div class="scroll"><table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>{}'
    ).format(content.caption, head, body, note)


def _cell(tag: str, index: int, cell: str, content: Table) -> Markup:
    style = Markup(' class="figure"') if index >= content.names else Markup("")
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), style, escape(cell))


def _inline(cell: str) -> str:
    harmless = str(cell).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
    return " ".join(harmless.split())
