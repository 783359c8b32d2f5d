"""Split learning with joining, absent and failing sites: adopted averages, counted work, and traffic."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.methods.interrupting import Interrupted, stop_after
from tests.refusals import refused
from tests.toy import SITES, Sets, deterministic_files, recipe_of, run_toy, tree
from torch import Tensor

from fedvisage.federation.method import Method
from fedvisage.federation.record.attendance import draw_offline, select_sites
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.site import Site, TrainingFailed
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.federation.wire.message import Message, Order, Reply
from fedvisage.methods.pad import fedsis, split
from fedvisage.nn.optimizers import max_distance
from fedvisage.recipe import Federation, Local, Optimizer, Training
from fedvisage.recipe.training import Schedule

SGD = {"name": "sgd", "lr": 0.1}


def recipe(sets: Sets, rounds: int = 3, unify_every: int = 10, **changes: Any) -> dict[str, Any]:
    """Return FedSIS with one batch per round and plain gradient steps, which change every trained weight."""
    settings = {"training__rounds": rounds, "training__local": {"batches": 1}, "training__optimizer": SGD}
    content = tree(sets, "fedsis", **settings, evaluation__every=0, **changes)
    content["method"]["unify_every"] = unify_every
    return content


def visiting_sites(content: dict[str, Any], number: int) -> set[str]:
    """Return the sites that take part in a round by the recipe's draws."""
    settings = Federation.model_validate(content.get("federation", {}))
    return set(select_sites(SITES, settings, 0, number)) - draw_offline(SITES, settings, 0, number)


def with_call(name: str, run: Callable[[Site, Message], Message]) -> Method:
    """Return FedSIS with another computation for one of its calls."""
    calls = fedsis.METHOD.calls
    return replace(fedsis.METHOD, calls={**calls, name: replace(calls[name], run=run)})


def method_failing_at(call: str, site: str, number: int) -> Method:
    """Return FedSIS whose call fails at one site in one round."""
    whole = fedsis.METHOD.calls[call]

    def run(at: Site, message: Message) -> Message:
        if (at.name, at.round) == (site, number):
            raise TrainingFailed("the power went off")
        return whole.run(at, message)

    return with_call(call, run)


def changed_parts(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> set[str]:
    """Return the parts in which two models differ."""
    return {key.split(".")[0] for key in first if not torch.equal(first[key], second[key])}


@pytest.mark.long
@pytest.mark.parametrize("federation", [{"offline": 0.5}, {"participation": 0.67, "offline": 0.2}])
def test_site_adopts_the_latest_average_if_it_lacks_it(
    sets: Sets, tmp_path: Path, federation: dict[str, float]
) -> None:
    """Expected at the first visit, and at the first visit after each average."""
    content = recipe(sets, 7, unify_every=2, federation=federation | {"give_up_after": 10})
    run_toy(content, tmp_path / "run")
    expected, latest, has = set(), 0, dict[str, int]()
    for number in range(1, 8):
        there = visiting_sites(content, number)
        expected |= {(number, name) for name in there if has.get(name) != latest}
        has |= dict.fromkeys(there, latest)
        if there and (number % 2 == 0 or number == 7):
            latest = number
    lines = [
        line
        for line in read_lines(tmp_path / "run" / "ledger.jsonl")
        if line["direction"] == "down" and line["call"] == "tokens"
    ]
    for part in split.SHARED:
        assert {(line["round"], line["site"]) for line in lines if line["field"] == part} == expected


@pytest.mark.long
def test_only_sites_with_a_whole_visit_are_averaged(sets: Sets, tmp_path: Path) -> None:
    run_toy(recipe(sets, 2, unify_every=2), tmp_path / "run", method=method_failing_at("finish", "B", 2))
    uploads = {
        (line["round"], line["site"])
        for line in read_lines(tmp_path / "run" / "ledger.jsonl")
        if line["field"] == "weights"
    }
    assert uploads == {(2, "A"), (2, "C")}
    assert read_lines(tmp_path / "run" / "rounds.jsonl")[1]["failed"] == {"B": "the power went off"}


@pytest.mark.long
@pytest.mark.parametrize(("call", "heard"), [("tokens", False), ("head", False), ("finish", True)])
def test_only_completed_replies_of_a_lost_site_count(sets: Sets, tmp_path: Path, call: str, heard: bool) -> None:
    """Before B sends a gradient the round is that of A and C; after it, the encoder has learned from all three."""
    run_toy(recipe(sets, 1), tmp_path / "all")
    run_toy(recipe(sets, 1, data__sites={name: str(sets[name]) for name in "AC"}), tmp_path / "others")
    run_toy(recipe(sets, 1), tmp_path / "lost", method=method_failing_at(call, "B", 1))
    everyone, others, lost = (load_file(tmp_path / name / "model.safetensors") for name in ("all", "others", "lost"))
    buffers = {key for key in lost if "running" in key or "tracked" in key}
    encoder = {key for key in lost if key.startswith(("blocks", "adapter"))} - buffers
    reference = everyone if heard else others
    assert all(torch.equal(lost[key], reference[key]) for key in encoder)
    assert changed_parts(everyone, others) == set(fedsis.METHOD.finished)


@pytest.mark.long
def test_a_lost_visit_is_forgotten_at_its_site(sets: Sets, tmp_path: Path) -> None:
    """B breaks at the end of round 2 and has what it had after round 1; in round 3 it learns on from there."""
    own = {}
    for rounds in (1, 2):
        run_toy(
            recipe(sets, rounds, unify_every=10), tmp_path / f"{rounds}", method=method_failing_at("finish", "B", 2)
        )
        newest = sorted((tmp_path / f"{rounds}" / "sites" / "B").glob("generation-*"))[-1]
        own[rounds] = load_file(newest)
    assert own[1].keys() == own[2].keys()
    assert all(torch.equal(own[1][key], own[2][key]) for key in own[1])


@pytest.mark.long
def test_restored_site_reports_its_old_average_and_gets_the_latest(sets: Sets, tmp_path: Path) -> None:
    """As over a network, where a site that missed a deadline goes back to its last checkpoint: here, to none."""

    class Losing(LocalTransport):
        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            if (order := orders.get("B")) and order.round == 2:
                self.site_workers["B"].restore(0)
                yield Reply("B", None, "did not answer", order.ticket)
            else:
                yield from super().call(orders)

    run_toy(recipe(sets, 5, runtime__checkpoint_every=10), tmp_path / "run", wire=Losing)
    lent = {
        (line["round"], line["site"])
        for line in read_lines(tmp_path / "run" / "ledger.jsonl")
        if (line["direction"], line["field"]) == ("down", "tokenizer") and line["call"] == "tokens"
    }
    assert lent == {(1, "A"), (1, "B"), (1, "C"), (4, "B")}
    failed = [row["failed"] for row in read_lines(tmp_path / "run" / "rounds.jsonl")]
    assert failed == [{}, {"B": "did not answer"}, {"B": split.BEHIND}, {}, {}]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("left", 1, "left: is 1, must be 0"), ("tokens", 99, "more than a batch")],
)
def test_impossible_reply_fails_its_site_only(sets: Sets, tmp_path: Path, field: str, value: int, reason: str) -> None:
    """B never comes to its last batch, or sends far more images than a batch has."""
    whole = fedsis.METHOD.calls["tokens"]

    def lying(site: Site, message: Message) -> Message:
        actual = whole.run(site, message)
        if site.name == "B":
            actual[field] = torch.tensor(value) if field == "left" else actual["tokens"][:1].repeat(value, 1, 1)
        return actual

    run_toy(recipe(sets, 1), tmp_path / "run", method=with_call("tokens", lying))
    (row,) = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert row["failed"].keys() == {"B"}
    assert row["failed"]["B"].startswith("refused: ")
    assert reason in row["failed"]["B"]


