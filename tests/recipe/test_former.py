"""Files of version 0.1, which called the target ``user``, are read under the present names."""

from typing import Any

import pytest
from tests.refusals import refused

import fedvisage as fv
from fedvisage.methods import read_method
from fedvisage.recipe import tree_of, validate
from fedvisage.recipe.recipe import rename_places

FORMER: dict[str, Any] = {
    "method": "fedpad",
    "data": {"sites": {"A": "sets/A", "B": "sets/B"}, "user": "sets/U", "user_name": "U", "user_split": "test"},
    "training": {"rounds": 1},
}
PRESENT: dict[str, Any] = {
    **FORMER,
    "data": {"sites": {"A": "sets/A", "B": "sets/B"}, "target": "sets/U", "target_name": "U", "target_split": "test"},
}


def test_recipe_with_former_keys_equals_one_with_present_keys() -> None:
    former = validate(FORMER, read_method)
    assert former == validate(PRESENT, read_method) == fv.load(FORMER)
    assert not {"user", "user_name", "user_split"} & tree_of(former)["data"].keys()


@pytest.mark.parametrize("content", [FORMER, PRESENT])
def test_key_under_both_names_is_refused(content: dict[str, Any]) -> None:
    both = {**content, "data": {**content["data"], "target": "sets/V", "user": "sets/V"}}
    with refused("recipe.data.user", "unknown"):
        validate(both, read_method)


def test_files_of_a_run_are_read_with_the_present_names() -> None:
    assert rename_places({"data.user": "abc", "data.sites.A": "d"}) == {"data.target": "abc", "data.sites.A": "d"}
    overlap = {"pictures": {"data.user": 3}, "shared": [{"place": "data.user", "with": "data.sites.A", "exact": 1}]}
    renamed = {"pictures": {"data.target": 3}, "shared": [{"place": "data.target", "with": "data.sites.A", "exact": 1}]}
    assert rename_places(overlap) == renamed
