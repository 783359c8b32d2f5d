"""Each protocol on imported small copies of its datasets: which items of which video a site or the target takes.

What is expected is worked out from the tables beside the scanners' tests, which were written by hand from the datasets'
documentation: no code of selections or scanners is asked. Where a copy lacks what a fold asks for, that is told.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.refusals import refused

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import Selection, select, split_entry, splits_of
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.protocols.catalogue import PROTOCOLS

TABLES = Path(__file__).parents[1] / "pad" / "expected"
FRAMES = 2
DRAWN = ("bonafide", "subjects", "by")
"""Words that choose by a draw: which half is not worked out here, but that both are halves of what is left."""

Row = Mapping[str, str]
Sets = Callable[[str, str], PreparedSet]


@pytest.fixture(scope="module")
def sets(copies: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """Sets of the small copies, imported when they are first asked for; without a look for faces, which costs time."""
    root, made = tmp_path_factory.mktemp("sets"), dict[str, PreparedSet]()

    def of(name: str, kind: str) -> PreparedSet:
        released = name.endswith("-released")
        key = f"{kind}{released}"
        if key not in made:
            import_items(
                SCANNERS[kind],
                copies[kind],
                root / key,
                ImportOptions(size=16, frames=str(FRAMES), crop="centre", labels="fedsis-released" if released else ""),
                name=kind,
            )
            made[key] = PreparedSet.open(root / key)
        return made[key]

    return of


def table(kind: str, name: str) -> list[Row]:
    """Return what is known of each item of a copy."""
    with (TABLES / f"{kind}.csv").open(newline="") as file:
        rows = [{**row, **dict(pair.split("=") for pair in row["extra"].split())} for row in csv.DictReader(file)]
    for row in rows:
        if name.endswith("-released") and row["clip"] == "HR_4":
            row["species"] = "bonafide"
    return [row for row in rows if row.get("purpose") != "enroll"]


def asked(entry: str) -> tuple[dict[str, list[str]], str]:
    """Split an entry into what it asks for and the name of its set."""
    name, _, words = entry.partition(" only: ")
    return {word.partition("=")[0]: word.partition("=")[2].split(",") for word in words.split()}, name


def fits(row: Row, words: Mapping[str, list[str]]) -> bool:
    """Tell whether an item is asked for, as the page on recipes says of these words."""
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
    """Return the items that views show: an image's name is the item's, or begins with it."""
    shown = [name for view in views for name in view.items.tolist()]
    return {row["name"] for row in rows for name in shown if f"{name}/".startswith(f"{row['name']}/")}


def lacks(rows: list[Row], words: Mapping[str, list[str]]) -> bool:
    """Tell whether a copy has no item at all with a value that is asked for."""
    plain = {word: values for word, values in words.items() if word not in ("heldout", "frames", "without", *DRAWN)}
    names = {"official": "split", "attacks": "species"}
    return any(
        value not in {row.get(names.get(word, word.removeprefix("attack.")), "") for row in rows}
        for word, values in plain.items()
        for value in values
    )


def views_of(made: PreparedSet, meant: Selection, site: str) -> list[View]:
    """Return what a site trains on and holds out, or what the target has."""
    return [select(View.of(made), meant, site)] if site == "the target" else [*splits_of(made, meant, site)]


FOLDS = [(name, fold) for name, one in PROTOCOLS.items() for fold in one.folds]


@pytest.mark.parametrize(("name", "fold"), FOLDS)
def test_a_fold_takes_the_items_that_the_documentation_gives_it(name: str, fold: str, sets: Sets) -> None:
    protocol = PROTOCOLS[name]
    one = protocol.folds[fold]
    for site, entry in [*one.sites.items(), ("the target", one.target)]:
        words, of = asked(entry)
        kind = protocol.sets[of].kind
        rows, made = table(kind, of), sets(of, kind)
        expected = {row["name"] for row in rows if fits(row, words)}
        _, meant = split_entry(entry)
        if lacks(rows, words):
            with refused(site, "it has"):
                views_of(made, meant, site)
            continue
        views = views_of(made, meant, site)
        found = items(rows, *views)
        if {*DRAWN} & {*words}:
            assert found <= expected
        else:
            assert found == expected, site
        frames = int(words.get("frames", [str(FRAMES)])[0])
        assert all(np.unique(view.videos, return_counts=True)[1].max(initial=0) <= frames for view in views)
        if len(views) == 2 and words.get("heldout") == ["dev"]:
            assert items(rows, views[1]) == {
                row["name"] for row in rows if row["name"] in expected and row["split"] == "dev"
            }
        elif len(views) == 2 and words.get("heldout") == ["none"]:
            assert not len(views[1])


def test_copies_have_what_most_folds_ask_for() -> None:
    """Else the test above would say nothing: what copies lack are a session, some phones and instruments."""
    whole = set()
    for name, fold in FOLDS:
        one = PROTOCOLS[name]
        said = [asked(entry) for entry in (*one.folds[fold].sites.values(), one.folds[fold].target)]
        asked_for = [(words, table(one.sets[of].kind, of)) for words, of in said]
        if not any(lacks(rows, words) for words, rows in asked_for):
            whole.add(name)
    assert {*PROTOCOLS} - whole <= {"oulu-1", "oulu-3", "oulu-4", "siw-2", "wmca-unseen"}


def test_every_dataset_of_every_protocol_has_a_copy() -> None:
    assert {one.kind for protocol in PROTOCOLS.values() for one in protocol.sets.values()} <= {*SCANNERS}
