"""Draws docs/pictures/demo.svg, a terminal with the output of a real ``fedvisage demo``.

``fedvisage demo 2>&1 | python -m docs.recording -`` stores the lines of a run in docs/pictures/demo.txt and draws them.
Without an argument the stored lines are drawn again, as ``make reference`` does.

Stored are the lines about each step and each method, and the paths of FedPAD's and FedFR's reports. The lines on speed
differ from run to run, and the tables repeat the figures; both are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from docs.drawings import FOLDER

STORED = FOLDER / "demo.txt"
COMMAND = "fedvisage demo"
KEPT = re.compile(r"Rendering .*|At the same time, .*|\d+/\d+ .*|report: .*/fed(?:pad-M|fr)-[^/]*/report\.html")
"""The lines of a run that are stored."""
COLUMNS, CELL, LINE, MARGIN, BAR = 72, 7.8, 21, 20, 36
"""Columns of the terminal; width of a character, height of a line, margin and title bar in pixels."""
INDENT = 2
"""Spaces in front of what continues a line."""
TYPING, STEP = 0.4, 0.3
"""Seconds until the first line appears, and between lines."""
STYLE = """\
.paper{fill:#f6f8fa;stroke:#b0bec5}.bar{fill:#e3e8eb}.ink{fill:#1c2529}.soft{fill:#50616a}.mark{fill:#1d5f9c}
.dot{fill:#b0bec5}
@media (prefers-color-scheme:dark){.paper{fill:#161b1e;stroke:#546e7a}.bar{fill:#272f33}.ink{fill:#eceff1}
.soft{fill:#b0bec5}.mark{fill:#7cc0f5}.dot{fill:#546e7a}}
text{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace;font-size:13px;
white-space:pre}
.name{font-weight:700}
@media (prefers-reduced-motion:no-preference){.later{animation:appear .2s both}}
@keyframes appear{from{opacity:0}}
"""
RESULT = re.compile(r"(?P<soft>\d+/\d+ +)(?P<name>.+?)(?P<rest> +target.*?)(?P<mark>hter \S+.*|)$")
"""A line about one method: its number, its name, where it was evaluated, and its error rates."""


def lines_of(output: str) -> list[str]:
    """Return the lines of a run's output that are stored."""
    return [line.rstrip() for line in output.splitlines() if KEPT.fullmatch(line.rstrip())]


def folded(line: str) -> list[str]:
    """Break a line that is wider than the terminal between its words."""
    parts = [""]
    for word in re.findall(r"\s*\S+", line):
        if len(parts[-1] + word) <= COLUMNS:
            parts[-1] += word
        else:
            parts.append(" " * INDENT + word.lstrip())
    return parts


def pieces(line: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a line with the class of each."""
    if found := RESULT.fullmatch(line):
        yield "soft", found["soft"]
        yield "ink name", found["name"]
        yield "ink", found["rest"]
        yield "mark", found["mark"]
    elif line.startswith("report:"):
        yield "soft", "report:"
        yield "ink", line.removeprefix("report:")
    else:
        yield "soft", line


def drawn(parts: Iterator[tuple[str, str]], y: int) -> Iterator[str]:
    """Yield the texts of a line; each has the width that its columns have, in whatever font."""
    column = 0
    for kind, said in parts:
        text = said.strip()
        if text:
            x = MARGIN + CELL * (column + len(said) - len(said.lstrip()))
            width = f'textLength="{CELL * len(text):.1f}" lengthAdjust="spacingAndGlyphs"'
            yield f'<text class="{kind}" x="{x:.1f}" y="{y}" {width}>{escape(text)}</text>'
        column += len(said)


def svg(stored: str) -> str:
    """Return the picture of the stored lines; one after another appears, unless the reader wants no motion."""
    said = stored.splitlines()
    width = round(2 * MARGIN + CELL * COLUMNS)
    y, shapes = BAR + 28, [*drawn(iter([("soft", "$ "), ("ink name", COMMAND)]), BAR + 28)]
    for number, line in enumerate(said):
        texts = []
        for part in folded(line):
            y += LINE
            texts += [*drawn(pieces(part), y)]
        shapes.append(f'<g class="later" style="animation-delay:{TYPING + STEP * number:.1f}s">{"".join(texts)}</g>')
    height = y + 22
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    title = f"<title>{escape('A terminal: ' + COMMAND)}</title>"
    box = f'x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"'
    dots = "".join(f'<circle class="dot" cx="{MARGIN + 18 * number}" cy="{BAR // 2}" r="5"/>' for number in range(3))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{title}<style>{STYLE}</style>',
            f'<rect class="paper" {box}/><path class="bar" d="M1 {BAR}V10q0-9 9-9H{width - 10}q9 0 9 9V{BAR}z"/>{dots}',
            *shapes,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Store the lines of a run, if its output is given as a file or ``-``, and draw what is stored."""
    for name in sys.argv[1:2]:
        output = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        STORED.write_text("\n".join([*lines_of(output), ""]), encoding="utf-8")
    (FOLDER / "demo.svg").write_text(svg(STORED.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
