"""A recipe's keys as rows, from the models of pydantic that read them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from docs.website.markdown import plain
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedvisage.recipe import Section
from fedvisage.studies.schema import docstrings

Row = tuple[str, str, str, str]
"""A key, its default, its valid values, and its meaning."""

SIGNS = (
    (annotated_types.Ge, "ge", "≥"),
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Le, "le", "≤"),
    (annotated_types.Lt, "lt", "<"),
)
DEPENDS = "the default depends"
"""In the docstring of a key whose default is computed later."""
WORDS = {int: "integer", float: "number", str: "text", bool: "true, false"}


def rows(section: type[BaseModel], prefix: str = "", without: frozenset[str] = frozenset()) -> Iterator[Row]:
    """Yield the keys of a section and of the sections in it."""
    yield from _rows(section, prefix, without, None)


def _rows(section: type[BaseModel], prefix: str, without: frozenset[str], default: BaseModel | None) -> Iterator[Row]:
    for name, field in section.model_fields.items():
        if name in without:
            continue
        key = f"{prefix}{name}"
        value = getattr(default, name) if default is not None else default_of(field)
        inner = section_in(field.annotation)
        if inner is None or type(None) in get_args(field.annotation):
            text = meaning(section, name)
            yield f"`{key}`", "depends" if DEPENDS in text else format_default(value), allowed(field), text
        elif text := meaning(section, name):
            yield f"`{key}`", "", "section", text
        if inner is not None:
            yield from _rows(inner, f"{key}.", frozenset(), value if isinstance(value, BaseModel) else None)


def default_of(field: FieldInfo) -> Any:
    """Return a field's default; ``PydanticUndefined`` if a recipe must give it."""
    return field.default_factory() if callable(field.default_factory) else field.default  # type: ignore[call-arg]


def section_in(kind: Any) -> type[BaseModel] | None:
    """Return the section of a field that contains one, perhaps besides other forms."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    sections = [section for part in get_args(kind) if (section := section_in(part)) and get_origin(kind) is not dict]
    return sections[0] if len(sections) == 1 else None


def format_default(value: Any) -> str:
    """Return a default as a recipe writes it."""
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, dict):
        return "`{}`" if not value else f"`{value}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value.value if isinstance(value, Enum) else value}`" if value != "" else ""


def allowed(field: FieldInfo) -> str:
    """Return the valid values of a key: its words, or the type and range of its numbers."""
    return ", or ".join(dict.fromkeys(_forms(field.annotation, tuple(field.metadata))))


def _forms(kind: Any, limits: tuple[Any, ...]) -> Iterator[str]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own = [part for annotation in inner[1:] for part in getattr(annotation, "metadata", [annotation])]
        yield from _forms(inner[0], (*limits, *own))
    elif origin is Literal:
        yield ", ".join(f"`{part}`" for part in inner)
    elif origin in (Union, types.UnionType):
        for part in inner:
            if part is not type(None):
                yield from _forms(part, limits)
    elif origin in (tuple, list):
        yield f"list of {', '.join(_forms(inner[0], ())) or 'values'}"
    elif origin is not None and inspect.isclass(origin):
        yield "mapping"
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield "section"
    elif isinstance(kind, type):
        yield f"{WORDS.get(kind, kind.__name__)}{_range(limits)}"


def _range(limits: tuple[Any, ...]) -> str:
    bounds = [
        f"{sign} {getattr(limit, name):g}" for limit in limits for kind, name, sign in SIGNS if isinstance(limit, kind)
    ]
    return f" {', '.join(bounds)}" if bounds else ""


def meaning(section: type[BaseModel], name: str) -> str:
    """Return the docstring below a key in the code."""
    return plain(" ".join(docstrings_of(section).get(name, "").split())) if issubclass(section, Section) else ""


@cache
def docstrings_of(section: type[Section]) -> dict[str, str]:
    """Return the docstrings below all keys of a section; its source is read once."""
    return docstrings(section)
