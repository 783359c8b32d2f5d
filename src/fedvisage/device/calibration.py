"""Calibrate an exported or fused model to one camera with genuine pictures: another threshold, the same weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError, printable
from fedvisage.base.files import disk_full_is_failure, replaced_when_complete, write_atomically
from fedvisage.base.progress import Steps, discard_steps, format_count
from fedvisage.data.left_out import LeftOut
from fedvisage.device.exported import CARD, check_free, point_of, refuse_int8, write_export
from fedvisage.device.fused import Fused, Model, copy_member, folder_of, open_export, write_fused
from fedvisage.device.predict import InputPicture, InputPictures, Prediction, estimates_of, predict, probability
from fedvisage.faces.align import Image
from fedvisage.metrics.calibration import (
    LEAST,
    MOST_REJECTED,
    CameraThreshold,
    expected_bpcer,
    find_outliers,
    threshold_for_camera,
)
from fedvisage.metrics.operating_point import largest_rates, parse_point, wilson
from fedvisage.metrics.threshold import OF_FURTHER, OF_PICTURES, Estimate, Threshold

SIDE = 32
SAME = 1.0
"""Two pictures are the same if their reductions to 32×32 grey values differ by less than this on average, of 255."""

PLACE = "--live"


@dataclass(frozen=True)
class CalibrationResult:
    """A calibrated export: its directory, its threshold, and upper bounds of the sites' error rates there."""

    directory: Path
    threshold: Threshold
    camera: CameraThreshold
    before: float
    aim: float
    """The share of genuine pictures that the threshold should reject; a wish, not a bound."""
    at_sites: dict[str, float]
    left_out: Counter[str]
    """Pictures that do not count, by reason."""
    outliers: tuple[str, ...]
    """Pictures that count, with scores far below the others."""

    def as_values(self) -> dict[str, Any]:
        """Return the result as plain values, for programs."""
        return {
            "directory": str(self.directory),
            "operating_point": self.threshold.operating_point,
            "threshold": _values_of(self.threshold.value) | estimates_of(self.threshold),
            "threshold_before": _values_of(self.before),
            "of_pictures": self.camera.of_pictures,
            "weight": self.camera.weight,
            "pictures": self.camera.pictures,
            "at_sites": self.at_sites,
            "left_out": dict(self.left_out),
            "outliers": list(self.outliers),
        }

    def lines(self) -> list[str]:
        """Return the result as lines, for people."""
        count, score = format_count(self.camera.pictures, "picture"), f"{probability(self.threshold.value):.4f}"
        if self.camera.weight:
            before = f"{probability(self.before):.4f}"
            change = f"{score} instead of {before}, from {count} with a weight of {self.camera.weight:.0%}"
        else:
            change = f"{score}, as before: it rejects no more than {MOST_REJECTED:.0%} by the estimate from {count}"
        lines = [f"{self.directory}: threshold score {change}", self.threshold.operating_point]
        # The model's share of the mixture moves the threshold away from the aim.
        if self.camera.weight and self.threshold.estimates[OF_FURTHER].rate - self.aim >= 0.005:
            lines.append(
                f"expected BPCER above the aim of {100 * self.aim:g}%: the model's own threshold has a weight of "
                f"{1 - self.camera.weight:.0%}; more pictures lower this"
            )
        rates = ", ".join(f"{name} {rate:.1%}" for name, rate in self.at_sites.items())
        at_sites = f"; {self.threshold.place}, this threshold has at most {rates}" if rates else ""
        lines.append(f"unknown: APCER on this camera, because no attack was shown to it{at_sites}")
        lines.append(LeftOut(self.camera.pictures + self.left_out.total(), dict(self.left_out)).line)
        if self.outliers:
            shown = ", ".join(self.outliers[:3]) + (", …" if len(self.outliers) > 3 else "")
            count = format_count(len(self.outliers), "picture counts", "pictures count")
            lines.append(
                f"warning: {count} although far below the others: {shown}; remove attacks, and calibrate again"
            )
        return lines


