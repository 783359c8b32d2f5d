"""Unusable data is refused before training, with its place in the recipe."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.refusals import refused
from tests.toy import Sets, make_set, open_run_data, run_toy, tree

from fedvisage.tasks.opened import POOLED

Spoil = Callable[[Path], Path]


def nothing(directory: Path) -> Path:
    return directory / "nothing"


def empty(directory: Path) -> Path:
    (directory / "empty").mkdir()
    return directory / "empty"


def bona_fide_only(directory: Path) -> Path:
    return make_set(directory / "one", "one", 9, species=("bonafide",))


def attacks_only(directory: Path) -> Path:
    return make_set(directory / "one", "one", 9, species=("print",))


def larger(directory: Path) -> Path:
    return make_set(directory / "larger", "larger", 9, size=24)


def nobody_held_out(directory: Path) -> Path:
    return make_set(directory / "few", "few", 9, subjects=1)


def cut_short(directory: Path) -> Path:
    path = make_set(directory / "cut", "cut", 9)
    data = (path / "images.npy").read_bytes()
    (path / "images.npy").write_bytes(data[:-10])
    return path


@pytest.mark.parametrize(
    ("spoil", "place", "keyword"),
    [
        (nothing, "recipe.data.sites.B", "directory"),
        (empty, "recipe.data.sites.B", "set.json"),
        (bona_fide_only, "data.sites.B", "attacks"),
        (attacks_only, "data.sites.B", "bona fide"),
        (larger, "recipe.data.sites.B", "24×24"),
        (nobody_held_out, "data.sites.B", "split"),
        (cut_short, "images.npy", "bytes"),
    ],
)
def test_unusable_data_of_a_site_is_named(spoil: Spoil, place: str, keyword: str, sets: Sets, tmp_path: Path) -> None:
    with refused(place, keyword):
        run_toy(tree({**sets, "B": spoil(tmp_path)}), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing is left of a run that could not begin"


def test_target_with_another_image_size_is_named(sets: Sets, tmp_path: Path) -> None:
    with refused("recipe.data.target", "24×24"):
        run_toy(tree({**sets, "U": larger(tmp_path)}), tmp_path / "run")


def test_target_that_copies_a_site_is_refused(sets: Sets, tmp_path: Path) -> None:
    shutil.copytree(sets["B"], tmp_path / "copy")
    with refused("data.target", "site B"):
        run_toy(tree({**sets, "U": tmp_path / "copy"}), tmp_path / "run")


def test_target_without_the_requested_split_is_named(sets: Sets, tmp_path: Path) -> None:
    with refused("data.target_split", "'test'"):
        run_toy(tree(sets, data__target_split="test"), tmp_path / "run")


def test_site_trains_on_some_subjects_and_holds_out_others(sets: Sets, tmp_path: Path) -> None:
    result = open_run_data(tree(sets), tmp_path)
    assert list(result.sites) == ["A", "B", "C"]
    for site in result.sites.values():
        assert len(site.train) == 24
        assert len(site.heldout) == 12
        assert not set(site.train.subjects) & set(site.heldout.subjects)


def test_target_contributes_all_images_or_the_requested_split(sets: Sets, tmp_path: Path) -> None:
    for split, count in (("all", 36), ("heldout", 12)):
        target = open_run_data(tree(sets, data__target_split=split), tmp_path).target
        assert target is not None
        assert len(target) == count


def test_pooling_joins_all_sites_into_one(sets: Sets, tmp_path: Path) -> None:
    result = open_run_data(tree(sets, "pooled"), tmp_path)
    assert list(result.sites) == [POOLED]
    assert len(result.sites[POOLED].train) == 72
    assert len(result.sites[POOLED].heldout) == 36
