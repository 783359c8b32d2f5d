"""The definitions of a schema: one for each section, described by its docstrings, with every short form it accepts."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, cast, get_args

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from fedvisage.recipe import Section

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLACE = "#/$defs/"


class _Untitled(GenerateJsonSchema):
    """Pydantic's schema without a title for each key, which would only repeat it."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def sections_of(*sections: type[Section]) -> list[type[Section]]:
    """Return these sections and all that stand within them, each once."""
    found: dict[type[Section], None] = {}
    waiting: list[Any] = list(sections)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, Section) and kind not in found:
            found[kind] = None
            waiting += [field.annotation for field in kind.model_fields.values()]
        waiting += get_args(kind)
    return list(found)


def definitions(
    sections: Iterable[type[Section]], short_forms: Mapping[type[Section], Mapping[str, Schema]]
) -> tuple[Schema, dict[type[Section], str]]:
    """Return the definitions of these sections and of all within them, and under which name each of these stands."""
    listed = list(dict.fromkeys([*sections, *short_forms]))
    places, whole = models_json_schema([(section, "validation") for section in listed], schema_generator=_Untitled)
    defined = cast(Schema, whole["$defs"])
    named = {section: places[section, "validation"]["$ref"].removeprefix(PLACE) for section in listed}
    for section in listed:
        keys = defined[named[section]].setdefault("properties", {})
        for key, said in docstrings(section).items():
            if key in keys:
                keys[key].setdefault("description", said)
        for key, short in short_forms.get(section, {}).items():
            keys[key] = _widened(keys[key], short)
    return defined, named


def _widened(key: Schema, short: Schema) -> Schema:
    """Return a key's schema that accepts a short form, too."""
    kept: Schema = {word: key[word] for word in ("default", "description") if word in key}
    own = key["anyOf"] if "anyOf" in key else [{word: key[word] for word in key if word not in kept}]
    return {**kept, "anyOf": [short, *own]}


def docstrings(section: type[Section]) -> dict[str, str]:
    """Return what stands below the keys of a section, and of those it extends."""
    said: dict[str, str] = {}
    for kind in reversed([kind for kind in section.__mro__ if issubclass(kind, Section)]):
        if kind.__name__ not in vars(sys.modules[kind.__module__]):
            continue  # an algorithm's options on a model, which a call puts together of classes that have a text
        body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]).body
        for key, below in pairwise(body):
            if not isinstance(key, ast.AnnAssign) or not isinstance(key.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                said[key.target.id] = inspect.cleandoc(str(below.value.value))
    return said
