"""Descriptions of a dataclass's fields that become options of a command."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of a number, for ``Annotated[int, Range(1)]``."""

    least: float | None = None
    most: float | None = None


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a class; inherited fields are not part of its source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    docstrings = {}
    for statement, following in pairwise(definition.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docstrings[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return docstrings
