"""Runs with releases: their costs in the ledger and the metrics, and the stop at a budget."""

from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.contract.examples import released
from tests.contract.examples.released import BUDGET, SIGMA
from tests.refusals import failed, refused
from tests.toy import Sets, recipe_of, run_toy, tree

from fedvisage.federation.exchange import Exchange
from fedvisage.federation.method import Kind, Upload
from fedvisage.federation.privacy.accountant import BudgetSpent
from fedvisage.federation.record.ledger import JsonLines, read_lines
from fedvisage.federation.record.releases import CHARGES
from fedvisage.federation.wire.message import Order, Reply
from fedvisage.federation.wire.schema import Schema


@pytest.mark.long
def test_ledger_states_the_cost_of_each_release_and_metrics_the_total(sets: Sets, tmp_path: Path) -> None:
    metrics = run_toy(tree(sets, released.METHOD), tmp_path / "run", method=released.METHOD)
    lines = read_lines(tmp_path / "run" / "ledger.jsonl")
    releases = [line for line in lines if line["kind"] == "dp"]
    assert len(releases) == 9, "three sites, three rounds"
    for line in releases:
        (release,) = line["cost"]["releases"]
        assert (release["mechanism"], release["relation"]) == ("gaussian", "replace-one")
        assert (release["sensitivity"], release["sigma"]) == (1.0, SIGMA)
        assert (release["epsilon"], release["delta"]) == (BUDGET.epsilon, BUDGET.delta)
        assert line["cost"]["total"]["epsilon"] == pytest.approx(line["round"] * BUDGET.epsilon)
    assert metrics["privacy"]["epsilon"] == pytest.approx(3 * BUDGET.epsilon)
    assert metrics["privacy"]["tight_epsilon"] < metrics["privacy"]["epsilon"]
    assert metrics["privacy"]["noise"] == "derived"
    assert not any("cost" in line for line in lines if line["kind"] != "dp")


@pytest.mark.long
def test_a_run_stops_at_its_budget(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, released.METHOD)
    content["privacy"] |= {"epsilon": 2 * BUDGET.epsilon}
    for resume in (False, True):
        with failed(BudgetSpent, "round 3, bona fide", "ε 6"):
            run_toy(content, tmp_path / "run", method=released.METHOD, resume=resume)
    charges = read_lines(tmp_path / "run" / "sites" / "A" / "releases" / CHARGES)
    assert [charge["release"] for charge in charges] == ["round 1, bona fide", "round 2, bona fide"]


class ClaimingTransport:
    """A transport in which some sites report a spent budget."""

    uncommitted: Mapping[str, str] = MappingProxyType({})

    def __init__(self, names: str, claiming: str, *, in_turn: bool = True) -> None:
        self.names, self.claiming, self.in_turn = tuple(names), claiming, in_turn

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        for name, order in sorted(orders.items()):
            if name in self.claiming:
                yield Reply(name, None, "no more", order.ticket, spent=True)
            else:
                yield Reply(name, {}, ticket=order.ticket)

    def commit(self, generation: int) -> dict[str, int]:
        return dict.fromkeys(self.names, generation)

    def restore(self, generations: Mapping[str, int]) -> None:
        return None


@pytest.mark.parametrize(("kind", "ends"), [("dp", True), ("weights", False)])
def test_spent_budget_ends_only_runs_with_releases(kind: Kind, ends: bool, sets: Sets, tmp_path: Path) -> None:
    """A hostile site must not end a run of any method by a claim."""
    schema = Schema({}, (Upload("told", kind),))
    with closing(JsonLines(tmp_path / "ledger.jsonl")) as ledger:
        exchange = Exchange(recipe_of(tree(sets)), ClaimingTransport("A", "A"), {"tell": schema}, ledger)
        with pytest.raises(BudgetSpent, match="no more") if ends else nullcontext():
            assert [reply.message for reply in exchange.run("tell", {})] == [None]
    assert exchange.record.failed == ({} if ends else {"A": "no more"})


@pytest.mark.parametrize(("claiming", "quorum", "ends"), [("B", 2, False), ("BC", 2, True), ("BAC", 1, True)])
def test_spent_budget_fails_its_site_and_ends_the_run_without_a_quorum(
    claiming: str, quorum: int, ends: bool, sets: Sets, tmp_path: Path
) -> None:
    schema, recipe = Schema({}, (Upload("told", "dp"),)), recipe_of(tree(sets, federation__quorum=quorum))
    with closing(JsonLines(tmp_path / "ledger.jsonl")) as ledger:
        exchange = Exchange(recipe, ClaimingTransport("ABC", claiming), {"tell": schema}, ledger)
        exchange.open_round(1)
        with pytest.raises(BudgetSpent, match="no more") if ends else nullcontext():
            list(exchange.run("tell", {}))
    assert exchange.record.failed["B"] == "no more"


@pytest.mark.parametrize("in_turn", [True, False])
def test_ledger_has_the_releases_of_the_sites_beside_one_with_a_spent_budget(
    in_turn: bool, sets: Sets, tmp_path: Path
) -> None:
    """A federation orders all sites at once, so B and C have released when A refuses; a simulation stops at A."""
    schema, recipe = Schema({}, (Upload("told", "dp"),)), recipe_of(tree(sets, federation__quorum=3))
    with closing(JsonLines(tmp_path / "ledger.jsonl")) as ledger:
        exchange = Exchange(recipe, ClaimingTransport("ABC", "A", in_turn=in_turn), {"tell": schema}, ledger)
        exchange.open_round(1)
        with pytest.raises(BudgetSpent, match="no more"):
            list(exchange.run("tell", {}))
    rows = read_lines(tmp_path / "ledger.jsonl")
    assert [row["site"] for row in rows if row["direction"] == "up"] == ([] if in_turn else ["B", "C"])


def test_a_budget_for_a_method_that_releases_nothing_is_refused(sets: Sets, tmp_path: Path) -> None:
    with refused("recipe.privacy", "fedpad"):
        run_toy(tree(sets, "fedpad", privacy={"epsilon": 1.0, "delta": 1e-5}), tmp_path / "run")


@pytest.mark.parametrize(
    ("privacy", "place", "keyword"),
    [
        ({}, "recipe.privacy", "budget"),
        ({"epsilon": 0.0, "delta": 0.1}, "recipe.privacy.epsilon", "0.0"),
        ({"epsilon": 1e-9, "delta": 0.1}, "recipe.privacy.epsilon", "0.001"),
        ({"epsilon": 1.0, "delta": 1.0}, "recipe.privacy.delta", "1.0"),
        ({"epsilon": 1.0, "delta": 0.9}, "recipe.privacy", "0.9"),
        ({"epsilon": 1.0}, "recipe.privacy", "delta"),
    ],
)
def test_budget_without_a_guarantee_is_refused(
    privacy: dict[str, float], place: str, keyword: str, sets: Sets, tmp_path: Path
) -> None:
    with refused(place, keyword):
        run_toy(tree(sets, released.METHOD, privacy=privacy), tmp_path / "run", method=released.METHOD)
