"""Files of two finished runs exchanged, truncated, removed or without a line, through the five verbs that use a run.

No file is hostile by itself: each was written by a run, or is a part of such a file. A case is a directory that no run
wrote, so every verb must refuse it with a message that names one of its files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from campaigns.hostile.case import Case, Rejected, WronglyAccepted, pick
from tests.toy import discard, make_sets, run_toy, tree

import fedvisage as fv
from fedvisage.audit.audit import audit_run
from fedvisage.base.errors import UserError
from fedvisage.report.page import write_report
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model

VERBS: Mapping[str, Callable[[Path], object]] = {
    "report": lambda run: write_report(run, run.parent / "cache"),
    "compare": lambda run: fv.compare([run]),
    "evaluate": lambda run: fv.evaluate(run, cache=run.parent / "cache"),
    "export": lambda run: export(open_model(run), run.parent / "export", cache=run.parent / "cache"),
    "audit": lambda run: audit_run(run, None, run.parent / "cache", discard),
}


class RunFiles:
    """Two runs of each task, which differ in their seed."""

    def __init__(self, prepared: Path) -> None:
        """Train them, and keep the files that the verbs read."""
        sets = make_sets(prepared)
        recognition = tree(sets, "fedfr", training__local={"batches": 1}, training__rounds=2)
        detection = tree(sets, "fedpad", training__local={"batches": 1}, evaluation__features=8)
        self.pairs: list[tuple[Path, Path]] = []
        for task, content in (("pad", detection), ("recognition", recognition)):
            pair = prepared / f"{task}-0", prepared / f"{task}-1"
            for seed, run in enumerate(pair):
                run_toy({**content, "runtime": {**content["runtime"], "seed": seed}}, run)
                for folder in ("checkpoints", "sites"):
                    shutil.rmtree(run / folder, ignore_errors=True)
            self.pairs.append(pair)

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Change one file of a run, or take several of the other run."""
        own, other = pick(draws, self.pairs)
        run = shutil.copytree(own, place / "run")
        names = sorted(path.name for path in own.iterdir() if path.name[0] != ".")
        way = pick(draws, ("exchanged", "exchanged", "cut", "removed", "line", "several"))
        if way == "several":
            count = int(draws.integers(2, len(names)))
            chosen = [str(name) for name in draws.choice(names, count, replace=False)]
        else:
            chosen = [pick(draws, names)]
        for name in chosen:
            _change(run / name, other / name, way, draws)
        if any(_are_equal(run, whole) for whole in (own, other)):
            way, chosen = "removed", chosen[:1]  # a file that both runs share was exchanged
            (run / chosen[0]).unlink()
        return Case([way, *chosen], lambda: _check_refusals(run, chosen, way))


def _change(path: Path, other: Path, way: str, draws: np.random.Generator) -> None:
    data = path.read_bytes()
    if way == "removed":
        path.unlink()
    elif way == "cut":
        path.write_bytes(data[: int(draws.integers(len(data)))])
    elif way == "line":
        lines = data.splitlines(keepends=True)
        del lines[int(draws.integers(len(lines)))]
        path.write_bytes(b"".join(lines))
    else:
        shutil.copyfile(other, path)


def _are_equal(run: Path, other: Path) -> bool:
    """Return whether two directories contain the same files."""
    contents = [
        {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} for folder in (run, other)
    ]
    return contents[0] == contents[1]


def _check_refusals(run: Path, chosen: list[str], way: str) -> None:
    """Check that every verb refuses the run and names the changed file, or any file if several were changed."""
    before, line = sorted(run.iterdir()), ""
    for verb, call in VERBS.items():
        try:
            call(run)
        except UserError as error:
            line = str(error)
        else:
            raise WronglyAccepted(f"{verb} used the run")
        if str(run) not in line or (way != "several" and chosen[0] not in line):
            raise WronglyAccepted(f"{verb} did not name {chosen[0]}: {line}")
        if sorted(run.iterdir()) != before:
            raise WronglyAccepted(f"{verb} refused the run and wrote into it")
    raise Rejected(line)
