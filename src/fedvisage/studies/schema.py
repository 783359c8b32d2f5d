"""JSON schemas of recipes and studies: one definition per section, described by docstrings, with all short forms."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast, get_args

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from fedvisage.base.arguments import field_docstrings
from fedvisage.federation.method import Method
from fedvisage.methods import ALGORITHMS, MODELS, on
from fedvisage.methods.pad import fedma
from fedvisage.recipe import ADAPTATIONS, SITE_NAME, Evaluation, Federation, MethodOptions, Recipe, Section, Training
from fedvisage.recipe.data import MANY_SITES, Data
from fedvisage.recipe.federation import Rule
from fedvisage.recipe.training import CHANGES, Augment
from fedvisage.studies.study import PrintedTable, Study, StudyRow

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLACE = "#/$defs/"


class _UntitledSchema(GenerateJsonSchema):
    """Pydantic's schema without a title for each key, which would only repeat the key."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def sections_of(*sections: type[Section]) -> list[type[Section]]:
    """Return these sections and all nested ones, each once."""
    sections_seen: dict[type[Section], None] = {}
    waiting: list[Any] = list(sections)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, Section) and kind not in sections_seen:
            sections_seen[kind] = None
            waiting += [field.annotation for field in kind.model_fields.values()]
        waiting += get_args(kind)
    return list(sections_seen)


def definitions(
    sections: Iterable[type[Section]], short_forms: Mapping[type[Section], Mapping[str, Schema]]
) -> tuple[Schema, dict[type[Section], str]]:
    """Return the definitions of these sections and all nested ones, and each listed section's name among them."""
    listed = list(dict.fromkeys([*sections, *short_forms]))
    places, schema = models_json_schema(
        [(section, "validation") for section in listed], schema_generator=_UntitledSchema
    )
    defined = cast(Schema, schema["$defs"])
    named = {section: places[section, "validation"]["$ref"].removeprefix(PLACE) for section in listed}
    for section in listed:
        keys = defined[named[section]].setdefault("properties", {})
        for key, description in docstrings(section).items():
            if key in keys:
                keys[key].setdefault("description", description)
        for key, short in short_forms.get(section, {}).items():
            full = keys[key]
            annotations: Schema = {word: full[word] for word in ("default", "description") if word in full}
            others = {word: full[word] for word in full if word not in annotations}
            keys[key] = {**annotations, "anyOf": [short, *full.get("anyOf", [others])]}
    return defined, named


def docstrings(section: type[Section]) -> dict[str, str]:
    """Return the docstrings of a section's keys, including inherited ones."""
    texts: dict[str, str] = {}
    for kind in reversed([kind for kind in section.__mro__ if issubclass(kind, Section)]):
        if kind.__name__ not in vars(sys.modules[kind.__module__]):
            continue  # an algorithm's options on a model: a class without source code; its bases have the docstrings
        texts |= field_docstrings(kind)
    return texts


# The schema of a recipe: its sections, and for ``method`` the options of every method, distinguished by name.

SITE_NAMES: Schema = {"pattern": f"^({SITE_NAME.pattern}|{MANY_SITES.pattern})$"}
"""Names of sites, and names for many sites, such as ``site[1-6]``."""

NAMED_NETWORK: Schema = {"type": "object", "properties": {"name": {"enum": list(MODELS)}}, "required": ["name"]}
"""A network that names its model."""

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
"""A random change: its probability, or a section in which the usual range may be omitted."""

SHORT_FORMS: Mapping[type[Section], Mapping[str, Schema]] = {
    Federation: {"combine": {"enum": list(get_args(Rule))}, "secure": {"type": "boolean"}},
    Evaluation: {"adapt": {"enum": ["none", *ADAPTATIONS]}},
    Recipe: {"tracking": {"type": "string"}},
    Augment: dict.fromkeys(CHANGES, CHANGED),
    Training: {"batch": {"type": "integer", "minimum": 2}},
    fedma.Options: {"matching": {"const": "none"}},
}
"""Short forms of sections: the words and numbers that the validators of these keys accept."""


