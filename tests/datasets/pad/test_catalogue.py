"""Tests of every dataset of the catalogue on its small copy: a new scanner needs no further test.

``expected/KIND.csv`` has the rows of each copy, written by hand from the dataset's documentation.
"""

import csv
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.datasets.imports import PUBLISHED, copy_to, files_of, import_attacks, list_items, media_files
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.dataset import Grammar, Item
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.tree import MEDIA_ENDINGS, walk

pytestmark = pytest.mark.long

EVERY = pytest.mark.parametrize("kind", SCANNERS)
EVERY_PUBLISHED = pytest.mark.parametrize("kind", PUBLISHED)
WITH_LISTS = pytest.mark.parametrize("kind", [kind for kind, scanner in SCANNERS.items() if scanner.lists])
GRAMMARS = [name.grammar for scanner in SCANNERS.values() for name in scanner.names]

Rows = dict[str, tuple[str, str, str, str]]


def expected_rows(kind: str) -> Rows:
    with (Path(__file__).parent / "expected" / f"{kind}.csv").open(newline="") as file:
        return {row.pop("name"): tuple(row.values()) for row in csv.DictReader(file)}  # type: ignore[misc]


def rows_of(items: list[Item]) -> Rows:
    return {
        item.name: (
            item.species,
            item.subject,
            item.split or "",
            " ".join(f"{k}={v}" for k, v in sorted(item.extra.items())),
        )
        for item in items
    }


@pytest.fixture
def root(kind: str, copies: Mapping[str, Path], tmp_path: Path) -> Path:
    return copy_to(copies[kind], tmp_path / "copy")


@EVERY
def test_every_item_is_of_the_right_class_species_subject_and_split(kind: str, copies: Mapping[str, Path]) -> None:
    listing = list_items(kind, copies[kind])
    assert rows_of([*listing.items]) == expected_rows(kind)
    assert all(item.label == (item.species == "bonafide") for item in listing.items)
    assert not listing.skipped


@EVERY
def test_items_have_declared_columns_and_boxes(kind: str, copies: Mapping[str, Path]) -> None:
    for item in list_items(kind, copies[kind]).items:
        assert set(item.extra) <= set(SCANNERS[kind].columns)
        assert item.boxes is None or SCANNERS[kind].boxes
        assert item.path.exists()


def swap_labels(lines: list[str], live: str, attack: str, numbers: range) -> str:
    """Exchange two labels on some lines, as whole words."""
    other = {live: attack, attack: live}
    pattern = re.compile(rf"(?<![\w+-])({re.escape(live)}|{re.escape(attack)})(?![\w])")
    lines_after = [
        pattern.sub(lambda hit: other[hit[0]], line, count=1) if n in numbers else line for n, line in enumerate(lines)
    ]
    return "\n".join(lines_after) + "\n"


def first_list(kind: str, root: Path) -> tuple[Path, list[str], str, str]:
    """Return a list of a copy, its lines, and the labels that it has for bona fide items and for attacks."""
    lists = SCANNERS[kind].lists
    assert lists
    path = root / lists.of(walk(root))[0]
    lines = path.read_text().splitlines()
    classes = {lists.key(item): item.label for item in list_items(kind, root).items}
    labels = {classes[key]: label for key, label in (lists.read(line) or ("", "") for line in lines) if key in classes}
    return path, lines, labels[1], labels[0]


@WITH_LISTS
def test_one_wrong_label_is_refused_with_its_line(kind: str, root: Path) -> None:
    path, lines, live, attack = first_list(kind, root)
    path.write_text(swap_labels(lines, live, attack, range(1, 2)))
    with refused(path, "line 2", "name"):
        list_items(kind, root)


@WITH_LISTS
def test_inverted_labels_name_the_option_that_inverts_them(kind: str, copies: Mapping[str, Path], root: Path) -> None:
    for path in lists_of(kind, root):
        lines, (live, attack) = path.read_text().splitlines(), first_list(kind, copies[kind])[2:]
        path.write_text(swap_labels(lines, live, attack, range(len(lines))))
    with refused(lists_of(kind, root)[0], f"--labels live={attack}"):
        list_items(kind, root)
    assert rows_of([*list_items(kind, root, ImportOptions(labels=f"live={attack}")).items]) == expected_rows(kind)


def lists_of(kind: str, root: Path) -> list[Path]:
    lists = SCANNERS[kind].lists
    assert lists
    return [root / name for name in lists.of(walk(root))]


@EVERY_PUBLISHED
def test_no_subject_is_in_two_splits_of_the_authors(kind: str, copies: Mapping[str, Path]) -> None:
    splits: dict[str, set[str | None]] = {}
    for item in list_items(kind, copies[kind]).items:
        splits.setdefault(item.subject, set()).add(item.split)
    assert all(len(names) == 1 for names in splits.values())


