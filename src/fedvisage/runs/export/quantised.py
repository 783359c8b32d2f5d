"""Int8 graphs of an export: a quarter of the float32 size, their own thresholds, rejected if the error rate moves.

Weights are quantised to int8 per channel and activations to uint8; the ranges are measured on crops of a source set.
Rounding shifts every score slightly, so the threshold is chosen again for both graphs, by the rule of the run and on
the held-out images of that set. An int8 graph whose error rate moves there is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.device.exported import INPUT, Exported
from fedvisage.metrics.generic import threshold_at_fmr, within_counts
from fedvisage.metrics.similarity import Faces
from fedvisage.metrics.threshold import ON_TRAINING, SOURCE_RULES, Threshold, histogram, threshold_from_histograms
from fedvisage.recipe import Recipe
from fedvisage.runs.evaluate import open_named
from fedvisage.runs.export.graph import LEAST, without_warnings
from fedvisage.starts.convert import make_pictures
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.opened import check_for_model

# Crops for the comparison with torch, and for the calibration and evaluation of an int8 graph.

COMPARED = 10
"""The number of crops on which graph and torch are compared."""


def view_of(model: FinishedModel, entry: str, place: str, cache: Path, say: Say) -> View:
    """Open all images of a dataset for a model; ``place`` is the option or recipe key that errors name."""
    named = open_named(entry, cache, model=model, place=place, say=say, course=say)
    check_for_model(model.saved.crops, named.prepared.crop, place, allowed=None)
    return named.view


def to_compare(model: FinishedModel, entry: str | None, cache: Path, say: Say) -> tuple[NDArray[np.uint8], str]:
    """Return evenly spaced crops of the named set, by default the recipe's target, and the name of the set.

    Generated pictures take their place for a model without a target, such as a converted start.
    """
    named = entry or (None if model.saved.origin is not None else model.recipe.data.target)
    if named is None:
        pictures = make_pictures(model.recipe.input.size, COMPARED).permute(0, 2, 3, 1)
        return (255 * pictures).round().byte().contiguous().numpy(), "generated pictures"
    place = "--data" if entry else "recipe.data.target"
    try:
        if entry:
            view = view_of(model, entry, place, cache, say)
        else:  # training has already checked the crops of its own target
            view = open_named(named, cache, model=model, place=place, say=say, course=say).view
    except UserError as error:
        if entry:
            raise
        raise UserError(
            "--data", f"name a prepared set to compare on: the run's own cannot be opened ({error})"
        ) from None
    if len(view) < LEAST:
        raise UserError(place, f"has {len(view)} crops; a comparison needs {LEAST}")
    return pixels(evenly_spaced(view, COMPARED)), view.slices[0].set.name


def evenly_spaced(view: View, most: int) -> View:
    """Return at most ``most`` images, evenly spaced over a view."""
    count = min(len(view), most)
    return view.subset((np.arange(count) * len(view)) // count)


def pixels(view: View) -> NDArray[np.uint8]:
    """Return a view's images, N×S×S×3."""
    images = view.batch(np.arange(len(view))).images.permute(0, 2, 3, 1)
    return np.ascontiguousarray(images.numpy())


CALIBRATED = 200
"""The largest number of crops on which the ranges of activations are measured."""

MOST = 0.005
"""The largest change allowed in the error rate: HTER of attack detection, or missed genuine pairs of recognition."""

_LAYERS = ["Conv", "Gemm", "MatMul"]
_FEWEST = 2
PLACE = "--calibrate"


@dataclass(frozen=True)
class OperatingError:
    """The threshold and the error rate of a graph on a set."""

    threshold: Threshold
    error: float
    step: float = 0.0
    """The change of the error rate if one image of the smaller class, or one genuine pair, is decided otherwise."""


