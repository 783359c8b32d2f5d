"""A few cases of each kind of hostile input, and the campaign's detection of each kind of fault."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from campaigns.hostile import guard
from campaigns.hostile.case import Case, WronglyAccepted
from campaigns.hostile.differing import Unknown, solve_for_one
from campaigns.hostile.execution import Outcome, random_of_case, run_case
from campaigns.hostile.guard import SECRET
from campaigns.hostile.kinds import KINDS
from campaigns.hostile.recipes import Recipes

from fedvisage.base.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_few_cases_of_each_kind_have_no_findings() -> None:
    command = [sys.executable, "-m", "campaigns.hostile", "--workers", "0", "--count", "12", "--seed", "7"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    titles = tuple(entry.title for entry in KINDS.values())
    rows = [line for line in result.stdout.splitlines() if line.startswith(titles)]
    assert [int(re.split(r"\s{2,}", row)[1]) for row in rows] == [12] * len(KINDS)


def test_case_follows_from_its_name_alone(tmp_path: Path) -> None:
    recipes = Recipes(tmp_path)
    for number in range(20):
        cases = set()
        for place in (tmp_path / "one", tmp_path / "other"):
            place.mkdir(exist_ok=True)
            case = recipes.case(random_of_case(0, "recipes", number), place)
            cases.add((tuple(case.changes), (place / "file.yaml").read_bytes()))
        assert len(cases) == 1


@pytest.mark.parametrize(
    ("second", "site"),
    [
        ({"a": 36 / 84, "b": 24 / 84, "c": 24 / 84}, "a"),
        ({"a": 1 / 2, "b": 1 / 2}, "c"),
        ({"other a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, "a"),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, None),
        ({"other a": 1 / 3, "other b": 1 / 3, "c": 1 / 3}, None),
    ],
    ids=["weights", "members", "one site's settings", "the same sum", "two sites' settings"],
)
def test_sums_that_reveal_a_site_are_solved(second: dict[str, float], site: str | None) -> None:
    first = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    equations: list[dict[Unknown, float]] = [
        {(name[-1], (), name): weight for name, weight in sums.items()} for sums in (first, second)
    ]
    assert solve_for_one(equations, [upload for equation in equations for upload in equation]) == site


def refuse(place: Path) -> None:
    raise UserError("file", "is damaged")


def write_inside(place: Path) -> None:
    (place / "file").write_text("inside")


def write_outside(place: Path) -> None:
    (place.parent / "escaped").write_text("outside")


def read_secret(place: Path) -> None:
    (place.parent / SECRET / "secret.txt").read_text()


def remove_secret(place: Path) -> None:
    (place.parent / SECRET / "deeper" / "secret.png").unlink()


def start_program(place: Path) -> None:
    os.system("true")


def raise_key_error(place: Path) -> None:
    raise KeyError("key")


def loop_forever(place: Path) -> None:
    while True:
        pass


def accept(place: Path) -> None:
    raise WronglyAccepted("a picture of a stranger")


FINDINGS: dict[Callable[[Path], None], str] = {
    refuse: "",
    write_inside: "",
    write_outside: "wrote outside",
    read_secret: "read outside",
    remove_secret: "os.remove outside",
    start_program: "caused os.system",
    raise_key_error: "KeyError",
    loop_forever: "not finished after",
    accept: "wrongly accepted",
}
"""The finding of a case with each behaviour, or nothing."""


class SingleCase:
    """A kind with one case."""

    def __init__(self, behaviour: Callable[[Path], None]) -> None:
        self.behaviour = behaviour

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        return Case([self.behaviour.__name__], lambda: self.behaviour(place))


def run_behaviours(base: Path) -> list[Outcome]:
    """Run all behaviours in a process of their own, because the guard installs hooks and alarms."""
    guard.DEADLINE, guard.CLOCK_DEADLINE = 0.3, 600.0
    (base / "prepared").mkdir(parents=True)
    watch = guard.Guard(base)
    return [run_case(SingleCase(each), 0, "behaviours", number, watch) for number, each in enumerate(FINDINGS)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        outcomes = pool.submit(run_behaviours, tmp_path_factory.mktemp("hostile") / "base").result()
    return {outcome.title: outcome for outcome in outcomes}


@pytest.mark.parametrize("behaviour", FINDINGS)
def test_campaign_detects_each_forbidden_behaviour(
    behaviour: Callable[[Path], None], outcomes: dict[str, Outcome]
) -> None:
    outcome = outcomes[behaviour.__name__]
    assert outcome.end == ("refused" if behaviour is refuse else "harmless")
    if FINDINGS[behaviour]:
        assert any(FINDINGS[behaviour] in finding for finding in outcome.findings), outcome
    else:
        assert not outcome.findings
