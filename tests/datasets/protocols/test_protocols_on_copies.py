"""Each protocol on imported small copies of its datasets: the items of each site and of the target.

Expectations come from the tables of the scanners' tests, which were written by hand from the datasets' documentation,
and not from the code of selections or scanners. A copy that lacks a selected value is refused.
"""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.imports import import_attacks
from tests.refusals import refused

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import Selection, select, split_entry, splits_of
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.protocols.catalogue import PROTOCOLS

TABLES = Path(__file__).parents[1] / "pad" / "expected"
FRAMES = 2
DRAWN = ("bonafide", "subjects", "by")
"""Words that select by a draw: tests check only that the drawn items are among the possible ones."""

Row = Mapping[str, str]
Sets = Callable[[str, str], PreparedSet]


@pytest.fixture(scope="module")
def sets(copies: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """Sets of the small copies, imported on first use, without a detector."""
    root, opened = tmp_path_factory.mktemp("sets"), dict[str, PreparedSet]()

    def of(name: str, kind: str) -> PreparedSet:
        released = name.endswith("-released")
        key = f"{kind}{released}"
        if key not in opened:
            labels = "fedsis-released" if released else ""
            opened[key], _ = import_attacks(kind, copies[kind], root / key, size=16, frames=str(FRAMES), labels=labels)
        return opened[key]

    return of


def table(kind: str, name: str) -> list[Row]:
    with (TABLES / f"{kind}.csv").open(newline="") as file:
        rows = [{**row, **dict(pair.split("=") for pair in row["extra"].split())} for row in csv.DictReader(file)]
    for row in rows:
        if name.endswith("-released") and row["clip"] == "HR_4":
            row["species"] = "bonafide"
    return [row for row in rows if row.get("purpose") != "enroll"]


def split_words(entry: str) -> tuple[dict[str, list[str]], str]:
    """Split an entry into its selection and the name of its set."""
    name, _, words = entry.partition(" only: ")
    return {word.partition("=")[0]: word.partition("=")[2].split(",") for word in words.split()}, name


def is_selected(row: Row, words: Mapping[str, list[str]]) -> bool:
    """Return whether a row is selected, by the page on recipes."""
    live = row["species"] == "bonafide"
    for word, values in words.items():
        column = {"official": "split"}.get(word.removeprefix("attack."), word.removeprefix("attack."))
        if word == "attacks":
            wrong = not live and row["species"] not in values
        elif word == "without":
            wrong = any(f"/{row['name'].rpartition('.')[0]}".endswith(f"/{value}") for value in values)
        elif word in ("heldout", "frames", *DRAWN):
            wrong = False
        else:
            wrong = row.get(column, "") not in values and not (live and word.startswith("attack."))
        if wrong:
            return False
    return True


def items(rows: list[Row], *views: View) -> set[str]:
    """Return the items of views: the name of an image is that of its item, or begins with it."""
    names = [name for view in views for name in view.items.tolist()]
    return {row["name"] for row in rows for name in names if f"{name}/".startswith(f"{row['name']}/")}


def lacks_values(rows: list[Row], words: Mapping[str, list[str]]) -> bool:
    """Return whether a copy has no item with one of the selected values."""
    plain = {word: values for word, values in words.items() if word not in ("heldout", "frames", "without", *DRAWN)}
    names = {"official": "split", "attacks": "species"}
    return any(
        value not in {row.get(names.get(word, word.removeprefix("attack.")), "") for row in rows}
        for word, values in plain.items()
        for value in values
    )


def views_of(opened: PreparedSet, selection: Selection, site: str) -> list[View]:
    """Return the training and held-out views of a site, or the view of the target."""
    return [select(View.of(opened), selection, site)] if site == "the target" else [*splits_of(opened, selection, site)]


FOLDS = [(name, fold) for name, one in PROTOCOLS.items() for fold in one.folds]


@pytest.mark.parametrize(("name", "fold"), FOLDS)
def test_fold_selects_the_documented_items(name: str, fold: str, sets: Sets) -> None:
    protocol = PROTOCOLS[name]
    one = protocol.folds[fold]
    for site, entry in [*one.sites.items(), ("the target", one.target)]:
        words, of = split_words(entry)
        kind = protocol.sets[of].kind
        rows, opened = table(kind, of), sets(of, kind)
        expected = {row["name"] for row in rows if is_selected(row, words)}
        _, selection = split_entry(entry)
        if lacks_values(rows, words):
            with refused(site, "it has"):
                views_of(opened, selection, site)
            continue
        views = views_of(opened, selection, site)
        selected = items(rows, *views)
        if {*DRAWN} & {*words}:
            assert selected <= expected
        else:
            assert selected == expected, site
        frames = int(words.get("frames", [str(FRAMES)])[0])
        assert all(np.unique(view.videos, return_counts=True)[1].max(initial=0) <= frames for view in views)
        if len(views) == 2 and words.get("heldout") == ["dev"]:
            assert items(rows, views[1]) == {
                row["name"] for row in rows if row["name"] in expected and row["split"] == "dev"
            }
        elif len(views) == 2 and words.get("heldout") == ["none"]:
            assert not len(views[1])


def test_copies_have_the_values_of_most_folds() -> None:
    """The test above needs them. Copies lack only a session, some phones and instruments."""
    whole = set()
    for name, fold in FOLDS:
        one = PROTOCOLS[name]
        entries = [split_words(entry) for entry in (*one.folds[fold].sites.values(), one.folds[fold].target)]
        selections = [(words, table(one.sets[of].kind, of)) for words, of in entries]
        if not any(lacks_values(rows, words) for words, rows in selections):
            whole.add(name)
    assert {*PROTOCOLS} - whole <= {"oulu-1", "oulu-3", "oulu-4", "siw-2", "wmca-unseen"}


def test_every_dataset_of_every_protocol_has_a_copy() -> None:
    assert {one.kind for protocol in PROTOCOLS.values() for one in protocol.sets.values()} <= {*SCANNERS}
