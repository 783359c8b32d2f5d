"""The schema of a study file, as it is written: with names of files in the place of what they hold."""

from __future__ import annotations

from collections.abc import Mapping

from fedvisage.federation.method import Method
from fedvisage.schemas.definitions import DIALECT, PLACE, Schema, definitions, sections_of
from fedvisage.schemas.recipe import SITE_NAMES, recipe_definitions
from fedvisage.studies.file import Row, Study
from fedvisage.studies.printed import Printed

CHANGES: Schema = {"type": "array", "items": {"type": "string", "pattern": "^[^=]*[^= ][^=]*="}}
SITES: Schema = {"type": "array", "items": {"type": ["string", "integer"]}}
FILE: Schema = {"type": "string", "description": "A path relative to this file, or a shipped name."}


def study_schema(methods: Mapping[str, Method]) -> Schema:
    """Return the schema of studies of these methods."""
    defined, named = definitions(sections_of(Study), {})
    whole, row = defined[named[Study]], defined[named[Row]]
    recipes = recipe_definitions(methods)
    recipe: Schema = {"anyOf": [FILE, {"$ref": f"{PLACE}recipe-of-a-study"}]}
    needed = whole.pop("required")
    whole["properties"] |= {
        "like": {"anyOf": [FILE, {"type": "array", "items": FILE}],
                 "description": "Files whose words are taken over: later before earlier, this file's own before all."},
        "recipe": recipe,
        "recipes": {"type": "object", "additionalProperties": recipe},
        "sites": SITES,
        "users": SITES,
        "set": CHANGES,
        "paper": {"type": "array", "items": {"anyOf": [FILE, {"$ref": f"{PLACE}{named[Printed]}"}]}},
    }  # fmt: skip
    whole["properties"]["sets"] |= {"propertyNames": SITE_NAMES, "minProperties": 1}
    named_by_file = [key for key in needed if key not in ("sites", "users")]
    divided = [*(key for key in named_by_file if key != "sets"), "protocol"]
    whole["anyOf"] = [{"required": keys} for keys in (["like"], named_by_file, divided)]
    row["properties"] |= {"set": CHANGES, "sites": {"anyOf": [SITES, {"type": "null"}]}}
    partly = {key: value for key, value in recipes["Recipe"].items() if key != "required"}
    return {"$schema": DIALECT, "title": "A study of fedvisage", "$ref": f"{PLACE}{named[Study]}",
            "$defs": {**recipes, **defined, "recipe-of-a-study": partly}}  # fmt: skip
