"""An exported model, opened: its files are checked against what the directory says of them, then it is ready to run."""

from __future__ import annotations

import hashlib
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
    Description,
    Graphs,
    check_metadata,
    read_config,
)
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import read_plain
from fedvisage.metrics.threshold import Threshold

if TYPE_CHECKING:
    import onnxruntime

Floats = NDArray[np.float32]

LARGEST = 4 << 30
"""Bytes of a graph; ViT-B in float32 has a tenth."""

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
        """Read a directory that `fedvisage export` wrote; nothing in it is run before its digest is as promised."""
        config = read_config(directory)
        graph = config.int8 if int8 else config.float32
        if graph is None:
            raise UserError(str(directory), "has no int8 graph; export it with --int8 --calibrate SET")
        description, path = graph.description, directory / (INT8_GRAPH if int8 else GRAPH)
        wanted = record_of("face", aligned=description.task == "recognition")
        if description.crop != wanted:
            raise UserError(str(directory / CONFIG), f"wants crops that this version does not make "
                            f"({description.crop}; here {wanted}); {AGAIN}")  # fmt: skip
        session = open_session(path, _checked(path, graph), threads)
        _check_form(path, session, description)
        return Exported(directory, description, graph.file.sha256, session)

    @property
    def digest(self) -> str:
        """The model's digest: of its weights, whatever arithmetic the graph has."""
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

    def run(self, crops: NDArray[np.uint8]) -> NDArray[np.floating[Any]]:
        """Return logits (N) or unit embeddings (N×D) of crops, uint8 N×S×S×3 in RGB."""
        size = self.size
        if crops.dtype != np.uint8 or crops.ndim != 4 or crops.shape[1:] != (size, size, 3):
            raise ValueError(f"crops must be uint8 of shape N×{size}×{size}×3, got {crops.dtype} {crops.shape}")
        name = OUTPUTS[self.task][-1]
        parts = [self._of(name, crops[start : start + AT_ONCE]) for start in range(0, len(crops), AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _of(self, name: str, crops: NDArray[np.uint8]) -> Floats:
        (found,) = self.session.run([name], {INPUT: np.ascontiguousarray(crops)})
        if found.shape[:1] != crops.shape[:1] or not np.isfinite(found).all():
            raise RunFailed(f"{self.directory}: the model gives what is no number; {AGAIN}")
        if self.task == "recognition" and not (np.abs(np.linalg.norm(found, axis=1) - 1) < _LENGTH).all():
            raise RunFailed(f"{self.directory}: the model gives embeddings whose length is not one; {AGAIN}")
        return np.asarray(found, np.float32)


def open_session(path: Path, content: bytes, threads: int) -> onnxruntime.InferenceSession:
    """Make a graph ready, on so many threads; the same bytes give the same numbers on one kind of processor."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as mistakes

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except (mistakes.Fail, mistakes.InvalidArgument, mistakes.InvalidGraph, mistakes.InvalidProtobuf, mistakes.NoModel,
            mistakes.NotImplemented, mistakes.RuntimeException) as error:  # fmt: skip
        raise UserError(str(path), f"is no graph that can be run ({' '.join(str(error).split())[:200]}); "
                        f"{AGAIN}") from None  # fmt: skip


def _checked(path: Path, graph: Graphs) -> bytes:
    if graph.file.bytes > LARGEST:
        raise UserError(
            str(path), f"is said to have {graph.file.bytes:,} bytes; no graph here has more than {LARGEST:,}"
        )
    content = read_plain(path, LARGEST)
    if len(content) != graph.file.bytes or hashlib.sha256(content).hexdigest() != graph.file.sha256:
        raise UserError(str(path), f"is damaged: its digest is not the one in {CONFIG}; {AGAIN}")
    return content


def _check_form(path: Path, session: onnxruntime.InferenceSession, description: Description) -> None:
    """Refuse a graph with other inputs or outputs than its task has, or that says otherwise what it is."""
    check_metadata(path, session.get_modelmeta().custom_metadata_map, description)
    size, names = description.size, OUTPUTS[description.task]
    taken = [(one.name, one.type, list(one.shape)[1:]) for one in session.get_inputs()]
    given = [(one.name, one.type, len(one.shape)) for one in session.get_outputs()]
    rank = 2 if description.task == "recognition" else 1
    if taken != [(INPUT, "tensor(uint8)", [size, size, 3])] or given != [(one, "tensor(float)", rank) for one in names]:
        raise UserError(str(path), f"has other inputs or outputs than an exported model has; {AGAIN}")
