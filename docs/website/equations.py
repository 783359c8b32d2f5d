"""References to equations, tables and algorithms of a paper in docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

OF_PAPER = re.compile(r"\b(?:Eq|Fig)s?\. ?\d|\bAlgorithm \d|\bTables? [IVX\d]|§|\bA\.\d|\boption I")
PACKAGES = ("fedvisage.nn.", "fedvisage.federation.privacy.", "fedvisage.methods.")
"""Packages whose functions a method imports by name, so that their references are to the method's paper."""
WHOLE_MODULES = ("fedvisage.methods.pad", "fedvisage.methods.recognition")
"""Packages whose modules belong to one method, such as the two ends of split learning."""


@dataclass(frozen=True)
class Place:
    """A function or class with a reference to a paper."""

    module: str
    name: str
    text: str


def places(module: ModuleType) -> list[Place]:
    """Return the references in a method's module, and in the functions that it imports; its own first."""
    tree = ast.parse(inspect.getsource(module))
    references = list(find_places(module.__name__, tree, None))
    for node in (node for node in tree.body if isinstance(node, ast.ImportFrom)):
        names = {alias.name for alias in node.names}
        if node.module in WHOLE_MODULES:
            for name in sorted(names):
                references += places_in(f"{node.module}.{name}", None)
        elif f"{node.module}.".startswith(PACKAGES):
            references += places_in(str(node.module), names)
    return list(dict.fromkeys(references))


def places_in(module: str, names: set[str] | None) -> Iterator[Place]:
    """Yield the references in a module."""
    return find_places(module, ast.parse(inspect.getsource(importlib.import_module(module))), names)


def find_places(module: str, tree: ast.Module, names: set[str] | None) -> Iterator[Place]:
    """Yield the definitions of these names (None: all) whose docstrings refer to a paper."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (names is None or node.name in names):
            text = " ".join((ast.get_docstring(node) or "").split())
            if OF_PAPER.search(text):
                yield Place(module, node.name, text)
