"""Two runs over the same data with one different setting reveal an upload, and sites refuse the second.

Each attack first runs against sites without a memory; then the sites have kits and memories, and refuse.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.kit_sites import KitTransport, RoundView, provision_kits, train_round
from tests.refusals import failed
from tests.toy import SITES, Sets, copy_set, make_set, recipe_of, run_toy, tree

from fedvisage.base.errors import RunFailed
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.secure.memory import RunMemory
from fedvisage.federation.wire.message import Message, Order, Reply
from fedvisage.federation.wire.schema import SUMMED, RefusedMessage

ELSEWHERE = {name: Path("sets") / name for name in (*SITES, "U")}
IMAGES = {"A": 36, "B": 24, "C": 24}
TOTAL = sum(IMAGES.values())
SHARES = {name: number / TOTAL for name, number in IMAGES.items()}
TOLERANCE = 1e-4
"""Largest error of a reconstruction. Uploads move by more than ten times as much."""


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_kits(tmp_path_factory.mktemp("federation") / "kits")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Sets of 36, 24 and 24 training images."""
    root = tmp_path_factory.mktemp("sets")
    subjects = {"A": 9, "B": 6, "C": 6, "U": 6}
    return {name: make_set(root / name, name, seed, subjects=subjects[name]) for seed, name in enumerate(subjects)}


def content_of(sets: Sets, sites: Sequence[str] = SITES, secure: Any = True, **changes: Any) -> Any:
    """Return a recipe of one epoch with SGD, in batches of the size of the smaller sites."""
    settings: dict[str, Any] = {
        "training__rounds": 1,
        "training__local": {"epochs": 1},
        "training__batch": 24,
        "training__augment": {},
        "training__optimizer": {"name": "sgd", "lr": 0.1},
        "evaluation__every": 0,
        "data__sites": {name: str(sets[name]) for name in sites},
        "federation__secure": {"colluders": 0} if secure is True else secure,
    }
    return tree(sets, **(settings | changes))


Solve = Callable[[RoundView, RoundView], Message]


def combine(first: float, second: float) -> Solve:
    """Return a linear combination of two means."""
    return lambda one, two: {
        name: first * value.double() + second * two.mean[name].double() for name, value in one.mean.items()
    }


@dataclass(frozen=True)
class Attack:
    """Two runs, and how they are solved for numbers of one site."""

    second: Mapping[str, Any]
    solve: Solve
    site: str
    """The site whose upload, or difference of two uploads, is solved for."""
    keywords: tuple[str, ...]
    """Words that the refusal must contain."""
    first: Mapping[str, Any] = field(default_factory=dict)
    is_difference: bool = False