@EVERY_PUBLISHED
def test_report_has_published_counts_and_marks_incomplete_copies(
    kind: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    _, report = import_attacks(kind, copies[kind], tmp_path / "set", size=16, frames="1", max_bad=1.0, crop="centre")
    rows = expected_rows(kind).values()
    for place in {row[2] or "all" for row in rows}:
        here = [row[0] for row in rows if (row[2] or "all") == place]
        bona_fide = here.count("bonafide")
        assert (report.found or {})[place] == (bona_fide, len(here) - bona_fide)
        assert any(line.startswith(f"{place}: {bona_fide}") for line in report.lines())
    assert report.incomplete == bool(SCANNERS[kind].counts)
    assert any("incomplete" in line for line in report.lines()) == report.incomplete
    assert report.stray == {} or set(report.stray or {}) == {"enrolment videos (add them with --enroll)"}
    listing = PreparedSet.open(tmp_path / "set", verify=True)
    assert sorted(set(listing.rows.subject.tolist())) == sorted({row[1] for row in rows})
    columns = [
        name
        for name in SCANNERS[kind].columns
        if not SCANNERS[kind].of or any(f"{name}=" in f" {row[3]}" for row in rows)
    ]
    assert [*listing.rows.further][: len(columns) + 1] == ["official", *columns]


@EVERY_PUBLISHED
def test_other_files_are_counted_and_unknown_videos_refused(kind: str, root: Path) -> None:
    (root / "notes.pdf").write_text("x")
    (root / "sums.md5").write_text("x")
    assert list_items(kind, root).stray["files ending in .pdf"] == 1
    first = media_files(kind, root)[0]
    (root / "holiday").mkdir()
    (root / f"holiday/holiday{first.suffix}").write_bytes(first.read_bytes())
    with refused(root, f"holiday/holiday{first.suffix}", "fedvisage data kinds"):
        list_items(kind, root)


@EVERY
def test_truncated_and_empty_files_are_skipped(kind: str, root: Path, tmp_path: Path) -> None:
    damaged = list_items(kind, root).items[:2]
    for item, length in zip(damaged, (40, 0), strict=True):
        for path in files_of(item):
            path.write_bytes(path.read_bytes()[:length])
    _, report = import_attacks(kind, root, tmp_path / "set", size=16, frames="1", max_bad=1.0, crop="centre")
    names = {item.name for item in damaged for entry in report.skipped if item.name in entry.path}
    assert names == {item.name for item in damaged}
    assert all(any(item.name in entry.path for item in damaged) for entry in report.skipped)
    assert report.images == len(expected_rows(kind)) - 2
    with refused(root, "max_bad=0"):
        import_attacks(kind, root, tmp_path / "other", size=16, frames="1", max_bad=0.0, crop="centre")


@EVERY
def test_location_capital_endings_line_ends_and_hidden_files_do_not_matter(
    kind: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    where = tmp_path / "disk" / "My Copy" if SCANNERS[kind].official else tmp_path / "disk"
    root = copy_to(copies[kind], where)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        (path.parent / f"._{path.name}").write_bytes(b"\x00\x05\x16\x07")
        if path.suffix == ".txt":
            path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
        elif path.suffix in MEDIA_ENDINGS:
            path.rename(path.with_suffix(path.suffix.upper()))
    (root / ".DS_Store").write_bytes(b"x")
    listing = list_items(kind, tmp_path / "disk")
    plain = {without_capitals(name): row for name, row in rows_of([*listing.items]).items()}
    assert plain == expected_rows(kind)
    assert [item.name for item in listing.items] == sorted(item.name for item in listing.items)


def without_capitals(name: str) -> str:
    """Return a name as it was before its ending was put into capitals; folders of frames kept theirs."""
    stem, dot, ending = name.rpartition(".")
    return stem + dot + ending.lower() if f".{ending.lower()}" in MEDIA_ENDINGS else name


@EVERY_PUBLISHED
def test_two_copies_in_one_folder_are_refused(kind: str, copies: Mapping[str, Path], tmp_path: Path) -> None:
    copy_to(copies[kind], tmp_path / "both" / "one")
    copy_to(copies[kind], tmp_path / "both" / "two")
    with refused(tmp_path / "both", "one", "two", "copy"):
        list_items(kind, tmp_path / "both")


@EVERY
def test_wrong_root_is_described(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "wrong"
    (root / "pictures").mkdir(parents=True)
    (root / "pictures" / "README.md").write_text("x")
    (root / "Train.zip").write_text("x")
    with refused(root, "Train.zip, pictures", "archive"):
        list_items(kind, root)


@EVERY_PUBLISHED
def test_links_out_of_the_folder_are_not_read(kind: str, root: Path, tmp_path: Path) -> None:
    first = media_files(kind, root)[0]
    outside = first.rename(tmp_path / first.name)
    first.symlink_to(outside)
    assert [entry.reason for entry in list_items(kind, root).skipped] == ["a link to outside the folder"]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.template)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_built_names_are_parsed_to_the_same_fields(grammar: Grammar, data: st.DataObject) -> None:
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
def test_parsed_texts_are_rebuilt_from_their_fields(grammar: Grammar, text: str) -> None:
    parsed = grammar.parse(text)
    if parsed is not None:
        assert text.endswith(grammar.build(parsed.fields))


@EVERY
def test_scanner_has_title_layout_page_and_example(kind: str) -> None:
    scanner = SCANNERS[kind]
    assert scanner.kind == kind
    assert scanner.title
    assert scanner.expects
    assert scanner.example
    assert not scanner.official or scanner.page.startswith("http")
    assert dataclasses.is_dataclass(scanner)