@dataclass(frozen=True)
class QuantisationEffect:
    """The threshold and error rate of both graphs on the held-out images of a set."""

    set: str
    crops: int
    float32: OperatingError
    int8: OperatingError

    @property
    def allowed(self) -> float:
        """The largest change allowed: on a small set, one decision counts for more than ``MOST``."""
        return max(MOST, self.float32.step)

    def require(self, task: str) -> None:
        """Raise an error if the error rate of the int8 graph has moved by more than is allowed."""
        if abs(self.int8.error - self.float32.error) > self.allowed + 1e-9:
            name = "HTER" if task == "pad" else "TAR"
            raise RunFailed(
                f"int8 changes {name} on {self.set} by {100 * abs(self.int8.error - self.float32.error):.2f} points, "
                f"more than {100 * self.allowed:g}: calibrate on more crops, or leave --int8 out; nothing was written"
            )

    def as_values(self, task: str) -> dict[str, Any]:
        """Return the comparison in the format of `parity.json`."""
        name = "hter" if task == "pad" else "tar"
        values = {
            kind: {
                "threshold": evaluated.threshold.value,
                name: evaluated.error if task == "pad" else 1 - evaluated.error,
            }
            for kind, evaluated in (("float32", self.float32), ("int8", self.int8))
        }
        return {"judged_on": self.set, "crops": self.crops, **values, "allowed": self.allowed}


def splits(view: View, task: str, rule: str) -> tuple[View, View]:
    """Return the images for the ranges of activations, and the images for the thresholds."""
    (part,) = view.slices
    heldout = "train" if rule == ON_TRAINING else "test" if task == "recognition" else "heldout"
    split = part.set.rows.split[part.indices]
    views = [view.subset(np.flatnonzero(split == name).astype(np.int64)) for name in ("train", heldout)]
    for name, images in zip(("train", heldout), views, strict=True):
        if len(images) < _FEWEST:
            raise UserError(
                PLACE,
                f"the set has {len(images)} images in its split {name!r}; int8 needs a set that a site could train on",
            )
    return views[0], views[1]


def quantise(graph: Path, path: Path, calibration: View) -> None:
    """Quantise a float32 graph and write the int8 graph."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with TemporaryDirectory(dir=path.parent) as place, without_warnings():
        prepared = Path(place) / "prepared.onnx"
        quant_pre_process(graph, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            path,
            _CropReader(pixels(evenly_spaced(calibration, CALIBRATED))),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=_LAYERS,
        )


def evaluate_graph(model: Exported, view: View, recipe: Recipe, rule: str) -> OperatingError:
    """Choose a graph's threshold on a set by the run's rule, and return it with the error rate there."""
    outputs = model.run(pixels(view))
    if model.task == "recognition":
        identity = np.unique(view.subjects, return_inverse=True)[1]
        faces = Faces(np.asarray(outputs, np.float32), identity.astype(np.int64))
        threshold = threshold_at_fmr([within_counts(faces)], recipe.evaluation.people.fmr)
        if threshold is None or threshold.frr is None:
            raise UserError(PLACE, "has too few pairs of faces for the recipe's false match rate; give a larger set")
        counts = np.bincount(identity)
        return OperatingError(threshold, threshold.frr, 1 / float((counts * (counts - 1) // 2).sum()))
    if rule not in SOURCE_RULES:
        raise UserError(PLACE, f"the run's threshold was chosen by {rule}, which is not a rule for sites")
    threshold = threshold_from_histograms([histogram(outputs.astype(np.float64), view.labels.astype(np.int64))], rule)
    if threshold.far is None or threshold.frr is None:
        raise UserError(PLACE, "holds out no bona fide images, or no attacks; give a set with both")
    smaller = min(np.bincount(view.labels.astype(np.int64), minlength=2))
    return OperatingError(threshold, (threshold.far + threshold.frr) / 2, 0.5 / float(smaller))


class _CropReader:
    """A reader that gives the calibration one crop at a time."""

    def __init__(self, crops: NDArray[np.uint8]) -> None:
        self._remaining = iter(crops)

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        """Return the next crop, or None after the last."""
        crop = next(self._remaining, None)
        return None if crop is None else {INPUT: crop[None]}
