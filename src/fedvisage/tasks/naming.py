"""What benchmarks are called that are named on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fedvisage.datasets.sources import SYNTHETIC, without_part
from fedvisage.errors import UserError
from fedvisage.recipe.data import SITE_NAME

_NAMED = re.compile(rf"({SITE_NAME.pattern})=(.*)", re.DOTALL)


def named_benchmarks(texts: Iterable[str]) -> dict[str, str]:
    """Read ``lfw=sets/lfw``, or ``sets/lfw`` alone, which is called as its directory is."""
    found: dict[str, str] = {}
    for text in texts:
        named = _NAMED.fullmatch(text.strip())
        name, entry = (named[1], named[2].strip()) if named else (_own_name(text.strip()), text.strip())
        if not entry:
            raise UserError("--benchmark", f"{text!r} names no set; write NAME=SET or SET")
        if name in found:
            raise UserError("--benchmark", f"{found[name]} and {entry} are both called {name}; write NAME=SET")
        found[name] = entry
    return found


def _own_name(entry: str) -> str:
    name = Path(without_part(entry)[0]).name
    if entry.startswith(SYNTHETIC) or not SITE_NAME.fullmatch(name):
        raise UserError("--benchmark", f"{entry!r} needs a name of letters, digits, '-' and '_': write NAME=SET")
    return name
