"""Parts of datasets of people: drawn ones, and FedFR's, compared with its authors' released steps."""

import io
import random
import shutil
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.datasets.imports import import_quietly
from tests.refusals import refused
from tests.toy import SIZE, open_run_data, run_toy, tree

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.people.choosing import choose_subset, order_digest
from fedvisage.datasets.people.layout import Photograph, PhotographList, WholeFile
from fedvisage.datasets.people.recordio import write_record
from fedvisage.datasets.protocols.catalogue import describe_protocol
from fedvisage.report.page import write_report

COUNTS = [103, 70] * 6
"""Photographs of each person of a small file."""


def make_listing(people: int, low: int, high: int, in_order: bool = True) -> PhotographList:
    """Return people in an order that is not that of their names."""
    rng = np.random.default_rng(people)
    names = [f"faces/{label:07d}" for label in rng.permutation(people)]
    counts = dict(zip(names, rng.integers(low, high, people).tolist(), strict=True))

    def shots(person: str) -> Sequence[Photograph]:
        return [Photograph(f"{person}/{number}", person, WholeFile(Path("none"))) for number in range(counts[person])]

    return PhotographList(counts, shots, in_order=in_order)


def released_division(counts: dict[str, int], clients: int, public: int) -> tuple[list[str], list[str]]:
    """Follow the released scripts: people in order, shuffled from the seed 100, halves, and their bounds."""
    random.seed(100)
    order = list(counts)
    random.shuffle(order)
    fit = [one for one in order[: int(len(order) * 0.5)] if 110 > counts[one] > 100]
    others = [one for one in order[len(order) - int(len(order) * 0.5) :] if 80 > counts[one] > 60]
    return fit[:clients], others[:public]


@pytest.mark.parametrize("people", [400, 401])
def test_released_division_equals_the_released_scripts(people: int) -> None:
    whole = make_listing(people, 55, 115)
    clients, public = released_division(dict(whole.counts), 10, 20)
    subset = choose_subset(whole, ImportOptions(split="fedfr-released-clients", people=10))
    assert [name.partition("-")[2] for name in subset.counts] == [one.rpartition("/")[2] for one in clients]
    for name, earlier in zip(subset.counts, clients, strict=True):
        shots = subset.photographs(name)
        assert [one.name for one in shots] == [one.name for one in whole.photographs(earlier)]
        assert {one.person for one in shots} == {name}
        assert subset.splits is not None
        assert subset.splits(name, len(shots)) == ["test"] * 40 + ["train"] * (len(shots) - 40)
    other = choose_subset(whole, ImportOptions(split="fedfr-released-public", people=20))
    assert list(other.counts) == public
    assert other.splits is not None
    assert set(other.splits(public[0], 61)) == {"train"}
    assert "differs from the authors'" in other.notes[-1]


def test_share_of_forty_is_a_released_client() -> None:
    """Client 0 has the first people of the list, client 1 those that follow."""
    whole = make_listing(2000, 101, 110)
    expected, _ = released_division(dict(whole.counts), 80, 0)
    subset = choose_subset(whole, ImportOptions(split="fedfr-released-clients", people=80))
    in_order = sorted(subset.counts)
    for client in range(40):
        mine = [in_order[place] for place in range(80) if place % 40 == client]
        assert [one.partition("-")[2] for one in mine] == [
            one.rpartition("/")[2] for one in expected[2 * client : 2 * client + 2]
        ]


def test_papers_division_has_disjoint_people_with_60_and_40_photographs() -> None:
    whole = make_listing(300, 90, 130, in_order=False)
    enough = {person for person, count in whole.counts.items() if count >= 100}
    clients = choose_subset(whole, ImportOptions(split="fedfr-clients", people=40))
    public = choose_subset(whole, ImportOptions(split="fedfr-public", people=60))
    assert (len(clients.counts), len(public.counts)) == (40, 60)
    assert not clients.counts.keys() & public.counts.keys()
    assert clients.counts.keys() | public.counts.keys() <= enough
    assert clients.splits is not None
    for person in clients.counts:
        names = [one.name for one in clients.photographs(person)]
        assert len(names) == len(set(names)) == 100
        assert names == [one.name for one in whole.photographs(person) if one.name in names], "in their order"
        split = clients.splits(person, 100)
        assert (split.count("train"), split.count("test")) == (60, 40)
    assert len({tuple(clients.splits(person, 100)) for person in clients.counts}) > 30, "drawn for each person"
    again = choose_subset(by_name(whole), ImportOptions(split="fedfr-clients", people=40))
    assert again.counts == clients.counts, "the order of the names does not matter"


def by_name(whole: PhotographList) -> PhotographList:
    counts = OrderedDict(sorted(whole.counts.items()))
    return PhotographList(counts, whole.photographs)


def test_some_people_and_photographs_are_drawn() -> None:
    whole = make_listing(50, 3, 12)
    subset = choose_subset(whole, ImportOptions(people=20, most=5, least=4))
    assert len(subset.counts) == 20
    assert all(count == min(5, whole.counts[person]) for person, count in subset.counts.items())
    assert min(whole.counts[person] for person in subset.counts) >= 4
    assert choose_subset(whole, ImportOptions()) is whole
    other = choose_subset(whole, ImportOptions(people=20, most=5, least=4, seed=1))
    assert other.counts.keys() != subset.counts.keys()


