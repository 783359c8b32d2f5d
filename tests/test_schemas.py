"""The JSON Schemas accept and refuse the same recipes and studies as the program."""

import copy
import inspect
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from tests.refusals import Command, check_output

from fedvisage.base.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.methods import METHODS, read_method
from fedvisage.recipe import Data, Optimizer, Recipe, validate
from fedvisage.studies.schema import SHORT_FORMS, recipe_schema, sections_of, study_schema
from fedvisage.studies.shipped import entries, locate
from fedvisage.studies.study import load_study

SMALL = {
    "method": {"name": "fedpad"},
    "data": {"sites": {"O": "sets/O", "C": "sets/C", "I": "sets/I", "M": "sets/M", "S": "sets/S"}, "target": "sets/U"},
    "training": {"rounds": 1},
}


@cache
def of_recipes() -> Draft202012Validator:
    return Draft202012Validator(recipe_schema(METHODS))


@cache
def of_studies() -> Draft202012Validator:
    return Draft202012Validator(study_schema(METHODS))


def faults(validator: Draft202012Validator, content: Any) -> list[str]:
    return [error.message for error in validator.iter_errors(content)]


def as_json(path: Path) -> Any:
    """Return a YAML file as an editor's checker reads it: keys are text."""
    return json.loads(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))))


def small_recipe(changes: dict[str, Any]) -> dict[str, Any]:
    """Return a small recipe with changes of dotted keys; ``...`` removes a key."""
    tree: dict[str, Any] = copy.deepcopy(SMALL)
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is ...:
            del node[last]
        else:
            node[last] = value
    return tree


@pytest.mark.long
@pytest.mark.parametrize("schema", [of_recipes, of_studies])
def test_schema_is_valid_in_its_dialect(schema: Callable[[], Draft202012Validator]) -> None:
    validator = schema()
    Draft202012Validator.check_schema(validator.schema)
    assert validator.schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_every_shipped_recipe_and_study_satisfies_its_schema(entry: Any) -> None:
    validator = of_recipes() if entry.kind == "recipe" else of_studies()
    assert not faults(validator, as_json(locate(entry.name)))


REQUIRED: dict[str, dict[str, Any]] = {
    "privacyface": {"delta": 1e-3},
    "fedstackfpad": {"network": {"arch": "resnet18"}},
}


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_resolved_recipe_of_every_method_satisfies_the_schema(method: Method) -> None:
    options = {"name": method.name, **REQUIRED.get(method.name, {})}
    section = method.options.model_validate(options).model_dump(mode="json")
    assert not faults(of_recipes(), small_recipe({"method": section}))
    assert not of_recipes().is_valid(small_recipe({"method": {**section, "no-such-option": 1}}))


VALID: list[dict[str, Any]] = [
    {"method": "fedpad"},
    {"training.batch": 32},
    {"training.batch": {"default": 8, "per_site": {"O": 4}}},
    {"evaluation.adapt": "gated"},
    {"evaluation.adapt": "none"},
    {"evaluation.adapt": {"loop": "online", "gate": False}},
    {"federation.secure": True},
    {"federation.secure": {"threshold": 0.7}},
    {"federation.combine": "krum"},
    {"federation.combine": {"rule": "krum", "hostile": 1}},
    {"data.sites": {"site[1-6]": "sets/O part=*/6"}},
    {"method": {"name": "fedma", "matching": "none"}},
    {"method": {"name": "fedma", "matching": {"growth": {"spare": 4}}}},
    {"method": {"name": "fedgpad", "losses": "printed", "weights": {"depth": 2}}},
    {"training.start": None},
]

INVALID: list[dict[str, Any]] = [
    {"trainin": {}},
    {"training.rouns": 1},
    {"training.rounds": ...},
    {"training.rounds": 0},
    {"training.rounds": "many"},
    {"training": [1]},
    {"training.optimizer.name": "lion"},
    {"training.batch": 1},
    {"training.batch": "large"},
    {"training.batch": {"defalt": 3}},
    {"method": ...},
    {"method": "fedpda"},
    {"method": {"name": "fedpda"}},
    {"method": {"network": {"width": 8}}},
    {"method.mu": 1},
    {"method.weight": "votes"},
    {"method": {"name": "fedprox", "mu": -1}},
    {"method": {"name": "fedma", "matching": "some"}},
    {"method": {"name": "fedma", "matching": {"growth": {"sper": 4}}}},
    {"data": ...},
    {"data.sites": {}},
    {"data.sites": {"a/b": "sets/O"}},
    {"data.sites": {"site[1-x]": "sets/O"}},
    {"data.sites": ["sets/O"]},
    {"evaluation.adapt": "tent"},
    {"federation.combine": "majority"},
    {"federation.secure": "yes"},
    {"federation.poisoned": {"sites": ["O"], "how": "shouting"}},
    {"input.size": 8},
    {"runtime.device": "tpu"},
    {"runtime.seed": -1},
]


