"""Mistakes in recipes are reported with their place before a run starts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from tests.refusals import refused
from tests.toy import recipe_of, tree

from fedvisage.methods import read_method
from fedvisage.recipe import (
    MethodOptions,
    Recipe,
    Section,
    apply_override,
    load,
    read_section,
    text_of,
    tree_of,
    validate,
)


@pytest.fixture
def content() -> dict[str, Any]:
    return tree({name: Path(f"sets/{name}") for name in "ABCU"})


def check_mistake(content: dict[str, Any], override: str, place: str, *keywords: str) -> None:
    with refused(place, *keywords):
        override_recipe(content, override)


def override_recipe(content: dict[str, Any], override: str) -> Recipe:
    apply_override(content, override)
    return validate(content, read_method)


@pytest.mark.parametrize(
    ("override", "place", "keyword"),
    [
        ("training.epoch=3", "recipe.training.epoch", "unknown"),
        ("speed=3", "recipe.speed", "unknown"),
        ("method.widht=3", "recipe.method.widht", "unknown"),
        ("method.network.width=12", "recipe.method.network.width", "12"),
        ("training.rounds=0", "recipe.training.rounds", "0"),
        ("training.rounds=many", "recipe.training.rounds", "'many'"),
        ("training.batch=1", "recipe.training.batch.default", "1"),
        ("training.batch.per_site.A=1", "recipe.training.batch.per_site.A", "1"),
        ("training.optimizer.lr=-1", "recipe.training.optimizer.lr", "-1"),
        ("training.optimizer.lr=.nan", "recipe.training.optimizer.lr", "finite"),
        ("training.optimizer.lr=.inf", "recipe.training.optimizer.lr", "finite"),
        ("training.optimizer.name=lion", "recipe.training.optimizer.name", "'sgd'"),
        ("training.local={}", "recipe.training.local", "batches"),
        ("training.local.epochs=2", "recipe.training.local", "batches"),
        ("training.optimizer.momentum=0.9", "recipe.training.optimizer", "momentum"),
        ("federation.quorum=4", "recipe", "3 sites"),
        ("federation.participation=0", "recipe.federation.participation", "0"),
        ("federation.offline=1.5", "recipe.federation.offline", "1.5"),
        ("runtime.device=tpu", "recipe.runtime.device", "'tpu'"),
        ("runtime.seed=-1", "recipe.runtime.seed", "-1"),
        ("data.sites={}", "recipe.data.sites", "1"),
        ("data.sites.a/b=x", "recipe.data.sites", "'a/b'"),
        ("data.sites.A=sets/U", "recipe.data", "site A"),
        ("data.target_name=B", "recipe.data", "site"),
        ("training.batch.per_site.D=8", "recipe", "D"),
        ("evaluation={keep: best, every: 0}", "recipe", "evaluation.every"),
    ],
)
def test_mistake_is_reported_with_its_place(content: dict[str, Any], override: str, place: str, keyword: str) -> None:
    if "per_site" in override:
        content["training"]["batch"] = {"default": 8}
    check_mistake(content, override, place, keyword)


@pytest.mark.parametrize("section", [{"evaluation": {"keep": "best"}}, {"training": {"early_stop": {"patience": 1}}}])
def test_rounds_of_changing_sites_are_not_compared(content: dict[str, Any], section: dict[str, Any]) -> None:
    for name, keys in section.items():
        content[name] = {**content.get(name, {}), **keys}
    check_mistake(content, "federation.participation=0.3", "recipe", "federation.participation: 1")


@pytest.mark.parametrize(
    ("override", "keyword"),
    [
        ("training.rounds", "key=value"),
        ("=3", "key=value"),
        ("training.rounds.deep=3", "section"),
        ("recipe.training.rounds=3", "leave out"),
        ("training.rounds=[1", "YAML"),
    ],
)
def test_a_bad_override_is_quoted(content: dict[str, Any], override: str, keyword: str) -> None:
    check_mistake(content, override, override, keyword)


@pytest.mark.parametrize(
    ("override", "place", "keyword"),
    [
        ("training.optimiser.lr=3", "recipe.training.optimiser", "optimizer"),
        ("trainin.rounds=3", "recipe.trainin", "training"),
        ("training.batch.per_sight.A=3", "recipe.training.batch.per_sight", "per_site"),
        ("evaluation.recognition.flp=true", "recipe.evaluation.recognition.flp", "flip"),
        ("method.netwrk=3", "recipe.method.netwrk", "network"),
        ("rounds=3", "recipe.rounds", "training.rounds"),
        ("epochs=3", "recipe.epochs", "training.local.epochs"),
        ("method.network.name=x", "recipe.method.network.name", "did you mean method.name?"),
        ("method.width=3", "recipe.method.width", "did you mean method.network.width?"),
        ("method.network.widht=3", "recipe.method.network.widht", "width"),
        ("method=fedpaad", "recipe.method.name", "did you mean fedpad? A method of your own"),
        ("method={name: fedprox, model: vith}", "recipe.method.model", "vit-h"),
    ],
)
def test_misspelt_key_suggests_the_nearest(content: dict[str, Any], override: str, place: str, keyword: str) -> None:
    check_mistake(content, override, place, keyword)


@pytest.mark.parametrize(
    ("override", "place", "keyword"),
    [
        ("data=3", "recipe.data", "3"),
        ("data.sites=3", "recipe.data.sites", "3"),
        ("data.sites.A=3", "recipe.data.sites.A", "3"),
        ("data.sites.A={synth: O}", "recipe.data.sites.A", "section"),
        ("training=[1]", "recipe.training", "list"),
        ("training={}", "recipe.training.rounds", "missing"),
        ("method=3", "recipe.method", "3"),
        ("method=[fedpad]", "recipe.method", "list"),
        ("method.name=3", "recipe.method.name", "3"),
        ("training.rounds=1.5", "recipe.training.rounds", "1.5"),
        ("training.rounds=", "recipe.training.rounds", "nothing"),
        ("training.rounds=true", "recipe.training.rounds", "whole number"),
        ("training.optimizer.lr=false", "recipe.training.optimizer.lr", "number"),
        ("training.batch=true", "recipe.training.batch.default", "number"),
        ("federation.joins={A: true}", "recipe.federation.joins", "number"),
        ("evaluation.recognition.far=[true]", "recipe.evaluation.recognition.far", "number"),
        ("method.network.width=true", "recipe.method.network.width", "number"),
        ("runtime.seed=[1]", "recipe.runtime.seed", "list"),
        ("federation.secure=yes", "recipe.federation.secure", "'yes'"),
        ("training.batch.per_site={A: '8'}", "recipe.training.batch.per_site", "whole number"),
        ("evaluation.recognition.far=['0.1']", "recipe.evaluation.recognition.far", "number"),
        ("runtime.compile=1", "recipe.runtime.compile", "true or false"),
        ("runtime.workers='2'", "recipe.runtime.workers", "whole number"),
        ("method.network.width='8'", "recipe.method.network.width", "whole number"),
    ],
)
def test_wrong_type_names_the_expected_type(content: dict[str, Any], override: str, place: str, keyword: str) -> None:
    check_mistake(content, override, place, keyword)


@pytest.mark.parametrize(
    ("override", "entry"),
    [
        ("data.sites.A=synth: O subjects=6", "synth: O subjects=6"),
        ("data.sites.A=synth: O subjects=6 only: attacks=print", "synth: O subjects=6 only: attacks=print"),
        ("data.sites.A='synth: O subjects=6'", "synth: O subjects=6"),
        ('data.sites.A="synth: O only: attacks=print"', "synth: O only: attacks=print"),
        ("data.sites.A=synth:3", "synth:3"),
        ("data.sites.A=sets/M only: bonafide=1/2", "sets/M only: bonafide=1/2"),
        ("data.sites.A=sets/M", "sets/M"),
    ],
)
def test_data_entry_on_the_command_line_needs_no_inner_quotes(
    content: dict[str, Any], override: str, entry: str
) -> None:
    assert override_recipe(content, override).data.sites["A"] == entry


def test_target_and_public_sets_are_entries_that_can_be_removed(content: dict[str, Any]) -> None:
    apply_override(content, "data.public=synth: people identities=9 part=1/3")
    assert override_recipe(content, "data.target=synth: M").data.target == "synth: M"
    assert content["data"]["public"] == "synth: people identities=9 part=1/3"
    assert override_recipe(content, "data.target=null").data.target is None


def test_unquoted_entry_in_a_file_is_refused_with_the_quoted_form(tmp_path: Path) -> None:
    for line in ("    O: synth: O subjects=6", "    O: sets/M only: bonafide=1/2", "    {O: synth: O subjects=6}"):
        (tmp_path / "recipe.yaml").write_text(f"data:\n  sites:\n{line}\n")
        with refused(tmp_path / "recipe.yaml", "quote", "line 3"):
            load(tmp_path / "recipe.yaml", [], read_method)


def test_site_names_that_look_like_booleans_are_kept(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "method: fedpad\ndata:\n  sites: {yes: sets/A, no: sets/B, on: sets/C, 1e3: sets/D, 007: sets/E}\n"
        "  target_name: off\ntraining:\n  rounds: 1\n  batch: {per_site: {no: 4}}\n"
    )
    recipe = load(tmp_path / "recipe.yaml", [], read_method)
    assert [*recipe.data.sites] == ["yes", "no", "on", "1e3", "007"]
    assert (recipe.training.batch.of("no"), recipe.data.target_name) == (4, "off")
    (tmp_path / "again.yaml").write_text(text_of(recipe))
    assert load(tmp_path / "again.yaml", [], read_method) == recipe


def test_site_repeated_by_a_range_is_refused(content: dict[str, Any]) -> None:
    check_mistake(content, "data.sites={s2: sets/A, 's[1-3]': sets/B}", "recipe.data.sites", "s2", "twice")


@pytest.mark.parametrize("method", ["fedavgg", None, 3, {}, ["fedpad"]])
def test_unknown_method_lists_the_methods(content: dict[str, Any], method: Any) -> None:
    content["method"] = method if isinstance(method, dict) else {"name": method}
    with refused("recipe.method.name", "fedavg"):
        validate(content, read_method)


def test_several_mistakes_are_reported_at_once(content: dict[str, Any]) -> None:
    content["training"] |= {"rounds": 0, "batch": 1}
    with refused("recipe.training.rounds", "recipe.training.batch.default"):
        validate(content, read_method)


def test_resolved_recipe_round_trips(content: dict[str, Any]) -> None:
    recipe = recipe_of(content)
    again = validate(yaml.safe_load(text_of(recipe)), read_method)
    assert again == recipe
    assert text_of(again) == text_of(recipe)
    assert tree_of(recipe)["method"]["network"] == {"width": 8}


def test_a_recipe_cannot_be_changed(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="frozen"):
        recipe_of(content).training.rounds = 5  # type: ignore[misc]


def test_overrides_are_read_as_yaml_and_make_sections(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    overrides = ["training.rounds=7", "federation.quorum=2", "training.local={epochs: 4}"]
    recipe = load(tmp_path / "recipe.yaml", overrides, read_method)
    assert (recipe.training.rounds, recipe.federation.quorum, recipe.training.local.epochs) == (7, 2, 4)


def test_site_names_that_look_like_numbers_are_text(content: dict[str, Any]) -> None:
    content["data"]["sites"] = {3: "sets/three", "H": "sets/H"}
    assert recipe_of(content).data.sites == {"3": "sets/three", "H": "sets/H"}


@pytest.mark.parametrize(("text", "keyword"), [("a: [", "YAML"), ("- a", "mapping"), ("", "mapping"), ("\x00", "YAML")])
def test_file_without_a_recipe_is_named(text: str, keyword: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with refused(path, keyword):
        load(path, [], read_method)


def test_missing_recipe_is_named(tmp_path: Path) -> None:
    with refused("none.yaml", "read"):
        load(tmp_path / "none.yaml", [], read_method)


def test_short_forms_can_be_overridden_like_the_long_ones(content: dict[str, Any]) -> None:
    content["method"], content["training"]["batch"] = "fedpad", 16
    apply_override(content, "method.name=single")
    recipe = override_recipe(content, "training.batch.per_site.A=4")
    assert recipe.method.name == "single"
    assert (recipe.training.batch.of("A"), recipe.training.batch.of("B")) == (4, 16)


def test_quorum_must_not_exceed_the_sampled_sites(content: dict[str, Any]) -> None:
    content["federation"] = {"participation": 0.34}
    check_mistake(content, "federation.quorum=2", "recipe", "1 sites")


def test_features_need_a_target_to_compare_with(content: dict[str, Any]) -> None:
    content["evaluation"]["features"] = 10
    check_mistake(content, "data.target=null", "recipe", "data.target")


def test_threshold_of_the_target_needs_a_target(content: dict[str, Any]) -> None:
    content["evaluation"]["threshold"] = "target-eer"
    check_mistake(content, "data.target=null", "recipe", "data.target", "source-eer")


def sections_below(kind: type[Section]) -> Iterator[type[Section]]:
    for below in kind.__subclasses__():
        yield below
        yield from sections_below(below)


def test_no_key_accepts_text_for_a_number_or_boolean() -> None:
    """Each key of every section and method."""
    checked = 0
    for kind in sections_below(Section):
        for key, field in kind.model_fields.items():
            boolean = bool in {field.annotation, *get_args(field.annotation)}
            if boolean or field.annotation in (int, float):
                for value in ("1", "true"):
                    with refused(f"place.{key}", "true or false" if boolean else "number", value):
                        read_section(kind, {key: value}, "place")
                    checked += 1
    assert checked > 150


def test_integer_is_accepted_as_a_number_and_auto_as_a_choice(content: dict[str, Any]) -> None:
    assert override_recipe(content, "training.optimizer.lr=1").training.optimizer.lr == 1
    assert override_recipe(content, "runtime.workers=auto").runtime.workers == "auto"


@pytest.mark.parametrize("key", ["title", "data.target", "data.target_name", "data.sites.A", "tracking.to", "method.x"])
def test_lone_surrogate_is_refused_with_its_key(content: dict[str, Any], key: str) -> None:
    r"""A YAML text such as "\ud800" can be read, but no file can store it."""
    value = r'["\ud800"]' if key == "tracking.to" else r'"\ud800"'
    check_mistake(content, f"{key}={value}", f"recipe.{key}", "surrogate")


def test_lone_surrogate_is_refused_in_an_option_of_an_outside_method(content: dict[str, Any]) -> None:
    class Options(MethodOptions):
        note: str = ""

    with refused("recipe.method.note", "surrogate"):
        validate({**content, "method": {"name": "mine", "note": "a\ud800"}}, Options.model_validate)
