"""The JSON Schemas accept what the program accepts, and refuse what it refuses."""

from __future__ import annotations

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
from tests.refusals import check_output

from fedvisage import cli
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


def as_json(path: Path) -> Any:
    """Return a YAML file as an editor's checker sees it: keys are text."""
    return json.loads(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))))


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the small recipe with dotted keys set, or left out where the value is ``...``."""
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


@pytest.mark.parametrize("schema", [of_recipes, of_studies])
def test_a_schema_is_itself_one_of_the_dialect_that_it_names(schema: Callable[[], Draft202012Validator]) -> None:
    validator = schema()
    Draft202012Validator.check_schema(validator.schema)
    assert validator.schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_every_shipped_recipe_and_study_satisfies_its_schema(entry: Any) -> None:
    validator = of_recipes() if entry.kind == "recipe" else of_studies()
    assert [error.message for error in validator.iter_errors(as_json(locate(entry.name)))] == []


NEEDED = {"privacyface": {"delta": 1e-3}, "fedstackfpad": {"network": {"arch": "resnet18"}}}
"""Options without a default."""


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_resolved_recipe_of_every_method_satisfies_the_schema(method: Method) -> None:
    given = {"name": method.name, **NEEDED.get(method.name, {})}
    section = method.options.model_validate(given).model_dump(mode="json")
    assert [error.message for error in of_recipes().iter_errors(changed({"method": section}))] == []
    assert not of_recipes().is_valid(changed({"method": {**section, "no-such-option": 1}}))


RIGHT: list[dict[str, Any]] = [
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

WRONG: list[dict[str, Any]] = [
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


@pytest.mark.parametrize("changes", RIGHT, ids=json.dumps)
def test_what_the_program_accepts_satisfies_the_schema(changes: dict[str, Any]) -> None:
    validate(changed(changes), read_method)
    assert [error.message for error in of_recipes().iter_errors(changed(changes))] == []


@pytest.mark.parametrize("changes", WRONG, ids=str)
def test_what_the_program_refuses_does_not_satisfy_the_schema(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        validate(changed(changes), read_method)
    assert not of_recipes().is_valid(changed(changes))


def test_every_key_with_a_short_form_has_it_in_the_schema() -> None:
    kinds = sections_of(Recipe, *(method.options for method in METHODS.values()))
    written = {
        (kind, key)
        for kind in kinds
        for found in kind.__pydantic_decorators__.field_validators.values()
        if found.info.mode == "before"
        for key in found.info.fields
    }
    assert written == {(kind, key) for kind, keys in SHORT_FORMS.items() for key in keys} | {(Data, "sites")}


def test_sections_methods_and_keys_are_described_in_the_words_of_the_code() -> None:
    sections = of_recipes().schema["$defs"]
    assert sections["Optimizer"]["description"] == inspect.getdoc(Optimizer)
    assert sections["Federation"]["properties"]["wire"]["description"].startswith("Number format of weights in transit")
    assert METHODS["fedma"].title in sections["method-fedma"]["description"]
    assert all("description" in section for section in sections.values())


def study(**changes: Any) -> dict[str, Any]:
    """Return a small study as it is written."""
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
def test_a_study_that_is_read_satisfies_the_schema(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study(**changes)))
    load_study(tmp_path / "study.yaml")
    assert [error.message for error in of_studies().iter_errors(study(**changes))] == []


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
def test_a_study_that_is_refused_does_not_satisfy_the_schema(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study(**changes)))
    with pytest.raises(UserError):
        load_study(tmp_path / "study.yaml")
    assert not of_studies().is_valid(study(**changes))


def test_the_recipe_in_a_study_is_checked_too() -> None:
    assert not of_studies().is_valid(study(recipe={"method": {"name": "fedpda"}}))
    assert not of_studies().is_valid(study(rows={"x": {"set": ["training.rounds"]}}))


def test_another_schema_is_a_users_mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fedvisage", "recipe", "schema", "--of", "table"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    check_output(capsys.readouterr().err, "--of", "'table'", "study")


@pytest.mark.parametrize(("words", "title"), [([], "A recipe"), (["--of", "study"], "A study")])
def test_the_command_prints_the_schema(
    words: list[str], title: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fedvisage", "recipe", "schema", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    printed = json.loads(capsys.readouterr().out)
    assert printed["title"].startswith(title)
    assert printed == (of_studies() if words else of_recipes()).schema
