"""Faulty identity sets are refused before training."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.lent_site import site_of
from tests.refusals import refused
from tests.toy import Sets, discard, make_people, make_sets, open_run_data, recipe_of, run_toy, set_of_task, tree

from fedvisage.tasks.recognition.data import with_public_identities


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    return make_sets(tmp_path / "sets")


def remake(sets: Sets, place: str, like: str | None = None, **changes: Any) -> None:
    """Replace a place's identity set, optionally with the people of another place."""
    path = set_of_task(sets["A"].with_name(place), "fedfr")
    shutil.rmtree(path)
    make_people(path, like or place, 5, **changes)


def open_sets(sets: Sets, method: str = "fedfr", **changes: Any) -> Any:
    return open_run_data(tree(sets, method, **changes), next(iter(sets.values())).parent / "cache")


@pytest.mark.parametrize(
    ("name", "like", "changes", "place", "keyword"),
    [
        ("B", "A", {}, "data.sites.B", "data.sites.A"),
        ("P", "A", {"heldout": 1, "test": 0}, "data.public", "secret-person-A0"),
        ("U", "C", {}, "data.target", "secret-person-C0"),
        ("U", "P", {}, "data.target", "data.public"),
        ("P", None, {"test": 0}, "data.public", "held-out"),
        ("A", None, {"identities": 1, "images": 2, "test": 1}, "data.sites.A", "1 images"),
    ],
)
def test_incompatible_sets_are_refused(
    own: dict[str, Path], name: str, like: str | None, changes: dict[str, Any], place: str, keyword: str
) -> None:
    remake(own, name, like, **changes)
    with refused(place, keyword):
        open_sets(own)


def test_set_of_attacks_is_not_an_identity_set(own: dict[str, Path]) -> None:
    with refused("data.sites.A", "fedvisage data people"):
        open_sets(own, data__sites={"A": str(own["A"])})


def test_identities_without_or_with_one_test_image_are_counted(own: dict[str, Path]) -> None:
    remake(own, "A", images=4, test=0)
    remake(own, "B", images=4, test=1)
    assert open_sets(own).people.counted == {"without_test_images": 3, "with_one_test_image": 3}


def test_only_rates_below_one_pair_are_refused(own: dict[str, Path]) -> None:
    pairs = 6 * 10  # test images of a site times images of held-out public people
    open_sets(own, evaluation__recognition={"personal_far": [1 / pairs]})
    with refused("recipe.evaluation.recognition.personal_far", "60", "site A"):
        open_sets(own, evaluation__recognition={"personal_far": [0.9 / pairs]})
    with refused("recipe.evaluation.recognition.personal_fpir", "16", "site A"):
        open_sets(own, evaluation__recognition={"personal_fpir": [0.01]})


def test_a_generic_rate_below_one_pair_is_refused(own: dict[str, Path]) -> None:
    open_sets(own, evaluation__recognition={"far": [1 / 75], "fpir": [1 / 6]})
    with refused("recipe.evaluation.recognition.far", "75", "benchmark"):
        open_sets(own, evaluation__recognition={"far": [0.013]})
    with refused("recipe.evaluation.recognition.fpir", "6", "benchmark"):
        open_sets(own, evaluation__recognition={"fpir": [0.16]})


def test_strangers_are_held_out_public_people_or_in_simulations_the_other_sites(own: dict[str, Path]) -> None:
    public = open_sets(own).people
    assert set(public.strangers["A"].identities.tolist()) == {"secret-person-P4", "secret-person-P5"}
    assert set(public.public.identities.tolist()) == {f"secret-person-P{number}" for number in range(4)}
    pooled = open_sets(own, evaluation__recognition={"impostors": "pooled"}).people.strangers
    others = {str(name) for name in pooled["A"].identities}
    assert others == {f"secret-person-{site}{number}" for site in "BC" for number in range(3)}
    entry = {"A": str(set_of_task(own["A"], "fedfr"))}
    with refused("recipe.evaluation.recognition.impostors", "site"):
        open_sets(own, data__sites=entry, evaluation__recognition={"impostors": "pooled"})


