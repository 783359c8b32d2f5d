"""Mutations of text files, and replacements of files by other objects."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from campaigns.hostile.case import pick
from campaigns.hostile.guard import SECRET
from campaigns.hostile.recipes import NUMBERS, TEXTS, branches

SCRIPTS = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</svg><script>", "javascript:alert(1)")
DEEP = "[" * 50_000
WORDS = (*TEXTS, *SCRIPTS, "\ud800", "NaN", "-Infinity")
LINES = (
    "",
    "{}",
    "[]",
    "null",
    "{",
    '{"round": NaN}',
    "7",
    '{"a": 1e999}',
    DEEP,
    "\x00",
    "\x1b[2J",
    ",,,,",
    '"',
    "a" * 200_000,
)


def is_small(path: Path) -> bool:
    """Return whether a path is a regular file that can be read whole."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 26


def replace_file(path: Path, draws: np.random.Generator) -> str:
    """Replace a file by a directory, a link, a pipe, a sparse file or an unreadable file."""
    way = pick(draws, ("missing", "empty", "directory", "link out", "loop", "pipe", "hole", "locked", "cut", "device"))
    data = path.read_bytes()
    if way == "hole":
        with path.open("r+b") as file:
            file.truncate(1 << int(draws.integers(32, 44)))
        return way
    if way == "locked":
        path.chmod(0)
        return way
    path.unlink()
    if way == "empty":
        path.touch()
    elif way == "directory":
        path.mkdir()
    elif way == "link out":
        path.symlink_to(secret_path(path))
    elif way == "loop":
        path.symlink_to(path.name)
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "cut":
        path.write_bytes(data[: int(draws.integers(len(data) + 1))])
    elif way == "device":
        path.symlink_to("/dev/zero")
    return way


def secret_path(path: Path) -> Path:
    """Return a sentinel file outside of the case's directory."""
    place = next(parent for parent in path.parents if parent.name in ("place", "prepared"))
    return place.parent / SECRET / "secret.txt"


def mutate_json(text: str, draws: np.random.Generator) -> tuple[str, str]:
    """Change some values of a JSON tree, or its text."""
    if draws.random() < 0.2:
        return mutate_lines(text, draws)
    tree = json.loads(text)
    changes = []
    for _ in range(int(draws.integers(1, 3))):
        options = list(branches(tree))
        if not options:
            break
        node, key = pick(draws, options)
        way, value = _mutate_value(node[key], draws)
        if way == "left out":
            del node[key]
        elif way == "key" and isinstance(node, dict):
            node[str(pick(draws, WORDS))] = node.pop(key)
        else:
            node[key] = value
        changes.append(f"{key} {way}")
    try:
        return ", ".join(changes), json.dumps(tree)
    except ValueError:  # too many digits
        return "nothing", text


def _mutate_value(old: Any, draws: np.random.Generator) -> tuple[str, Any]:
    way = pick(draws, ("number", "number", "text", "left out", "form", "key", "deep", "near"))
    if way == "number":
        return way, pick(draws, [number for number in NUMBERS if not isinstance(number, int) or number < 10**300])
    if way == "text":
        return way, pick(draws, WORDS)
    if way == "form":
        return way, pick(draws, ([], {}, None, [[]], {"": ""}, [None], ["a"] * 1000))
    if way == "deep":
        value = old
        for _ in range(int(draws.integers(1, 120))):
            value = {"a": value} if draws.random() < 0.5 else [value]
        return way, value
    if way == "near" and isinstance(old, int | float):
        return way, old * pick(draws, (-1, 2, 1000)) + pick(draws, (0, 1))
    return way, str(old)[::-1]


def mutate_lines(text: str, draws: np.random.Generator) -> tuple[str, str]:
    """Change one line of a text, or their order."""
    lines, way = text.split("\n"), pick(draws, ("line", "twice", "gone", "cut line", "cut", "letters", "value", "swap"))
    at, other = int(draws.integers(len(lines))), int(draws.integers(len(lines)))
    if way == "line":
        lines.insert(at, pick(draws, LINES))
    elif way == "twice":
        lines.insert(at, lines[at])
    elif way == "gone":
        del lines[at]
    elif way == "cut line":
        lines[at] = lines[at][: int(draws.integers(len(lines[at]) + 1))]
    elif way == "cut":
        return way, text[: int(draws.integers(len(text) + 1))]
    elif way == "letters":
        raw = list(lines[at] or "x")
        for _ in range(int(draws.integers(1, 4))):
            raw[int(draws.integers(len(raw)))] = chr(int(draws.integers(1, 300)))
        lines[at] = "".join(raw)
    elif way == "value":
        try:
            row = json.loads(lines[at])
            key = pick(draws, sorted(row))
            row[key] = _mutate_value(row[key], draws)[1]
            lines[at] = json.dumps(row)
        except (ValueError, TypeError, AttributeError):
            return "nothing", text
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return way, "\n".join(lines)


def mutate_table(text: str, draws: np.random.Generator) -> tuple[str, str]:
    """Change a cell of a table, or its lines."""
    if draws.random() < 0.4:
        return mutate_lines(text, draws)
    lines = text.split("\n")
    at = int(draws.integers(len(lines)))
    cells = lines[at].split(",")
    cell = int(draws.integers(len(cells)))
    values = (
        "nan",
        "inf",
        "-1",
        "2",
        "1e400",
        "\x1b[2J",
        "",
        "../../x",
        "9" * 5000,
        "\ud800",
        "é",
        '"',
        "/etc/passwd",
        *SCRIPTS,
    )
    cells[cell] = str(pick(draws, values))
    if draws.random() < 0.2:
        cells.append("more")
    lines[at] = ",".join(cells)
    return f"cell {cell}", "\n".join(lines)