@pytest.mark.parametrize("changes", VALID, ids=json.dumps)
def test_accepted_recipe_satisfies_the_schema(changes: dict[str, Any]) -> None:
    validate(small_recipe(changes), read_method)
    assert not faults(of_recipes(), small_recipe(changes))


@pytest.mark.parametrize("changes", INVALID, ids=str)
def test_refused_recipe_does_not_satisfy_the_schema(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        validate(small_recipe(changes), read_method)
    assert not of_recipes().is_valid(small_recipe(changes))


def test_every_key_with_a_short_form_has_it_in_the_schema() -> None:
    kinds = sections_of(Recipe, *(method.options for method in METHODS.values()))
    short_forms = {
        (kind, key)
        for kind in kinds
        for validator in kind.__pydantic_decorators__.field_validators.values()
        if validator.info.mode == "before"
        for key in validator.info.fields
    }
    assert short_forms == {(kind, key) for kind, keys in SHORT_FORMS.items() for key in keys} | {(Data, "sites")}


def test_descriptions_are_the_docstrings_of_the_code() -> None:
    sections = of_recipes().schema["$defs"]
    assert sections["Optimizer"]["description"] == inspect.getdoc(Optimizer)
    assert sections["Federation"]["properties"]["wire"]["description"].startswith("Number format of weights in transit")
    assert METHODS["fedma"].title in sections["method-fedma"]["description"]
    assert all("description" in section for section in sections.values())


def study(**changes: Any) -> dict[str, Any]:
    """Return a small study with changes; ``...`` removes a key."""
    recipe = {"method": {"name": "fedpad"}, "training": {"rounds": 1}}
    tree = {"title": "t", "recipe": recipe, "sets": {"A": "a", "B": "b"}, "rows": {"FedPAD": {}}, "seeds": [0]}
    return {key: value for key, value in {**tree, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": "demo/fedpad"},
        {"recipes": {"other": "demo/fedgpad"}, "rows": {"x": {"recipe": "other"}}},
        {"like": "studies/table3", "rows": ..., "sets": ...},
        {"sets": {"s[1-9]": "a part=*/9"}},
        {"targets": ["A"]},
        {"figures": ["hter", "seconds", "generic.tar@1e-3", "group.African.accuracy"]},
        {"rows": {"x": {"set": ["training.rounds=1"], "sites": ["A"]}}},
        {"paper": ["studies/printed/fedgpad-table3", {"source": "S", "rows": {"FedPAD": {"A": [1, 2, 3]}}}]},
    ],
    ids=str,
)
def test_accepted_study_satisfies_the_schema(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study(**changes)))
    load_study(tmp_path / "study.yaml")
    assert not faults(of_studies(), study(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"title": ...},
        {"rows": ...},
        {"seed": 0},
        {"seeds": []},
        {"seeds": ["one"]},
        {"figures": ["beauty"]},
        {"rows": {"x": {"sett": []}}},
        {"rows": {"x": {"set": "training.rounds=1"}}},
        {"rows": {}},
        {"targets": "A"},
        {"sets": {"A": 1, "B": 2}},
        {"paper": [{"rows": {}}]},
        {"recipe": ["demo/fedpad"]},
    ],
    ids=str,
)
def test_refused_study_does_not_satisfy_the_schema(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study(**changes)))
    with pytest.raises(UserError):
        load_study(tmp_path / "study.yaml")
    assert not of_studies().is_valid(study(**changes))


def test_schema_checks_the_recipe_in_a_study() -> None:
    assert not of_studies().is_valid(study(recipe={"method": {"name": "fedpda"}}))
    assert not of_studies().is_valid(study(rows={"x": {"set": ["training.rounds"]}}))


def test_unknown_schema_is_a_users_mistake(command: Command) -> None:
    code, _, error = command("recipe", "schema", "--of", "table")
    assert code == 2
    check_output(error, "--of", "'table'", "study")


@pytest.mark.long
@pytest.mark.parametrize(("words", "title"), [([], "A recipe"), (["--of", "study"], "A study")])
def test_command_prints_the_schema(words: list[str], title: str, command: Command) -> None:
    code, output, _ = command("recipe", "schema", *words)
    assert code == 0
    assert json.loads(output)["title"].startswith(title)
    assert json.loads(output) == (of_studies() if words else of_recipes()).schema
