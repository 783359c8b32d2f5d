"""The examples of the pages on extending fedvisage: files, as importable modules, and their use."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("extending", "adding-a-model", "adding-a-dataset")]
FILE = re.compile(r"`(\w+)\.py`[^`]*:\n\n```python\n(.*?)```", re.DOTALL)
"""A file's name, the rest of its paragraph, and the file."""


def text() -> str:
    """Return the pages, one after another."""
    return "".join(page.read_text(encoding="utf-8") for page in PAGES)


def files() -> dict[str, str]:
    """Return the pages' files by their module's name."""
    return dict(FILE.findall(text()))


def snippets() -> list[str]:
    """Return the Python blocks that are no files, in their order."""
    blocks = re.findall(r"```python\n(.*?)```", text(), flags=re.DOTALL)
    return [block for block in blocks if block not in files().values()]


def block(kind: str) -> str:
    """Return the pages' one block in another language."""
    (found,) = re.findall(rf"```{kind}\n(.*?)```", text(), flags=re.DOTALL)
    return str(found)


def example(name: str) -> types.ModuleType:
    """Execute one file of the pages as a module; the same one each time, which other examples can import."""
    if name not in sys.modules:
        module = types.ModuleType(name)
        code = compile(files()[name], f"docs, {name}.py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
        sys.modules[name] = module
    return sys.modules[name]
