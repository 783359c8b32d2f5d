"""A site refuses orders that its recipe does not provide for, and carries out those of a resumed run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.refusals import failed
from tests.toy import Sets, open_run_data, recipe_of, tree

from fedvisage.federation.method import Home
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.site_worker import SiteWorker
from fedvisage.federation.wire.message import Message, Order, state_of
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.methods import find
from fedvisage.tasks.catalogue import set_up

ROUNDS = 3


@pytest.fixture
def worker(sets: Sets, tmp_path: Path) -> SiteWorker:
    kept = {"training__optimizer__state": "kept"}  # so that there are generations
    content = tree(sets, "fedpad", training__rounds=ROUNDS, **kept)
    recipe = recipe_of(content)
    site = open_run_data(content, tmp_path).sites["A"]
    workspace = set_up(recipe, find(recipe.method)).workspace()
    return SiteWorker("A", site.train, site.heldout, SiteStore(tmp_path / "A"), workspace)


def weights(worker: SiteWorker, add: float = 0.0) -> Message:
    """Return an order's weights; positive ones, which can be variances."""
    generator, lent = torch.Generator().manual_seed(0), {}
    for name, expected in worker.workspace.accepted["train"].tensors.items():
        drawn = torch.rand(expected.shape, generator=generator) / 9 + add
        lent[name] = drawn.to(expected.dtype)
    return lent


@pytest.mark.parametrize("number", [0, -1, ROUNDS + 1, 10**30])
@pytest.mark.parametrize("call", ["train", "heldout"])
def test_round_outside_the_recipe_is_refused(worker: SiteWorker, call: str, number: int) -> None:
    with failed(RefusedMessage, "order", "round", "3"):
        worker.execute(Order(call, number, weights(worker), 1))


def test_training_runs_once_per_round_until_a_generation_is_restored(worker: SiteWorker) -> None:
    first = worker.execute(Order("train", 1, weights(worker), 1))
    worker.commit(1)
    for visit, ticket in ((1, ""), (2, "another ticket")):
        with failed(RefusedMessage, "train", "round 1"):
            worker.execute(Order("train", 1, weights(worker), visit, ticket))
    worker.execute(Order("train", 2, weights(worker), 1))
    with failed(RefusedMessage, "round 2", "over"):
        worker.execute(Order("train", 1, weights(worker), 1))
    worker.restore(1)
    with failed(RefusedMessage, "round 1", "over"):
        worker.execute(Order("train", 1, weights(worker), 1))
    worker.execute(Order("train", 2, weights(worker), 1))
    worker.restore(0)
    again = worker.execute(Order("train", 1, weights(worker), 1))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_undeclared_tensors_sizes_and_values_are_refused_by_name(worker: SiteWorker) -> None:
    lent = weights(worker)
    name = next(name for name in lent if lent[name].ndim)
    spoilt = {
        "extra": lent | {"extra": torch.zeros(1)},
        "(1099511627776,)": lent | {name: torch.zeros(1).expand(1 << 40)},
        "torch.complex64": lent | {name: lent[name].to(torch.complex64)},
        "plain tensor": lent | {name: lent[name].to("meta")},
    }
    for keyword, message in spoilt.items():
        with failed(RefusedMessage, keyword):
            worker.execute(Order("train", 1, message, 1))
    for value in (float("nan"), float("inf")):
        with failed(RefusedMessage, f"the server's tensor {name}", "finite"):
            worker.execute(Order("train", 1, lent | {name: torch.full_like(lent[name], value)}, 1))
    with failed(RefusedMessage, "order", "method"):
        worker.execute(Order("b" * 100_000, 1, {}, 1))
    worker.execute(Order("train", 1, lent, 1))


def test_finite_values_whose_squares_overflow_are_admitted(worker: SiteWorker) -> None:
    lent = weights(worker)
    accepted = worker.workspace.accepted["train"]
    accepted.check({name: value.fill_(1e30) if value.is_floating_point() else value for name, value in lent.items()})


def test_evaluation_orders_are_limited_to_the_recipes_evaluations(worker: SiteWorker) -> None:
    """The recipe evaluates after every round, and thresholds are chosen after the last one; one more model is spare."""
    for number in range(ROUNDS + 2):
        worker.execute(Order("heldout", 1 + number % ROUNDS, weights(worker, number / 100), 1))
    with failed(RefusedMessage, "heldout", "5 models"):
        worker.execute(Order("heldout", 1, weights(worker, 0.5), 1))
    worker.execute(Order("heldout", ROUNDS, weights(worker), 9))  # asked before: no new answer
    worker.restore(0)
    with failed(RefusedMessage, "heldout", "5 models"):
        worker.execute(Order("heldout", 1, weights(worker, 0.9), 1))


def test_per_batch_call_is_limited_to_the_number_of_batches(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedsis", training__rounds=ROUNDS)
    recipe = recipe_of(content)
    site, workspace = open_run_data(content, tmp_path).sites["A"], set_up(recipe, find(recipe.method)).workspace()
    worker = SiteWorker("A", site.train, site.heldout, SiteStore(tmp_path / "A"), workspace)
    state = state_of(workspace.net, *workspace.method.parts_at(Home.SITE))
    opening = Order("tokens", 1, {"average": torch.tensor(0)} | state, 1)
    rows = len(worker.execute(opening)["tokens"])
    width = workspace.accepted["head"].tensors["pseudo"].shape[1]
    head = Order("head", 1, {"pseudo": torch.zeros(rows, width)}, 1)
    worker.execute(head)
    worker.execute(head)  # the toy has two batches a round
    with failed(RefusedMessage, "head", "batches"):
        worker.execute(head)
    with failed(RefusedMessage, "tokens", "round 1"):
        worker.execute(replace(opening, visit=2))


def test_tensors_that_changed_after_their_check_are_checked_again(worker: SiteWorker) -> None:
    lent = weights(worker)
    name = next(name for name in lent if lent[name].is_floating_point())
    worker.execute(Order("train", 1, lent, 1))
    lent[name].fill_(float("nan"))
    with failed(RefusedMessage, name, "not finite"):
        worker.execute(Order("train", 2, lent, 1))
