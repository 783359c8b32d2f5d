"""Errors of the Python API name the wrong argument and the accepted values."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.refusals import refused
from tests.toy import tree

import fedvisage as fv
from fedvisage.methods.algorithms.fedprox import fedprox
from fedvisage.methods.models.resnet18 import MODEL

PICTURES = np.zeros((2, 32, 32, 3), np.uint8)
NOWHERE: Any = fv.Run("nowhere")  # type: ignore[arg-type]
WRONG: dict[str, tuple[Callable[[Any], object], str, tuple[str, ...]]] = {
    "recipe": (fv.load, "recipe", ("shipped", "mapping")),
    "method": (lambda wrong: fv.load("demo/fedpad", method=wrong), "method", ("fv.methods",)),
    "changes": (lambda wrong: fv.load("demo/fedpad", wrong), "changes", ("mapping", "list")),
    "a change": (lambda wrong: fv.load("demo/fedpad", [wrong]), "changes[0]", ("training.rounds=4",)),
    "transport": (lambda wrong: fv.run("demo/fedpad", transport=wrong), "transport", ("LocalTransport",)),
    "data": (lambda wrong: fv.run("demo/fedpad", data=wrong), "data", ("fv.dataset", "mapping")),
    "a dataset": (lambda wrong: fv.run("demo/fedpad", data={"O": wrong}), "data.O", ("fv.dataset", "path")),
    "out": (lambda wrong: fv.run("demo/fedpad", out=wrong), "out", ("path",)),
    "resume": (lambda wrong: fv.run("demo/fedpad", resume=wrong), "resume", ("True", "False")),
    "opened run": (fv.open, "directory", ("run", "directory")),
    "method of a run": (lambda wrong: fv.open("runs/a", method=wrong), "method", ("fv.methods",)),
    "model": (fv.evaluate, "model", ("run", "directory")),
    "evaluation data": (lambda wrong: fv.evaluate("runs/a", wrong), "data", ("path", "fv.dataset")),
    "adapt": (lambda wrong: fv.evaluate("runs/a", adapt=wrong), "adapt", ("gated",)),
    "pairs": (lambda wrong: fv.evaluate("runs/a", pairs=wrong), "pairs", ("path",)),
    "benchmarks": (lambda wrong: fv.evaluate("runs/a", benchmarks=wrong), "benchmarks", ("mapping",)),
    "runs": (fv.compare, "runs", ("list",)),
    "a run": (lambda wrong: fv.compare([wrong]), "runs[0]", ("run", "directory")),
    "study": (fv.study, "path", ("file", "shipped")),
    "changes of a study": (lambda wrong: fv.study("studies/table3-demo", changes=wrong), "changes", ("mapping",)),
    "workers": (lambda wrong: fv.study("studies/table3-demo", workers=wrong), "workers", ("whole number",)),
    "recounted run": (lambda wrong: fv.recount(wrong, "exact"), "run", ("run", "directory")),
    "directory of a run": (fv.Run, "directory", ("path",)),
}
"""A call with one wrong argument, the argument's place and words of what it accepts, by the argument."""


@pytest.mark.parametrize("argument", WRONG)
def test_wrong_type_names_the_argument(argument: str) -> None:
    call, place, accepted = WRONG[argument]
    with refused(place, *accepted, "got object"):
        call(object())


