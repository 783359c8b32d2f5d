"""Shipped recipes and studies: by name, in a list, as a copy, and on the tab key."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.refusals import Command, check_output, refused

from fedvisage.methods import find, read_method
from fedvisage.recipe import load
from fedvisage.studies.shipped import copy_out, entries, locate, names
from fedvisage.studies.study import load_study

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_recipe_of_the_repository_has_a_name() -> None:
    folder = ROOT / "recipes"
    files = {path.relative_to(folder).as_posix().removesuffix(".yaml"): path for path in folder.rglob("*.yaml")}
    assert len(files) > 80
    assert set(names()) == set(files)
    assert all(locate(name).samefile(path) for name, path in files.items())


@pytest.mark.parametrize("name", ["demo/fedpad", "demo/fedpad.yaml", "recipes/demo/fedpad.yaml", "./demo/fedpad"])
def test_shipped_name_is_located_outside_the_checkout(name: str) -> None:
    assert locate(Path(name)).samefile(ROOT / "recipes/demo/fedpad.yaml")


def test_existing_file_has_precedence_and_directory_has_not(tmp_path: Path) -> None:
    (tmp_path / "demo/fedpad").mkdir(parents=True)
    assert locate("demo/fedpad").samefile(ROOT / "recipes/demo/fedpad.yaml")
    (tmp_path / "demo/fedgpad").write_text("title: mine")
    assert locate("demo/fedgpad").read_text() == "title: mine"


def test_pipe_can_be_a_recipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert locate(tmp_path / "pipe") == tmp_path / "pipe"


@pytest.mark.parametrize(
    "name",
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
def test_hostile_name_is_refused(name: str, tmp_path: Path) -> None:
    for verb in ("", "run", "study"):
        with refused(name, "fedvisage recipes"):
            locate(name, verb=verb)
    with refused(name, "fedvisage recipes"):
        copy_out(name, tmp_path / "copy.yaml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("fedpad", "paper/fedpad"),
        ("demo/fedpda", "demo/fedpad"),
        ("nowhere/recipes/fedgpda.yaml", "demo/fedgpad"),
        ("table3-demo", "studies/table3-demo"),
    ],
)
def test_wrong_name_suggests_the_nearest(name: str, suggestion: str, command: Command) -> None:
    code, _, err = command("run", name)
    assert code == 2
    check_output(err, name, suggestion)


def test_study_is_located_without_the_name_of_its_folder(tmp_path: Path) -> None:
    shipped = ROOT / "recipes/studies/table3-demo.yaml"
    assert locate("table3-demo", verb="study").samefile(shipped)
    (tmp_path / "table3-demo").write_text("title: mine")
    assert locate("table3-demo", verb="study").read_text() == "title: mine"
    for verb in ("", "run"):
        with refused("table4-demo", "studies/table4-demo"):
            locate("table4-demo", verb=verb)


def test_verb_refuses_a_file_of_the_other_kind(command: Command) -> None:
    for verb, name, right in (("run", "studies/table3-demo", "study"), ("study", "demo/fedpad", "run")):
        code, _, err = command(verb, name)
        assert code == 2
        check_output(err, name, f"fedvisage {right} {name}")


@pytest.mark.long
def test_list_has_every_titled_file_with_the_task_of_its_methods(command: Command) -> None:
    _, out, _ = command("recipes", "--json")
    listed = {row["name"]: row for row in json.loads(out)}
    trees = {name: yaml.safe_load(locate(name).read_text()) for name in names()}
    assert listed.keys() == {name for name, tree in trees.items() if "title" in tree}
    for name, row in listed.items():
        if name.startswith("studies/"):
            expected = ["study", find(load_study(locate(name)).recipe["method"]).task, None]
        else:
            method = load(locate(name), [], read_method).method
            expected = ["recipe", find(method).task, method.name]
        assert [row["title"], row["kind"], row["task"], row["method"]] == [trees[name]["title"], *expected]


def test_printed_list_has_one_line_per_file(command: Command) -> None:
    code, out, _ = command("recipes")
    assert code == 0
    assert re.search(r"^  demo/fedfr +recognition +FedFR, demo size$", out, re.MULTILINE)
    assert len(out.splitlines()) == len(entries()) + 2


@pytest.mark.parametrize("name", [entry.name for entry in entries()])
def test_copy_in_another_directory_equals_the_original(name: str, tmp_path: Path) -> None:
    copy = copy_out(name, tmp_path / "far" / "away.yaml")
    if name.startswith("studies/"):
        assert load_study(copy) == load_study(locate(name))
    else:
        assert load(copy, [], read_method) == load(locate(name), [], read_method)


def test_copy_is_written_into_a_directory_and_overwrites_nothing(command: Command, tmp_path: Path) -> None:
    assert command("recipes", "copy", "demo/fedpad")[0] == 0
    original = (ROOT / "recipes/demo/fedpad.yaml").read_text()
    assert (tmp_path / "fedpad.yaml").read_text() == original
    (tmp_path / "fedpad.yaml").write_text("mine")
    code, _, err = command("recipes", "copy", "demo/fedpad")
    assert (code, (tmp_path / "fedpad.yaml").read_text()) == (2, "mine")
    check_output(err, "fedpad.yaml", "exists")
    (tmp_path / "folder").mkdir()
    _, out, _ = command("recipes", "copy", "recipes/demo/fedpad.yaml", "folder")
    assert (tmp_path / out.strip()).read_text() == original


def test_own_study_can_name_shipped_files(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("title: mine\nlike: [studies/table3, studies/demo-size]\nrecipe: demo/fedgpad\nseeds: [5]\n")
    shipped = load_study(locate("studies/table3-demo"))
    assert load_study(own).rows == shipped.rows
    assert load_study(own).seeds == [5]
    assert load_study(own).recipe["title"] == "FedGPAD, demo size"


def complete(words: str, cwd: Path) -> list[str]:
    """Return the shell's completions of the last word."""
    variables = {"_FEDVISAGE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = "from fedvisage.cli import app; app(prog_name='fedvisage')"
    result = subprocess.run([sys.executable, "-c", program], env=os.environ | variables, cwd=cwd, capture_output=True)
    return result.stdout.decode().split()


@pytest.mark.long
def test_shell_completes_shipped_names_and_files(tmp_path: Path) -> None:
    (tmp_path / "demos").mkdir()
    (tmp_path / "demo.yaml").touch()
    (tmp_path / "demo.txt").touch()
    assert complete("fedvisage run demo", tmp_path) == [
        *sorted(path.with_suffix("").relative_to(ROOT / "recipes").as_posix() for path in ROOT.glob("recipes/demo/*")),
        "demo.yaml",
        "demos/",
    ]
    assert complete("fedvisage study studies/table7", tmp_path) == ["studies/table7", "studies/table7-demo"]
    assert complete("fedvisage study table7", tmp_path) == ["table7", "table7-demo"]
    assert complete("fedvisage recipes copy paper/vit-h", tmp_path) == ["paper/vit-h", "paper/vit-h-is"]
    assert "completion" not in complete("fedvisage comp", tmp_path)
    assert complete("fedvisage comp", tmp_path) == ["compare"]


HEAVY = ("torch", "numpy", "yaml", "fedvisage.methods", "fedvisage.studies.shipped")


@pytest.mark.long
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
    result = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, check=True)
    assert result.stdout.decode().splitlines()[-1] == "[]"
