"""Methods and models of other packages: their recorded source, and entry points with mistakes."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.packages import install
from tests.refusals import refused
from tests.toy import Sets, discard, recipe_of, tree, write_study

import fedvisage as fv
from fedvisage.methods import all_methods, find
from fedvisage.methods.origin import digest_of, origin_of
from fedvisage.studies.conduct import run_study

METHOD = """
from dataclasses import replace
from fedvisage.methods import averaging
from fedvisage.methods.models.resnet18 import MODEL
from fedvisage.methods.pad import fedpad
from {helper} import enlarge

def loss(site, batch):
    return enlarge(MODEL.loss(site, batch))

METHOD = replace(fedpad.METHOD, name="enlarge", calls={{"train": averaging.training_call(loss, "model")}})
"""
HELPER = """
import json
from settings import SCALE

def enlarge(value):
    import lazy
    return SCALE * lazy.same(value)
"""
FILES = {
    "scaling.py": METHOD.format(helper="helper"),
    "helper.py": HELPER,
    "settings.py": "SCALE = 2\n",
    "lazy.py": "def same(value):\n    return value\n",
}
PACKAGE = {
    "scaling/__init__.py": METHOD.format(helper=".parts.helper"),
    "scaling/parts/__init__.py": "",
    "scaling/parts/helper.py": "from ..settings import SCALE\n\ndef enlarge(value):\n    return SCALE * value\n",
    "scaling/settings.py": "SCALE = 2\n",
}


@contextmanager
def install_method(place: Path, files: Mapping[str, str] = FILES, **changes: str) -> Iterator[None]:
    """Install a method, with changed modules."""
    changed = {f"{name}.py": text for name, text in changes.items()}
    with install(place, {"methods": {"enlarge": "scaling:METHOD"}}, {**files, **changed}):
        yield


def digest_at(place: Path, files: Mapping[str, str] = FILES) -> str:
    with install_method(place, files):
        return digest_of(all_methods()["enlarge"])


def content_of(sets: Sets, **changes: Any) -> dict[str, Any]:
    return tree(sets, training__rounds=1, **changes) | {"method": {"name": "enlarge", "network": {"width": 8}}}


@pytest.mark.long
def test_changed_source_is_refused_at_resume_and_is_another_row(sets: Sets, tmp_path: Path) -> None:
    content, first, second = content_of(sets), tmp_path / "first", tmp_path / "second"
    with install_method(tmp_path / "package"):
        fv.run(content, out=first, quiet=True)
        fv.run(content, out=first, resume=True, quiet=True)
    recorded = json.loads((first / "environment.json").read_text())["method"]
    assert (recorded["module"], recorded["code"]) == ("scaling", "scaling.loss")
    with install_method(tmp_path / "package", settings="SCALE = 3\n"):
        fv.run(content, out=second, quiet=True)
        with refused("environment.json", "source"):
            fv.run(content, out=first, resume=True, quiet=True)
        (first / "metrics.json").rename(tmp_path / "metrics.json")
        with refused("environment.json", "source"):
            fv.run(content, out=first, resume=True, quiet=True)
        (tmp_path / "metrics.json").rename(first / "metrics.json")
        assert [row["runs"] for row in fv.compare([first, second]).values()] == [1, 1]


@pytest.mark.long
def test_study_does_not_reuse_cells_of_a_changed_source(sets: Sets, tmp_path: Path) -> None:
    content = content_of(sets)
    del content["data"]
    rows: dict[str, Any] = {"Enlarge": {}}
    entries = {name: str(path) for name, path in sets.items()}
    study = {"title": "Toy", "recipe": content, "sets": entries, "targets": ["U"], "rows": rows, "seeds": [0]}
    path = write_study(study, tmp_path)
    with install_method(tmp_path / "package"):
        table = run_study(path, tmp_path / "out", tmp_path / "cache", discard)
        assert run_study(path, tmp_path / "out", tmp_path / "cache", discard) == table
    with install_method(tmp_path / "package", settings="SCALE = 3\n"), refused("environment.json", "source", "enlarge"):
        run_study(path, tmp_path / "out", tmp_path / "cache", discard)


def test_model_of_another_package_is_recorded(sets: Sets, tmp_path: Path) -> None:
    text = "from dataclasses import replace\nfrom fedvisage.methods.models.resnet18 import MODEL\n\n"
    text += "def network(recipe):\n    return MODEL.network(recipe)\n\n"
    files = {"flat.py": f'{text}FLAT = replace(MODEL, name="flat", network=network)\n'}
    with install(tmp_path, {"models": {"flat": "flat:FLAT"}}, files):
        section = recipe_of(tree(sets) | {"method": {"name": "fedprox", "model": "flat"}}).method
        origin = origin_of(find(section), section)
        assert origin is not None
        assert origin["code"] == "flat.network"
        listed = recipe_of(tree(sets, "fedprox")).method
        assert origin_of(find(listed), listed) is None


@pytest.mark.parametrize("name", ["scaling", "helper", "settings", "lazy"])
def test_digest_covers_every_imported_module(name: str, tmp_path: Path) -> None:
    changed = {**FILES, f"{name}.py": f"{FILES[f'{name}.py']}# changed\n"}
    assert digest_at(tmp_path / "b", changed) != digest_at(tmp_path / "a") == digest_at(tmp_path / "c")


@pytest.mark.parametrize("files", [FILES, PACKAGE], ids=["modules", "package"])
def test_digest_does_not_depend_on_the_place_of_the_package(files: Mapping[str, str], tmp_path: Path) -> None:
    expected = digest_at(tmp_path / "checkout", files)
    assert digest_at(tmp_path / "lib/site-packages", files) == expected
    settings = next(path for path in files if path.endswith("settings.py"))
    assert digest_at(tmp_path / "lib/site-packages", {**files, settings: "SCALE = 3\n"}) != expected


def test_digest_leaves_out_other_installed_packages(tmp_path: Path) -> None:
    """A library in ``site-packages`` counts neither with its source nor with its imports."""
    own = {name: text for name, text in FILES.items() if name != "helper.py"}
    digests = []
    for number, text in enumerate((HELPER, f"{HELPER}# changed\n")):
        library = install(tmp_path / f"{number}/site-packages", {}, {"helper.py": text}, name="library")
        with library, install_method(tmp_path / "own", own):
            digests.append(digest_of(all_methods()["enlarge"]))
    assert digests[0] == digests[1]


def test_digest_is_equal_after_a_lazy_import(tmp_path: Path) -> None:
    with install_method(tmp_path):
        method = all_methods()["enlarge"]
        before = digest_of(method)
        assert "lazy" not in sys.modules
        assert sys.modules["helper"].enlarge(1) == 2
        assert digest_of(method) == before


MISTAKES = {
    "methods": {"absent": "mistakes:ABSENT", "crashing": "crashing:METHOD", "wrong": "mistakes:NUMBER"},
    "models": {"no-model": "mistakes:NUMBER"},
}
MODULES = {"mistakes.py": "NUMBER = 1\n", "crashing.py": "1 / 0\n"}


def test_broken_entry_points_do_not_stop_the_list(tmp_path: Path) -> None:
    with install(tmp_path, MISTAKES, MODULES, name="faulty"), install_method(tmp_path / "own"):
        with pytest.warns(UserWarning, match="^entry point fedvisage.methods: .* of faulty: ") as caught:
            listed = fv.methods()
        lines = [str(warning.message) for warning in caught]
        assert [line.split()[3] for line in lines] == sorted(MISTAKES["methods"])
        assert all("\n" not in line for line in lines)
        assert "enlarge" in listed
        assert listed.keys().isdisjoint(MISTAKES["methods"])
        with pytest.warns(UserWarning, match="^entry point fedvisage.models: no-model of faulty: "):
            assert "no-model" not in fv.models()
        with refused("entry point fedvisage.methods: crashing of faulty", "division by zero"):
            find({"name": "crashing"})
        assert find({"name": "fedpad"}).title == "FedPAD"


@pytest.mark.parametrize("words", [["methods"], ["methods", "fedpad", "--json"]], ids=" ".join)
def test_command_prints_one_line_per_broken_entry_point(words: list[str], tmp_path: Path) -> None:
    with install(tmp_path, MISTAKES, MODULES, name="faulty"):
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = {words!r}"
        program = [sys.executable, "-c", f"{code}; from fedvisage.__main__ import main; main()"]
        actual = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "fedpad" in actual.stdout
    assert "faulty" not in actual.stdout
    names = [
        re.match(r"warning: entry point fedvisage\.methods: (\S+) of faulty: ", line)
        for line in actual.stderr.splitlines()
    ]
    assert [name and name[1] for name in names] == sorted(MISTAKES["methods"])


def test_reserved_name_is_warned_about(tmp_path: Path) -> None:
    match = "^entry point fedvisage.methods: fedprox of mine: .*rename"
    with install(tmp_path, {"methods": {"fedprox": "mistakes:NUMBER"}}, MODULES):
        with pytest.warns(UserWarning, match=match):
            assert fv.methods()["fedprox"].title == "FedProx"
        with pytest.warns(UserWarning, match=match):
            assert find({"name": "fedprox"}).title == "FedProx"


def test_method_of_another_package_refuses_a_model(tmp_path: Path) -> None:
    with install_method(tmp_path), refused("recipe.method.model", "enlarge", "fedprox") as caught:
        find({"name": "enlarge", "model": "resnet18"})
    assert "network of its own" not in caught.value.message