@pytest.mark.parametrize(
    ("choice", "in_order", "place", "keyword"),
    [
        (ImportOptions(split="fedfr-released-clients"), True, "--people", "4,000"),
        (ImportOptions(split="fedfr-public"), True, "--people", "6,000"),
        (ImportOptions(split="fedfr-clients", people=40, most=5), True, "--people", "with 5 photographs or more"),
        (ImportOptions(split="fedfr-released-public"), False, "--split", "rec"),
        (ImportOptions(people=51), True, "--people", "51"),
    ],
)
def test_impossible_parts_are_refused(choice: ImportOptions, in_order: bool, place: str, keyword: str) -> None:
    with refused(place, keyword):
        choose_subset(make_listing(50, 3, 12, in_order), choice)


def write_rec(root: Path, counts: Sequence[int]) -> None:
    """Write a file without records of identities, in which people come from the last label to the first."""
    root.mkdir()
    rng, records = np.random.default_rng(0), list[bytes]()
    for label in reversed(range(len(counts))):
        for _ in range(counts[label]):
            content = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (SIZE, SIZE, 3)).astype(np.uint8)).save(content, "PNG")
            records.append(write_record(0, (label,), len(records), content.getvalue()))
    (root / "train.rec").write_bytes(b"".join(records))


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fedfr") / "faces"
    write_rec(root, COUNTS)
    return root


def import_part(faces: Path, place: Path, part: str) -> PreparedSet:
    lines = import_quietly("rec", faces, place / part, size=SIZE, split=f"fedfr-released-{part}", people=2)
    assert any("2 of 12 people are used" in line for line in lines)
    return PreparedSet.open(place / part)


def test_clients_and_public_are_imported_separately(faces: Path, tmp_path: Path) -> None:
    appearing = {f"{label:07d}": COUNTS[label] for label in reversed(range(12))}
    clients, public = released_division(appearing, 2, 2)
    ours = import_part(faces, tmp_path, "clients")
    assert sorted({who.partition("-")[2] for who in ours.rows.subject.tolist()}) == sorted(clients)
    whose = {who.partition("-")[2]: who for who in ours.rows.subject.tolist()}[clients[0]]
    split = ours.rows.split[ours.rows.subject == whose].tolist()
    assert split == ["test"] * 40 + ["train"] * 63, "the first photographs are tested with"
    theirs = import_part(faces, tmp_path, "public")
    assert {who.rpartition("/")[2] for who in theirs.rows.subject.tolist()} == set(public)
    assert set(theirs.rows.split.tolist()) == {"train"}
    digest = order_digest(PhotographList({f"faces/{name}": count for name, count in appearing.items()}, lambda _: ()))
    assert "split=fedfr-released-public people=2" in theirs.source
    assert f"order={digest}" in theirs.source


@pytest.fixture(scope="module")
def protocol(
    faces: Path, sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The released protocol as a recipe for two clients with one person each, instead of forty."""
    place = tmp_path_factory.mktemp("protocol")
    for part in ("clients", "public"):
        import_part(faces, place, part)
    shutil.copytree(sets["U"].with_name("people-U"), place / "ijbc")
    lines = "\n".join(describe_protocol("fedfr-released", place))
    assert f"data import rec DIRECTORY {place / 'clients'} --size 112 --split fedfr-released-clients" in lines
    content = yaml.safe_load(lines.replace("[1-40]", "[1-2]").replace("/40", "/2"))
    plain = tree(sets, "fedfr", training__rounds=1)
    return {**plain, "data": content["data"], "evaluation": content["evaluation"]}, place


def test_fedfr_protocol_pools_impostors_of_other_clients(protocol: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    recipe, place = protocol
    data = open_run_data({**recipe, "data": {**recipe["data"], "public_identities": 2}}, tmp_path)
    assert data.people is not None
    assert data.people.public is not None
    assert (len(data.people.public), data.target) == (2 * 70, None)
    for client, other in (("client1", "client2"), ("client2", "client1")):
        assert (len(data.sites[client].train), len(data.sites[client].heldout)) == (63, 40)
        strangers = data.people.strangers[client]
        assert strangers is not None
        assert strangers.items.tolist() == data.sites[other].heldout.items.tolist()
    assert {name: len(one.view.identities) for name, one in data.benchmarks.items()} == {"ijbc": 3}
    with refused("--target", "fedfr"):
        describe_protocol("fedfr", place, "C")


@pytest.mark.slow
def test_the_protocol_runs(protocol: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """One person at a client has 40 · 39 / 2 genuine pairs, and 40 · 40 with the other client's."""
    metrics = run_toy(protocol[0], tmp_path / "run")
    assert metrics["personal.impostors"] == "pooled"
    for own in metrics.parts("personal.sites").values():
        assert (own["genuine_pairs"], own["impostor_pairs"]) == (780, 1600)
        assert (own["probes_of_own_people"], own["probes_of_strangers"]) == (40, 40)
    assert metrics["benchmarks.ijbc.identities"] == 3
    assert metrics["target"] is None
    assert "Impostors are the other sites" in write_report(tmp_path / "run").read_text()


@pytest.mark.parametrize(
    ("kind", "options", "place", "keyword"),
    [
        ("rec", {"split": "fedfr"}, "--split", "fedfr"),
        ("lfw", {"people": 3}, "--people", "LFW"),
        ("oulu-npu", {"most": 3}, "--most", "oulu-npu"),
        ("identities", {"split": "fedfr-public"}, "--split", "identities"),
    ],
)
def test_parts_are_for_training_sets_of_people(
    kind: str, options: dict[str, Any], place: str, keyword: str, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    with refused(place, keyword):
        import_quietly(kind, tmp_path / "d", tmp_path / "s", **options)
