"""The examples of docs/extending.md, as modules."""

from __future__ import annotations

import re
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]


def example(number: int) -> types.ModuleType:
    """Execute one Python block of docs/extending.md as a module of its own."""
    block = re.findall(r"```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(), flags=re.DOTALL)[number]
    module = types.ModuleType(f"extending_{number}")
    exec(compile(block, f"docs/extending.md, example {number}", "exec"), module.__dict__)
    return module
