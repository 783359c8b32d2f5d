"""Notebooks as pages: their text, code, and the outputs of their cells."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from docs.website.markdown import ROOT

FOLDER = ROOT / "notebooks"


def paths() -> list[str]:
    """Return the paths of the notebooks in the repository."""
    return [path.relative_to(ROOT).as_posix() for path in sorted(FOLDER.glob("*.ipynb"))]


def pages() -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the pages and their pictures by their paths in the site."""
    pictures: dict[str, bytes] = {}
    texts = {f"tutorials/{path.stem}.md": page(path, pictures) for path in sorted(FOLDER.glob("*.ipynb"))}
    return texts, pictures


def page(path: Path, pictures: dict[str, bytes]) -> str:
    """Return one notebook's page, and add its pictures to ``pictures``."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    blocks: list[str] = []
    for number, cell in enumerate(cells):
        blocks += blocks_of(cell, f"{path.stem}-{number}", pictures)
    blocks.insert(1, f"This page is `notebooks/{path.name}`, as `make notebooks` executed it.")
    return "\n\n".join(blocks) + "\n"


def blocks_of(cell: dict[str, Any], name: str, pictures: dict[str, bytes]) -> list[str]:
    """Return a cell's blocks."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text.split("\n\n", 1)
    blocks = [f"```python\n{text}\n```"]
    for index, output in enumerate(cell["outputs"]):
        data = output.get("data", {})
        if "image/png" in data:
            path = f"tutorials/{name}-{index}.png"
            pictures[path] = base64.b64decode("".join(data["image/png"]))
            blocks.append(f"![Output of the cell]({Path(path).name})")
        else:
            text_output = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
            blocks += [f"```text\n{text_output}\n```"] if text_output else []
    return blocks
