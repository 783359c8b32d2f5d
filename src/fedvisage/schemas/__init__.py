"""JSON Schemas of recipes and studies, made of the classes that check them, for editors and other programs."""

from __future__ import annotations

import json

from fedvisage.methods import METHODS
from fedvisage.schemas.recipe import recipe_schema
from fedvisage.schemas.study import study_schema

__all__ = ["print_schema", "recipe_schema", "study_schema"]


def print_schema(of: str) -> None:
    """Print the schema of a recipe or of a study."""
    schema = {"recipe": recipe_schema, "study": study_schema}[of](METHODS)
    print(json.dumps(schema, indent=2, ensure_ascii=False))
