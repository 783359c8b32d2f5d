"""Recognition: a method with what is special about it switched off is its baseline; and what never leaves a site."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.contract.comparing import run_to_weights
from tests.federation.wires import Wire
from tests.refusals import refused
from tests.toy import Sets, make_people, make_sets, run_toy, set_of_task, tree, weights

from fedvisage.federation.wire.message import encode

OFF = {"hard_negatives": None, "contrast": {"weight": 0}, "customisation": {"weight": 0}}
PRIVATE = ("W", "Omega", "Pi", "b")


def kept_by(site: Path) -> dict[str, np.ndarray]:
    """Return what a site's last generation holds of its own."""
    last = max(site.glob("generation-*.safetensors"))
    return {name.removeprefix("own/"): value.numpy() for name, value in load_file(last).items() if name[:4] == "own/"}


@pytest.mark.long
def test_fedfr_without_its_three_modules_is_fedavg(sets: Sets, tmp_path: Path) -> None:
    fedavg = run_to_weights(tree(sets, "fedavg"), tmp_path / "fedavg")
    assert run_to_weights(tree(sets, "fedfr"), tmp_path / "null", **OFF) == fedavg
    assert run_to_weights(tree(sets, "fedfr"), tmp_path / "fedfr") != fedavg


@pytest.mark.long
def test_fedface_without_spreadout_trains_the_backbone_of_fedavg(sets: Sets, tmp_path: Path) -> None:
    off = tree(sets, "fedface", method__spreadout={"weight": 0})
    on = tree(sets, "fedface", training__optimizer__lr=0.02, method__spreadout={"weight": 10})
    fedavg = run_to_weights(tree(sets, "fedavg"), tmp_path / "fedavg")
    assert run_to_weights(off, tmp_path / "off") == fedavg
    assert run_to_weights(on, tmp_path / "on") != run_to_weights(
        tree(sets, "fedavg", training__optimizer__lr=0.02), tmp_path / "fast"
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedfr", pytest.param("distillation", marks=pytest.mark.slow), "conventional"])
def test_a_sample_as_large_as_all_classes_is_no_sample(name: str, sets: Sets, tmp_path: Path) -> None:
    kept = {"optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "state": "kept"}, "rounds": 2, "batch": 2}
    changes = {f"training__{key}": value for key, value in kept.items()}
    for wanted in (None, 10, 2):
        run_toy(tree(sets, name, method__sampled_classes=wanted, **changes), tmp_path / str(wanted))
    whole, all_of_them, few = (
        kept_by(tmp_path / str(wanted) / "sites" / "A")["W"].tobytes() + weights(tmp_path / str(wanted))
        for wanted in (None, 10, 2)
    )
    assert all_of_them == whole
    assert few != whole


@pytest.mark.long
def test_pre_training_may_draw_a_sample_of_the_public_classes(sets: Sets, tmp_path: Path) -> None:
    delivered = {}
    for wanted in (None, 4, 2):
        content = tree(sets, "pretrained", training__pretrain__sampled_classes=wanted, training__pretrain__batch=2)
        delivered[wanted] = run_to_weights(content, tmp_path / str(wanted))
    assert delivered[4] == delivered[None]
    assert delivered[2] != delivered[None]


@pytest.mark.long
def test_distillation_with_weight_zero_is_fine_tuning(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "fine-tune", training__rounds=2), tmp_path / "fine-tune")
    run_toy(tree(sets, "distillation", training__rounds=2, method__distillation=0.0), tmp_path / "null")
    run_toy(tree(sets, "distillation", training__rounds=2), tmp_path / "on")
    states = {name: kept_by(tmp_path / name / "sites" / "A")["W"] for name in ("fine-tune", "null", "on")}
    assert np.array_equal(states["null"], states["fine-tune"])
    assert not np.array_equal(states["on"], states["fine-tune"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedfr", "fedface"])
def test_private_parts_of_a_site_travel_only_if_declared(name: str, sets: Sets, tmp_path: Path) -> None:
    sent: list[bytes] = []
    tapped = partial(Wire, record=lambda site, _, message: sent.append(encode(message)))
    content = tree(sets, name, method__spreadout={"weight": 0}) if name == "fedface" else tree(sets, name)
    run_toy(content, tmp_path / "run", wire=tapped)
    own = [kept_by(tmp_path / "run" / "sites" / site) for site in "ABC"]
    assert all(set(state) == set(PRIVATE if name == "fedfr" else ["W"]) for state in own)
    rows = [row.tobytes() for state in own for value in state.values() for row in np.atleast_2d(value)]
    assert any(row in message for row in rows for message in sent) == (name == "fedface")


@pytest.mark.long
def test_one_identity_per_site_works_if_the_loss_has_a_gradient(tmp_path: Path) -> None:
    few = make_sets(tmp_path / "sets")
    for seed, name in enumerate("ABC"):
        shutil.rmtree(set_of_task(few[name], "fedfr"))
        make_people(set_of_task(few[name], "fedfr"), name, seed, identities=1)
    with refused("data.sites.A", "1 identity", "fedavg"):
        run_toy(tree(few, "fedavg"), tmp_path / "fedavg")
    without_public = tree(few, "fedfr")
    without_public["method"]["hard_negatives"] = None
    with refused("data.sites.A", "1 identity", "fedfr"):
        run_toy(without_public, tmp_path / "without")
    for name in ("fedfr", "fedface"):
        metrics = run_toy(tree(few, name), tmp_path / name)
        assert 0 <= metrics["personal.tar@1e-1"] <= 1
