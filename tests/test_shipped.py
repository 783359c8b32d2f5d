"""Shipped recipes and studies: by name, in a list, as a copy, and on the tab key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.refusals import check_output, refused

from fedvisage import cli
from fedvisage.methods import find, read_method
from fedvisage.recipe import load
from fedvisage.studies.shipped import copy_out, entries, locate, names
from fedvisage.studies.study import load_study

ROOT = Path(__file__).parents[1]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command line in an empty directory; return its exit code and what it printed to both streams."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fedvisage", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_every_file_of_the_repositorys_recipes_has_a_name_that_leads_to_it() -> None:
    folder = ROOT / "recipes"
    files = {path.relative_to(folder).as_posix().removesuffix(".yaml"): path for path in folder.rglob("*.yaml")}
    assert len(files) > 80
    assert set(names()) == set(files)
    assert all(locate(name).samefile(path) for name, path in files.items())


@pytest.mark.parametrize("given", ["demo/fedpad", "demo/fedpad.yaml", "recipes/demo/fedpad.yaml", "./demo/fedpad"])
def test_a_shipped_name_is_found_from_outside_the_checkout(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate(Path(given)).samefile(ROOT / "recipes/demo/fedpad.yaml")


def test_a_real_file_wins_and_a_real_directory_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo/fedpad").mkdir(parents=True)
    assert locate("demo/fedpad").samefile(ROOT / "recipes/demo/fedpad.yaml")
    (tmp_path / "demo/fedgpad").write_text("title: mine")
    assert locate("demo/fedgpad").read_text() == "title: mine"


def test_a_pipe_can_be_a_recipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert locate(tmp_path / "pipe") == tmp_path / "pipe"


@pytest.mark.parametrize(
    "given",
    [
        "../../pyproject.toml",
        "../studies/recipes/demo/fedpad",
        "demo/../demo/fedpad",
        "demo/../../../errors",
        "/etc/x",
        "recipes/../demo/fedpad",
        "",
        ".",
        "demo",
        "*",
        "demo/*",
        "demo/fedpad\0",
        "recipes/recipes/demo/fedpad",
        "x" * 50_000,
    ],
)
def test_a_hostile_name_leads_nowhere(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in ("", "run", "study"):
        with refused(given, "fedvisage recipes"):
            locate(given, verb=verb)
    with refused(given, "fedvisage recipes"):
        copy_out(given, tmp_path / "copy.yaml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fedpad", "paper/fedpad"),
        ("demo/fedpda", "demo/fedpad"),
        ("nowhere/recipes/fedgpda.yaml", "demo/fedgpad"),
        ("table3-demo", "studies/table3-demo"),
    ],
)
def test_a_wrong_name_is_told_what_could_be_meant(given: str, meant: str, call: Call) -> None:
    code, _, err = call("run", given)
    assert code == 2
    check_output(err, given, meant)


def test_a_study_is_found_without_the_name_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = ROOT / "recipes/studies/table3-demo.yaml"
    assert locate("table3-demo", verb="study").samefile(shipped)
    (tmp_path / "table3-demo").write_text("title: mine")
    assert locate("table3-demo", verb="study").read_text() == "title: mine"
    for verb in ("", "run"):
        with refused("table4-demo", "studies/table4-demo"):
            locate("table4-demo", verb=verb)


def test_a_recipe_is_not_taken_for_a_study_nor_a_study_for_a_recipe(call: Call) -> None:
    for verb, name, right in (("run", "studies/table3-demo", "study"), ("study", "demo/fedpad", "run")):
        code, _, err = call(verb, name)
        assert code == 2
        check_output(err, name, f"fedvisage {right} {name}")


def test_the_list_has_every_titled_file_with_the_task_of_its_methods(call: Call) -> None:
    _, out, _ = call("recipes", "--json")
    listed = {row["name"]: row for row in json.loads(out)}
    trees = {name: yaml.safe_load(locate(name).read_text()) for name in names()}
    assert listed.keys() == {name for name, tree in trees.items() if "title" in tree}
    for name, row in listed.items():
        assert row["title"] == trees[name]["title"]
        assert row["kind"] == ("study" if name.startswith("studies/") else "recipe")
        recipes = [load(locate(name), [], read_method)] if row["kind"] == "recipe" else None
        used = [r.method for r in recipes] if recipes else [load_study(locate(name)).recipe["method"]]
        assert {find(method).task for method in used} == {row["task"]}, name
        assert row["method"] in ([None] if recipes is None else [r.method.name for r in recipes])


def test_the_list_for_people_has_a_line_for_each(call: Call) -> None:
    code, out, _ = call("recipes")
    assert code == 0
    assert re.search(r"^  demo/fedfr +recognition +FedFR, demo size$", out, re.MULTILINE)
    assert len(out.splitlines()) == len(entries()) + 2


@pytest.mark.parametrize("name", [entry.name for entry in entries()])
def test_a_copy_says_in_any_directory_what_the_original_says(name: str, tmp_path: Path) -> None:
    copy = copy_out(name, tmp_path / "far" / "away.yaml")
    if name.startswith("studies/"):
        assert load_study(copy) == load_study(locate(name))
    else:
        assert load(copy, [], read_method) == load(locate(name), [], read_method)


def test_a_copy_goes_where_it_is_told_and_over_nothing(call: Call, tmp_path: Path) -> None:
    assert call("recipes", "copy", "demo/fedpad")[0] == 0
    original = (ROOT / "recipes/demo/fedpad.yaml").read_text()
    assert (tmp_path / "fedpad.yaml").read_text() == original
    (tmp_path / "fedpad.yaml").write_text("mine")
    code, _, err = call("recipes", "copy", "demo/fedpad")
    assert (code, (tmp_path / "fedpad.yaml").read_text()) == (2, "mine")
    check_output(err, "fedpad.yaml", "exists")
    (tmp_path / "folder").mkdir()
    _, out, _ = call("recipes", "copy", "recipes/demo/fedpad.yaml", "folder")
    assert (tmp_path / out.strip()).read_text() == original


def test_a_study_of_ones_own_takes_shipped_names(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("title: mine\nlike: [studies/table3, studies/demo-size]\nrecipe: demo/fedgpad\nseeds: [5]\n")
    shipped = load_study(locate("studies/table3-demo"))
    assert load_study(own).rows == shipped.rows
    assert load_study(own).seeds == [5]
    assert load_study(own).recipe["title"] == "FedGPAD, demo size"


def completed(words: str, where: Path) -> list[str]:
    """Return what a shell is offered for the last of these words."""
    asked = {"_FEDVISAGE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    program = "from fedvisage.cli import app; app(prog_name='fedvisage')"
    ran = subprocess.run([sys.executable, "-c", program], env=os.environ | asked, cwd=where, capture_output=True)
    return ran.stdout.decode().split()


def test_a_shell_completes_shipped_names_and_files(tmp_path: Path) -> None:
    (tmp_path / "demos").mkdir()
    (tmp_path / "demo.yaml").touch()
    (tmp_path / "demo.txt").touch()
    assert completed("fedvisage run demo", tmp_path) == [
        *sorted(path.with_suffix("").relative_to(ROOT / "recipes").as_posix() for path in ROOT.glob("recipes/demo/*")),
        "demo.yaml",
        "demos/",
    ]
    assert completed("fedvisage study studies/table7", tmp_path) == ["studies/table7", "studies/table7-demo"]
    assert completed("fedvisage study table7", tmp_path) == ["table7", "table7-demo"]
    assert completed("fedvisage recipes copy paper/vit-h", tmp_path) == ["paper/vit-h", "paper/vit-h-is"]
    assert "completion" not in completed("fedvisage comp", tmp_path)
    assert completed("fedvisage comp", tmp_path) == ["compare"]


HEAVY = ("torch", "numpy", "yaml", "fedvisage.methods", "fedvisage.studies.shipped")


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], (*HEAVY, "pydantic", "rich")),
        (["run", "--help"], HEAVY),  # typer itself takes pydantic to read a verb's words
        (["recipes", "--help"], HEAVY),
    ],
)
def test_help_loads_nothing_heavy(words: list[str], heavy: tuple[str, ...]) -> None:
    program = (
        "import sys; sys.argv = ['fedvisage', *sys.argv[1:]]\nfrom fedvisage import cli\n"
        f"try: cli.main()\nexcept SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, check=True)
    assert ran.stdout.decode().splitlines()[-1] == "[]"
