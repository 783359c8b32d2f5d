"""Secure sums in a run: the mean within rounding, survivors only, and no upload that shows a site's weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.federation.wires import Wire
from tests.refusals import failed, refused
from tests.toy import NewRun, Sets, deterministic_files, recipe_of, run_toy, tree, weights

from fedvisage.base.errors import RunFailed
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.secure.calls import CONSISTENCY, KEYS, NO_UPLOAD, SHARES, UNMASK
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.federation.wire.message import Message, Order, Reply
from fedvisage.methods import METHODS

DERIVED = {"entropy": "derived", "colluders": 0}
"""Masks that repeat, and sums of two of three sites."""


def secure_recipe(sets: Sets, **changes: Any) -> dict[str, Any]:
    return tree(sets, **{"federation__secure": DERIVED, "training__rounds": 1, "evaluation__every": 0, **changes})


@pytest.fixture(scope="module")
def baseline(sets: Sets, new_run: NewRun) -> Path:
    return new_run(secure_recipe(sets))


@pytest.mark.long
@pytest.mark.parametrize("weight", ["uniform", "examples"])
def test_secure_sum_equals_the_plain_mean_to_rounding(weight: str, sets: Sets, tmp_path: Path) -> None:
    changes = {"method__weight": weight, "federation__secure": {**DERIVED, "most_examples": 20}}
    run_toy(secure_recipe(sets, **changes), tmp_path / "secret")
    run_toy(secure_recipe(sets, method__weight=weight, federation={}), tmp_path / "plain")
    secret, plain = (load_file(tmp_path / name / "model.safetensors") for name in ("secret", "plain"))
    for name, value in plain.items():
        apart = (secret[name].double() - value.double()).abs()
        last_bit = torch.finfo(torch.float32).eps * value.double().abs()
        assert bool((apart <= 2.0**-32 + last_bit).all()), name
        assert value.is_floating_point() or torch.equal(value, secret[name])


def test_every_upload_is_a_key_a_share_or_masked_and_losses_are_summed(baseline: Path) -> None:
    ledger = [
        row for row in read_lines(baseline / "ledger.jsonl") if row["direction"] == "up" and row["kind"] != "statistic"
    ]
    assert {(row["call"], row["field"], row["kind"]) for row in ledger} == {
        (KEYS, "public", "key"),
        (KEYS, "signature", "key"),
        (SHARES, "sealed", "share"),
        ("train", "masked", "masked"),
        (CONSISTENCY, "signature", "key"),
        (UNMASK, "shares", "share"),
    }
    assert {row["guarantee"] for row in ledger if row["kind"] == "masked"} == {
        "in a sum only, but masks follow from the run's seed"
    }
    assert list(read_lines(baseline / "rounds.jsonl")[0]["loss"]) == ["all sites"]


def test_system_entropy_changes_the_masks_but_not_the_model(baseline: Path, sets: Sets, tmp_path: Path) -> None:
    run_toy(secure_recipe(sets, federation__secure=True), tmp_path / "run")
    assert weights(tmp_path / "run") == weights(baseline)
    assert (tmp_path / "run" / "scores.csv").read_bytes() == (baseline / "scores.csv").read_bytes()
    pairs = zip(read_lines(tmp_path / "run" / "ledger.jsonl"), read_lines(baseline / "ledger.jsonl"), strict=True)
    refusal_of_b = {
        (one["call"], one["field"])
        for one, other in pairs
        if one["digest"] != other["digest"] or one["bytes"] != other["bytes"]
    }
    hidden = {(KEYS, "public"), (SHARES, "roster"), (SHARES, "sealed"), ("train", "sealed"), ("train", "masked")}
    assert refusal_of_b == hidden | {(UNMASK, "shares")}


def lose_call(call: str) -> Callable[[Order, Message], Message | None]:
    """Lose B's reply to one call, after B has given it."""
    return lambda order, message: None if order.call == call else message


@pytest.mark.long
@pytest.mark.parametrize("lost", [KEYS, SHARES, "train"])
def test_a_site_lost_before_its_numbers_arrive_is_not_in_the_sum(lost: str, sets: Sets, tmp_path: Path) -> None:
    run_toy(secure_recipe(sets, data__sites={name: str(sets[name]) for name in "AC"}), tmp_path / "without")
    run_toy(secure_recipe(sets), tmp_path / "run", wire=partial(Wire, up=lose_call(lost)))
    assert weights(tmp_path / "run") == weights(tmp_path / "without")
    assert read_lines(tmp_path / "run" / "rounds.jsonl")[0]["failed"] == {"B": "lost"}


