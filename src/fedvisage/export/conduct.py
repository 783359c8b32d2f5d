"""An export from beginning to end: graph, comparison with torch, description, card; all of it or nothing."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from fedvisage.data.manifest import FileEntry
from fedvisage.device.config import (
    CARD,
    CONFIG,
    GRAPH,
    PARITY,
    WEIGHTS,
    Config,
    Description,
    Graphs,
    as_values,
)
from fedvisage.device.exported import Exported
from fedvisage.errors import UserError
from fedvisage.export.card import card, write_card
from fedvisage.export.crops import pixels, to_compare
from fedvisage.export.graph import Graph, write_graph
from fedvisage.export.parity import COSINE, LEAST, SCORE, Parity, measure, require
from fedvisage.export.weights import Chosen, choose, described, reference
from fedvisage.federation.members import joined
from fedvisage.files import needing_room, read_json, sync_directory, write_json, write_tensors
from fedvisage.progress import Say, counted, unheard
from fedvisage.tasks.finished import FinishedModel

METRICS = "metrics.json"
"""A run's figures, which the card repeats where they are there."""


@dataclass(frozen=True)
class Written:
    """What an export wrote, and how near it is to torch."""

    directory: Path
    config: Config
    parity: list[Parity]
    compared_on: str
    notices: tuple[str, ...] = ()

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values, for programs."""
        return {"directory": str(self.directory), **as_values(self.config), "parity": self._parity()}

    def lines(self) -> list[str]:
        """Return it as lines, for people."""
        worst = [f"{one.score_difference:.1e} in score" if one.cosine is None else f"cosine {one.cosine:.7f}"
                 for one in self.parity]  # fmt: skip
        sizes = ", ".join(
            f"{counted(one.batch, 'crop')} at a time: {said}" for one, said in zip(self.parity, worst, strict=True)
        )
        return [
            f"{self.directory / GRAPH}: {self.config.float32.file.bytes / 1e6:.1f} MB",
            f"graph and torch on crops of {self.compared_on}, {sizes}",
        ]

    def _parity(self) -> dict[str, Any]:
        return parity_values(self.parity, self.compared_on)


def export(
    model: FinishedModel,
    out: Path,
    *,
    data: str | None = None,
    member: str = "",
    cache: Path,
    say: Say = unheard,
    threads: int = 1,
) -> Written:
    """Write a finished model for devices into a directory that is not there yet, or leave nothing.

    The graph is compared with torch on crops of ``data``, the run's own user unless one is named.
    """
    _check_free(out)
    chosen = choose(model, member)
    description = described(model, chosen)
    crops, compared_on = to_compare(model, data, LEAST, cache, say)
    say("writing the graph")
    with _beside(out) as directory:
        config = _with_graph(directory, model, chosen, description)
        exported = Exported.open(directory, threads=threads)
        say("comparing it with torch")
        found = measure(exported.run, lambda part: reference(model, chosen, part), pixels(crops), model.task)
        require(found)
        notices = _notices(model, description)
        written = Written(out, config, found, compared_on, (*model.notices, *notices))
        write_json(directory / PARITY, parity_values(found, compared_on))
        write_tensors(directory / WEIGHTS, _weights(chosen))
        write_card(directory / CARD, card(model, config, _figures(model), notices))
    return written


def parity_values(found: list[Parity], compared_on: str) -> dict[str, Any]:
    """Return how near graph and torch are, as `parity.json` holds it."""
    return {
        "compared_on": compared_on,
        "batches": [one.as_values() for one in found],
        "allowed": {"score_difference": SCORE, "cosine": COSINE},
        "torch": torch.__version__,
        "onnxruntime": version("onnxruntime"),
    }


def _with_graph(directory: Path, model: FinishedModel, chosen: Chosen, description: Description) -> Config:
    path = directory / GRAPH
    path.parent.mkdir()
    with needing_room(path):
        write_graph(Graph(model, chosen.weights), path, description.size, description.metadata())
    config = Config(float32=Graphs(file=entry_of(path), description=description))
    write_json(directory / CONFIG, as_values(config))
    return config


def entry_of(path: Path) -> FileEntry:
    """Return a file's size and digest."""
    with path.open("rb") as file:
        return FileEntry(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _weights(chosen: Chosen) -> dict[str, torch.Tensor]:
    """Return the weights, without the sites' names where several members were averaged."""
    named = {"" if len(chosen.weights) == 1 else f"member{number}": one for number, one in enumerate(chosen.weights, 1)}
    return joined(named)


def _notices(model: FinishedModel, description: Description) -> list[str]:
    notices = []
    if description.drawn:
        notices.append(
            "The method draws blocks for each prediction; the graph is the mean over all of them, and draws nothing."
        )
    if model.recipe.evaluation.adapt is not None:
        notices.append("The run adapted the model to its user's images before it was judged; the graph is not adapted.")
    return notices


def _figures(model: FinishedModel) -> dict[str, Any]:
    path = model.directory / METRICS
    return read_json(path) if path.exists() else {}


def _check_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that no export is written over")


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """Lend a directory beside the one that is wanted, which takes its place when all is well, and is gone if not."""
    out.parent.mkdir(parents=True, exist_ok=True)
    place = Path(mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        yield place
        place.chmod(0o755)
        place.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(place, ignore_errors=True)