@pytest.mark.parametrize("claimed", [12_500_000, 2**40])
def test_site_that_claims_too_many_batches_fails_alone(sets: Sets, tmp_path: Path, claimed: int) -> None:
    """An epoch of 100 million images has 12.5 million batches of 8; after the first, one fewer is left."""
    whole, batches = fedsis.METHOD.calls["tokens"], Counter[str]()

    def lying(site: Site, message: Message) -> Message:
        batches[site.name] += 1
        return whole.run(site, message) | ({"left": torch.tensor(claimed)} if site.name == "B" else {})

    content = recipe(sets, 1)
    content["training"]["local"] = {"epochs": 1}
    run_toy(content, tmp_path / "run", method=with_call("tokens", lying))
    (row,) = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert row["failed"] == {"B": f"refused: left: is {claimed}, must be at most 12499999"}
    assert batches == {"A": 3, "B": 1, "C": 3}


@pytest.mark.long
@pytest.mark.parametrize("update", ["gradient", "average"])
def test_without_a_quorum_the_encoder_stays(sets: Sets, tmp_path: Path, update: str) -> None:
    actual = []
    for rounds in (1, 2):
        content = recipe(sets, rounds, unify_every=1, federation={"quorum": 3})
        content["method"]["encoder_update"] = update
        run_toy(content, tmp_path / f"{rounds}", method=method_failing_at("finish", "B", 2))
        actual.append(load_file(tmp_path / f"{rounds}" / "model.safetensors"))
    assert changed_parts(*actual) == {"adapter"}
    assert "no quorum" in read_lines(tmp_path / "2" / "rounds.jsonl")[1]["failed"]