def recipe_schema(methods: Mapping[str, Method]) -> Schema:
    """Return the schema of recipes with these methods."""
    return {
        "$schema": DIALECT,
        "title": "A recipe of fedvisage",
        "$ref": f"{PLACE}Recipe",
        "$defs": recipe_definitions(methods),
    }


def recipe_definitions(methods: Mapping[str, Method]) -> Schema:
    """Return the definitions of a recipe's schema."""
    options = {method.options for method in methods.values()}
    options |= {on(name, model).options for name in ALGORITHMS for model in MODELS}
    defined, named = definitions(sections_of(Recipe, *options), SHORT_FORMS)
    defined[named[Data]]["properties"]["sites"]["propertyNames"] = SITE_NAMES
    defined[named[MethodOptions]] = {
        "description": "A method with its own options, or its bare name.",
        "anyOf": [{"enum": list(methods)}, {"oneOf": [{"$ref": f"{PLACE}method-{name}"} for name in methods]}],
    }
    for name, method in methods.items():
        own = defined[named[method.options]]
        defined[f"method-{name}"] = {
            **own,
            "title": method.name,
            "description": f"{method.title} ({method.paper}). {own.get('description', '')}".strip(),
            "properties": {**own["properties"], "name": {"const": method.name}},
        }
    for name in ALGORITHMS:
        defined[f"method-{name}"] = _on_any_model(
            defined[f"method-{name}"], [defined[named[on(name, model).options]] for model in MODELS]
        )
    for kind in options:
        del defined[named[kind]]
    return defined


def _on_any_model(bare: Schema, on_models: Sequence[Schema]) -> Schema:
    """Return an algorithm's options with those of every model that it can train, without assigning keys to models."""
    networks = list(
        {str(options["properties"]["network"]): options["properties"]["network"] for options in on_models}.values()
    )
    keys = {key: value for options in on_models for key, value in options["properties"].items()} | bare["properties"]
    keys |= {
        "network": {"anyOf": [*networks, NAMED_NETWORK]},
        "model": {"anyOf": [{"enum": list(MODELS)}, NAMED_NETWORK]},
    }
    return {**bare, "properties": keys}


# The schema of a study file as users write it: with file names in place of the files' content.

STUDY_CHANGES: Schema = {"type": "array", "items": {"type": "string", "pattern": "^[^=]*[^= ][^=]*="}}
SITES: Schema = {"type": "array", "items": {"type": ["string", "integer"]}}
FILE: Schema = {"type": "string", "description": "A path relative to this file, or a shipped name."}


def study_schema(methods: Mapping[str, Method]) -> Schema:
    """Return the schema of studies of these methods."""
    defined, named = definitions(sections_of(Study), {})
    study, row = defined[named[Study]], defined[named[StudyRow]]
    recipes = recipe_definitions(methods)
    recipe: Schema = {"anyOf": [FILE, {"$ref": f"{PLACE}recipe-of-a-study"}]}
    needed = study.pop("required")
    study["properties"] |= {
        "like": {
            "anyOf": [FILE, {"type": "array", "items": FILE}],
            "description": "Files whose words are taken over: later before earlier, this file's own before all.",
        },
        "recipe": recipe,
        "recipes": {"type": "object", "additionalProperties": recipe},
        "sites": SITES,
        "targets": SITES,
        "set": STUDY_CHANGES,
        "paper": {"type": "array", "items": {"anyOf": [FILE, {"$ref": f"{PLACE}{named[PrintedTable]}"}]}},
    }
    study["properties"]["sets"] |= {"propertyNames": SITE_NAMES, "minProperties": 1}
    named_by_file = [key for key in needed if key not in ("sites", "targets")]
    divided = [*(key for key in named_by_file if key != "sets"), "protocol"]
    study["anyOf"] = [{"required": keys} for keys in (["like"], named_by_file, divided)]
    row["properties"] |= {"set": STUDY_CHANGES, "sites": {"anyOf": [SITES, {"type": "null"}]}}
    partly = {key: value for key, value in recipes["Recipe"].items() if key != "required"}
    return {
        "$schema": DIALECT,
        "title": "A study of fedvisage",
        "$ref": f"{PLACE}{named[Study]}",
        "$defs": {**recipes, **defined, "recipe-of-a-study": partly},
    }