@pytest.mark.parametrize("lost", [CONSISTENCY, UNMASK])
def test_a_site_lost_after_its_numbers_arrived_is_in_the_sum(
    lost: str, baseline: Path, sets: Sets, tmp_path: Path
) -> None:
    run_toy(secure_recipe(sets, federation__quorum=3), tmp_path / "run", wire=partial(Wire, up=lose_call(lost)))
    assert weights(tmp_path / "run") == weights(baseline)
    (row,) = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert row["failed"] == {"B (after its upload)": "lost"}


@pytest.mark.parametrize("lost", [KEYS, SHARES, "train", CONSISTENCY, UNMASK])
def test_with_fewer_sites_than_the_threshold_there_is_no_sum_and_the_model_stays(
    lost: str, sets: Sets, tmp_path: Path
) -> None:
    content = secure_recipe(sets, federation={"secure": {**DERIVED, "threshold": 1.0}, "give_up_after": 1})
    with pytest.raises(RunFailed, match="3 needed"):
        run_toy(content, tmp_path / "run", wire=partial(Wire, up=lose_call(lost)))


@pytest.mark.long
def test_threshold_is_a_share_of_the_sites_that_joined(sets: Sets, tmp_path: Path) -> None:
    federation = {"secure": {**DERIVED, "threshold": 1.0}, "joins": {"C": 2}}
    run_toy(secure_recipe(sets, federation=federation, training__rounds=2), tmp_path / "run")
    rows = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert [(row["replied"], row["failed"]) for row in rows] == [(["A", "B"], {}), (["A", "B", "C"], {})]


@pytest.mark.long
def test_resumed_secure_run_equals_an_uninterrupted_one(sets: Sets, tmp_path: Path) -> None:
    content = secure_recipe(sets, training__rounds=2, training__optimizer__state="kept")
    run_toy(content, tmp_path / "whole")

    class Dying(LocalTransport):
        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            if any(order.round == 2 and order.call == UNMASK for order in orders.values()):
                raise KeyboardInterrupt
            return super().call(orders)

    with pytest.raises(KeyboardInterrupt):
        run_toy(content, tmp_path / "parts", wire=Dying)
    run_toy(content, tmp_path / "parts", resume=True)
    assert deterministic_files(tmp_path / "parts") == deterministic_files(tmp_path / "whole")


def spoiling_transport(call: str, change: Callable[[Message], Message]) -> partial[Wire]:
    """Return a transport that changes B's reply to one call."""
    return partial(Wire, up=lambda order, message: change(message) if order.call == call else message)


def fewer_rows(message: Message) -> Message:
    return {name: value[:-1] for name, value in message.items()}


@pytest.mark.parametrize(
    ("call", "change", "reason"),
    [
        (KEYS, fewer_rows, "refused: public: has shape (2, 32)"),
        (SHARES, fewer_rows, "refused: sealed: has 2 rows"),
        ("train", fewer_rows, "refused: masked: has shape"),
        ("train", lambda message: {"masked": message["masked"].double()}, "refused: masked: has type torch.float64"),
    ],
)
def test_malformed_part_of_a_sum_is_refused_by_field_and_reason(
    call: str, change: Any, reason: str, sets: Sets, tmp_path: Path
) -> None:
    run_toy(secure_recipe(sets), tmp_path / "run", wire=spoiling_transport(call, change))
    assert read_lines(tmp_path / "run" / "rounds.jsonl")[0]["failed"]["B"].startswith(reason)


@pytest.mark.parametrize(
    ("call", "change", "keywords"),
    [
        (UNMASK, lambda message: {"shares": message["shares"] ^ 1}, ("site 1", "opened")),
        ("train", lambda message: {"masked": message["masked"] + 2**61}, ("A, B, C", "count")),
    ],
    ids=["a wrong share", "implausible masked numbers"],
)
def test_round_with_wrong_uploads_ends_without_a_sum(
    call: str, change: Callable[[Message], Message], keywords: Sequence[str], sets: Sets, tmp_path: Path
) -> None:
    content = secure_recipe(sets, federation={"secure": DERIVED, "give_up_after": 1})
    with failed(RunFailed, *keywords):
        run_toy(content, tmp_path / "run", wire=spoiling_transport(call, change))


def refusal_of_b(sets: Sets, tmp_path: Path, call: str, change: Callable[[Message], Message]) -> str:
    """Run with a server that sends B wrong tensors with one call, and return the reason of B's refusal."""

    def down(order: Order) -> Order:
        return replace(order, message=order.message | change(order.message)) if order.call == call else order

    run_toy(secure_recipe(sets), tmp_path / "run", wire=partial(Wire, down=down))
    failed: Mapping[str, str] = read_lines(tmp_path / "run" / "rounds.jsonl")[0]["failed"]
    return next(reason for name, reason in failed.items() if name.startswith("B"))


