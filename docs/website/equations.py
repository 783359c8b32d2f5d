"""Where the code says which equation, table or algorithm of its paper it is."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

OF_PAPER = re.compile(r"\b(?:Eq|Fig)s?\. ?\d|\bAlgorithm \d|\bTables? [IVX\d]|§|\bA\.\d|\boption I")
ROOMS = ("fedvisage.nn.", "fedvisage.federation.privacy.", "fedvisage.methods.")
"""Rooms whose functions a method names one by one, so that what they say of a paper is said of its paper."""
BESIDE = ("fedvisage.methods.pad", "fedvisage.methods.recognition")
"""Where files stand that a method takes whole, such as the two ends of split learning."""


@dataclass(frozen=True)
class Place:
    """A function or class that says what of a paper it is."""

    module: str
    name: str
    says: str


def places(module: ModuleType) -> list[Place]:
    """Return where a method's file, and what it takes from the rooms below, say so; the file itself first."""
    tree = ast.parse(inspect.getsource(module))
    found = list(spoken(module.__name__, tree, None))
    for node in (node for node in tree.body if isinstance(node, ast.ImportFrom)):
        names = {alias.name for alias in node.names}
        if node.module in BESIDE:
            for name in sorted(names):
                found += said_in(f"{node.module}.{name}", None)
        elif f"{node.module}.".startswith(ROOMS):
            found += said_in(str(node.module), names)
    return list(dict.fromkeys(found))


def said_in(module: str, names: set[str] | None) -> Iterator[Place]:
    """Yield the places of a module."""
    return spoken(module, ast.parse(inspect.getsource(importlib.import_module(module))), names)


def spoken(module: str, tree: ast.Module, names: set[str] | None) -> Iterator[Place]:
    """Yield the definitions of these names (None: all) whose docstrings name a place of a paper."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (names is None or node.name in names):
            said = " ".join((ast.get_docstring(node) or "").split())
            if OF_PAPER.search(said):
                yield Place(module, node.name, said)
