"""A comparison as tables: wide ones for Markdown, one row per group; narrow ones for terminals, one row per figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fedvisage.report.compare import (
    FEWEST_SEEDS,
    HOLDS,
    NOT_SHOWN,
    OTHER_WAY,
    Columns,
    Comparison,
    Difference,
    Figure,
    tables_by_model,
)
from fedvisage.report.tables import Table, markdown, table

INTERVAL = (
    "95 % t interval over targets; the seeds of a target share its data and are averaged first. Verdict on “better than"
    f" {{first}}”: {HOLDS}, {NOT_SHOWN} or {OTHER_WAY}."
)
OVER_SEEDS = (
    "“over seeds”: 95 % t interval over the seeds of one target, which share its data. It covers chance in training, "
    "not other targets, so there is no verdict."
)
WITHOUT = f"A difference without interval is over one target and fewer than {FEWEST_SEEDS} seeds."
GAP = 3  # between columns on a terminal
LABEL_WIDTH = 16  # longer labels are broken into lines


def as_text(rows: Sequence[Comparison]) -> str:
    """Return a comparison as Markdown."""
    remarks = "\n".join(f"- {line}" for line in (*legend(rows), *notes(rows)))
    return "\n".join([*map(markdown, tables(rows)), *([remarks, ""] if remarks else [])])


def legend(rows: Sequence[Comparison]) -> list[str]:
    """Return one line per shortened label, with the settings that it leaves out."""
    return [f"{row.label}: {row.stands_for}" for row in rows if row.stands_for]


def notes(rows: Sequence[Comparison]) -> list[str]:
    """Return the notes on the runs, each once."""
    return list(dict.fromkeys(note for row in rows for note in row.notes))


def tables(rows: Sequence[Comparison]) -> list[Table]:
    """Return the comparison as wide tables: the figures, and the paired differences if there are any."""
    return [sheet for about, columns in _tables_by_model(rows) for sheet in _wide(rows, about, columns)]


def in_form(rows: Sequence[Comparison], write: Callable[[Table], str]) -> str:
    """Return the tables of figures, one per model, as ``as_csv`` or ``as_latex`` writes them."""
    return "\n".join(write(_wide(rows, about, columns)[0]) for about, columns in _tables_by_model(rows))


def _wide(rows: Sequence[Comparison], about: str, columns: Columns) -> list[Table]:
    titles = {"label": "method", "runs": "runs", "targets": "targets", "seeds": "seeds"}
    figures = [_group(row) | {name: _figure(figure) for name, figure in row.figures.items()} for row in rows]
    caption = _about(about, "Mean ± standard deviation over seeds")
    wide_tables = [table(caption, figures, titles | columns)]
    differences = [
        {"label": row.label, **counts_of(gaps.values())}
        | {name: difference_cell(difference) for name, difference in gaps.items()}
        for row in rows
        if (gaps := _of(row, columns))
    ]
    if differences:
        titles = {"label": "method", "targets": "targets", "seeds": "seeds"}
        caption, note = _about(about, _difference_to(rows)), _note(rows, columns)
        wide_tables.append(table(caption, differences, titles | columns, note=note))
    return wide_tables


def narrow(rows: Sequence[Comparison], width: int) -> list[Table]:
    """Return the comparison as tables that fit a terminal, with as many groups per table as the width allows."""
    titles = {"label": "method", "runs": "runs", "targets": "evaluated on", "seeds": "seeds"}
    narrow_tables = [table("Runs", [_group(row) for row in rows], titles)]
    for about, columns in _tables_by_model(rows):
        for chunk in _split_to_fit(rows, columns, width):
            cells = [
                {"figure": title} | {str(i): _figure(row.figures[name]) for i, row in chunk if name in row.figures}
                for name, title in columns.items()
            ]
            labels = {str(index): row.label for index, row in chunk}
            narrow_tables.append(
                table(_about(about, "Mean ± standard deviation over seeds"), cells, {"figure": ""} | labels)
            )
        for row in rows:
            if gaps := _of(row, columns):
                narrow_tables.append(_differences(row.label, _about(about, _difference_to(rows)), gaps, columns))
    if any(row.differences for row in rows):
        narrow_tables[-1] = replace(narrow_tables[-1], note=_note(rows))  # once, for all of them
    return narrow_tables


def _differences(label: str, caption: str, here: dict[str, Difference], columns: Columns) -> Table:
    cells = [
        {
            "figure": columns[name],
            "mean": f"{100 * gap.mean:+.2f}",
            "interval": _interval(gap, 100) or None,
            "verdict": gap.verdict,
        }
        for name, gap in here.items()
    ]
    titles = {"figure": label, "mean": "difference", "interval": "95 % interval", "verdict": "verdict"}
    counts = [
        f"{count} {noun.removesuffix('s') if count == '1' else noun}"
        for noun, count in counts_of(here.values()).items()
    ]
    return table(f"{caption}, over {', '.join(counts)}", cells, titles)


def _split_to_fit(rows: Sequence[Comparison], columns: Columns, width: int) -> Iterable[list[tuple[int, Comparison]]]:
    """Split groups into tables of at most the given width."""
    texts = [_figure(figure) for row in rows for name, figure in row.figures.items() if name in columns]
    each = max(LABEL_WIDTH, *map(len, texts)) if texts else LABEL_WIDTH
    room = max(1, (width - max(map(len, columns.values()), default=0) - GAP) // (each + GAP))
    numbered = list(enumerate(rows))
    return [numbered[start : start + room] for start in range(0, len(numbered), room)]


def _tables_by_model(rows: Sequence[Comparison]) -> list[tuple[str, Columns]]:
    return tables_by_model({name for row in rows for name in row.figures})


def _group(row: Comparison) -> dict[str, object]:
    return {
        "label": row.label,
        "runs": row.runs,
        "targets": ", ".join(row.targets),
        "seeds": ", ".join(map(str, row.seeds)),
    }


def _of(row: Comparison, columns: Columns) -> dict[str, Difference]:
    return {name: row.differences[name] for name in columns if name in row.differences}


def counts_of(differences: Iterable[Difference]) -> dict[str, str]:
    """Return the number of targets behind each difference, and the smallest number of seeds per target, as ranges."""
    gaps = list(differences)
    return {"targets": _range(gap.targets for gap in gaps), "seeds": _range(gap.seeds for gap in gaps)}


def _range(numbers: Iterable[int]) -> str:
    counts = sorted(set(numbers))
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"


def explain_differences(differences: Iterable[Difference], first: str) -> str:
    """Explain intervals, verdicts and dashes, as far as they occur."""
    explanations = {"targets": INTERVAL.format(first=first), "seeds": OVER_SEEDS, "": WITHOUT}
    occurring = {gap.over for gap in differences}
    return " ".join(text for over, text in explanations.items() if over in occurring)


def _note(rows: Sequence[Comparison], columns: Columns | None = None) -> str:
    gaps = [gap for row in rows for name, gap in row.differences.items() if columns is None or name in columns]
    return explain_differences(gaps, rows[0].label)


def _difference_to(rows: Sequence[Comparison]) -> str:
    return f"Difference to {rows[0].label} in percentage points"


def _about(about: str, text: str) -> str:
    """Prefix a caption with the subject of its table, if the comparison has several subjects."""
    return f"{about[0].upper()}{about[1:]}: {text[0].lower()}{text[1:]}" if about else text


def _figure(figure: Figure) -> str:
    spread = "" if figure.std is None else f" ± {100 * figure.std:.2f}"
    return f"{100 * figure.mean:.2f}{spread}"


def difference_cell(gap: Difference, scale: float = 100) -> str:
    """Return a difference with its interval and verdict, as far as it has them."""
    mean = f"{scale * gap.mean:+.2f} {_interval(gap, scale)}".rstrip()
    return f"{mean}, {gap.verdict}" if gap.verdict else mean


def _interval(gap: Difference, scale: float) -> str:
    if gap.low is None or gap.high is None:
        return ""
    return f"[{scale * gap.low:+.2f}, {scale * gap.high:+.2f}]{' over seeds' if gap.over == 'seeds' else ''}"
