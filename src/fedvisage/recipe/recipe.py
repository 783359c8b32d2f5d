"""The recipe: all settings that a run depends on, in one frozen and validated object; and recipes as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import field_validator, model_validator

from fedvisage.base.errors import UserError
from fedvisage.recipe import plain_yaml
from fedvisage.recipe.data import Data, Input
from fedvisage.recipe.evaluation import Evaluation
from fedvisage.recipe.federation import Federation
from fedvisage.recipe.runtime import Privacy, Report, Runtime, Tracking
from fedvisage.recipe.section import (
    MethodOptions,
    Section,
    check_texts,
    format_value,
    read_section,
)
from fedvisage.recipe.training import Training

Own = TypeVar("Own", bound=MethodOptions)


class Recipe(Section):
    """All settings that a run depends on."""

    unset: ClassVar[frozenset[str]] = frozenset({"report", "tracking"})

    title: str = ""
    """Free text for reports."""
    method: MethodOptions
    """The method and its own options; ``method: fedpad`` is short for ``method: {name: fedpad}``."""
    data: Data
    input: Input = Input()
    training: Training
    federation: Federation = Federation()
    evaluation: Evaluation = Evaluation()
    privacy: Privacy = Privacy()
    runtime: Runtime = Runtime()
    report: Report | None = None
    tracking: Tracking | None = None

    def options(self, kind: type[Own]) -> Own:
        """Return the method's own options, which have the type that the method's file declares."""
        assert isinstance(self.method, kind)
        return self.method

    @field_validator("tracking", mode="before")
    @classmethod
    def _name_is_a_tracker(cls, value: Any) -> Any:
        return {"to": [value]} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sections_agree(self) -> Recipe:
        # Site names in other sections must be keys of data.sites.
        unknown = sorted(set(self.training.batch.per_site) - set(self.data.sites))
        if unknown:
            raise ValueError(f"training.batch.per_site names {', '.join(unknown)}, which data.sites does not contain")
        joining = sorted(set(self.federation.joins) - set(self.data.sites))
        if joining:
            raise ValueError(f"federation.joins names {', '.join(joining)}, which data.sites does not contain")
        if min(self.federation.joins.get(name, 1) for name in self.data.sites) > 1:
            raise ValueError("federation.joins leaves no site for the first round")
        # Held-out figures exist only where a site evaluates them.
        watches = self.evaluation.keep == "best" or self.training.early_stop is not None
        if watches and self.evaluation.every == 0:
            raise ValueError(
                "keep: best and early_stop need evaluation.every ≥ 1, which scores held-out images at the sites"
            )
        if self.input.size < 32 and self.runtime.precision != "fp32":
            raise ValueError(
                "input.size below 32 needs runtime.precision: fp32; bf16 convolutions are unreliable on maps this small"
            )
        # Every round must be able to reach its quorum and the minimum of its combination rule.
        per_round = self.federation.asks(len(self.data.sites))
        if self.federation.quorum > per_round:
            raise ValueError(f"federation.quorum is {self.federation.quorum}, but each round samples {per_round} sites")
        combine = self.federation.combine
        if combine.least > per_round:
            raise ValueError(
                f"federation.combine: {combine.rule} needs {combine.least} uploads, but rounds sample {per_round} sites"
            )
        strangers = set(self.federation.poisoned.sites if self.federation.poisoned else ()) - set(self.data.sites)
        if strangers:
            raise ValueError(
                f"federation.poisoned.sites names {', '.join(sorted(strangers))}, which data.sites does not contain"
            )
        if self.federation.secure is not None and per_round < 2:
            raise ValueError(
                "federation.secure needs at least two sites per round: the sum of one upload hides nothing"
            )
        if watches and per_round < len(self.data.sites):
            raise ValueError(
                "keep: best and early_stop compare rounds by the held-out scores of their sites; "
                "set federation.participation: 1, so that these are the same sites"
            )
        if self.evaluation.features and self.data.target is None:
            remedy = "set data.target, or evaluation.features=0"
            raise ValueError(f"evaluation.features compares the sites with a target; {remedy}")
        if self.evaluation.threshold == "target-eer" and self.data.target is None:
            raise ValueError("evaluation.threshold: target-eer uses a target's labels; set data.target, or source-eer")
        return self


# Recipes as text: reading, ``key=value`` overrides, validation, and writing with every default.

ENTRY_KEY = re.compile(r"data\.(target|public|sites\.[^.]+)")
ENTRY = re.compile(r"synth:.*|[^\s\"'\[{].* only:.*")
"""A data entry with a colon, which YAML would read as a section unless it is quoted."""

ReadMethod = Callable[[Mapping[str, Any]], MethodOptions]
"""Validates the section ``method`` with the options of the method that it names."""


def load(path: Path, overrides: Sequence[str], method: ReadMethod) -> Recipe:
    """Read a recipe file, apply ``key=value`` overrides and validate it; ``method`` reads its section ``method``."""
    return validate(read_with_overrides(path, overrides), method)


def read_with_overrides(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Read a recipe file and apply ``key=value`` overrides, without validating the result."""
    tree = read_tree(path)
    for override in overrides:
        apply_override(tree, override)
    return tree