ATTACKS = {
    "another weight": Attack(
        {"method__weight": "examples"},
        combine(-3 * 24 / (36 - 24), TOTAL / (36 - 24)),
        "A",
        ("method.weight", "--allow-roster A,B,C"),
    ),
    "another cap on images": Attack(
        {"method__weight": "examples", "secure": {"colluders": 0, "most_examples": 30}},
        combine(TOTAL / (36 - 30), -(30 + 24 + 24) / (36 - 30)),
        "A",
        ("federation.secure.most_examples",),
        first={"method__weight": "examples"},
    ),
    "a plain run of the others": Attack(
        {"sites": "AB", "secure": None}, combine(3, -2), "C", ("federation.secure", "--allow-roster plain")
    ),
    "a plain run before": Attack(
        {}, combine(-2, 3), "C", ("without federation.secure",), first={"sites": "AB", "secure": None}
    ),
    "a plain run of one site": Attack(
        {"sites": "A", "secure": None},
        lambda one, two: two.uploads["A"],
        "A",
        ("federation.secure", "--allow-roster plain"),
    ),
    "a batch size of one site": Attack(
        {"training__batch": {"default": 24, "per_site": {"A": 36}}},
        combine(3, -3),
        "A",
        ("training.batch.per_site.A",),
        is_difference=True,
    ),
    "a batch size that only the larger site notices": Attack(
        {"training__batch": 36}, combine(3, -3), "A", ("training.batch.default",), is_difference=True
    ),
    "a seed that only the larger site notices": Attack(
        {"runtime__seed": 1}, combine(3, -3), "A", ("runtime.seed",), is_difference=True
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_two_runs_that_reveal_an_upload_are_refused(attack: Attack, kits: Path, sets: Sets, tmp_path: Path) -> None:
    contents = [content_of(sets, **changes) for changes in (attack.first, attack.second)]
    views = [train_round(content, tmp_path / f"view{number}") for number, content in enumerate(contents)]
    expected, other = (single_upload(sets, attack.site, changes) for changes in (attack.first, attack.second))
    if attack.is_difference:
        expected = {name: value - other[name] for name, value in expected.items()}
    solved = attack.solve(*views)
    assert distance(solved, expected) < TOLERANCE
    assert distance(expected, views[0].mean if not attack.is_difference else zeros_like(expected)) > 10 * TOLERANCE

    wire = partial(KitTransport, kits=kits, memory=tmp_path / "memory")
    train_round(contents[0], tmp_path / "first", wire)
    with failed(RunFailed, "run 'first'", *attack.keywords):
        train_round(contents[1], tmp_path / "second", partial(wire, run="second"))


def single_upload(sets: Sets, site: str, changes: Mapping[str, Any]) -> Message:
    """Return what a site uploads, from a plain run of this site alone."""
    content = content_of(sets, **{**changes, "sites": site, "secure": None, "federation": {}})
    return train_round(content, sets[site].parent / "alone").uploads[site]


def distance(one: Message, other: Message) -> float:
    """Return the largest difference of two messages; counts of batches, which the server rounds, are left out."""
    names = [name for name in one if not name.endswith("num_batches_tracked")]
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in names)


def zeros_like(message: Message) -> Message:
    return {name: torch.zeros_like(value) for name, value in message.items()}


def check_change_is_revealed_and_refused(sets: Sets, changed: Sets, kits: Path, tmp_path: Path) -> None:
    """Two sums with and without a change of A's data give that of its upload; sites with a memory refuse the second."""
    one, two = (train_round(content_of(own), tmp_path / place) for place, own in (("one", sets), ("two", changed)))
    before, after = single_upload(sets, "A", {}), single_upload(changed, "A", {})
    expected = {name: value - after[name] for name, value in before.items()}
    assert distance(combine(3, -3)(one, two), expected) < TOLERANCE < distance(expected, zeros_like(expected)) / 10

    wire = partial(KitTransport, kits=kits, memory=tmp_path / "memory")
    train_round(content_of(sets), tmp_path / "first", wire)
    with failed(RunFailed, "run 'first'", "other images or labels of this site"):
        train_round(content_of(changed), tmp_path / "second", partial(wire, run="second"))


def test_other_images_of_one_site_reveal_its_change_and_are_refused(kits: Path, sets: Sets, tmp_path: Path) -> None:
    larger = {**sets, "A": make_set(tmp_path / "larger", "A", seed=0, subjects=12)}
    check_change_is_revealed_and_refused(sets, larger, kits, tmp_path)


def test_other_labels_of_one_site_reveal_its_change_and_are_refused(kits: Path, sets: Sets, tmp_path: Path) -> None:
    """The second run has the same pictures, and A has corrected the labels of four prints."""
    rows = PreparedSet.open(sets["A"]).rows
    wrong = np.flatnonzero(rows.species == "print")[:4]
    label, species = rows.label.copy(), rows.species.copy()
    label[wrong], species[wrong] = 1, "bonafide"
    corrected = {**sets, "A": copy_set(sets["A"], tmp_path / "corrected" / "A", label=label, species=species)}
    check_change_is_revealed_and_refused(sets, corrected, kits, tmp_path)


# Learning rates: three equations. The smaller sites take one step of SGD, so their uploads are linear in the rate.


@pytest.mark.long
def test_learning_rates_reveal_the_site_with_more_steps_and_are_refused(kits: Path, sets: Sets, tmp_path: Path) -> None:
    rates: dict[float, dict[str, Any]] = {
        rate: {"training__optimizer": {"name": "sgd", "lr": rate}} for rate in (0.05, 0.1)
    }
    once, twice = (train_round(content_of(sets, **rates[rate]), tmp_path / str(rate)).mean for rate in rates)
    single_once, single_twice = (single_upload(sets, "A", rates[rate]) for rate in rates)
    no_step = content_of(sets, training__optimizer={"name": "sgd", "lr": 1e-30})
    start = train_round(no_step, tmp_path / "start")
    names = [name for name in once if "running" not in name]  # BatchNorm's averages do not depend on the rate
    # mean(2r) - 2 mean(r) + start: the steps of B and C cancel.
    solved = {name: 3 * (twice[name] - 2 * once[name] + start.mean[name]) for name in names}
    expected = {name: single_twice[name] - 2 * single_once[name] + start.mean[name] for name in names}
    assert distance(solved, expected) < TOLERANCE < distance(expected, zeros_like(expected)) / 10

    wire = partial(KitTransport, kits=kits, memory=tmp_path / "memory")
    train_round(content_of(sets, **rates[0.05]), tmp_path / "first", wire)
    with failed(RunFailed, "run 'first'", "training.optimizer.lr", "--allow-roster A,B,C"):
        train_round(content_of(sets, **rates[0.1]), tmp_path / "second", partial(wire, run="second"))


# Accepted runs, refused runs and the administrator's permission, on the memory alone.


def open_memory(directory: Path, run: str = "first", images: Sequence[int] = (1, 2, 3), **changes: Any) -> RunMemory:
    """Open the memory of a site in a run; ``allow`` names what its administrator allows."""
    allowed = [frozenset(value.split(",")) for value in changes.pop("allow", ())]
    recipe = recipe_of(content_of(ELSEWHERE, **changes))
    return RunMemory(directory, recipe, run, np.array(images, np.uint64), allowed)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method.network.width", 16),
        ("input.colour", "rgb"),
        ("training.rounds", 2),
        ("training.local", {"batches": 1}),
        ("training.optimizer.clip_norm", 1.0),
        ("training.optimizer.state", "kept"),
        ("training.augment.flip", 0.5),
        ("training.sampling", "balanced"),
        ("training.statistics", "frozen"),
        ("training.start", "sha256:" + 64 * "0"),
        ("training.schedule.warmup", 1),
        ("training.micro_batch", 8),
        ("federation.dp", {"clip": 1.0, "noise": 0.0}),
        ("federation.secure.most_examples", 50),
        ("runtime.precision", "bf16"),
        ("runtime.threads", 3),
    ],
)
def test_each_setting_that_can_change_an_upload_binds_the_data(key: str, value: Any, tmp_path: Path) -> None:
    base: dict[str, Any] = {"training__schedule__name": "cosine"}
    open_memory(tmp_path, **base).remember_use()
    changes = {**base, key.replace(".", "__"): value}
    with failed(RefusedMessage, "run 'first'", key, "--allow-roster A,B,C"):
        open_memory(tmp_path, "second", **changes).check_use()
    open_memory(tmp_path, "second", allow=["A,B,C"], **changes).check_use()