def test_shares_of_one_set_are_disjoint_and_whole(own: dict[str, Path]) -> None:
    path = set_of_task(own["A"], "fedfr")
    sites = open_sets(own, data__sites={"site[1-2]": f"{path} part=*/2"}).sites
    shares = {name: set(site.train.identities.tolist()) for name, site in sites.items()}
    assert shares == {"site1": {"secret-person-A0", "secret-person-A2"}, "site2": {"secret-person-A1"}}
    assert set(sites["site1"].heldout.identities.tolist()) == shares["site1"]


def test_several_shares_of_one_set_serve_places_of_different_size(own: dict[str, Path]) -> None:
    remake(own, "A", identities=10)
    path = set_of_task(own["A"], "fedfr")
    entries = {"first": f"{path} part=1/5", "others": f"{path} part=2-4/5"}
    data = open_sets(own, data__sites=entries, data__target=f"{path} part=5/5")
    shares = {name: set(site.train.identities.tolist()) for name, site in data.sites.items()}
    shares["target"] = set(data.target.identities.tolist())
    assert [len(shares[name]) for name in ("first", "others", "target")] == [2, 6, 2]
    assert len(set.union(*shares.values())) == 10
    with refused("sets/people-A part=4-2/5", "part=4-2/5"):
        open_sets(own, data__sites={"A": f"{path} part=4-2/5"})


def test_the_number_of_public_identities_is_filled_in_and_checked(own: dict[str, Path], tmp_path: Path) -> None:
    content = tree(own, "fedfr")
    assert with_public_identities(recipe_of(content), tmp_path, discard).data.public_identities == 4
    del content["data"]["public_identities"]
    assert with_public_identities(recipe_of(content), tmp_path, discard).data.public_identities == 4
    content["data"]["public_identities"] = 7
    with refused("recipe.data.public_identities", "7", "4"):
        with_public_identities(recipe_of(content), tmp_path, discard)
    content["data"] |= {"public": "synth: people identities=9 heldout=0.34 first=50", "public_identities": None}
    assert with_public_identities(recipe_of(content), tmp_path, discard).data.public_identities == 6
    assert not list(tmp_path.glob("synth*")), "a line says how many without being rendered"


@pytest.mark.parametrize(
    ("changes", "place", "keyword"),
    [
        ({"input__colour": "rgb+hsv"}, "recipe.input.colour", "rgb+hsv"),
        ({"training__sampling": "balanced"}, "recipe.training.sampling", "shuffled"),
        ({"evaluation__keep": "best"}, "recipe.evaluation.keep", "best"),
        ({"evaluation__adapt": "gated"}, "recipe.evaluation.adapt", "attack"),
    ],
)
def test_settings_without_effect_on_recognition_are_refused(
    own: dict[str, Path], tmp_path: Path, changes: dict[str, Any], place: str, keyword: str
) -> None:
    with refused(place, keyword):
        run_toy(tree(own, "fedavg", **changes), tmp_path / "run")


def test_attack_detection_refuses_settings_of_recognition(own: dict[str, Path], tmp_path: Path) -> None:
    with refused("recipe.method", "fedpad", "data.public"):
        run_toy(tree(own, "fedpad", data__public=str(set_of_task(own["U"].with_name("P"), "fedfr"))), tmp_path / "run")


def test_class_numbers_begin_with_the_sites_own_people(own: dict[str, Path], tmp_path: Path) -> None:
    site = site_of(own, tmp_path)
    assert site.classes_of(site.data.identities).tolist() == [0, 1, 2]
    assert site.public is not None
    assert site.classes_of(np.array(["secret-person-P2", "secret-person-A1"])).tolist() == [5, 1]
