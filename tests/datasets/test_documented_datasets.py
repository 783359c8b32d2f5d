"""The pages about datasets are executed: their commands in order, their scanner, their tables and recipe entries."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from tests.commands import output_of
from tests.datasets.imports import import_attacks
from tests.documented import ROOT
from tests.packages import install
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import split_entry
from fedvisage.datasets.catalogue import KINDS, LAYOUTS, SCANNERS, describe_kinds, load_dataset
from fedvisage.datasets.importing import read_spec
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.protocols.catalogue import PROTOCOLS
from fedvisage.datasets.small_copies import write_copy

IMPORTING, PUBLISHED, PROTOCOLS_PAGE, ADDING = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("datasets", "published-datasets", "protocols", "adding-a-dataset")
)


TRAINING = {"rec", "vggface2", "bupt-balancedface", "digiface"}
"""Datasets of people for training; the others are benchmarks, of which nothing is kept for tests."""
DESCRIBED = {"folder", "frames", "fedgpad", "rec", "bin", "ijb-b", "ijb-c", "ijb-b-nist", "ijb-c-nist"}
"""Kinds that the page describes in other words than their title."""


def blocks(page: str, kind: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    return [text for language, text in fenced if language == kind]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_documented_commands_print_the_documented_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = ""
    for command in "".join(blocks(IMPORTING + PUBLISHED + PROTOCOLS_PAGE, "console")).splitlines():
        program, *words = shlex.split(command)
        assert program == "fedvisage"
        output += output_of(*words)
    (printed,) = blocks(IMPORTING, "")
    assert printed in output
    assert "official: dev, test, train\nphone: 1, 2\n" in output  # what can be selected by
    assert len(PreparedSet.open(tmp_path / "sets/O")) == 16
    assert {path.name for path in (tmp_path / "sets/all").iterdir()} == {"oulu-npu", "msu-mfsd"}


def test_the_scanner_of_the_page_imports_its_example(tmp_path: Path) -> None:
    source, _ = blocks(ADDING, "python")  # the other is run by tests/test_documentation.py
    module: dict[str, object] = {}
    exec(compile(source, "docs/adding-a-dataset.md", "exec", dont_inherit=True), module)
    scanner = module["SCANNER"]
    assert isinstance(scanner, Scanner)
    write_copy(scanner, tmp_path / "example")
    prepared, _ = import_attacks(scanner, tmp_path / "example", tmp_path / "set", size=16, frames="1")
    assert prepared.rows.species.tolist() == ["bonafide", "print"]
    assert set(prepared.rows.subject.tolist()) == {"example/03"}


def test_the_scanner_of_the_page_is_an_entry_point(tmp_path: Path) -> None:
    source, _ = blocks(ADDING, "python")
    entries = {"datasets": {"exscan": "exscan:SCANNER", "wrong": "exscan:LIVE", "folder": "exscan:SCANNER"}}
    with install(tmp_path / "package", entries, {"exscan.py": source}):
        scanner = import_module("exscan").SCANNER
        write_copy(scanner, tmp_path / "example")
        options = ["--size", "16", "--frames", "1,"]
        output_of("data", "import", "exscan", tmp_path / "example", tmp_path / "set", *options)
        assert PreparedSet.open(tmp_path / "set").rows.species.tolist()[0] == "bonafide"
        with refused("entry point fedvisage.datasets: wrong", "Scanner"):
            load_dataset("wrong")
        with pytest.warns(UserWarning, match="^entry point fedvisage.datasets: folder of mine: .*rename"):
            assert "exscan" in describe_kinds("")[-1]
        with pytest.warns(UserWarning, match="folder"):
            assert len(describe_kinds("folder")) > 1


def test_the_table_has_every_kind_with_its_counts_and_columns() -> None:
    rows = {row.split("`")[1]: row for row in PUBLISHED.splitlines() if row.startswith("| `")}
    assert set(KINDS) <= set(rows)
    for kind, layout in LAYOUTS.items():
        assert ", ".join(f"{count:,}" for count in layout.counts or () if count) in rows[kind]
        assert layout.page in rows[kind]
        assert all(f"`{column}`" in rows[kind] for column in layout.columns)
    for kind, scanner in SCANNERS.items():
        whole = [both for place, both in scanner.counts.items() if place in ("train", "dev", "test", "all")]
        if whole:
            real, attacks = (sum(column) for column in zip(*whole, strict=True))
            assert f"{real:,} + {attacks:,}" in rows[kind]
        assert scanner.page in rows[kind]
        assert all(f"`{column}`" in rows[kind] for column in scanner.columns)


def test_each_dataset_has_a_row_with_its_title_and_the_options_of_its_import() -> None:
    rows = {row.split("`")[1]: row.split("|") for row in PUBLISHED.splitlines() if row.startswith("| `")}
    for kind, dataset in {**SCANNERS, **LAYOUTS}.items():
        options = rows[kind][-2].strip(" `")
        assert read_spec(f"{kind} {options}", "the page").kind == kind
        assert ("--test 0" in options) == (kind in LAYOUTS and kind not in TRAINING), kind
        if kind not in DESCRIBED:
            assert dataset.title.lower() in rows[kind][2].lower()


def test_each_protocol_has_a_row_with_its_datasets() -> None:
    table = PROTOCOLS_PAGE[PROTOCOLS_PAGE.index("| protocols |") :].split("\n\n")[0]
    rows = [[re.findall("`([^`]+)`", cell) for cell in row.split("|")] for row in table.splitlines()[2:]]
    datasets = {name: row[-2] for row in rows for name in row[1]}
    for name, protocol in PROTOCOLS.items():
        used = {used.kind for fold in protocol.folds for used in protocol.of_fold(fold).values()}
        assert sorted(datasets[name]) == sorted(used), name


def test_the_entries_of_the_recipe_are_read() -> None:
    (text,) = blocks(IMPORTING, "yaml")
    data = yaml.safe_load(text)["data"]
    for entry in (*data["sites"].values(), data["target"]):
        assert split_entry(entry)[1].columns["official" if "official" in entry else "quality"]


@pytest.mark.parametrize("kind", ["frames", "fedgpad"])
def test_documented_options_import_cropped_frames(kind: str, tmp_path: Path) -> None:
    row = next(row for row in PUBLISHED.splitlines() if row.startswith(f"| `{kind}`"))
    options = row.rsplit("`", 2)[1].replace("DIR", str(tmp_path / "copy")).split()
    for words in (["pretend", kind, "copy"], ["import", kind, "copy", "set", "--size", "32", *options]):
        output_of("data", *(tmp_path / word if word in ("copy", "set") else word for word in words))
    assert len(PreparedSet.open(tmp_path / "set")) == (6 if kind == "frames" else 5)


def test_dataset_without_a_page_names_its_owners() -> None:
    for kind, owner in (("casia-fasd", "Chinese Academy of Sciences"), ("msu-mfsd", "Michigan State University")):
        text = "\n".join(describe_kinds(kind))
        assert "request from the authors" in text
        assert owner in text


@pytest.mark.long
def test_small_copy_of_a_folder_of_people_can_be_imported(tmp_path: Path) -> None:
    source, to = str(tmp_path / "copy"), str(tmp_path / "set")
    for arguments in (["pretend", "identities", source], ["import", "identities", source, to, "--size", "32"]):
        output_of("data", *arguments)
    assert len(set(PreparedSet.open(tmp_path / "set").rows.subject.tolist())) == 4
