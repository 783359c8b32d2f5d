"""A job as it arrives at a machine: its values before the check of the recipe, which needs torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import parse_json, read_plain
from fedvisage.recipe.plain_yaml import LARGEST

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
RECIPE_FILE = "recipe.json"
SIGNED = "signed"
"""The key of the operator's signature in this file."""


class NotReady(Exception):
    """A machine cannot take part; the reason quotes nothing of its data, so that it may be sent to others."""


@dataclass(frozen=True)
class Submission:
    """A job as it arrived: the run's name, the recipe as plain values that nothing has checked, and the signature."""

    run: str
    tree: dict[str, Any]
    signature: Mapping[str, Any] | None = None


def read_submission(config: Path) -> Submission:
    """Read a submitted job, and check nothing but its form."""
    try:
        submitted = parse_json(read_plain(config / RECIPE_FILE, LARGEST))
        run, tree, signature = submitted["run"], submitted["recipe"], submitted.get(SIGNED)
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(RECIPE_FILE, "is missing from the job, or damaged") from error
    if not isinstance(run, str) or not RUN_NAME.fullmatch(run):
        raise UserError(f"{RECIPE_FILE}: run", "is not a run name")
    if not isinstance(tree, dict):
        raise UserError(f"{RECIPE_FILE}: recipe", "must be a mapping")
    if not isinstance(signature, Mapping | None):
        raise UserError(f"{RECIPE_FILE}: {SIGNED}", "must be a mapping")
    return Submission(run, tree, signature)
