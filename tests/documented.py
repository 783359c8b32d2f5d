"""The examples of docs/extending.md and adding-a-dataset.md: files, as importable modules, and their use."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "extending.md"
DATASETS = ROOT / "docs" / "adding-a-dataset.md"
FILE = re.compile(r"`(\w+)\.py`[^`]*:\n\n```python\n(.*?)```", re.DOTALL)
"""A file's name, the rest of its paragraph, and the file."""


def files() -> dict[str, str]:
    """Return the files of both pages by their module's name."""
    return dict(found for page in (PAGE, DATASETS) for found in FILE.findall(page.read_text(encoding="utf-8")))


def snippets() -> list[str]:
    """Return the Python blocks that are no files, in their order."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block for block in blocks if block not in files().values()]


def block(kind: str) -> str:
    """Return the page's one block in another language."""
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return str(found)


def example(name: str) -> types.ModuleType:
    """Execute one file of the page as a module; the same one each time, which other examples can import."""
    if name not in sys.modules:
        module = types.ModuleType(name)
        code = compile(files()[name], f"docs, {name}.py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
        sys.modules[name] = module
    return sys.modules[name]
