"""What holds for every dataset of the catalogue, on a small copy of it: a new scanner is tested once it is listed.

What each item of a copy has to be stands in ``expected/KIND.csv``, written by hand from the dataset's documentation.
"""

import csv
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.datasets.pad.copies import PUBLISHED, changeable, files_of, listed, media
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.dataset import Grammar
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.item import Item
from fedvisage.datasets.tree import MEDIA_ENDINGS, walk

EVERY = pytest.mark.parametrize("kind", SCANNERS)
EVERY_PUBLISHED = pytest.mark.parametrize("kind", PUBLISHED)
WITH_LISTS = pytest.mark.parametrize("kind", [kind for kind, scanner in SCANNERS.items() if scanner.lists])
GRAMMARS = [name.grammar for scanner in SCANNERS.values() for name in scanner.names]

Told = dict[str, tuple[str, str, str, str]]


def expected(kind: str) -> Told:
    with (Path(__file__).parent / "expected" / f"{kind}.csv").open(newline="") as file:
        return {row.pop("name"): tuple(row.values()) for row in csv.DictReader(file)}  # type: ignore[misc]


def told(items: list[Item]) -> Told:
    return {
        item.name: (
            item.species,
            item.subject,
            item.split or "",
            " ".join(f"{k}={v}" for k, v in sorted(item.extra.items())),
        )
        for item in items
    }


@EVERY
def test_every_item_is_of_the_right_class_species_subject_and_split(kind: str, copies: Mapping[str, Path]) -> None:
    found = listed(kind, copies[kind])
    assert told([*found.items]) == expected(kind)
    assert all(item.label == (item.species == "bonafide") for item in found.items)
    assert not found.skipped


@EVERY
def test_what_items_say_further_is_declared_and_boxes_are_found(kind: str, copies: Mapping[str, Path]) -> None:
    for item in listed(kind, copies[kind]).items:
        assert set(item.extra) <= set(SCANNERS[kind].columns)
        assert item.boxes is None or SCANNERS[kind].boxes
        assert item.path.exists()


def swapped(lines: list[str], live: str, attack: str, numbers: range) -> str:
    """Exchange two labels on some lines, as whole words."""
    other = {live: attack, attack: live}
    pattern = re.compile(rf"(?<![\w+-])({re.escape(live)}|{re.escape(attack)})(?![\w])")
    changed = [
        pattern.sub(lambda hit: other[hit[0]], line, count=1) if n in numbers else line for n, line in enumerate(lines)
    ]
    return "\n".join(changed) + "\n"


def first_list(kind: str, root: Path) -> tuple[Path, list[str], str, str]:
    """Return a list of a copy, its lines, and the labels that it has for bona fide items and for attacks."""
    lists = SCANNERS[kind].lists
    assert lists
    path = root / lists.of(walk(root))[0]
    lines = path.read_text().splitlines()
    classes = {lists.key(item): item.label for item in listed(kind, root).items}
    labels = {classes[key]: label for key, label in (lists.read(line) or ("", "") for line in lines) if key in classes}
    return path, lines, labels[1], labels[0]