HARMLESS: dict[str, Any] = {
    "title": "again",
    "evaluation__threshold": "fixed",
    "evaluation__resamples": 5,
    "data__target_name": "V",
    "federation__deadline": 9.0,
    "federation__quorum": 2,
    "federation__sit_out": 0,
    "federation__give_up_after": 3,
    "runtime__checkpoint_every": 2,
    "training__rounds": 2,
}


def test_settings_without_effect_on_an_upload_may_change(kits: Path, sets: Sets, tmp_path: Path) -> None:
    wire = partial(KitTransport, kits=kits, memory=tmp_path / "memory")
    first = train_round(content_of(sets), tmp_path / "first", wire)
    again = train_round(content_of(sets, **HARMLESS), tmp_path / "again", partial(wire, run="second"))
    assert all(torch.equal(value, again.mean[name]) for name, value in first.mean.items())


def test_rounds_that_a_longer_run_repeats_are_equal(sets: Sets, tmp_path: Path) -> None:
    uploads = []
    for rounds in (1, 2):
        run_toy(content_of(sets, secure=None, training__rounds=rounds), tmp_path / str(rounds))
        rows = read_lines(tmp_path / str(rounds) / "ledger.jsonl")
        uploads.append([row["digest"] for row in rows if row["round"] == 1 and row["call"] == SUMMED])
    assert uploads[0] == uploads[1] != []