@pytest.mark.long
def test_late_site_adopts_the_latest_average_and_counts_from_then_on(sets: Sets, tmp_path: Path) -> None:
    """Before it joins, the others train as if it were not there."""
    content = recipe(sets, 4, unify_every=2, federation={"joins": {"B": 3}})
    run_toy(content, tmp_path / "run")
    without = recipe(sets, 2, unify_every=2, data__sites={name: str(sets[name]) for name in "AC"})
    run_toy(without, tmp_path / "without")
    assert [row["asked"] for row in read_lines(tmp_path / "run" / "rounds.jsonl")] == [["A", "C"]] * 2 + [
        ["A", "B", "C"]
    ] * 2

    def sent(out: Path, until: int) -> list[str]:
        return [
            line["digest"]
            for line in read_lines(out / "ledger.jsonl")
            if line["round"] <= until and line["call"] in ("tokens", "head")
        ]

    assert sent(tmp_path / "run", 2) == sent(tmp_path / "without", 2)
    averages = {
        line["digest"]
        for line in read_lines(tmp_path / "run" / "ledger.jsonl")
        if (line["round"], line["call"], line["direction"], line["field"]) == (3, "tokens", "down", "tokenizer")
    }
    assert len(averages) == 1
    uploads = [line for line in read_lines(tmp_path / "run" / "ledger.jsonl") if line["field"] == "weights"]
    assert {line["site"] for line in uploads if line["round"] == 4} == set(SITES)


@pytest.mark.parametrize(
    ("joins", "place", "keyword"),
    [
        ({"Z": 2}, "recipe", "Z"),
        ({"A": 2, "B": 2, "C": 3}, "recipe", "first round"),
        ({"A": 0}, "recipe.federation.joins.A", "0"),
    ],
)
def test_impossible_join_round_is_refused(
    sets: Sets, tmp_path: Path, joins: dict[str, int], place: str, keyword: str
) -> None:
    with refused(place, keyword):
        run_toy(recipe(sets, federation={"joins": joins}), tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize(("update", "wire"), [("gradient", "fp32"), ("average", "int8")])
def test_run_with_lost_sites_resumes_to_the_same_bytes(sets: Sets, tmp_path: Path, update: str, wire: str) -> None:
    content = recipe(sets, 4, unify_every=2, federation={"offline": 0.4, "joins": {"C": 3}})
    content["training"]["optimizer"] = {"lr": 0.01, "state": "kept"}
    content["method"] |= {"encoder_update": update, "wire": wire}
    run_toy(content, tmp_path / "whole")
    for stop in (1, 3):
        with pytest.raises(Interrupted):
            run_toy(content, tmp_path / "parts", resume=True, method=stop_after(fedsis.METHOD, stop))
    run_toy(content, tmp_path / "parts", resume=True)
    assert deterministic_files(tmp_path / "parts") == deterministic_files(tmp_path / "whole")


@pytest.mark.long
def test_pass_over_the_data_is_a_round_with_two_calls_per_batch(sets: Sets, tmp_path: Path) -> None:
    """24 images are three batches of 8; the last gradient needs a call of its own."""
    content = recipe(sets, 1)
    content["training"]["local"] = {"epochs": 1}
    run_toy(content, tmp_path / "run")
    up = [
        line["call"]
        for line in read_lines(tmp_path / "run" / "ledger.jsonl")
        if line["direction"] == "up" and line["site"] == "A"
    ]
    calls = [call for number, call in enumerate(up) if number == 0 or up[number - 1] != call]
    assert calls == ["tokens", "head", "tokens", "head", "tokens", "head", "finish", "unify", "heldout", "scatter"]


def test_warning_states_the_reach_of_too_few_batches(sets: Sets) -> None:
    """FedSIS: 200 rounds of one batch at 1e-6 with Adam come to 2e-4, of 1/√768 = 0.036; a pass is not counted."""

    def warning_for(**changes: Any) -> str | None:
        content = tree(sets, "fedsis", training__rounds=200, **changes)
        content["method"]["network"] |= {"width": 768, "heads": 12}
        return fedsis.METHOD.check(recipe_of(content))

    slow = {"name": "adam", "lr": 1e-6}
    warning = warning_for(training__local={"batches": 1}, training__optimizer=slow) or ""
    assert "0.0002" in warning
    assert "0.6%" in warning
    assert "epochs: 1" in warning
    assert warning_for(training__local={"epochs": 1}, training__optimizer=slow) is None
    assert warning_for(training__local={"batches": 1}, training__optimizer={"name": "adam", "lr": 1e-3}) is None
    assert warning_for(training__local={"batches": 1}, training__optimizer={"name": "sgd", "lr": 1e-6}) is None


def test_reach_accounts_for_a_falling_rate() -> None:
    training = Training(
        rounds=4, local=Local(batches=3), optimizer=Optimizer(lr=0.1), schedule=Schedule(name="step", every=2)
    )
    assert max_distance(training) == pytest.approx(3 * (0.1 + 0.1 + 0.01 + 0.01))


@pytest.mark.parametrize(("weight", "expected"), [("uniform", [1.0, 1.0]), ("examples", [30.0, 10.0])])
def test_sites_with_a_whole_visit_count_by_the_recipes_weight(weight: str, expected: list[float], sets: Sets) -> None:
    server = SimpleNamespace(recipe=recipe_of(tree(sets, "fedsis", method__weight=weight)))
    visits = split.Visits(examples={"A": 30, "C": 10}, batches=7)
    assert split.site_weights(server, visits) == dict(zip("AC", expected, strict=True))  # type: ignore[arg-type]