@pytest.mark.parametrize(
    ("call", "field", "value", "reason"),
    [
        (SHARES, "roster", torch.zeros(3, 3, 32, dtype=torch.uint8), "roster: does not contain"),
        (SHARES, "roster", torch.zeros(1, 3, 32, dtype=torch.uint8), "roster: names 1 sites"),
        (SHARES, "members", torch.tensor([0, 2]), "roster: does not have one name"),
        (SHARES, "members", torch.tensor([0, 1, 3]), "roster: names a site twice, or one"),
        (SHARES, "members", torch.tensor([1, 0, 2]), "roster: names a site twice, or one"),
        (SHARES, "signatures", torch.zeros(2, 2048, dtype=torch.uint8), "roster: does not have one name"),
        ("train", "present", torch.tensor([1]), "present: names too few sites"),
        ("train", "present", torch.tensor([1, 1, 1]), "present: names a site twice"),
        (CONSISTENCY, "survivors", torch.tensor([1]), "survivors: are too few"),
        (CONSISTENCY, "survivors", torch.tensor([0, 1, 7]), "survivors: are too few"),
        (CONSISTENCY, "survivors", torch.tensor([0, 2]), "survivors: name a site twice, or leave this one out"),
        (CONSISTENCY, "survivors", torch.tensor([0, 1, 1]), "survivors: name a site twice"),
        (UNMASK, "survivors", torch.tensor([0, 1]), "survivors: are not those that this site signed"),
        (UNMASK, "signers", torch.tensor([0, 1]), "signers: are not survivors with one signature each"),
        (UNMASK, "signers", torch.tensor([1, 1, 1]), "signers: are 1 different sites"),
        (UNMASK, "signers", torch.tensor([0, 1, 7]), "signers: are not survivors"),
    ],
)
def test_site_refuses_malformed_steps_of_a_sum(
    call: str, field: str, value: torch.Tensor, reason: str, sets: Sets, tmp_path: Path
) -> None:
    actual = refusal_of_b(sets, tmp_path, call, lambda message: {field: value})
    assert actual.startswith(reason)


@pytest.mark.parametrize(
    ("rate", "batches", "logged"), [(1e7, 1, "above the limit of 1e+06"), (1e30, 2, "training loss is not finite")]
)
def test_reason_for_a_missing_upload_quotes_nothing_of_it(
    rate: float, batches: int, logged: str, sets: Sets, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The site's own log has the full text."""
    optimizer, federation = {"name": "sgd", "lr": rate}, {"secure": DERIVED, "give_up_after": 1}
    content = secure_recipe(
        sets, training__optimizer=optimizer, training__local={"batches": batches}, federation=federation
    )
    with failed(RunFailed, *(f"{name}: {NO_UPLOAD}" for name in "ABC")) as caught:
        run_toy(content, tmp_path / "run")
    assert "model." not in str(caught.value)
    assert [logged in record.message for record in caplog.records if record.name == "fedvisage.site"] == [True] * 3


def test_key_of_low_order_is_refused(sets: Sets, tmp_path: Path) -> None:
    def change(message: Message) -> Message:
        roster = message["roster"].clone()
        roster[0, 0] = 0
        return {"roster": roster}

    assert refusal_of_b(sets, tmp_path, SHARES, change).startswith("roster: contains an unusable key")


@pytest.mark.parametrize("name", ["single", "fused", "afl", "fedma", "fedsis", "festa"])
def test_methods_that_need_single_uploads_refuse_secure_sums(name: str, sets: Sets) -> None:
    with refused("recipe.federation.secure", name):
        check_protection(recipe_of(tree(sets, name, federation__secure=True)), METHODS[name])


def test_robust_rules_and_secure_sums_exclude_each_other(sets: Sets) -> None:
    content = tree(sets, federation={"secure": True, "combine": "median"})
    with refused("recipe.federation.combine", "median", "federation.secure"):
        check_protection(recipe_of(content), METHODS["fedpad"])


def test_secure_sum_of_one_site_is_refused(sets: Sets) -> None:
    with refused("recipe", "federation.secure", "two sites"):
        recipe_of(tree(sets, data__sites={"A": str(sets["A"])}, federation__secure=True))


@pytest.mark.parametrize("name", ["fedgpad", "fedbn", "fedprox-vit-h"])
def test_methods_with_private_or_several_parts_train_with_secure_sums(name: str, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, name, federation__secure=DERIVED, training__rounds=1, training__local={"batches": 1})
    run_toy(content, tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "run" / "model.safetensors").values())
