"""The schema of a recipe: its sections, and for ``method`` the options of every method, told apart by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from fedvisage.federation.method import Method
from fedvisage.methods import fedma
from fedvisage.recipe import Recipe
from fedvisage.schemas.definitions import DIALECT, PLACE, Schema, definitions, sections_of
from fedvisage.settings import ADAPTATIONS, SITE_NAME, Evaluation, Federation, MethodOptions, Section, Training
from fedvisage.settings.data import MANY_SITES, Data
from fedvisage.settings.protection import Rule

SITE_NAMES: Schema = {"pattern": f"^({SITE_NAME.pattern}|{MANY_SITES.pattern})$"}
"""Names of sites, and names for many of them, such as ``site[1-6]``."""

SHORT_FORMS: Mapping[type[Section], Mapping[str, Schema]] = {
    Federation: {"combine": {"enum": list(get_args(Rule))}, "secure": {"type": "boolean"}},
    Evaluation: {"adapt": {"enum": ["none", *ADAPTATIONS]}},
    Training: {"batch": {"type": "integer", "minimum": 2}},
    fedma.Options: {"matching": {"const": "none"}},
}
"""What stands for a section: the words and numbers that the validators of these keys accept."""


def recipe_schema(methods: Mapping[str, Method]) -> Schema:
    """Return the schema of recipes with these methods."""
    return {"$schema": DIALECT, "title": "A recipe of fedvisage", "$ref": f"{PLACE}Recipe",
            "$defs": recipe_definitions(methods)}  # fmt: skip


def recipe_definitions(methods: Mapping[str, Method]) -> Schema:
    """Return the definitions that a recipe's schema is made of."""
    options = {method.options for method in methods.values()}
    found, named = definitions(sections_of(Recipe, *options), SHORT_FORMS)
    found[named[Data]]["properties"]["sites"]["propertyNames"] = SITE_NAMES
    found[named[MethodOptions]] = _any_method(methods)
    found |= {f"method-{name}": _method(method, found[named[method.options]]) for name, method in methods.items()}
    for kind in options:
        del found[named[kind]]
    return found


def _any_method(methods: Mapping[str, Method]) -> Schema:
    return {
        "description": "A method with its own options, or its bare name.",
        "anyOf": [{"enum": list(methods)}, {"oneOf": [{"$ref": f"{PLACE}method-{name}"} for name in methods]}],
    }


def _method(method: Method, options: Schema) -> Schema:
    """Return the options of one method, which its name tells apart from the others'."""
    return {
        **options,
        "title": method.name,
        "description": f"{method.title} ({method.paper}). {options.get('description', '')}".strip(),
        "properties": {**options["properties"], "name": {"const": method.name}},
    }
