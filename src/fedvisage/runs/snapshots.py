"""Models of single rounds: kept on the way, and judged at the user once the run is finished.

Papers draw figures by round (PrivacyFace's Figure 5, FedPAD's courses), and start from models of mid-course. Each file
is as ``model.safetensors`` would be if the run had ended there, but for exact statistics, which sites are asked for
once; ``training.start`` takes it. To judge them is a simulation's privilege: a federation does not see its user.
Nothing is chosen by it, and only figures are told that follow from no threshold, since the sites choose that for the
finished model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message, plain
from fedvisage.files import read_tensors, write_tensors
from fedvisage.recipe import Recipe
from fedvisage.tasks.opened import Opened
from fedvisage.tasks.setup import Setup, set_up
from fedvisage.tasks.task import Trained

FOLDER = "snapshots"
BY_ROUND = "by_round"
"""Where metrics.json has the figures."""

Keep = Callable[[Server], None]


def kept_in(out: Path, recipe: Recipe) -> Keep:
    """Return what keeps the model of a round, if its turn has come; a round that is trained again is kept again."""
    every = recipe.evaluation.snapshots

    def keep(server: Server) -> None:
        if every is not None and server.round % every == 0:
            (out / FOLDER).mkdir(exist_ok=True)
            write_tensors(place(out, server.round), whole(server, server.finished()))

    return keep


def whole(server: Server, finished: Message) -> Message:
    """Put beside a finished model what never travelled, so that it needs no other file."""
    return {**finished, **{name: plain(value) for name, value in server.method.beside(server.net).items()}}


def place(out: Path, number: int) -> Path:
    """Return where the model of a round lies."""
    return out / FOLDER / f"round-{number}.safetensors"


def judged(setup: Setup, out: Path, trained: Trained, data: Opened) -> dict[str, Any]:
    """Return the figures at the user of each round that was kept, as a part of metrics.json; without a user, none."""
    if setup.recipe.evaluation.snapshots is None or (data.user is None and not data.benchmarks):
        return {}
    evaluation = setup.recipe.evaluation.model_copy(update={"resamples": 0, "published": None})
    scorer = set_up(setup.recipe.model_copy(update={"evaluation": evaluation}), setup.method).scorer()
    found = []
    for number, path in _kept(out, setup.recipe, trained.rounds):
        saved = replace(trained.saved, finished=read_tensors(path)[0])
        found.append({"round": number, **setup.task.without_threshold(scorer, saved, data)})
    return {BY_ROUND: found} if found else {}


def _kept(out: Path, recipe: Recipe, rounds: int) -> Iterator[tuple[int, Path]]:
    """Yield the rounds that were kept; a run that took over another one's model has none."""
    every = recipe.evaluation.snapshots
    for number in range(every, rounds + 1, every) if every is not None else ():
        if (path := place(out, number)).exists():
            yield number, path
