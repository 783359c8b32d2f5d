"""The pipeline of exported models, as a gallery asks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedvisage.device import Checked, Exported, Pipeline, Settings
from fedvisage.errors import UserError
from fedvisage.faces.detection import Face
from fedvisage.gallery.engine import Engine, Image, Model


class Piped:
    """A pipeline that judges every face of a picture, with the digests of what it is made of."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Take the pipeline."""
        self._pipeline = pipeline
        self.detector_digest = f"sha256:{pipeline.detector_digest}"
        self.pad_digest = None if pipeline.pad is None else f"sha256:{pipeline.pad.digest}"
        self.model = None if pipeline.recognition is None else _model(pipeline.recognition)
        opened = (model for model in (pipeline.pad, pipeline.recognition) if model is not None)
        self.graph_digests = {model.task: f"sha256:{model.graph_digest}" for model in opened}

    def detect(self, image: Image) -> Sequence[Face]:
        """Return the faces of a picture, the largest first."""
        return self._pipeline.detect(image)

    def check(self, image: Image, *, report: bool = False) -> Checked:
        """Judge a picture's faces; with ``report`` an attack is embedded as well."""
        return self._pipeline.check(image, report=report)


def open_engine(pad: Path | Exported | None, recognition: Path | Exported | None, threads: int = 1) -> Engine:
    """Open exported directories, or take models that are open, as one engine."""
    return Piped(Pipeline(pad, recognition, settings=Settings(threads=threads, several=True)))


def _model(exported: Exported) -> Model:
    point = exported.threshold
    if point is None:
        raise UserError(str(exported.directory), "has no threshold to decide by; export a run whose sites chose one")
    return Model(f"sha256:{exported.digest}", point.value, point.rule)
