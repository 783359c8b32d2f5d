"""The schema of a recipe: its sections, and for ``method`` the options of every method, told apart by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from fedvisage.federation.method import Method
from fedvisage.methods import ALGORITHMS, MODELS, fedma, on
from fedvisage.recipe import ADAPTATIONS, SITE_NAME, Evaluation, Federation, MethodOptions, Recipe, Section, Training
from fedvisage.recipe.augment import CHANGES, Augment
from fedvisage.recipe.data import MANY_SITES, Data
from fedvisage.recipe.protection import Rule
from fedvisage.schemas.definitions import DIALECT, PLACE, Schema, definitions, sections_of

SITE_NAMES: Schema = {"pattern": f"^({SITE_NAME.pattern}|{MANY_SITES.pattern})$"}
"""Names of sites, and names for many of them, such as ``site[1-6]``."""

NAMED_NETWORK: Schema = {"type": "object", "properties": {"name": {"enum": list(MODELS)}}, "required": ["name"]}
"""A network that says which model it is."""

CHANGED: Schema = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": 1},
        {
            "type": "object",
            "properties": {
                "probability": {"type": "number", "minimum": 0, "maximum": 1},
                "least": {"type": "number"},
                "most": {"type": "number"},
            },
            "additionalProperties": False,
        },
    ]
}
"""A random change: how often, or a section in which the usual range need not be said."""

SHORT_FORMS: Mapping[type[Section], Mapping[str, Schema]] = {
    Federation: {"combine": {"enum": list(get_args(Rule))}, "secure": {"type": "boolean"}},
    Evaluation: {"adapt": {"enum": ["none", *ADAPTATIONS]}},
    Recipe: {"tracking": {"type": "string"}},
    Augment: dict.fromkeys(CHANGES, CHANGED),
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
    options |= {on(name, model).options for name in ALGORITHMS for model in MODELS}
    defined, named = definitions(sections_of(Recipe, *options), SHORT_FORMS)
    defined[named[Data]]["properties"]["sites"]["propertyNames"] = SITE_NAMES
    defined[named[MethodOptions]] = _any_method(methods)
    defined |= {f"method-{name}": _method(method, defined[named[method.options]]) for name, method in methods.items()}
    for name in ALGORITHMS:
        defined[f"method-{name}"] = _on_any_model(
            defined[f"method-{name}"], [defined[named[on(name, model).options]] for model in MODELS]
        )
    for kind in options:
        del defined[named[kind]]
    return defined


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


def _on_any_model(bare: Schema, on_models: Sequence[Schema]) -> Schema:
    """Return an algorithm's options with those of every model that it can train; which keys are whose is not told."""
    networks = list({str(one["properties"]["network"]): one["properties"]["network"] for one in on_models}.values())
    keys = {key: value for one in on_models for key, value in one["properties"].items()} | bare["properties"]
    keys |= {
        "network": {"anyOf": [*networks, NAMED_NETWORK]},
        "model": {"anyOf": [{"enum": list(MODELS)}, NAMED_NETWORK]},
    }
    return {**bare, "properties": keys}
