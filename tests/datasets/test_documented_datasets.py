"""docs/datasets.md is run: its commands one after another, its scanner, its table and its entries of a recipe."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from tests.documented import ROOT
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import split_entry
from fedvisage.datasets.catalogue import IMPORTERS, LAYOUTS, SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.import_spec import read_spec
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.protocols.catalogue import PROTOCOLS
from fedvisage.datasets.small_copies import write_copy

PAGE = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    return [text for language, text in fenced if language == kind]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_commands_run_one_after_another_and_say_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = ""
    for command in "".join(blocks("console")).splitlines():
        program, *words = shlex.split(command)
        assert program == "fedvisage"
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        said += result.output
    (printed,) = blocks("")
    assert printed in said
    assert "official: dev, test, train\nphone: 1, 2\n" in said  # what can be selected by
    assert len(PreparedSet.open(tmp_path / "sets/O")) == 16
    assert {path.name for path in (tmp_path / "sets/all").iterdir()} == {"oulu-npu", "msu-mfsd"}


def test_the_scanner_of_the_page_imports_its_example(tmp_path: Path) -> None:
    (source,) = blocks("python")
    module: dict[str, object] = {}
    exec(compile(source, "docs/datasets.md", "exec", dont_inherit=True), module)
    scanner = module["SCANNER"]
    write_copy(scanner, tmp_path / "example")  # type: ignore[arg-type]
    import_items(
        scanner, tmp_path / "example", tmp_path / "set", ImportOptions(size=16, frames="1", crop="centre"), name="E"
    )  # type: ignore[arg-type]
    found = PreparedSet.open(tmp_path / "set")
    assert found.rows.species.tolist() == ["bonafide", "print"]
    assert set(found.rows.subject.tolist()) == {"example/03"}


def test_the_table_has_every_kind_with_its_counts_and_columns() -> None:
    rows = {row.split("`")[1]: row for row in PAGE.splitlines() if row.startswith("| `")}
    assert {*SCANNERS, *LAYOUTS, *IMPORTERS} <= set(rows)
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


def test_each_dataset_has_a_row_with_its_layout_its_command_and_the_protocols_that_use_it() -> None:
    section = PAGE[PAGE.index("## Layouts, commands") : PAGE.index("## Import\n")]
    rows = {row.split("data import ")[1].split()[0]: row for row in section.splitlines() if "`data import " in row}
    assert {*rows} == {*SCANNERS, *LAYOUTS} - {"folder"}
    for kind, dataset in {**SCANNERS, **LAYOUTS}.items():
        if kind == "folder":
            continue
        _, title, layout, command, protocols, _ = rows[kind].split("|")
        assert title.strip().lower() == dataset.title.lower()
        assert layout.strip(" `") in dataset.expects
        assert re.findall("`([^`]+)`", protocols) == [
            name
            for name, one in PROTOCOLS.items()
            if any(used.kind == kind for fold in one.folds for used in one.of_fold(fold).values())
        ]
        words = re.sub(r"^data import|DIR sets/\S+", "", command.strip(" `"))
        assert read_spec(words, "the page").kind == kind


def test_the_entries_of_the_recipe_are_read() -> None:
    (text,) = blocks("yaml")
    data = yaml.safe_load(text)["data"]
    for entry in (*data["sites"].values(), data["target"]):
        assert split_entry(entry)[1].columns["official" if "official" in entry else "quality"]
