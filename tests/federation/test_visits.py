"""Lifetimes of a site's state: one visit, one round, or the whole run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.contract.examples import split
from tests.toy import Sets, open_run_data, recipe_of, tree
from torch import nn

from fedvisage.federation.method import EXAMPLES, Call, Home, Method, Upload
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.site import Site, TrainingFailed
from fedvisage.federation.site_worker import LocalTransport, SiteWorker, Workspace
from fedvisage.federation.wire.message import Message, Order
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.nn.compute import resolve_compute
from fedvisage.recipe import Recipe


def count(site: Site, message: Message) -> Message:
    """Count the calls in each kind of a site's state, and return the counts before."""
    bias = site.net["head"].get_parameter("bias").data
    counts = {
        "held": torch.tensor(site.held.get("calls", 0)),
        "scratch": torch.tensor(site.scratch.get("calls", 0)),
        "kept": site.kept.get("calls", torch.tensor(0)),
        "part": bias.round().to(torch.int64)[0],
    }
    site.held["calls"] = int(counts["held"]) + 1
    site.scratch["calls"] = int(counts["scratch"]) + 1
    site.kept["calls"] = counts["kept"] + 1
    bias += 1
    if "fail" in message:
        raise TrainingFailed("as asked")
    return {"examples": 1000 * counts["held"] + 100 * counts["scratch"] + 10 * counts["kept"] + counts["part"] + 1}


def network(recipe: Recipe) -> nn.ModuleDict:
    net = split.network(recipe)
    nn.init.zeros_(net["head"].get_parameter("bias"))
    return net


def leak(site: Site, message: Message) -> Message:
    return {"examples": torch.tensor(1), "pixels": site.next_batch().images}


def draw(site: Site, message: Message) -> Message:
    """Draw from the global generator, as dropout does."""
    return {"examples": torch.randint(1, 10**6, ())}


FAIL = Upload("fail", "statistic", dtype="int64")

METHOD: Method = replace(
    split.METHOD,
    network=network,
    calls={
        "count": Call(count, (EXAMPLES,), takes=lambda _: (FAIL,), visits=3, repeats=True),
        "leak": Call(leak, (EXAMPLES,)),
        "draw": Call(draw, (EXAMPLES,), visits=2, repeats=True),
    },
)


@pytest.fixture
def site_workers(sets: Sets, tmp_path: Path) -> dict[str, SiteWorker]:
    content = tree(sets, METHOD)
    recipe = recipe_of(content, METHOD)
    workspace = Workspace(METHOD, recipe, resolve_compute("cpu", "fp32"))
    return {
        name: SiteWorker(name, site.train, site.heldout, SiteStore(tmp_path / name), workspace)
        for name, site in open_run_data(content, tmp_path, METHOD).sites.items()
    }


def counts_before(worker: SiteWorker, number: int, visit: int, **message: torch.Tensor) -> dict[str, int]:
    value = int(worker.execute(Order("count", number, message, visit))["examples"]) - 1
    return {name: value // unit % 10 for name, unit in (("held", 1000), ("scratch", 100), ("kept", 10), ("part", 1))}


def test_visit_state_ends_with_the_visit_scratch_with_the_round_and_private_state_stays(
    site_workers: dict[str, SiteWorker],
) -> None:
    worker = site_workers["A"]
    assert counts_before(worker, 1, 1) == {"held": 0, "scratch": 0, "kept": 0, "part": 0}
    assert counts_before(worker, 1, 1) == {"held": 1, "scratch": 1, "kept": 1, "part": 1}
    assert counts_before(worker, 1, 2) == {"held": 0, "scratch": 2, "kept": 2, "part": 2}
    assert counts_before(worker, 2, 1) == {"held": 0, "scratch": 0, "kept": 3, "part": 3}


def test_sites_in_one_workspace_share_no_state(site_workers: dict[str, SiteWorker]) -> None:
    for visit in (1, 2, 3):
        for worker in site_workers.values():
            assert counts_before(worker, 1, visit) == {
                "held": 0,
                "scratch": visit - 1,
                "kept": visit - 1,
                "part": visit - 1,
            }


def test_a_visit_that_fails_leaves_no_trace_in_the_private_state(site_workers: dict[str, SiteWorker]) -> None:
    worker = site_workers["A"]
    counts_before(worker, 1, 1)
    counts_before(worker, 1, 2)
    with pytest.raises(TrainingFailed):
        counts_before(worker, 1, 2, fail=torch.tensor(1))
    assert counts_before(worker, 1, 3) | {"scratch": 0} == {"held": 0, "scratch": 0, "kept": 1, "part": 1}


def test_undeclared_fields_cannot_leave_the_site(site_workers: dict[str, SiteWorker]) -> None:
    with pytest.raises(RefusedMessage, match=r"^pixels: .*declared"):
        site_workers["A"].execute(Order("leak", 1, {}, 1))


def test_server_restores_a_generation_of_private_state(site_workers: dict[str, SiteWorker]) -> None:
    transport = LocalTransport(list(site_workers.values()))
    for number in (1, 2):
        assert counts_before(site_workers["A"], number, 1)["kept"] == number - 1
        assert transport.commit(number) == {"A": number, "B": 0, "C": 0}
    counts_before(site_workers["A"], 3, 1)
    transport.restore({"A": 1, "B": 0, "C": 0})
    assert counts_before(site_workers["A"], 2, 1) == {"held": 0, "scratch": 0, "kept": 1, "part": 1}


def test_network_of_a_site_has_no_server_part(site_workers: dict[str, SiteWorker]) -> None:
    assert set(site_workers["A"].workspace.net) == set(METHOD.parts_at(Home.SITE)) == {"tokenizer", "head"}


def test_library_draws_differ_between_orders_and_repeat_in_a_second_run(site_workers: dict[str, SiteWorker]) -> None:
    orders = [Order("draw", number, {}, visit) for number in (1, 2) for visit in (1, 1, 2)]
    draws = [[int(site_workers[name].execute(order)["examples"]) for order in orders] for name in ("A", "B")]
    assert len({value for site in draws for value in site}) == 12
    site_workers["A"].restore(0)
    assert [int(site_workers["A"].execute(order)["examples"]) for order in orders] == draws[0]
