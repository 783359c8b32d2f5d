"""Simulated hostile sites attack as configured, and robust rules withstand them."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federation.wires import Wire
from tests.refusals import refused
from tests.toy import Sets, make_set, recipe_of, run_toy, tree

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.protections.combine import norm_of_update
from fedvisage.federation.protections.compatible import check_real
from fedvisage.federation.protections.steps import FlippedLabels
from fedvisage.federation.wire.message import Message, Order
from fedvisage.methods import METHODS
from fedvisage.tasks.catalogue import task_of


def one_round(sets: Sets, **changes: Any) -> dict[str, Any]:
    return tree(sets, training__rounds=1, evaluation__every=0, **changes)


def update_of_b(sets: Sets, out: Path, **changes: Any) -> tuple[Message, Message]:
    messages = list[tuple[Message, Message]]()

    def record(site: str, order: Order, message: Message) -> None:
        if site == "B" and order.call == "train":
            messages.append((order.message, message))

    run_toy(one_round(sets, **changes), out, wire=partial(Wire, record=record))
    lent, sent = messages[0]
    return lent, {name: sent[name].double() - lent[name].double() for name in lent}


@pytest.mark.long
@pytest.mark.parametrize(("how", "sign"), [("sign-flip", -1), ("scaling", 1)])
def test_hostile_site_inverts_or_scales_its_update(how: str, sign: int, sets: Sets, tmp_path: Path) -> None:
    lent, honest = update_of_b(sets, tmp_path / "honest")
    poison = {"sites": ["B"], "how": how, "factor": 3.0}
    _, hostile = update_of_b(sets, tmp_path / "hostile", federation__poisoned=poison)
    for name, value in honest.items():
        if not lent[name].is_floating_point():
            assert torch.equal(hostile[name], value)
        elif name.endswith("running_var"):
            assert bool((lent[name] + hostile[name] >= 0).all())
        else:
            assert torch.allclose(hostile[name], sign * 3 * value, rtol=1e-3, atol=1e-6), name


def test_flipped_labels_swap_the_classes_and_change_nothing_else(sets: Sets) -> None:
    view = View.of(PreparedSet.open(sets["A"]), "train")
    flipped, positions = FlippedLabels(view.slices), np.arange(5)
    assert (flipped.labels + view.labels == 1).all()
    assert torch.equal(flipped.batch(positions).labels, 1 - view.batch(positions).labels)
    assert torch.equal(flipped.batch(positions).images, view.batch(positions).images)
    assert (flipped.species == view.species).all()


@pytest.mark.long
def test_a_site_with_flipped_labels_learns_the_opposite(sets: Sets, tmp_path: Path) -> None:
    def last_layer(**changes: Any) -> torch.Tensor:
        _, update = update_of_b(sets, tmp_path / str(len(changes)), **changes)
        return torch.cat([value.reshape(-1) for name, value in update.items() if name.startswith("model.fc")])

    poison = {"sites": ["B"], "how": "label-flip"}
    honest, hostile = last_layer(), last_layer(federation__poisoned=poison)
    assert float(torch.nn.functional.cosine_similarity(honest, hostile, dim=0)) < 0


@pytest.mark.long
@pytest.mark.parametrize("rule", ["norm-clip", "trimmed-mean", "median", "krum"])
def test_robust_rule_limits_the_effect_of_a_hostile_site(rule: str, sets: Sets, tmp_path: Path) -> None:
    more = {name: make_set(tmp_path / name, name, seed) for seed, name in ((10, "D"), (11, "E"))}
    five = {name: str(path) for name, path in {**sets, **more}.items() if name in "ABCDE"}
    poison = {"sites": ["B"], "how": "scaling", "factor": 30.0}

    def model(out: str, **federation: Any) -> dict[str, torch.Tensor]:
        run_toy(one_round(sets, data__sites=five, federation=federation), tmp_path / out)
        return load_file(tmp_path / out / "model.safetensors")

    clean, carried = model("clean"), model("carried", poisoned=poison)
    held = model("held", poisoned=poison, combine=rule)
    assert norm_of_update(held, clean) < 0.1 * norm_of_update(carried, clean)


@pytest.mark.parametrize(
    ("poison", "place", "keyword"),
    [
        ({"sites": ["Z"], "how": "scaling"}, "recipe", "Z"),
        ({"sites": [], "how": "scaling"}, "recipe.federation.poisoned.sites", "1"),
        ({"sites": ["A"], "how": "label-flip", "factor": 2}, "recipe.federation.poisoned", "factor"),
    ],
)
def test_impossible_poison_is_refused(poison: Any, place: str, keyword: str, sets: Sets) -> None:
    with refused(place, keyword):
        recipe_of(tree(sets, federation__poisoned=poison))


def test_flipped_labels_need_attacks(sets: Sets) -> None:
    recipe = recipe_of(tree(sets, "fedavg", federation__poisoned={"sites": ["A"], "how": "label-flip"}))
    with refused("recipe.federation.poisoned.how", "label-flip", "fedavg"):
        task_of(METHODS["fedavg"]).check(recipe, METHODS["fedavg"])


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({"poisoned": {"sites": ["A"], "how": "scaling"}}, "recipe.federation.poisoned"),
        ({"secure": {"entropy": "derived"}}, "recipe.federation.secure.entropy"),
        ({"dp": {"clip": 1.0, "noise": 1.0, "delta": 1e-5, "entropy": "derived"}}, "recipe.federation.dp.entropy"),
    ],
)
def test_federation_refuses_settings_of_simulations(section: Any, place: str, sets: Sets) -> None:
    with refused(place):
        check_real(recipe_of(tree(sets, federation=section)))
    check_real(recipe_of(tree(sets, federation={"secure": True})))