@pytest.mark.parametrize(
    ("call", "place", "got"),
    [
        (lambda: fv.load("demo/fedpad", method="fedprox"), "method", "fedprox"),  # type: ignore[arg-type]
        (lambda: fv.load("demo/fedpad", method=fedprox), "method", "function fedprox"),  # type: ignore[arg-type]
        (lambda: fv.load("demo/fedpad", method=MODEL), "method", "Model"),  # type: ignore[arg-type]
        (lambda: fv.load("demo/fedpad", method=fv.methods), "method", "module"),  # type: ignore[arg-type]
        (lambda: fv.load("demo/fedpad", "training.rounds=3"), "changes", "training.rounds=3"),
        (lambda: fv.run("demo/fedpad", transport="nvflare"), "transport", "nvflare"),  # type: ignore[arg-type]
        (lambda: fv.run("demo/fedpad", resume="yes"), "resume", "yes"),  # type: ignore[arg-type]
        (lambda: fv.run("demo/fedpad", data={"O": PICTURES}), "data.O", "(2, 32, 32, 3)"),  # type: ignore[dict-item]
        (lambda: fv.open(None), "directory", "None"),  # type: ignore[arg-type]
        (lambda: fv.evaluate(NOWHERE, PICTURES), "data", "ndarray"),  # type: ignore[arg-type]
        (lambda: fv.evaluate(NOWHERE, adapt=True), "adapt", "True"),  # type: ignore[arg-type]
        (lambda: fv.compare("runs/a"), "runs", "runs/a"),
        (lambda: fv.compare(NOWHERE), "runs", "Run"),
        (lambda: fv.compare({"a": NOWHERE}), "runs", "dict"),  # type: ignore[arg-type]
        (lambda: fv.compare([]), "runs", "none"),
        (lambda: fv.study("studies/table3-demo", workers=True), "workers", "True"),
        (lambda: fv.study("studies/table3-demo", workers=0), "workers", "0"),
    ],
)
def test_plausible_mistake_repeats_the_value(call: Callable[[], object], place: str, got: str) -> None:
    with refused(place) as caught:
        call()
    assert got in caught.value.message.rpartition("; got ")[2]


def test_unknown_argument_suggests_the_nearest_or_changes() -> None:
    with refused("run(rounds=)", "out", "changes={'training.rounds': 4}"):
        fv.run("demo/fedpad", rounds=3)  # type: ignore[call-arg]
    with refused("run(change=)", "changes"):
        fv.run("demo/fedpad", change={})  # type: ignore[call-arg]
    with refused("run()", "positional", "out"):
        fv.run("demo/fedpad", "runs/a")  # type: ignore[call-arg]


def test_errors_name_python_arguments_instead_of_options(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(tmp_path, "out=", "resume=True") as caught:
        fv.run("demo/fedpad", out=tmp_path)
    assert "--" not in str(caught.value)
    with refused(tmp_path / "file", "out=") as caught:
        fv.run("demo/fedpad", out=tmp_path / "file")
    assert "--" not in str(caught.value)


def test_invalid_path_is_refused_in_one_line(sets: Mapping[str, Path], tmp_path: Path) -> None:
    with refused("/proc/none", "path"):
        fv.run(tree(sets), out="/proc/none", quiet=True)
    with pytest.raises(fv.UserError, match=r"^/proc/none/.*: .*written"):
        fv.run("demo/fedpad", out=tmp_path / "run", cache="/proc/none", quiet=True)


def test_changes_are_a_mapping_or_a_list_of_texts() -> None:
    as_mapping = fv.load("demo/fedpad", {"training.rounds": 4, "data.sites.O": "synth: O subjects=9 size=96"})
    as_texts = fv.load("demo/fedpad", ["training.rounds=4", "data.sites.O=synth: O subjects=9 size=96"])
    assert as_mapping == as_texts
    assert as_mapping.training.rounds == 4


def test_a_study_takes_changes_as_a_mapping_or_a_list(tmp_path: Path) -> None:
    for changes in ({"method.widht": 8, "title": "a: b"}, ["method.widht=8"]):
        with refused("recipe.method.widht"):
            fv.study("studies/table3-demo", out=tmp_path, changes=changes, quiet=True)


def test_values_of_changes_may_be_paths_and_numbers_of_numpy() -> None:
    changes = {"training.rounds": np.int64(4), "training.optimizer.lr": np.float32(0.5), "data.target": Path("sets/a")}
    recipe = fv.load("demo/fedpad", changes)
    assert (recipe.training.rounds, recipe.training.optimizer.lr, recipe.data.target) == (4, 0.5, "sets/a")