def test_a_resumed_run_with_a_changed_recipe_is_refused_under_the_same_name(tmp_path: Path) -> None:
    open_memory(tmp_path).remember_use()
    open_memory(tmp_path).remember_use()
    with failed(RefusedMessage, "training.batch.default"):
        open_memory(tmp_path, training__batch=12).check_use()
    with failed(RefusedMessage, "federation.secure", "--allow-roster plain"):
        open_memory(tmp_path, secure=None).check_use()


def test_run_whose_uploads_sites_refuse_binds_their_data(kits: Path, sets: Sets, tmp_path: Path) -> None:
    """Each such run shows that some weight of a site is too large; runs with other settings would show how large."""
    wire, sgd = partial(KitTransport, kits=kits, memory=tmp_path / "memory"), {"name": "sgd", "lr": 1e7}
    with failed(RunFailed, "A", "B", "C", "log"):
        train_round(content_of(sets, training__optimizer=sgd), tmp_path / "first", wire)
    with failed(RunFailed, "A", "B", "C", "run 'first'", "training.optimizer.lr", "--allow-roster A,B,C"):
        train_round(
            content_of(sets, training__optimizer=sgd | {"lr": 3e7}), tmp_path / "second", partial(wire, run="second")
        )


@pytest.mark.long
@pytest.mark.parametrize("subjects", [9, 4], ids=["renamed copy", "subset"])
def test_copies_and_subsets_are_the_same_data(subjects: int, kits: Path, sets: Sets, tmp_path: Path) -> None:
    wire = partial(KitTransport, kits=kits, memory=tmp_path / "memory")
    train_round(content_of(sets), tmp_path / "first", wire)
    copy = make_set(tmp_path / "copy", "renamed", seed=0, subjects=subjects)  # the pictures of A
    with failed(RunFailed, "A", "run 'first'", "--allow-roster plain"):
        train_round(content_of({**sets, "A": copy}, "A", secure=None), tmp_path / "second", partial(wire, run="second"))


@pytest.mark.parametrize("images", [(1, 2), (1, 2, 3, 4), (7, 8)], ids=["fewer", "more", "others"])
def test_a_repeated_run_keeps_its_images(images: Sequence[int], tmp_path: Path) -> None:
    open_memory(tmp_path).remember_use()
    with failed(RefusedMessage, "run 'first'", "images", "--allow-roster A,B,C"):
        open_memory(tmp_path, "second", images).check_use()
    open_memory(tmp_path, "second", images, allow=["A,B,C"]).check_use()


def test_permissions_are_separate(tmp_path: Path) -> None:
    open_memory(tmp_path).remember_use()
    with failed(RefusedMessage, "--allow-roster plain"):
        open_memory(tmp_path, "second", secure=None, allow=["A,B,C"]).check_use()
    open_memory(tmp_path, "second", secure=None, allow=["plain"]).remember_use()
    with failed(RefusedMessage, "run 'second'", "without federation.secure", "--allow-roster A,B,C"):
        open_memory(tmp_path, "third", allow=["plain", "A,B"]).check_use()
    open_memory(tmp_path, "third", allow=["A,B,C"]).check_use()


