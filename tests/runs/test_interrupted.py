"""``--resume`` refuses exchanged, shortened and edited files of an interrupted run by name."""

import itertools
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from tests.methods.interrupting import InterruptingReporter
from tests.refusals import refused
from tests.toy import Sets, deterministic_files, files_below, run_toy, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.store import read_sealed, write_sealed
from fedvisage.runs import train


class Runs(NamedTuple):
    """Runs of FedBN that were interrupted in their third round."""

    own: Path
    other: Path
    """One with another seed."""
    twin: Path
    """Another one of the same recipe."""


def content_of(sets: Sets, seed: int = 0, workers: int | None = None) -> dict[str, object]:
    return tree(sets, "fedbn", evaluation__snapshots=1, runtime__seed=seed, runtime__workers=workers)


@pytest.fixture(scope="module")
def interrupted(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    place = tmp_path_factory.mktemp("interrupted")
    runs = Runs(*(place / name for name in Runs._fields))
    clock = map(float, itertools.count(step=1000))  # so no round of the twin takes as long as one of the run
    for run, seed, module in zip(runs, (0, 1, 0), (time, time, SimpleNamespace(monotonic=clock.__next__)), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "time", module)
            with pytest.raises(KeyboardInterrupt):
                run_toy(content_of(sets, seed), run, reporter=InterruptingReporter(3))
    assert [row["seconds"] for row in read_lines(runs.twin / ROUNDS)] == [1000.0, 1000.0, 1000.0]
    return runs


@pytest.fixture
def runs(interrupted: Runs, tmp_path: Path) -> Runs:
    """Copies of these runs."""
    return Runs(*(Path(shutil.copytree(run, tmp_path / run.name)) for run in interrupted))


def edit(name: str, before: str, after: str) -> Callable[[Runs], None]:
    """Return an attack that replaces a text of a file once."""

    def attack(runs: Runs) -> None:
        text = (runs.own / name).read_text()
        assert before in text
        (runs.own / name).write_text(text.replace(before, after, 1))

    return attack


def edit_lines(name: str, change: Callable[[list[str]], object]) -> Callable[[Runs], None]:
    """Return an attack that changes the lines of a file."""

    def attack(runs: Runs) -> None:
        lines = (runs.own / name).read_text().splitlines(keepends=True)
        change(lines)
        (runs.own / name).write_text("".join(lines))

    return attack


def copy(source: str, name: str, to: str = "") -> Callable[[Runs], None]:
    """Return an attack that copies a file of one of the runs over a file of the interrupted run."""

    def attack(runs: Runs) -> None:
        shutil.copyfile(getattr(runs, source) / name, runs.own / (to or name))

    return attack


def remove(name: str) -> Callable[[Runs], None]:
    return lambda runs: (runs.own / name).unlink()


def remove_first_round(lines: list[str]) -> None:
    lines[:] = [line for line in lines if json.loads(line)["round"] != 1]


def remove_and_add(lines: list[str]) -> None:
    """Replace a line by a copy of another one of the same length."""
    first, second = next((a, b) for a in range(9) for b in range(a) if len(lines[a]) == len(lines[b]))
    assert lines[first] != lines[second]
    lines[first] = lines[second]


def exchange_lines(lines: list[str]) -> None:
    lines.insert(0, lines.pop(1))


def change_digit(lines: list[str]) -> None:
    row = json.loads(lines[1])
    lines[1] = lines[1].replace(f'"bytes": {row["bytes"]}', f'"bytes": {row["bytes"] - 1}')


def exchange_sites(runs: Runs) -> None:
    sites = runs.own / "sites"
    (sites / "A").rename(sites / "C-before")
    (sites / "C").rename(sites / "A")
    (sites / "C-before").rename(sites / "C")


def remove_digests(runs: Runs) -> None:
    path = runs.own / CHECKPOINT
    tensors, values = read_sealed(path, "")
    del values["digests"]
    write_sealed(path, tensors, values)


def add_start(runs: Runs) -> None:
    (runs.own / "start.json").write_text("{}")


CHECKPOINT, GENERATION = "checkpoints/000002.safetensors", "sites/{}/generation-000002.safetensors"
STATE_A, STATE_B = GENERATION.format("A"), GENERATION.format("B")
FIRST, SECOND = "snapshots/round-1.safetensors", "snapshots/round-2.safetensors"
LEDGER, ROUNDS, ENVIRONMENT = "ledger.jsonl", "rounds.jsonl", "environment.json"
ATTACKS: dict[str, tuple[Callable[[Runs], None], str, str]] = {
    "the ledger of another run": (copy("other", LEDGER), LEDGER, "checkpoint"),
    "a ledger without its first round": (edit_lines(LEDGER, remove_first_round), LEDGER, "checkpoint"),
    "a ledger with another field": (edit(LEDGER, '"model"', '"modem"'), LEDGER, "digest"),
    "a ledger with another digit": (edit_lines(LEDGER, change_digit), LEDGER, "digest"),
    "a removed line that an added one replaces": (edit_lines(LEDGER, remove_and_add), LEDGER, "digest"),
    "two lines in another order": (edit_lines(LEDGER, exchange_lines), LEDGER, "digest"),
    "a line marked as repeated": (edit(LEDGER, "}\n", ', "repeated": true}\n'), LEDGER, "digest"),
    "a round with another loss": (edit(ROUNDS, '"A": 0.', '"A": 9.'), ROUNDS, "digest"),
    "rounds of a run of the same recipe": (copy("twin", ROUNDS), ROUNDS, "checkpoint"),
    "another processor": (edit(ENVIRONMENT, '"processor": "', '"processor": "Fast '), ENVIRONMENT, "digest"),
    "the environment of a run of the same recipe": (copy("twin", ENVIRONMENT), ENVIRONMENT, "digest"),
    "a shortened environment": (edit_lines(ENVIRONMENT, list.pop), ENVIRONMENT, "restore"),
    "no environment": (remove(ENVIRONMENT), ENVIRONMENT, "missing"),
    "data in another form": (edit("data.json", "{", "{ "), "data.json", "digest"),
    "an overlap that is allowed": (edit("overlap.json", "false", "true"), "overlap.json", "digest"),
    "no overlap": (remove("overlap.json"), "overlap.json", "missing"),
    "a start": (add_start, "start.json", "remove"),
    "the snapshot of another run": (copy("other", FIRST), FIRST, "digest"),
    "the snapshot of another round": (copy("own", FIRST, SECOND), SECOND, "digest"),
    "no snapshot": (remove(SECOND), SECOND, "missing"),
    "the state of another site": (copy("own", STATE_B, STATE_A), STATE_A, "site B"),
    "exchanged directories of sites": (exchange_sites, STATE_A, "site C"),
    "the state of another run": (copy("other", STATE_B), STATE_B, "run"),
    "the state of a run of the same recipe": (copy("twin", STATE_B), STATE_B, "run"),
    "the state of a later round": (copy("own", "sites/B/generation-000003.safetensors", STATE_B), STATE_B, "000003"),
    "the checkpoint of round 1": (copy("own", "checkpoints/000001.safetensors", CHECKPOINT), CHECKPOINT, "round 1"),
    "the checkpoint of another run": (copy("other", CHECKPOINT), CHECKPOINT, "recipe"),
    "the checkpoint of a run of the same recipe": (copy("twin", CHECKPOINT), ROUNDS, "another run"),
    "a checkpoint without digests": (remove_digests, CHECKPOINT, "digests"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_resume_names_a_changed_file_and_writes_nothing(attack: str, runs: Runs, sets: Sets) -> None:
    change, place, keyword = ATTACKS[attack]
    change(runs)
    before = files_below(runs.own)
    with refused(f"own/{place}", keyword):
        run_toy(content_of(sets), runs.own, resume=True)
    assert files_below(runs.own) | {".lock": b""} == before | {".lock": b""}


def test_workers_refuse_the_state_of_another_site(runs: Runs, sets: Sets, tmp_path: Path) -> None:
    content = content_of(sets, workers=2)
    run_toy(content_of(sets), tmp_path / "whole")
    run_toy(content, runs.twin, resume=True)
    assert deterministic_files(runs.twin) == deterministic_files(tmp_path / "whole")
    copy("own", STATE_B, STATE_A)(runs)
    with refused(f"own/{STATE_A}", "site B"):
        run_toy(content, runs.own, resume=True)


@pytest.mark.long
def test_run_without_a_checkpoint_records_its_environment_again(sets: Sets, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_toy(tree(sets, runtime__checkpoint_every=5), tmp_path / "run", reporter=InterruptingReporter(3))
    path = tmp_path / "run" / "environment.json"
    environment = json.loads(path.read_text())
    path.write_text(json.dumps({**environment, "processor": "Fast"}))
    run_toy(tree(sets, runtime__checkpoint_every=5), tmp_path / "run", resume=True)
    assert json.loads(path.read_text())["processor"] == environment["processor"]
