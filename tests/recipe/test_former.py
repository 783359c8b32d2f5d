"""Keys of earlier versions are still read, with a line that names the present one."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import fedvisage as fv
from fedvisage.base.errors import UserError
from fedvisage.methods import read_method
from fedvisage.recipe import load, tree_of, validate
from fedvisage.recipe.former import rename_in_recipe, rename_places
from fedvisage.studies.study import load_study

FORMER: dict[str, Any] = {
    "method": "fedpad",
    "data": {"sites": {"A": "sets/A", "B": "sets/B"}, "user": "sets/U", "user_name": "U", "user_split": "test"},
    "training": {"rounds": 1},
}
PRESENT: dict[str, Any] = {
    **FORMER,
    "data": {"sites": {"A": "sets/A", "B": "sets/B"}, "target": "sets/U", "target_name": "U", "target_split": "test"},
}
LINE = (
    "data.user is now called data.target, data.user_name is now called data.target_name, "
    "data.user_split is now called data.target_split"
)


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_recipe_with_former_keys_equals_one_with_present_keys(tmp_path: Path) -> None:
    lines: list[str] = []
    former = load(write(tmp_path / "former.yaml", FORMER), [], read_method, lines.append)
    assert lines == [LINE]
    assert former == load(write(tmp_path / "present.yaml", PRESENT), [], read_method, lines.append)
    assert len(lines) == 1
    assert not {"user", "user_name", "user_split"} & tree_of(former)["data"].keys()


@pytest.mark.parametrize("content", [FORMER, PRESENT])
def test_an_override_may_have_the_former_key(content: dict[str, Any], tmp_path: Path) -> None:
    lines: list[str] = []
    path = write(tmp_path / "recipe.yaml", content)
    recipe = load(path, ["data.user=synth: M subjects=2", "data.target_name=M"], read_method, lines.append)
    assert (recipe.data.target, recipe.data.target_name) == ("synth: M subjects=2", "M")
    assert lines[-1] == "data.user is now called data.target"


def test_a_key_under_both_names_is_refused() -> None:
    both = {**PRESENT, "data": {**PRESENT["data"], "user": "sets/V"}}
    with pytest.raises(UserError) as caught:
        validate(both, read_method)
    assert str(caught.value).startswith("recipe.data.user: is the former name of target")


def test_python_accepts_former_keys_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"data\.user is now called data\.target"):
        recipe = fv.load(FORMER, {"training.rounds": 2})
    with pytest.warns(UserWarning, match=r"data\.user_name is now called data\.target_name"):
        assert fv.load(recipe, {"data.user_name": "V"}).data.target_name == "V"


def test_unnamed_target_gets_the_present_name() -> None:
    sites = {"A": "sets/A", "user-x": "sets/X"}
    names = {"user": "target", "user-A": "target-A", "user-B": "user-B", "user-user-x": "target-user-x"}
    for former, present in names.items():
        renamed = rename_in_recipe({"data": {"sites": sites, "user_name": former}})
        assert renamed["data"]["target_name"] == present


def test_a_study_may_have_the_former_key(tmp_path: Path) -> None:
    lines: list[str] = []
    study = {
        "title": "t",
        "recipe": {**PRESENT, "data": None},
        "sets": {"A": "a", "B": "b", "U": "u"},
        "users": ["U"],
        "rows": {"FedPAD": {}},
        "seeds": [0],
    }
    path = write(tmp_path / "study.yaml", study)
    assert load_study(path, lines.append).targets == ["U"]
    assert lines == [f"note: {path}: users is now called targets"]
    write(path, {**study, "targets": ["A"]})
    with pytest.raises(UserError, match="users: is the former name of targets"):
        load_study(path)


def test_files_of_a_run_are_read_with_the_present_names() -> None:
    assert rename_places({"data.user": "abc", "data.sites.A": "d"}) == {"data.target": "abc", "data.sites.A": "d"}
    overlap = {"pictures": {"data.user": 3}, "shared": [{"place": "data.user", "with": "data.sites.A", "exact": 1}]}
    renamed = {"pictures": {"data.target": 3}, "shared": [{"place": "data.target", "with": "data.sites.A", "exact": 1}]}
    assert rename_places(overlap) == renamed