def test_permission_for_other_settings_does_not_allow_other_survivors(tmp_path: Path) -> None:
    open_memory(tmp_path).remember_survivors(1, SITES)
    with failed(RefusedMessage, "run 'first'", "round 1", "without B"):
        open_memory(tmp_path, "second", allow=["A,B,C"], training__batch=12).remember_survivors(1, "AC")


def test_plain_runs_do_not_bind_each_other(tmp_path: Path) -> None:
    open_memory(tmp_path, secure=None).remember_use()
    open_memory(tmp_path, "second", sites="AB", secure=None, training__batch=12).remember_use()
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_sums_before_training_of_plain_runs_keep_members_and_images(tmp_path: Path) -> None:
    """The difference of two such sums would be the answers of the members that changed."""
    look: dict[str, Any] = {"secure": None, "evaluation__shortcuts": True}
    open_memory(tmp_path, **look).remember_survivors(0, SITES)
    open_memory(tmp_path, "second", **look).remember_survivors(0, SITES)
    with failed(RefusedMessage, "run 'first'", "round 0", "without C", "--allow-roster A,B"):
        open_memory(tmp_path, "third", sites="AB", **look).remember_survivors(0, "AB")
    for images in ((1, 2, 3, 4), (7, 8)):
        other = open_memory(tmp_path, "fourth", images, **look)
        with failed(RefusedMessage, "run 'first'", "other images", "evaluation.shortcuts", "--allow-roster plain"):
            other.check_use()
        other.remember_use()  # plain training of the same run is allowed
    with failed(RefusedMessage, "without federation.secure"):
        open_memory(tmp_path, "fifth").check_use()


def test_memory_of_an_earlier_version_binds_its_data(tmp_path: Path) -> None:
    images = np.array([1, 2, 3], "<u8").tobytes()
    name = hashlib.sha256(b'["A", "B", "C"]' + images).hexdigest()[:32]
    (tmp_path / f"{name}.images").write_bytes(images)
    rounds = {"1": {"run": "old", "survivors": ["A", "B", "C"]}}
    (tmp_path / f"{name}.json").write_text(json.dumps({"roster": ["A", "B", "C"], "run": "old", "rounds": rounds}))
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"sites": "AB"}, "without C"),
        ({"secure": None}, "plain"),
        ({}, "unknown"),
    ]
    for changes, keyword in refusals:
        with failed(RefusedMessage, "run 'old'", keyword):
            open_memory(tmp_path, **changes).check_use()
    open_memory(tmp_path, allow=["A,B,C"]).remember_use()
    # The administrator has allowed it once; from now on the record has settings, and the survivors of before.
    open_memory(tmp_path, "second").check_use()
    refusals = [({"sites": "AB"}, "without C"), ({"training__batch": 12}, "training.batch.default")]
    for changes, keyword in refusals:
        with failed(RefusedMessage, "run 'old'", keyword):
            open_memory(tmp_path, "second", **changes).check_use()
    with failed(RefusedMessage, "run 'old'", "round 1", "without B"):
        open_memory(tmp_path, "second").remember_survivors(1, "AC")


# A lying server.


def test_a_sum_over_sites_with_different_models_is_not_opened(kits: Path, sets: Sets, tmp_path: Path) -> None:
    """Lend B and C weights of zero: what they learn does not depend on their images, and the rest is A's upload."""

    class Lending(KitTransport):
        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            for name, order in orders.items():
                if order.call == SUMMED and name != "A":
                    lent = {key: value for key, value in order.message.items() if key not in ("present", "sealed")}
                    order.message.update(zeros_like(lent))
            return super().call(orders)

    with failed(RunFailed, "message of site", "not signed"):
        train_round(content_of(sets), tmp_path, partial(Lending, kits=kits, memory=tmp_path / "memory"))
