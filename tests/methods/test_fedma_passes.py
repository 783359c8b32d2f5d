"""FedMA's passes over the layers: messages, lost sites, and growing networks."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import refused
from tests.toy import SITES, Sets, recipe_of, run_toy, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.federation.wire.message import Order, Reply
from fedvisage.methods.pad import fedma
from fedvisage.nn.vgg import LAYERS
from fedvisage.recipe import tree_of


def fedma_tree(sets: Sets, method: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    content = tree(sets, "fedma", **{"training__rounds": 2, "evaluation__every": 0, **changes})
    content["method"] |= method or {}
    return content


@pytest.mark.long
def test_each_pass_sends_each_layer_up_and_down_once(sets: Sets, tmp_path: Path) -> None:
    run_toy(fedma_tree(sets), tmp_path / "run")
    model = load_file(tmp_path / "run" / "model.safetensors")
    whole = sum(value.nbytes for value in model.values())
    last = sum(value.nbytes for name, value in model.items() if name.startswith("output"))
    ledger = [line for line in read_lines(tmp_path / "run" / "ledger.jsonl") if line["call"] in LAYERS]
    for name in SITES:
        up = [line for line in ledger if (line["site"], line["round"], line["field"]) == (name, 1, "weights")]
        assert [line["call"] for line in up] == list(LAYERS)
        assert sum(line["bytes"] for line in up) == whole
        down = {"site": name, "round": 2, "kind": "weights", "direction": "down"}
        assert sum(line["bytes"] for line in ledger if down.items() <= line.items()) == 2 * whole - last


def test_exchanges_of_a_run_use_different_batches() -> None:
    """Three rounds of two batches an exchange: all of them, each once, in the order of the exchanges."""
    sites: list[Any] = [SimpleNamespace(round=number, batches_per_round=2) for number in (1, 2, 3)]
    seen = [batch for site in sites for exchange in range(len(LAYERS)) for batch in fedma._batches(site, exchange)]
    assert seen == list(range(3 * len(LAYERS) * 2))


class LosesB(LocalTransport):
    """B's answer to the third exchange of a round is lost."""

    at = 1

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        for reply in super().call(orders):
            order = orders[reply.site]
            gone = reply.site == "B" and (order.round, order.call) == (self.at, "convolution3")
            yield Reply("B", None, "lost", reply.ticket) if gone else reply


@pytest.mark.long
def test_site_lost_between_layers_returns_in_the_next_pass(sets: Sets, tmp_path: Path) -> None:
    run_toy(fedma_tree(sets), tmp_path / "run", wire=LosesB)
    asked = {(line["round"], line["call"], line["site"]) for line in read_lines(tmp_path / "run" / "ledger.jsonl")}
    assert [layer for layer in LAYERS if (1, layer, "B") in asked] == list(LAYERS[:3])
    assert all((1, layer, name) in asked for layer in LAYERS for name in "AC")
    assert all((2, layer, "B") in asked for layer in LAYERS)
    first, second = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert first["failed"] == {"B": "lost"}
    assert not second["failed"]


@pytest.mark.long
@pytest.mark.parametrize("classes", [(0, 0), (0, 16), (2**52, 2**52)])
def test_inconsistent_class_counts_fail_their_site_only(sets: Sets, tmp_path: Path, classes: tuple[int, int]) -> None:
    class Lies(LocalTransport):
        """B claims other numbers of images, and sends an output layer of nines."""

        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            for reply in super().call(orders):
                if reply.site == "B" and reply.message is not None and "classes" in reply.message:
                    false = {name: torch.full_like(value, 9) for name, value in reply.message.items() if "." in name}
                    message = {**reply.message, **false, "classes": torch.tensor(classes)}
                    yield Reply("B", message, "", reply.ticket)
                else:
                    yield reply

    run_toy(fedma_tree(sets, training__rounds=1), tmp_path / "run", wire=Lies)
    (only,) = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert list(only["failed"]) == ["B"]
    assert only["failed"]["B"].startswith(f"refused: classes: are {list(classes)}")
    output = load_file(tmp_path / "run" / "model.safetensors")["output.0.weight"]
    assert output.isfinite().all()
    assert output.abs().max() < 3


@pytest.mark.long
def test_a_pass_that_loses_its_quorum_changes_nothing(sets: Sets, tmp_path: Path) -> None:
    class LosesBLater(LosesB):
        at = 2

    for name, rounds in (("one", 1), ("two", 2)):
        content = fedma_tree(sets, training__rounds=rounds, federation__quorum=3)
        run_toy(content, tmp_path / name, wire=LosesBLater)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.equal(value, one[name]) for name, value in two.items())
    assert [row["failed"] for row in read_lines(tmp_path / "two" / "rounds.jsonl")][1]["B"] == "lost"


@pytest.mark.long
def test_growth_opens_spare_neurons_and_trains_each(sets: Sets, tmp_path: Path) -> None:
    run_toy(fedma_tree(sets, {"matching": {"growth": {"spare": 4}}}), tmp_path / "run")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    opened = [int(actual[f"{name}.0.weight"].flatten(1).any(dim=1).sum()) for name in LAYERS]
    assert opened[-1] == 1
    assert all(
        8 * factor < count <= 8 * factor + 4 for factor, count in zip((1, 2, 4, 4, 8, 8, 8), opened, strict=False)
    )
    for name, following in pairwise(LAYERS):
        used = actual[f"{following}.0.weight"].transpose(0, 1).flatten(1).any(dim=1)
        assert torch.equal(used, actual[f"{name}.0.weight"].flatten(1).any(dim=1))


@pytest.mark.long
def test_sites_with_their_own_initial_weights_share_a_network_after_the_round(sets: Sets, tmp_path: Path) -> None:
    actual = {}
    for initial in ("own", "shared"):
        run_toy(fedma_tree(sets, {"matching": {"initial": initial}}), tmp_path / initial)
        first = {"round": 2, "direction": "down", "call": LAYERS[0], "field": LAYERS[0]}
        lines = read_lines(tmp_path / initial / "ledger.jsonl")
        actual[initial] = {line["digest"] for line in lines if first.items() <= line.items()}
    assert len(actual["own"]) == len(actual["shared"]) == 1
    assert actual["own"] != actual["shared"]


def test_start_from_a_file_excludes_initial_weights_of_sites(sets: Sets) -> None:
    content = fedma_tree(sets, training__start="weights.safetensors")
    with refused("recipe.training.start", "method.matching.initial"):
        fedma.network(recipe_of(content))
    for matching in ("none", {"initial": "shared"}):
        fedma.network(recipe_of(content | {"method": {"name": "fedma", "matching": matching}}))


def test_resolved_recipe_without_matching_round_trips(sets: Sets) -> None:
    recipe = recipe_of(fedma_tree(sets, {"matching": "none"}))
    assert recipe_of(tree_of(recipe)) == recipe
    with refused("recipe.method.matching", "'some'"):
        recipe_of(fedma_tree(sets, {"matching": "some"}))
