"""The look at the sites' data before training: sums of answers, what leaves a site, and refusals."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.distributed.federations import LineReporter
from tests.federation.kit_sites import KitTransport, provision_kits
from tests.federation.wires import Wire
from tests.methods.interrupting import Interrupted, stop_after
from tests.refusals import failed, refused
from tests.toy import Sets, deterministic_files, make_set, open_run_data, recipe_of, run_toy, tree, weights

from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.faces.cues import NAMES, cues
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.secure.calls import CONSISTENCY, KEYS, SHARES, UNMASK
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message, Order, Reply, encode
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.methods import METHODS, find
from fedvisage.metrics.recorded import read_metrics
from fedvisage.report.page import write_report
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.runs.train import adoption
from fedvisage.tasks.catalogue import set_up
from fedvisage.tasks.shortcuts import CALL, separating_properties

SITES = ("A", "B", "C", "D")
DERIVED = {"entropy": "derived"}
"""Masks that repeat, for runs whose ledgers are compared."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Sets of ten training people per class, with dark prints at A, B and D; D has four people and as many images."""
    root = tmp_path_factory.mktemp("many")
    few = {"subjects": 6, "frames": 6}
    return {
        name: make_set(
            root / name,
            name,
            seed,
            species=("bonafide", "replay" if name == "C" else "print"),
            **(few if name in "DU" else {"subjects": 15}),
        )
        for seed, name in enumerate((*SITES, "U"))
    }


def content_of(sets: Sets, sites: str = "ABC", method: str = "fedpad", **changes: Any) -> dict[str, Any]:
    own = {name: str(sets[name]) for name in sites}
    settings: dict[str, Any] = {"training__rounds": 1, "evaluation__every": 0, "evaluation__shortcuts": True}
    return tree(sets, method, **{"data__sites": own, **settings, **changes})


def training_rows(path: Path) -> tuple[list[int], list[int]]:
    """Return the rows of a set's bona fide training images, and of its attacks."""
    columns = PreparedSet.open(path).rows
    trains = [index for index, split in enumerate(columns.split) if split == "train"]
    live = [index for index in trains if columns.label[index] == 1]
    return live, sorted({*trains} - {*live})


def answers_pair_by_pair(path: Path, live: list[int], attacks: list[int]) -> list[bool]:
    """Compare each bona fide image with each attack: does one class mostly have more of a cue?"""
    images = PreparedSet.open(path).images
    measured = {index: cues(np.ascontiguousarray(images[index])) for index in (*live, *attacks)}
    answers = []
    for name in NAMES:
        pairs = [(measured[a][name], measured[b][name]) for a in live for b in attacks]
        share = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
        answers.append(share >= 0.75 or share <= 0.25)
    return answers


def expected_sums(sets: Sets, sites: str) -> dict[str, int]:
    answers = [answers_pair_by_pair(sets[name], *training_rows(sets[name])) for name in sites]
    return {name: sum(column) for name, column in zip(NAMES, zip(*answers, strict=True), strict=True)}


def sums_of(out: Path) -> dict[str, Any]:
    return dict(read_metrics(out / "metrics.json").part("shortcuts.separates"))


class OrderedReporter(LineReporter):
    """Records messages and the ends of rounds, in order."""

    def advance(self, done: int, total: int, note: str) -> None:
        self.lines.append(f"round {done}")


