"""A few cases of each kind of hostile input, and that the campaign notices what it is there to notice."""

from __future__ import annotations

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
from campaigns.hostile import guard as guards
from campaigns.hostile.case import Admitted, Case
from campaigns.hostile.conduct import Outcome, carried_out, draws_of
from campaigns.hostile.differing import solve_for_one
from campaigns.hostile.guard import SECRET, Guard
from campaigns.hostile.kinds import KINDS
from campaigns.hostile.recipes import Recipes

from fedvisage.base.errors import UserError

ROOT = Path(__file__).parents[2]


def test_a_few_cases_of_each_kind_find_nothing() -> None:
    command = [sys.executable, "-m", "campaigns.hostile", "--workers", "0", "--count", "12", "--seed", "7"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(tuple(entry.what for entry in KINDS.values()))]
    assert [int(re.split(r"\s{2,}", row)[1]) for row in rows] == [12] * len(KINDS)


def test_a_case_follows_from_its_name_alone(tmp_path: Path) -> None:
    made = Recipes(tmp_path)
    for number in range(20):
        found = set()
        for place in (tmp_path / "one", tmp_path / "other"):
            place.mkdir(exist_ok=True)
            case = made.case(draws_of(0, "recipes", number), place)
            found.add((tuple(case.done), (place / "file.yaml").read_bytes()))
        assert len(found) == 1


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
    equations = [{(name[-1], (), name): weight for name, weight in sums.items()} for sums in (FIRST_SUM, second)]
    assert solve_for_one(equations, [upload for equation in equations for upload in equation]) == site


FIRST_SUM = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}


class Deed:
    """A kind whose only case is one deed."""

    def __init__(self, deed: Callable[[Path], None]) -> None:
        self.deed = deed

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        return Case([self.deed.__name__], lambda: self.deed(place))


def refuses(place: Path) -> None:
    raise UserError("file", "is damaged")


def is_harmless(place: Path) -> None:
    (place / "made").write_text("inside")


def writes_beside(place: Path) -> None:
    (place.parent / "escaped").write_text("outside")


def reads_the_secret(place: Path) -> None:
    (place.parent / SECRET / "secret.txt").read_text()


def removes_the_secret(place: Path) -> None:
    (place.parent / SECRET / "deeper" / "secret.png").unlink()


def runs_a_program(place: Path) -> None:
    os.system("true")


def raises(place: Path) -> None:
    {}["key"]


def hangs(place: Path) -> None:
    while True:
        pass


def takes_in(place: Path) -> None:
    raise Admitted("a picture of a stranger")


DEEDS: dict[Callable[[Path], None], str] = {
    refuses: "",
    is_harmless: "",
    writes_beside: "wrote outside",
    reads_the_secret: "read outside",
    removes_the_secret: "os.remove outside",
    runs_a_program: "set off os.system",
    raises: "KeyError",
    hangs: "not done after",
    takes_in: "taken in",
}


def tried(base: Path) -> list[Outcome]:
    """Carry out all deeds; in a process of its own, whose alarms and hooks are not those of the tests."""
    guards.DEADLINE, guards.PATIENCE = 0.3, 600.0
    (base / "prepared").mkdir(parents=True)
    guard = Guard(base)
    return [carried_out(Deed(deed), 0, "deeds", number, guard) for number, deed in enumerate(DEEDS)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(tried, tmp_path_factory.mktemp("hostile") / "base").result()
    return {one.title: one for one in found}


@pytest.mark.parametrize("deed", DEEDS)
def test_what_a_campaign_is_there_to_notice_it_notices(
    deed: Callable[[Path], None], outcomes: dict[str, Outcome]
) -> None:
    found = outcomes[deed.__name__]
    assert found.ended == ("refused" if deed is refuses else "harmless")
    if not DEEDS[deed]:
        assert not found.wrongs
    else:
        assert any(DEEDS[deed] in wrong for wrong in found.wrongs), found
