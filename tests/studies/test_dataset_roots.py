"""Studies on a folder of datasets: imports, missing datasets, and the papers' studies."""

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from tests.refusals import refused
from tests.toy import discard, write_study
from typer.main import get_command
from typer.testing import CliRunner

from fedvisage.base.progress import Reporter
from fedvisage.cli import app, data
from fedvisage.data.prepared import PreparedSet, read_manifest
from fedvisage.datasets.catalogue import write_small_copy
from fedvisage.datasets.importing import read_spec
from fedvisage.datasets.protocols.catalogue import PROTOCOLS, describe_protocol
from fedvisage.studies.conduct import run_study, shrink_for_smoke
from fedvisage.studies.grid import cells_of, source_of
from fedvisage.studies.study import load_study

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes" / "studies"
LETTERS = {"O": "oulu-npu", "C": "casia-fasd", "I": "replay-attack", "M": "msu-mfsd"}
RECIPE = {
    "method": {"name": "fedpad", "network": {"width": 8}},
    "input": {"size": 32},
    "training": {"rounds": 1, "batch": 4, "local": {"batches": 1}},
    "evaluation": {"every": 0, "features": 0, "resamples": 0},
    "runtime": {"precision": "fp32", "threads": 1, "device": "cpu"},
}
STUDY = {
    "title": "Toy",
    "recipe": RECIPE,
    "sets": {name: f"data/{name}" for name in ("C", "I", "M")},
    "imports": {name: f"{LETTERS[name]} --frames 2" for name in ("C", "I", "M")},
    "targets": ["M"],
    "rows": {"FedPAD": {}, "Single": {"set": ["method.name=single"]}},
    "seeds": [0],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return small copies of the four datasets, in folders with arbitrary names."""
    folder = tmp_path_factory.mktemp("root")
    for name, kind in LETTERS.items():
        write_small_copy(kind, folder / f"copy of {name}")
    return folder


@pytest.fixture(scope="module")
def larger_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return copies of the four with enough people for studies that divide datasets finely."""
    folder = tmp_path_factory.mktemp("peopled")
    for kind in LETTERS.values():
        write_small_copy(kind, folder / kind, 8)
    return folder


def fedvisage(*words: str) -> None:
    """Call the command line, and check that it succeeds."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception


def conduct(path: Path, out: Path, root: Path, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Conduct a study and return its table and output."""
    stream = io.StringIO()
    reporter = Reporter(Console(file=stream, width=1000))
    table = run_study(path, out, out.parent / "cache", reporter.say, root=root, **options)
    return table, stream.getvalue().splitlines()


@pytest.fixture(scope="module")
def imported_study(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    here = tmp_path_factory.mktemp("study")
    _, lines = conduct(write_study(STUDY, here), here / "out", root)
    return here, lines


def test_datasets_are_imported_beside_the_output(imported_study: tuple[Path, list[str]], root: Path) -> None:
    here, lines = imported_study
    sets = {path.name.split("-32px")[0]: PreparedSet.open(path) for path in (here / "sets").iterdir()}
    assert {*sets} == {LETTERS[name] for name in "CIM"}
    assert all(prepared.size == 32 and " frames=2 " in prepared.source for prepared in sets.values())
    assert {path.name for path in root.iterdir()} == {f"copy of {name}" for name in LETTERS}
    assert "2 cells, 2 of them still to run" in lines
    assert any(line.startswith("imports: 50 images") for line in lines)  # two of each of 10, 8 and 7 files
    assert any("training: no estimate" in line for line in lines)


def test_cells_equal_those_of_manually_imported_sets(
    imported_study: tuple[Path, list[str]], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("C", "I", "M"):
        folder = str(root / f"copy of {name}")
        fedvisage("data", "import", LETTERS[name], folder, f"data/{name}", "--frames", "2", "--size", "32")
    run_study(write_study(STUDY, tmp_path), tmp_path / "out", tmp_path / "cache", discard)
    for cell in ("fedpad-M-seed0", "single-M-seed0"):
        mine, theirs = (place / "out" / "cells" / cell / "model.safetensors" for place in (tmp_path, imported_study[0]))
        assert mine.read_bytes() == theirs.read_bytes()


def test_existing_sets_are_reused_and_finished_cells_predict_the_hours(
    imported_study: tuple[Path, list[str]], root: Path
) -> None:
    here, _ = imported_study
    before = {path: path.stat().st_mtime_ns for path in (here / "sets").rglob("set.json")}
    (here / "out" / "cells" / "single-M-seed0" / "metrics.json").unlink()
    _, lines = conduct(here / "study.yaml", here / "out", root)
    assert {path: path.stat().st_mtime_ns for path in (here / "sets").rglob("set.json")} == before
    assert "2 cells, 1 of them still to run" in lines
    assert any(line.startswith("training: about") and "1 cell" in line for line in lines)
    assert not any(line.startswith("imports:") for line in lines)


def test_sets_below_the_root_are_used_if_imported_with_the_same_options(root: Path, tmp_path: Path) -> None:
    """One set is at the root's own level, one in a folder of sets; one has other frames and is reported."""
    here = tmp_path / "root"
    here.mkdir()
    for name, place, frames in (("C", "first", 2), ("I", "sets/second", 2), ("M", "sets/third", 1)):
        words = ["data", "import", LETTERS[name], str(root / f"copy of {name}"), str(here / place), "--size", "32"]
        fedvisage(*words, "--frames", str(frames))
    with refused("root", "1 set or file", "M (MSU-MFSD)"):
        conduct(write_study(STUDY, tmp_path), tmp_path / "out", here)
    study = {**STUDY, "imports": {**STUDY["imports"], "M": "msu-mfsd --frames 1"}}  # type: ignore[dict-item]
    _, lines = conduct(write_study(study, tmp_path), tmp_path / "out", here)
    assert any(line.startswith("I: Replay-Attack: the set ") and line.endswith("second") for line in lines)
    assert not (tmp_path / "sets").exists()


def test_missing_datasets_are_listed_with_remedies_before_starting(root: Path, tmp_path: Path) -> None:
    (tmp_path / "root" / "holiday").mkdir(parents=True)
    write_small_copy("casia-fasd", tmp_path / "root" / "casia")
    recipe = {**RECIPE, "training": {**RECIPE["training"], "start": "first.safetensors"}}  # type: ignore[dict-item]
    study = {**STUDY, "recipe": recipe, "sets": {**STUDY["sets"], "X": "data/X"}}  # type: ignore[dict-item]
    study["made_by"] = {"X": "people SET --identities 4"}
    people = f"fedvisage data people {tmp_path / 'sets' / 'X'} --identities 4 --size 32"
    out, stream = tmp_path / "out", io.StringIO()
    reporter, path = Reporter(Console(file=stream, width=1000)), write_study(study, tmp_path)
    command = "M (MSU-MFSD): fedvisage data import msu-mfsd DIRECTORY"
    with refused("root", "4 sets or files", "I (Replay-Attack)", command, people, "first.safetensors"):
        run_study(path, out, tmp_path, reporter.say, root=tmp_path / "root")
    lines = {line.partition(":")[0]: line for line in stream.getvalue().splitlines()}
    assert "https://www.idiap.ch" in lines["I"]
    assert "train_release" not in lines["I"]
    assert "does not name its dataset" in lines["X"]
    assert people in lines["X"]
    words = shlex.split(lines["M"].partition("elsewhere: ")[2])
    assert words[:4] == ["fedvisage", "data", "import", "msu-mfsd"]
    assert "C" not in lines
    assert not out.exists()
    # The suggested command creates the set that the study accepts.
    words[words.index("DIRECTORY")] = str(root / "copy of M")
    fedvisage(*words[1:])
    with refused("root", "3 sets or files"):
        run_study(tmp_path / "study.yaml", out, tmp_path, discard, root=tmp_path / "root")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_study_gives_an_import_or_command_for_every_set(path: Path) -> None:
    if "title" not in yaml.safe_load(path.read_text()):
        return  # shared sections of other studies
    study = load_study(path)
    entries = [*study.sets.values(), *study.benchmarks.values()]
    names = {Path(source_of(entry)).name for entry in entries if not entry.startswith("synth:")}
    assert names == {name for name in (*study.imports, *study.made_by) if name in names}
    for command in study.made_by.values():
        verb, *words = [*command.split(), "--size", "112"]
        assert "SET" in words
        get_command(data.app).commands[verb].make_context(verb, words)  # type: ignore[attr-defined]


def test_sets_beyond_the_disk_space_are_refused_before_import(root: Path, tmp_path: Path) -> None:
    imports = {name: f"{LETTERS[name]} --frames 999999" for name in ("C", "I", "M")}
    recipe = {**RECIPE, "input": {"size": 1024}}
    with refused("sets", "GB", "--sets"):
        conduct(write_study({**STUDY, "recipe": recipe, "imports": imports}, tmp_path), tmp_path / "out", root)
    assert not (tmp_path / "sets").exists()


def test_ambiguous_copy_is_refused_if_needed(root: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_small_copy("casia-fasd", tmp_path / "root" / name)
    with refused("root", "one and two", "casia-fasd"):
        conduct(write_study(STUDY, tmp_path), tmp_path / "out", tmp_path / "root")


@pytest.mark.parametrize(
    ("change", "place", "keyword"),
    [
        ({"imports": {"C": "casia"}}, "study.yaml: imports.C", "KIND"),
        ({"imports": {"C": "casia-fasd --fames 3"}}, "study.yaml: imports.C", "option"),
        ({"imports": {"C": "casia-fasd --seed x"}}, "study.yaml: imports.C", "number"),
        ({"imports": {"C": "casia-fasd --frames six"}}, "study.yaml: imports.C", "'six'"),
        ({"imports": {"C": ""}}, "study.yaml: imports.C", "''"),
        ({"protocol": "ocim"}, "study.yaml", "fedvisage data protocols"),
        ({"protocol": "ocim-sdg"}, "study.yaml", "ocim-ssdg"),
        ({"protocol": "ocim-ssdg", "targets": ["Z"]}, "study.yaml: targets", "'Z'"),
        ({"sets": {"C": "data/C"}, "targets": ["C"]}, "study.yaml", "two"),
    ],
)
def test_invalid_datasets_section_is_refused(tmp_path: Path, change: dict[str, Any], place: str, keyword: str) -> None:
    with refused(place, keyword):
        load_study(write_study({**STUDY, **change}, tmp_path))


def test_missing_sets_name_the_import_option(tmp_path: Path) -> None:
    with refused("FedPAD, target M: recipe.data.sites.C", "directory", "--root"):
        run_study(write_study(STUDY, tmp_path), tmp_path / "out", tmp_path, discard)


def test_sets_folder_without_a_root_is_refused(tmp_path: Path) -> None:
    with refused("--sets", "--root"):
        run_study(write_study(STUDY, tmp_path), tmp_path / "out", tmp_path, discard, sets=tmp_path / "sets")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_entries_of_a_protocol_become_recipe_entries(name: str, tmp_path: Path) -> None:
    """Compare with the printed entries for a recipe."""
    study = {"title": "P", "recipe": {**RECIPE, "evaluation": {}}, "protocol": name, "rows": {"A": {}}, "seeds": [0]}
    cells = cells_of(load_study(write_study(study, tmp_path)), tmp_path)
    assert [cell.target for cell in cells] == list(PROTOCOLS[name].folds)
    for cell in cells:
        printed = yaml.safe_load("\n".join(describe_protocol(name, Path("data"), cell.target)))
        data = cell.recipe.data
        assert {"sites": data.sites, "target": data.target, "target_name": data.target_name} == printed["data"]
        assert cell.recipe.evaluation.threshold == printed["evaluation"]["threshold"]
        assert cell.recipe.evaluation.level == printed["evaluation"]["level"]


def test_study_of_a_protocol_runs_on_a_root(root: Path, tmp_path: Path) -> None:
    study = {
        "title": "P",
        "recipe": RECIPE,
        "protocol": "ocim-ssdg",
        "targets": ["M", "O"],
        "seeds": [0, 1],
        "rows": {"FedPAD": {}, "without O": {"sites": ["C", "I"], "set": ["method.name=single"]}},
    }
    path = write_study(study, tmp_path)
    with refused("--smoke", "--root"):
        run_study(path, tmp_path / "out", tmp_path / "cache", discard, smoke=True)
    table, lines = conduct(path, tmp_path / "out", root, smoke=True, sets=tmp_path / "elsewhere")
    assert table["rows"]["FedPAD"]["targets"]["M"]["sites"] == ["O", "C", "I"]
    assert table["rows"]["without O"]["targets"]["M"]["sites"] == ["C", "I"]
    assert len([*(tmp_path / "elsewhere").iterdir()]) == 4
    assert "2 cells, 2 of them still to run" in lines


def test_import_is_recognised_in_any_order_of_options(root: Path, tmp_path: Path) -> None:
    words = ["data", "import", "casia-fasd", str(root / "copy of C"), str(tmp_path / "set"), "--size", "32"]
    options = ["--heldout", "0.5", "--seed", "3", "--frames", "6,6+n/2", "--crop", "face"]
    fedvisage(*words, *options)
    manifest = read_manifest(tmp_path / "set")
    wanted = read_spec("casia-fasd --frames 6,6+n/2 --seed 3 --heldout 0.5", "here").of_size(32)
    assert wanted.is_met_by(manifest)
    assert not wanted.of_size(64).is_met_by(manifest)
    assert not read_spec("casia-fasd --frames 6,6+n/2 --heldout 0.5", "here").of_size(32).is_met_by(manifest)
    assert not read_spec("siw --frames 6,6+n/2 --seed 3 --heldout 0.5", "here").of_size(32).is_met_by(manifest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("table3", ()),
        ("fedsis-table1", ("celeba-spoof",)),
        ("table8", ("siw",)),
        ("masks", ("3dmad", "hkbu-mars-v2")),
        ("table10", ()),
        ("fedsis-table3", ("wmca", "cefa", "casia-surf", "celeba-spoof")),
        ("fedsis-table6", ("celeba-spoof",)),
    ],
)
@pytest.mark.timeout(1200)
def test_study_of_a_paper_runs_on_dataset_copies(
    name: str, more: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    finely = name in ("table10", "fedsis-table3", "fedsis-table6")
    root: Path = request.getfixturevalue("larger_root" if finely else "root")
    for kind in more:
        if not (root / kind).exists():
            write_small_copy(kind, root / kind, 8 if finely else 0)
    words = ["study", str(FOLDER / f"{name}.yaml"), "--root", str(root), "--smoke", "--out", str(tmp_path / "out")]
    fedvisage(*words, "--cache", str(tmp_path / "cache"))
    rows = shrink_for_smoke(load_study(FOLDER / f"{name}.yaml"), rendered=False).rows
    assert all(row in (tmp_path / "out" / "table.md").read_text() for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_benchmarks_below_a_root_are_imported_as_columns(tmp_path: Path) -> None:
    """Training people are prepared sets, identified by name; the benchmarks are small copies in their original form."""
    root = tmp_path / "root"
    for kind in ("rfw", "ijb-b", "ijb-c"):
        write_small_copy(kind, root / kind)
    for number, name in enumerate(("african", "asian", "caucasian", "indian", "public")):
        heldout = "0.9" if name == "public" else "0"
        words = ["data", "people", str(root / "sets" / name), "--size", "32", "--first", str(1000 * number)]
        words += ["--identities", "40" if name == "public" else "4", "--images", "4", "--heldout", heldout]
        fedvisage(*words, "--workers", "1", "--quiet")
    words = ["study", str(FOLDER / "privacyface-table3.yaml"), "--root", str(root), "--smoke"]
    fedvisage(*words, "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"))
    average = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]["ArcFace, conventional"]["average"]
    assert {f"rfw.{race}.accuracy" for race in ("african", "asian", "caucasian", "indian")} <= {*average}
    head = (tmp_path / "out" / "table.md").read_text()
    assert "ijb-b TAR@1e-4 (paper)" in head
    assert "58.62" in head


def section_of_the_page() -> str:
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    return page[page.index("## A folder of datasets") :]


def test_documented_study_of_a_protocol_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", section_of_the_page(), flags=re.DOTALL)
    study = load_study(write_study(yaml.safe_load(text), tmp_path))
    assert study.targets == ["O", "C", "I", "M"]
    assert len(cells_of(study, tmp_path)) == 4 * 2 * 3


@pytest.mark.slow
def test_documented_commands_run_a_study_on_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,) = re.findall(r"```console\n(.*?)```", section_of_the_page(), flags=re.DOTALL)
    for command in commands.splitlines():
        fedvisage(*shlex.split(command)[1:])
    assert (tmp_path / "runs" / "table3-smoke" / "table.md").exists()
    assert len([*(tmp_path / "runs" / "sets").iterdir()]) == 4