@pytest.fixture(scope="module")
def run_with_look(many: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the look and secure sums, whose masks repeat."""
    out = tmp_path_factory.mktemp("look") / "run"
    run_toy(content_of(many, federation__secure=DERIVED, training__rounds=2), out)
    return out


def test_sums_are_those_of_the_sites_training_images_and_precede_training(many: Sets, tmp_path: Path) -> None:
    reporter, expected = OrderedReporter(), expected_sums(many, "ABC")
    run_toy(content_of(many), tmp_path / "run", reporter=reporter)
    assert expected["brightness"] == 2
    assert sums_of(tmp_path / "run") == expected
    spoken = [line for line in reporter.lines if "separates" in line]
    assert spoken == [
        f"{name} separates the classes at {-count} of 3 sites"
        for count, name in sorted((-count, name) for name, count in expected.items() if count)
    ]
    assert "brightness separates the classes at 2 of 3 sites" in spoken
    assert reporter.lines.index(spoken[-1]) < reporter.lines.index("round 1")


def test_answer_comes_from_a_fixed_draw_of_many_images(many: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvisage.tasks.shortcuts.MOST", 3)
    answers = []
    for name in "ABC":
        view, drawn = View.of(PreparedSet.open(many[name]), "train"), dict[int, list[int]]()
        for label in (1, 0):
            rows = view.slices[0].indices[view.labels == label]
            drawn[label] = rows[numpy_rng(0, "shortcuts", label).permutation(len(rows))[:3]].tolist()
        expected = answers_pair_by_pair(many[name], drawn[1], drawn[0])
        assert separating_properties(view).tolist() == expected
        answers.append(expected != answers_pair_by_pair(many[name], *training_rows(many[name])))
    assert any(answers), "else the draw decides nothing here"


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedsis", "fused"])
def test_methods_without_secure_sums_have_the_look_too(method: str, many: Sets, tmp_path: Path) -> None:
    run_toy(content_of(many, method=method), tmp_path / "run")
    assert sums_of(tmp_path / "run") == expected_sums(many, "ABC")


def test_fields_before_training_are_declared_and_masked(many: Sets, tmp_path: Path) -> None:
    sent = list[tuple[str, Message]]()
    tapped = partial(Wire, record=lambda site, _, message: sent.append((site, message)))
    run_toy(content_of(many), tmp_path / "run", wire=tapped)
    before = [row for row in read_lines(tmp_path / "run" / "ledger.jsonl") if row["round"] == 0]
    up = [row for row in before if row["direction"] == "up"]
    assert {(row["call"], row["field"], row["kind"]) for row in up} == {
        (KEYS, "public", "key"),
        (KEYS, "signature", "key"),
        (SHARES, "sealed", "share"),
        (CALL, "masked", "masked"),
        (CONSISTENCY, "signature", "key"),
        (UNMASK, "shares", "share"),
    }
    assert {row["guarantee"] for row in up if row["call"] == CALL} == {"in a sum only"}
    early = sent[: len([row for row in up if row["field"] != "signature" or row["call"] == CONSISTENCY])]
    assert {name for _, message in early for name in message} == {"public", "signature", "sealed", "masked", "shares"}
    assert not any(b"secret-" in encode(message) for _, message in early)
    masked = [message["masked"] for _, message in early if "masked" in message]
    assert [len(numbers) for numbers in masked] == [len(NAMES) + 2] * 3
    assert all(int(numbers.abs().min()) > 2**32 for numbers in masked), "numbers without masks are small"


def test_the_look_changes_nothing_else(run_with_look: Path, many: Sets, tmp_path: Path) -> None:
    without = content_of(many, federation__secure=DERIVED, training__rounds=2)
    del without["evaluation"]["shortcuts"]
    run_toy(without, tmp_path / "run")
    assert "shortcuts" not in (tmp_path / "run" / "recipe.yaml").read_text()
    assert "shortcuts" not in (tmp_path / "run" / "metrics.json").read_text()
    assert weights(tmp_path / "run") == weights(run_with_look)
    rows = read_lines(run_with_look / "ledger.jsonl")
    assert read_lines(tmp_path / "run" / "ledger.jsonl") == [row for row in rows if row["round"]]
    assert any(row["round"] == 0 for row in rows)


@pytest.mark.long
def test_workers_give_the_same_bytes(run_with_look: Path, many: Sets, tmp_path: Path) -> None:
    content = content_of(many, federation__secure=DERIVED, training__rounds=2, runtime__workers=2)
    run_toy(content, tmp_path / "run")
    assert deterministic_files(tmp_path / "run") == deterministic_files(run_with_look)


@pytest.mark.long
def test_resumed_run_keeps_the_sums_and_does_not_ask_again(run_with_look: Path, many: Sets, tmp_path: Path) -> None:
    content, method = content_of(many, federation__secure=DERIVED, training__rounds=2), METHODS["fedpad"]
    with pytest.raises(Interrupted):
        run_toy(content, tmp_path / "run", method=stop_after(method, 1))
    run_toy(content, tmp_path / "run", resume=True, method=method)
    assert deterministic_files(tmp_path / "run") == deterministic_files(run_with_look)
    rows = read_lines(tmp_path / "run" / "ledger.jsonl")
    assert not [row for row in rows if row["round"] == 0 and row.get("repeated")]


@pytest.mark.long
def test_run_that_died_during_the_look_repeats_it(run_with_look: Path, many: Sets, tmp_path: Path) -> None:
    class Dying(LocalTransport):
        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            if any(order.round == 0 and order.call == UNMASK for order in orders.values()):
                raise KeyboardInterrupt
            return super().call(orders)

    content = content_of(many, federation__secure=DERIVED, training__rounds=2)
    with pytest.raises(KeyboardInterrupt):
        run_toy(content, tmp_path / "run", wire=Dying)
    run_toy(content, tmp_path / "run", resume=True)
    assert deterministic_files(tmp_path / "run") == deterministic_files(run_with_look)


@pytest.mark.long
def test_adopted_members_come_with_a_look_of_their_own(many: Sets, tmp_path: Path) -> None:
    without = content_of(many, method="single")
    del without["evaluation"]["shortcuts"]
    run_toy(without, tmp_path / "trained")
    recipe = recipe_of(content_of(many, method="single"))
    run(
        Request(recipe, tmp_path / "adopted", tmp_path / "cache", training=adoption(tmp_path / "trained")),
        LineReporter(),
    )
    assert sums_of(tmp_path / "adopted") == expected_sums(many, "ABC")
    assert weights(tmp_path / "adopted") == weights(tmp_path / "trained")


def test_report_has_the_sums(run_with_look: Path) -> None:
    page = write_report(run_with_look).read_text(encoding="utf-8")
    assert "Shortcuts in the sites&#39; data" in page or "Shortcuts in the sites' data" in page
    assert "2 of 3" in page


# Sites that do not answer.


def test_site_with_few_people_is_not_counted(many: Sets, tmp_path: Path) -> None:
    reporter = LineReporter()
    run_toy(content_of(many, "ABCD"), tmp_path / "run", reporter=reporter)
    assert expected_sums(many, "D")["brightness"] == 1, "its answer would have counted"
    metrics = read_metrics(tmp_path / "run" / "metrics.json")
    assert (metrics["shortcuts.asked"], metrics["shortcuts.sites"]) == (4, 3)
    assert sums_of(tmp_path / "run") == expected_sums(many, "ABC")
    assert "1 site did not answer" in reporter.lines
    rows = read_lines(tmp_path / "run" / "ledger.jsonl")
    assert {row["site"] for row in rows if row["call"] == CALL and row["direction"] == "up"} == {"A", "B", "C"}


def test_without_enough_answers_there_is_no_sum_and_the_run_goes_on(many: Sets, tmp_path: Path) -> None:
    reporter = LineReporter()
    run_toy(content_of(many, "ABD"), tmp_path / "run", reporter=reporter)
    metrics = read_metrics(tmp_path / "run" / "metrics.json")
    assert dict(metrics.part("shortcuts")) == {"asked": 3, "sites": 0}
    assert metrics["rounds"] == 1
    (line,) = [line for line in reporter.lines if "shortcuts" in line]
    assert "3 needed" in line
    assert "10 people" in line
    assert not any("separates" in line for line in reporter.lines)


@pytest.mark.long
def test_two_colluding_sites_are_too_few_even_where_the_recipe_sums_two(many: Sets, tmp_path: Path) -> None:
    """Without colluders, secure sums of training need two of three sites; the look needs three."""
    secure = {**DERIVED, "colluders": 0}
    run_toy(content_of(many, "ABD", federation__secure=secure), tmp_path / "run")
    assert read_metrics(tmp_path / "run" / "metrics.json")["shortcuts.sites"] == 0


@pytest.mark.long
def test_numbers_other_than_answers_give_no_sum(many: Sets, tmp_path: Path) -> None:
    def add(order: Order, message: Message) -> Message:
        wrong = message["masked"] + (torch.arange(len(NAMES) + 2) == 0) * (5 << 8) if order.call == CALL else None
        return message if wrong is None else {"masked": wrong}

    reporter = LineReporter()
    run_toy(content_of(many), tmp_path / "run", wire=partial(Wire, up=add), reporter=reporter)
    assert read_metrics(tmp_path / "run" / "metrics.json")["shortcuts.sites"] == 0
    assert any("0 and 1" in line for line in reporter.lines)


# Refusals.


@pytest.mark.parametrize(
    ("method", "sites", "keywords"),
    [("fedpad", "AB", ("3 sites", "2 sites")), ("pooled", "ABC", ("pooled",)), ("fedface", "ABC", ("fedface",))],
)
def test_look_is_refused_by_name_and_reason(
    method: str, sites: str, keywords: tuple[str, ...], many: Sets, sets: Sets, tmp_path: Path
) -> None:
    content = tree(sets, method, evaluation__shortcuts=True)
    content["data"]["sites"] = {name: content["data"]["sites"][name] for name in sites}
    with refused("recipe.evaluation.shortcuts", *keywords):
        run_toy(content, tmp_path / "run")


def test_other_values_of_the_key_are_refused(many: Sets) -> None:
    with refused("recipe.evaluation.shortcuts", "true or false"):
        recipe_of(content_of(many, evaluation__shortcuts="some"))


@pytest.fixture
def worker(many: Sets, tmp_path: Path) -> SiteWorker:
    content = content_of(many, training__rounds=2)
    recipe = recipe_of(content)
    site = open_run_data(content, tmp_path).sites["A"]
    workspace = set_up(recipe, find(recipe.method)).workspace()
    return SiteWorker("A", site.train, site.heldout, SiteStore(tmp_path / "A"), workspace)


def test_site_answers_before_training_only_and_once(worker: SiteWorker) -> None:
    for call, number in ((CALL, 1), (KEYS, 1), ("train", 0), ("heldout", 0)):
        with failed(RefusedMessage, "order", f"round {number}"):
            worker.execute(Order(call, number, {}, 1))
    worker.execute(Order(KEYS, 0, {}, 1))
    with failed(RefusedMessage, KEYS, "again"):
        worker.execute(Order(KEYS, 0, {}, 2))
    worker.restore(0)
    worker.execute(Order(KEYS, 0, {}, 1))
    accepted = worker.workspace.accepted["train"].tensors
    lent = {name: torch.zeros(expected.shape, dtype=expected.dtype) for name, expected in accepted.items()}
    worker.execute(Order("train", 1, lent, 1))
    with failed(RefusedMessage, "round 1", "over"):
        worker.execute(Order(KEYS, 0, {}, 1))


def test_site_without_the_key_in_its_recipe_does_not_answer(many: Sets, tmp_path: Path) -> None:
    for off in ({"evaluation__shortcuts": False}, {"evaluation__shortcuts": None}):
        recipe = recipe_of(content_of(many, **off))
        assert not {CALL, KEYS} & set_up(recipe, find(recipe.method)).workspace().calls.keys()


# Two runs with sites that remember.


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_kits(tmp_path_factory.mktemp("federation") / "kits")


@pytest.mark.long
def test_changed_images_of_a_site_end_the_second_look_and_not_the_training(
    kits: Path, many: Sets, tmp_path: Path
) -> None:
    """The difference of two sums would be the change of one site's answers."""
    other = {**many, "A": make_set(tmp_path / "A", "A", 0, subjects=18, species=("bonafide", "print"))}
    wire, reporter = partial(KitTransport, kits=kits, memory=tmp_path / "memory"), LineReporter()
    run_toy(content_of(many), tmp_path / "first", wire=wire)
    run_toy(content_of(many), tmp_path / "again", wire=partial(wire, run="second"))
    assert sums_of(tmp_path / "again") == sums_of(tmp_path / "first") == expected_sums(many, "ABC")
    run_toy(content_of(other), tmp_path / "other", wire=partial(wire, run="third"), reporter=reporter)
    metrics = read_metrics(tmp_path / "other" / "metrics.json")
    assert (metrics["shortcuts.sites"], metrics["rounds"]) == (0, 1)
    assert any("other images or labels of this site" in line for line in reporter.lines)
    assert read_lines(tmp_path / "other" / "rounds.jsonl")[0]["counted"] == ["A", "B", "C"]