@WITH_LISTS
def test_one_wrong_label_is_an_error_with_its_line(kind: str, copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = changeable(copies[kind], tmp_path / "copy")
    path, lines, live, attack = first_list(kind, root)
    path.write_text(swapped(lines, live, attack, range(1, 2)))
    with refused(path, "line 2", "name"):
        listed(kind, root)


@WITH_LISTS
def test_labels_that_are_all_the_other_way_round_say_which_option_turns_them(
    kind: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    root = changeable(copies[kind], tmp_path / "copy")
    for path in lists_of(kind, root):
        lines, (live, attack) = path.read_text().splitlines(), first_list(kind, copies[kind])[2:]
        path.write_text(swapped(lines, live, attack, range(len(lines))))
    with refused(lists_of(kind, root)[0], f"--labels live={attack}"):
        listed(kind, root)
    assert told([*listed(kind, root, ImportOptions(labels=f"live={attack}")).items]) == expected(kind)


def lists_of(kind: str, root: Path) -> list[Path]:
    lists = SCANNERS[kind].lists
    assert lists
    return [root / name for name in lists.of(walk(root))]


@EVERY_PUBLISHED
def test_no_subject_is_in_two_splits_of_the_authors(kind: str, copies: Mapping[str, Path]) -> None:
    splits: dict[str, set[str | None]] = {}
    for item in listed(kind, copies[kind]).items:
        splits.setdefault(item.subject, set()).add(item.split)
    assert all(len(names) == 1 for names in splits.values())


@EVERY_PUBLISHED
def test_the_report_has_found_and_published_counts_and_says_that_the_copy_is_incomplete(
    kind: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    report = import_items(
        SCANNERS[kind],
        copies[kind],
        tmp_path / "set",
        ImportOptions(size=16, frames="1", max_bad=1.0, crop="centre"),
        name=kind,
    )
    rows = expected(kind).values()
    for place in {row[2] or "all" for row in rows}:
        here = [row[0] for row in rows if (row[2] or "all") == place]
        bona_fide = here.count("bonafide")
        assert report.found[place] == (bona_fide, len(here) - bona_fide)
        assert any(line.startswith(f"{place}: {bona_fide}") for line in report.lines())
    assert report.incomplete == bool(SCANNERS[kind].counts)
    assert any("incomplete" in line for line in report.lines()) == report.incomplete
    assert report.stray == {} or set(report.stray) == {"enrolment videos (add them with --enroll)"}
    found = PreparedSet.open(tmp_path / "set", verify=True)
    assert sorted(set(found.rows.subject.tolist())) == sorted({row[1] for row in rows})
    columns = [
        name
        for name in SCANNERS[kind].columns
        if not SCANNERS[kind].of or any(f"{name}=" in f" {row[3]}" for row in rows)
    ]
    assert [*found.rows.further][: len(columns) + 1] == ["official", *columns]


@EVERY_PUBLISHED
def test_other_files_are_counted_and_videos_with_other_names_are_an_error(
    kind: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    root = changeable(copies[kind], tmp_path / "copy")
    (root / "notes.pdf").write_text("x")
    (root / "sums.md5").write_text("x")
    assert listed(kind, root).stray["files ending in .pdf"] == 1
    first = media(kind, root)[0]
    (root / "holiday").mkdir()
    (root / f"holiday/holiday{first.suffix}").write_bytes(first.read_bytes())
    with refused(root, f"holiday/holiday{first.suffix}", "fedvisage data kinds"):
        listed(kind, root)


@EVERY
def test_truncated_and_empty_files_are_counted_and_the_others_imported(
    kind: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    root = changeable(copies[kind], tmp_path / "copy")
    damaged = listed(kind, root).items[:2]
    for item, length in zip(damaged, (40, 0), strict=True):
        for path in files_of(item):
            path.write_bytes(path.read_bytes()[:length])
    report = import_items(
        SCANNERS[kind],
        root,
        tmp_path / "set",
        ImportOptions(size=16, frames="1", max_bad=1.0, crop="centre"),
        name=kind,
    )
    told_of = {item.name for item in damaged for one in report.skipped if item.name in one.path}
    assert told_of == {item.name for item in damaged}
    assert all(any(item.name in one.path for item in damaged) for one in report.skipped)
    assert report.images == len(expected(kind)) - 2
    with refused(root, "max_bad=0"):
        import_items(
            SCANNERS[kind],
            root,
            tmp_path / "other",
            ImportOptions(size=16, frames="1", max_bad=0.0, crop="centre"),
            name=kind,
        )


@EVERY
def test_another_parent_endings_in_capitals_windows_lines_and_hidden_copies_change_nothing(
    kind: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    where = tmp_path / "disk" / "My Copy" if SCANNERS[kind].official else tmp_path / "disk"
    root = changeable(copies[kind], where)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        (path.parent / f"._{path.name}").write_bytes(b"\x00\x05\x16\x07")
        if path.suffix == ".txt":
            path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
        elif path.suffix in MEDIA_ENDINGS:
            path.rename(path.with_suffix(path.suffix.upper()))
    (root / ".DS_Store").write_bytes(b"x")
    found = listed(kind, tmp_path / "disk")
    plain = {without_capitals(name): row for name, row in told([*found.items]).items()}
    assert plain == expected(kind)
    assert [item.name for item in found.items] == sorted(item.name for item in found.items)


def without_capitals(name: str) -> str:
    """Return a name as it was before its ending was put into capitals; folders of frames kept theirs."""
    stem, dot, ending = name.rpartition(".")
    return stem + dot + ending.lower() if f".{ending.lower()}" in MEDIA_ENDINGS else name


@EVERY_PUBLISHED
def test_two_copies_in_one_folder_are_named(kind: str, copies: Mapping[str, Path], tmp_path: Path) -> None:
    changeable(copies[kind], tmp_path / "both" / "one")
    changeable(copies[kind], tmp_path / "both" / "two")
    with refused(tmp_path / "both", "one", "two", "copy"):
        listed(kind, tmp_path / "both")


@EVERY
def test_a_wrong_root_says_what_was_looked_for_and_what_is_there(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "wrong"
    (root / "pictures").mkdir(parents=True)
    (root / "pictures" / "README.md").write_text("x")
    (root / "Train.zip").write_text("x")
    with refused(root, "Train.zip, pictures", "archive"):
        listed(kind, root)


@EVERY_PUBLISHED
def test_links_out_of_the_folder_are_not_read(kind: str, copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = changeable(copies[kind], tmp_path / "copy")
    first = media(kind, root)[0]
    outside = first.rename(tmp_path / first.name)
    first.symlink_to(outside)
    assert [one.reason for one in listed(kind, root).skipped] == ["a link to outside the folder"]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.template)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_names_that_are_built_from_fields_are_read_as_these_fields(grammar: Grammar, data: st.DataObject) -> None:
    fields = {
        name: data.draw(st.from_regex(re.compile(expression, re.ASCII), fullmatch=True), name)
        for name, expression in grammar.fields.items()
    }
    name = grammar.build(fields)
    above = data.draw(st.sampled_from(["", "disk/", "a b/Train/real/1/"]))
    parsed = grammar.parse(above + name)
    assert parsed is not None
    assert (parsed.fields, parsed.name) == (fields, name)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.template)
@settings(max_examples=30, deadline=None)
@given(text=st.text("/_-.12aHRtrainestlkcvd", max_size=40))
def test_other_texts_are_no_names_or_are_built_again_from_what_is_read(grammar: Grammar, text: str) -> None:
    parsed = grammar.parse(text)
    if parsed is not None:
        assert text.endswith(grammar.build(parsed.fields))


@EVERY
def test_a_scanner_says_what_a_user_needs(kind: str) -> None:
    scanner = SCANNERS[kind]
    assert scanner.kind == kind
    assert scanner.title
    assert scanner.expects
    assert scanner.example
    assert not scanner.official or scanner.page.startswith("http")
    assert dataclasses.is_dataclass(scanner)
