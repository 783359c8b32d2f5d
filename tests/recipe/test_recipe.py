"""A mistake in a recipe is named with its place, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.toy import recipe_of, tree

from fedvisage.base.errors import UserError
from fedvisage.methods import read_method
from fedvisage.recipe import Recipe, apply_override, load, text_of, tree_of, validate


@pytest.fixture
def content() -> dict[str, Any]:
    return tree({name: Path(f"sets/{name}") for name in "ABCU"})


def mistake(content: dict[str, Any], override: str) -> UserError:
    with pytest.raises(UserError) as caught:
        changed(content, override)
    return caught.value


def changed(content: dict[str, Any], override: str) -> Recipe:
    apply_override(content, override)
    return validate(content, read_method)


@pytest.mark.parametrize(
    ("override", "place", "message"),
    [
        ("training.epoch=3", "recipe.training.epoch", "unknown key"),
        ("speed=3", "recipe.speed", "unknown key"),
        ("method.widht=3", "recipe.method.widht", "unknown key"),
        ("method.network.width=12", "recipe.method.network.width", "multiple of 8, got 12"),
        ("training.rounds=0", "recipe.training.rounds", "got 0"),
        ("training.rounds=many", "recipe.training.rounds", "got 'many'"),
        ("training.batch=1", "recipe.training.batch.default", "got 1"),
        ("training.batch.per_site.A=1", "recipe.training.batch", "got 1"),
        ("training.optimizer.lr=-1", "recipe.training.optimizer.lr", "got -1"),
        ("training.optimizer.lr=.nan", "recipe.training.optimizer.lr", "finite"),
        ("training.optimizer.lr=.inf", "recipe.training.optimizer.lr", "finite"),
        ("training.optimizer.name=lion", "recipe.training.optimizer.name", "'adam' or 'sgd'"),
        ("training.local={}", "recipe.training.local", "either epochs or batches"),
        ("training.local.epochs=2", "recipe.training.local", "either epochs or batches"),
        ("training.optimizer.momentum=0.9", "recipe.training.optimizer", "momentum is for sgd"),
        ("federation.quorum=4", "recipe", "a round asks 3 sites"),
        ("federation.participation=0", "recipe.federation.participation", "got 0"),
        ("federation.offline=1.5", "recipe.federation.offline", "got 1.5"),
        ("runtime.device=tpu", "recipe.runtime.device", "got 'tpu'"),
        ("runtime.seed=-1", "recipe.runtime.seed", "got -1"),
        ("data.sites={}", "recipe.data.sites", "at least 1"),
        ("data.sites.a/b=x", "recipe.data.sites", "site name 'a/b'"),
        ("data.sites.A=sets/U", "recipe.data", "data of site A"),
        ("data.target_name=B", "recipe.data", "site"),
        ("training.batch.per_site.D=8", "recipe", "names D"),
        ("evaluation={keep: best, every: 0}", "recipe", "evaluation.every"),
    ],
)
def test_a_mistake_is_named_with_its_place(content: dict[str, Any], override: str, place: str, message: str) -> None:
    if "per_site" in override:
        content["training"]["batch"] = {"default": 8}
    found = mistake(content, override)
    assert found.place.startswith(place)
    assert message in str(found)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.rounds", "key=value"),
        ("=3", "key=value"),
        ("training.rounds.deep=3", "rounds is not a section"),
        ("training.rounds=[1", "not YAML"),
    ],
)
def test_a_bad_override_is_quoted(content: dict[str, Any], override: str, message: str) -> None:
    found = mistake(content, override)
    assert found.place == override
    assert message in found.message


@pytest.mark.parametrize(
    ("override", "place", "words"),
    [
        ("training.optimiser.lr=3", "recipe.training.optimiser", "unknown key; did you mean optimizer?"),
        ("trainin.rounds=3", "recipe.trainin", "did you mean training?"),
        ("training.batch.per_sight.A=3", "recipe.training.batch.per_sight", "did you mean per_site?"),
        ("evaluation.recognition.flp=true", "recipe.evaluation.recognition.flp", "did you mean flip?"),
        ("method.netwrk=3", "recipe.method.netwrk", "did you mean network?"),
        ("method.network.widht=3", "recipe.method.network.widht", "did you mean width?"),
        ("method=fedpaad", "recipe.method.name", "did you mean fedpad?"),
        ("method={name: fedprox, model: vith}", "recipe.method.model", "did you mean vit-h?"),
    ],
)
def test_a_slip_of_the_pen_is_told_what_was_meant(
    content: dict[str, Any], override: str, place: str, words: str
) -> None:
    found = mistake(content, override)
    assert found.place == place
    assert words in found.message


@pytest.mark.parametrize(
    ("override", "place", "words"),
    [
        ("data=3", "recipe.data", "must be a section (key: value), got 3"),
        ("data.sites=3", "recipe.data.sites", "must be a section (key: value), got 3"),
        ("data.sites.A=3", "recipe.data.sites.A", "must be text, got 3"),
        ("data.sites.A={synth: O}", "recipe.data.sites.A", "must be text, got a section"),
        ("training=[1]", "recipe.training", "must be a section (key: value), got a list"),
        ("training={}", "recipe.training.rounds", "is missing"),
        ("method=3", "recipe.method", "name of a method, or a section with its name, got 3"),
        ("method=[fedpad]", "recipe.method", "got a list"),
        ("method.name=3", "recipe.method.name", "must be the name of a method, got 3"),
        ("training.rounds=1.5", "recipe.training.rounds", "must be a whole number, got 1.5"),
        ("training.rounds=", "recipe.training.rounds", "must be a whole number, got nothing"),
        ("training.rounds=true", "recipe.training.rounds", "must be a number, got true"),
        ("training.optimizer.lr=false", "recipe.training.optimizer.lr", "must be a number"),
        ("training.batch=true", "recipe.training.batch.default", "must be a number"),
        ("federation.joins={A: true}", "recipe.federation.joins", "must be a number"),
        ("evaluation.recognition.far=[true]", "recipe.evaluation.recognition.far", "must be a number"),
        ("method.network.width=true", "recipe.method.network.width", "must be a number"),
        ("runtime.seed=[1]", "recipe.runtime.seed", "must be a whole number, got a list"),
        ("federation.secure=yes", "recipe.federation.secure", "must be a section (key: value), got 'yes'"),
    ],
)
def test_what_is_of_another_kind_is_told_in_plain_words(
    content: dict[str, Any], override: str, place: str, words: str
) -> None:
    found = mistake(content, override)
    assert found.place == place
    assert words in found.message


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
def test_a_data_entry_on_the_command_line_needs_no_quotes_within_quotes(
    content: dict[str, Any], override: str, entry: str
) -> None:
    assert changed(content, override).data.sites["A"] == entry


def test_target_and_public_sets_are_entries_too_and_can_be_taken_away(content: dict[str, Any]) -> None:
    apply_override(content, "data.public=synth: people identities=9 part=1/3")
    assert changed(content, "data.target=synth: M").data.target == "synth: M"
    assert content["data"]["public"] == "synth: people identities=9 part=1/3"
    assert changed(content, "data.target=null").data.target is None


def test_an_entry_without_quotes_in_a_file_is_told_to_have_some(tmp_path: Path) -> None:
    for line in ("    O: synth: O subjects=6", "    O: sets/M only: bonafide=1/2", "    {O: synth: O subjects=6}"):
        (tmp_path / "recipe.yaml").write_text(f"data:\n  sites:\n{line}\n")
        with pytest.raises(UserError, match=r"in quotes.*line 3") as caught:
            load(tmp_path / "recipe.yaml", [], read_method)
        assert caught.value.place == str(tmp_path / "recipe.yaml")


def test_sites_whose_names_are_words_for_truth_keep_their_names(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "method: fedpad\ndata:\n  sites: {yes: sets/A, no: sets/B, on: sets/C, 1e3: sets/D, 007: sets/E}\n"
        "  target_name: off\ntraining:\n  rounds: 1\n  batch: {per_site: {no: 4}}\n"
    )
    recipe = load(tmp_path / "recipe.yaml", [], read_method)
    assert [*recipe.data.sites] == ["yes", "no", "on", "1e3", "007"]
    assert (recipe.training.batch.of("no"), recipe.data.target_name) == (4, "off")
    (tmp_path / "again.yaml").write_text(text_of(recipe))
    assert load(tmp_path / "again.yaml", [], read_method) == recipe


def test_a_site_that_a_range_names_again_is_refused(content: dict[str, Any]) -> None:
    found = mistake(content, "data.sites={s2: sets/A, 's[1-3]': sets/B}")
    assert found.place == "recipe.data.sites"
    assert "s2 stands twice" in found.message


@pytest.mark.parametrize("method", ["fedavgg", None, 3, {}, ["fedpad"]])
def test_an_unknown_method_is_answered_with_the_list(content: dict[str, Any], method: Any) -> None:
    content["method"] = method if isinstance(method, dict) else {"name": method}
    with pytest.raises(UserError, match=r"fedpad|fedavg") as caught:
        validate(content, read_method)
    assert caught.value.place == "recipe.method.name"


def test_several_mistakes_are_told_at_once(content: dict[str, Any]) -> None:
    content["training"] |= {"rounds": 0, "batch": 1}
    with pytest.raises(UserError) as caught:
        validate(content, read_method)
    assert "recipe.training.rounds" in str(caught.value)
    assert "recipe.training.batch" in str(caught.value)


def test_a_resolved_recipe_is_a_recipe_again_and_means_the_same(content: dict[str, Any]) -> None:
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


def test_site_names_that_yaml_takes_for_numbers_are_names(content: dict[str, Any]) -> None:
    content["data"]["sites"] = {3: "sets/three", "H": "sets/H"}
    assert recipe_of(content).data.sites == {"3": "sets/three", "H": "sets/H"}


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "not YAML"), ("- a", "mapping"), ("", "mapping"), ("\x00", "not YAML")]
)
def test_a_file_that_is_no_recipe_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load(path, [], read_method)
    assert caught.value.place == str(path)


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "none.yaml", [], read_method)


def test_short_forms_can_be_overridden_like_the_long_ones(content: dict[str, Any]) -> None:
    content["method"], content["training"]["batch"] = "fedpad", 16
    apply_override(content, "method.name=single")
    recipe = changed(content, "training.batch.per_site.A=4")
    assert recipe.method.name == "single"
    assert (recipe.training.batch.of("A"), recipe.training.batch.of("B")) == (4, 16)


def test_a_quorum_must_be_within_what_a_round_asks(content: dict[str, Any]) -> None:
    content["federation"] = {"participation": 0.34}
    assert "a round asks 1 sites" in str(mistake(content, "federation.quorum=2"))


def test_features_need_a_target_to_compare_with(content: dict[str, Any]) -> None:
    content["evaluation"]["features"] = 10
    assert "name data.target" in str(mistake(content, "data.target=null"))