def calibrate(
    model: Model,
    inputs: InputPictures,
    at: str | None,
    out: Path,
    *,
    crop: str = "face",
    detector: str = "",
    steps: Steps = discard_steps,
) -> CalibrationResult:
    """Write an export with a threshold for the camera that took these genuine pictures.

    The default detector is that of the model's crops; use the one that will find the faces later.

    Without an operating point, the model's threshold is only lowered, if it rejects too many of them.
    """
    check_free(out)
    refuse_int8(model.arithmetic)
    wish = None if at is None else parse_point(at)
    if wish is not None and wish.measure != "bpcer":
        raise UserError("--at", f"{wish.measure} cannot be known from genuine pictures; give bpcer=2%")
    if model.task != "pad" or model.threshold is None:
        raise UserError(str(model.directory), "has no threshold of attack detection; calibrate an export that has one")
    own = model.threshold
    if OF_PICTURES in own.estimates:
        raise UserError(str(model.directory), "was calibrated already; calibrate the export that it was made from")
    reductions: dict[str, NDArray[np.float32]] = {}
    pictures = [_remembering(picture, reductions) for picture in inputs.pictures]
    predictions = predict(model, InputPictures(pictures), crop=crop, detector=detector, steps=steps).images
    scored = [image for image in predictions if image.logit is not None]
    # Pictures that repeat an earlier one, such as the next frame of a video, do not count.
    distinct: list[Prediction] = []
    for image in scored:
        differences = (np.abs(reductions[image.path] - reductions[other.path]).mean() for other in distinct)
        if all(difference >= SAME for difference in differences):
            distinct.append(image)
    # Too few or too similar pictures do not describe a camera.
    if len(scored) < LEAST:
        count = format_count(len(scored), "picture")
        raise UserError(PLACE, f"has {count} with a usable face, and {LEAST} are needed; add genuine pictures")
    if len(distinct) < LEAST:
        raise UserError(
            PLACE,
            f"has {len(distinct)} different pictures among {len(scored)}, and {LEAST} are needed; take pictures of "
            "several people at several times",
        )
    logits = np.array([image.logit for image in distinct], np.float64)
    outliers = tuple(printable(distinct[number].path) for number in find_outliers(logits))
    camera = threshold_for_camera(logits, own.value, None if wish is None else wish.rate)
    below = float((logits < camera.value).mean())
    pictures_used = f"{format_count(camera.pictures, 'genuine picture')} of one camera"
    aim = MOST_REJECTED if wish is None else wish.rate
    further = expected_bpcer(logits, camera.value)
    estimates = {OF_PICTURES: Estimate(below, *wilson(below, camera.pictures)), OF_FURTHER: further}
    if camera.weight:
        rule = f"aimed at BPCER {100 * aim:g}% ({pictures_used}; APCER unknown)"
        threshold = Threshold(camera.value, rule, None, None, estimates, own.place)
    else:
        # The threshold stays, and so do its rates at the sites.
        rule = f"{own.rule} (checked with {pictures_used})"
        threshold = replace(own, rule=rule, estimates={**own.estimates, **estimates})
    with replaced_when_complete(out) as directory:
        with disk_full_is_failure(out):
            _write(directory, model, threshold)
        open_export(directory)
    left_out = Counter(image.reason for image in predictions if image.logit is None)
    left_out += Counter({"repeats another picture": len(scored) - len(distinct)})
    at_sites = largest_rates(model.curves, camera.value)
    return CalibrationResult(out, threshold, camera, own.value, aim, at_sites, left_out, outliers)


def _values_of(logit: float) -> dict[str, Any]:
    return {"logit": logit, "probability": probability(logit)}


def _remembering(picture: InputPicture, reductions: dict[str, NDArray[np.float32]]) -> InputPicture:
    """Return the same picture, whose reduction is stored when it is read."""

    def read() -> Image:
        image = picture.read()
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        reductions[picture.name] = cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
        return image

    return InputPicture(picture.name, read)


def _write(directory: Path, model: Model, threshold: Threshold) -> None:
    """Write the model's float32 files with another threshold in their descriptions."""
    update = {"threshold": point_of(threshold)}
    if isinstance(model, Fused):
        for number, member in enumerate(model.members, 1):
            copy_member(member, folder_of(directory, number), int8=False)
        write_fused(directory, model.config.model_copy(update={**update, "int8_threshold": None}))
    else:
        copy_member(model, directory, int8=False)
        write_export(directory, model.description.model_copy(update=update), curves=model.curves)
    card = (
        f"# {model.method}, calibrated to one camera\n\nThreshold: logit {threshold.value:.6g}, "
        f"{threshold.operating_point}. It applies to the camera of the pictures, whose error rates for other people "
        f"and for attacks are not known. Weights: `{model.digest}`, unchanged. The card of the source model "
        "describes its purpose and limits.\n"
    )
    write_atomically(directory / CARD, card.encode())
