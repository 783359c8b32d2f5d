"""The page that ``make benchmark`` writes its results into."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path("docs/benchmarks.md")


def with_results(page: str, table: str, machine: Mapping[str, Any]) -> str:
    """Return the page with its first table and the description of the machine replaced; the text around them stays."""
    before, _, rest = page.partition("| what |")
    _, _, rest = rest.partition("\n\n")
    between, _, rest = rest.partition("```json\n")
    _, _, after = rest.partition("\n```\n")
    return f"{before}{table}\n\n{between}```json\n{json.dumps(machine, indent=2)}\n```\n{after}"
