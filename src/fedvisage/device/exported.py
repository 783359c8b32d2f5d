"""An exported model, opened: its files are checked against what the directory says of them, then it is ready to run."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.datasets.importers.cropping import record_of
from fedvisage.device.config import (
    AGAIN,
    CONFIG,
    GRAPH,
    INPUT,
    INT8_GRAPH,
    OUTPUTS,
    Config,
    Description,
    Graphs,
    check_metadata,
    read_config,
)
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import pieces_of, read_plain
from fedvisage.graphs.checks import LARGEST
from fedvisage.graphs.session import open_session, runtime_errors, short
from fedvisage.metrics.threshold import Threshold

if TYPE_CHECKING:
    import onnxruntime

Floats = NDArray[np.float32]

LARGEST_BESIDE = 2 * LARGEST
"""Bytes of the weights beside a graph; they may hold parts that the graph does not."""

AT_ONCE = 16
"""Crops that go through the graph together."""

_LENGTH = 1e-3
"""How far an embedding's length may be from one."""


@dataclass(frozen=True, eq=False)
class Exported:
    """A model of an exported directory, with its graph."""

    directory: Path
    description: Description
    graph_digest: str
    session: onnxruntime.InferenceSession

    @staticmethod
    def open(directory: Path, *, threads: int = 1, int8: bool = False) -> Exported:
        """Read a directory that `fedvisage export` wrote; run nothing in it before all its records agree."""
        config = read_config(directory)
        graph = config.int8 if int8 else config.float32
        if graph is None:
            raise UserError(str(directory), "has no int8 graph; export it with --int8 --calibrate SET")
        description, path = graph.description, directory / (INT8_GRAPH if int8 else GRAPH)
        wanted = record_of("face", aligned=description.task == "recognition")
        if description.crop != wanted:
            raise UserError(str(directory / CONFIG), f"wants crops that this version does not make "
                            f"({description.crop}; here {wanted}); {AGAIN}")  # fmt: skip
        _check_files_beside(directory, config)
        session = open_session(str(path), _checked(path, graph), threads, remedy=AGAIN)
        _check_form(path, session, description)
        return Exported(directory, description, graph.file.sha256, session)

    @property
    def digest(self) -> str:
        """The digest of the weights, as the description states it; `graph_digest` is that of the file that runs."""
        return self.description.model_sha256

    @property
    def task(self) -> str:
        """What the model is for: ``pad`` or ``recognition``."""
        return self.description.task

    @property
    def size(self) -> int:
        """The side of a crop in pixels."""
        return self.description.size

    @property
    def threshold(self) -> Threshold | None:
        """Where decisions change: a logit, or a cosine."""
        point = self.description.threshold
        return None if point is None else Threshold(point.value, point.rule, point.far, point.frr)

    def graph(self) -> bytes:
        """Return the bytes of the graph's file, refusing others than those that were opened."""
        path = self.directory / (INT8_GRAPH if self.description.arithmetic == "int8" else GRAPH)
        content = read_plain(path, LARGEST)
        if hashlib.sha256(content).hexdigest() != self.graph_digest:
            raise UserError(str(path), f"has changed since it was opened; {AGAIN}")
        return content

    def run(self, crops: NDArray[np.uint8]) -> NDArray[np.floating[Any]]:
        """Return logits (N) or unit embeddings (N×D) of crops, uint8 N×S×S×3 in RGB."""
        size = self.size
        if crops.dtype != np.uint8 or crops.ndim != 4 or crops.shape[1:] != (size, size, 3):
            raise ValueError(f"crops must be uint8 of shape N×{size}×{size}×3, got {crops.dtype} {crops.shape}")
        name = OUTPUTS[self.task][-1]
        parts = [self._of(name, crops[start : start + AT_ONCE]) for start in range(0, len(crops), AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _of(self, name: str, crops: NDArray[np.uint8]) -> Floats:
        try:
            (found,) = self.session.run([name], {INPUT: np.ascontiguousarray(crops)})
        except runtime_errors() as error:
            raise RunFailed(f"{self.directory}: the graph cannot be computed ({short(error)}); {AGAIN}") from None
        if found.shape[:1] != crops.shape[:1] or not np.isfinite(found).all():
            raise RunFailed(f"{self.directory}: the model gives what is no number; {AGAIN}")
        if self.task == "recognition" and not (np.abs(np.linalg.norm(found, axis=1) - 1) < _LENGTH).all():
            raise RunFailed(f"{self.directory}: the model gives embeddings whose length is not one; {AGAIN}")
        return np.asarray(found, np.float32)


def _checked(path: Path, graph: Graphs) -> bytes:
    if graph.file.bytes > LARGEST:
        raise UserError(
            str(path), f"is said to have {graph.file.bytes:,} bytes; no graph here has more than {LARGEST:,}"
        )
    content = read_plain(path, LARGEST)
    if len(content) != graph.file.bytes or hashlib.sha256(content).hexdigest() != graph.file.sha256:
        raise UserError(str(path), f"is damaged: its digest is not the one in {CONFIG}; {AGAIN}")
    return content


def _check_files_beside(directory: Path, config: Config) -> None:
    """Refuse weights or figures of another export; a device may have been given neither."""
    for name, entry in config.files.items():
        path = directory / name
        if not os.path.lexists(path):
            continue
        if not path.is_file() or path.stat().st_size != entry.bytes or _digest(path, entry.bytes) != entry.sha256:
            raise UserError(str(path), f"is not the file whose digest {CONFIG} records; {AGAIN}")


def _digest(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    for piece in pieces_of(path, min(size, LARGEST_BESIDE)):
        digest.update(piece)
    return digest.hexdigest()


def _check_form(path: Path, session: onnxruntime.InferenceSession, description: Description) -> None:
    """Refuse a graph with other inputs or outputs than its task has, or that says otherwise what it is."""
    check_metadata(path, session.get_modelmeta().custom_metadata_map, description)
    size, names = description.size, OUTPUTS[description.task]
    taken = [(one.name, one.type, list(one.shape)[1:]) for one in session.get_inputs()]
    given = [(one.name, one.type, len(one.shape)) for one in session.get_outputs()]
    rank = 2 if description.task == "recognition" else 1
    if taken != [(INPUT, "tensor(uint8)", [size, size, 3])] or given != [(one, "tensor(float)", rank) for one in names]:
        raise UserError(str(path), f"has other inputs or outputs than an exported model has; {AGAIN}")