def read_tree(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping."""
    tree = plain_yaml.read_file(path)
    if not isinstance(tree, dict):
        raise UserError(str(path), "must be a mapping of sections, such as method, data and training")
    return rename_in_recipe(tree)


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set one ``dotted.key=value`` in a recipe tree; the value is parsed as YAML, but a data entry is kept as text."""
    key, sign, text = (part.strip() for part in override.partition("="))
    if not sign or not key:
        raise UserError(override, "an override must have the form key=value, such as training.rounds=5")
    if key.startswith("recipe."):
        raise UserError(override, f"leave out `recipe.`: {override.strip().removeprefix('recipe.')}")
    is_entry = ENTRY_KEY.fullmatch(key) and ENTRY.fullmatch(text)
    value = text if is_entry else plain_yaml.parse(text, override, "the value is not valid YAML")
    set_value(tree, key, value, override)


def set_value(tree: dict[str, Any], key: str, value: Any, place: str = "") -> None:
    """Set the value of a dotted key in a recipe tree."""
    # The short forms `method: NAME` and `batch: NUMBER` become sections, so that overrides reach their keys.
    if isinstance(tree.get("method"), str):
        tree["method"] = {"name": tree["method"]}
    training = tree.get("training")
    if isinstance(training, dict) and isinstance(training.get("batch"), int):
        training["batch"] = {"default": training["batch"]}
    node: Any = tree
    *parents, last = key.split(".")
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise UserError(place or key, f"{name} is not a section of the recipe")
    node[last] = value


def validate(tree: Mapping[str, Any], method: ReadMethod) -> Recipe:
    """Turn a tree into a recipe, or raise an error that names the place and the fault."""
    section = tree.get("method")
    section = {"name": section} if isinstance(section, str) else section
    if not isinstance(section, Mapping | None):
        raise UserError(
            "recipe.method", f"must be the name of a method, or a section with its name, got {format_value(section)}"
        )
    check_texts(section, "recipe.method")
    return read_section(Recipe, {**rename_in_recipe(tree), "method": method(section or {})}, "recipe")


def tree_of(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe as plain values, with every default."""
    tree = recipe.model_dump(mode="json")
    tree["method"] = recipe.method.model_dump(mode="json")
    return tree


def present_text(path: Path) -> str:
    """Return the text of a written recipe as this version would write it: with the present names of its keys."""
    return plain_yaml.write(read_tree(path))


def text_of(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML."""
    return plain_yaml.write(tree_of(recipe))


# Files of version 0.1, which called the target ``user``, under the present names.

FORMER_DATA = {"user": "target", "user_name": "target_name", "user_split": "target_split"}
"""The former keys of a recipe's section ``data``, with their present names."""


def rename_in_recipe(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe, as plain values, with the present names; a key under both names stays, and is unknown."""
    data = tree.get("data")
    if not isinstance(data, Mapping):
        return dict(tree)
    names = {former: present for former, present in FORMER_DATA.items() if present not in data}
    return {**tree, "data": {names.get(key, key): value for key, value in data.items()}}


def rename_places(content: Any) -> Any:
    """Return the content of ``data.json`` or ``overlap.json`` with the present names of the places in a recipe."""
    if isinstance(content, Mapping):
        return {rename_places(key): rename_places(value) for key, value in content.items()}
    if isinstance(content, list):
        return [rename_places(item) for item in content]
    return "data.target" if content == "data.user" else content
