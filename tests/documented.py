"""The code blocks of the documentation, and the examples of the pages on extending fedvisage as importable modules."""

import re
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [f"docs/{name}.md" for name in ("extending", "adding-a-model", "adding-a-dataset")]
FILE = re.compile(r"`(\w+)\.py`[^`]*:\n\n```python\n(.*?)```", re.DOTALL)
"""A file's name, the rest of its paragraph, and the file."""


def read_page(name: str) -> str:
    """Return a page by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def read_generated(name: str, command: str) -> str:
    """Return the part of a page that a command has written."""
    border = f"written by `{command}` -->"
    return read_page(name).partition(f"<!-- below: {border}\n")[2].partition(f"\n<!-- above: {border}")[0]


def code_blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def text() -> str:
    """Return the pages on extending fedvisage, one after another."""
    return "".join(map(read_page, PAGES))


def files() -> dict[str, str]:
    """Return the pages' files by module name."""
    return dict(FILE.findall(text()))


def snippets() -> list[str]:
    """Return the Python blocks that are not files, in their order."""
    return [block for block in code_blocks(text()) if block not in files().values()]


def block(language: str) -> str:
    """Return the pages' only block in another language."""
    (only,) = code_blocks(text(), language)
    return only


def example(name: str) -> types.ModuleType:
    """Execute one file of the pages as a module; the same one each time, which other examples can import."""
    if name not in sys.modules:
        module = types.ModuleType(name)
        code = compile(files()[name], f"docs, {name}.py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
        sys.modules[name] = module
    return sys.modules[name]
