"""Crop records: the origin of the crops of a set, and compatibility between crops.

`set.json` and `model.json` store a crop record. A network learns where faces lie in its images, so a different way of
cropping affects it like a different camera. Sets that predate the record describe their crops in the source line:
rendered ones were cut exactly, and `crop=face` means the detector of that time, whose boxes and points were off by
about 2 % of a face.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

_FACE_MARGIN: Final = 1.4
_USUAL: Final = (("search", "all"), ("padding", "none"))
_CHOICE = re.compile(r"\bcrop=(face|centre|none)\b")


class _Record(BaseModel):
    """A record that is stored without its usual search and padding, as before these fields existed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_serializer(mode="wrap")
    def _without_usual_values(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return {key: value for key, value in fields.items() if (key, value) not in _USUAL}


class DetectorRecord(_Record):
    """A face detector: its name and version, the digest of its files, and its search order.

    `search` is `all` or `largest first`. A search for the largest face first returns the largest of all faces unless a
    smaller one lies within it, so crops from both searches are compatible.
    """

    name: str = Field(min_length=1, max_length=80, pattern=r"^[\w .:+-]+$")
    version: str = Field(max_length=80, pattern=r"^[\w .:+-]*$")
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    search: Literal["all", "largest first"] = "all"


OLD_DETECTOR: Final = DetectorRecord(name="mtcnn on OpenCV", version="")
"""The detector of versions that did not record it."""


class CropRecord(_Record):
    """The way in which crops were made.

    Attributes:
        how: source of the crop: faces found by a detector; boxes or points of the dataset; the centre of each image;
            whole images as delivered; or rendered faces, which need no search.
        detector: the detector that found the faces, if there was one.
        margin: side of the crop divided by the longer side of the face box, for crops that are based on a box.
        padding: `none` if a crop moves or shrinks into its image; `replicate` if it is filled with copies of the last
            pixels instead. Inference never pads, so both are compatible.
        rotation: True if crops are rotated so that faces are upright.
        alignment: reference for the position of the face in the crop: five points, a box, or none.
    """

    how: Literal["detected", "boxes", "centre", "whole", "rendered"]
    detector: DetectorRecord | None = None
    margin: float | None = Field(default=None, gt=0, le=100)
    padding: Literal["none", "replicate"] = "none"
    rotation: bool = False
    alignment: Literal["points", "box", "none"] = "none"

    @property
    def outdated(self) -> bool:
        """True if the detector of earlier versions made the crops."""
        return self.detector == OLD_DETECTOR

    def __str__(self) -> str:
        """Describe the crops in words."""
        if self.how == "detected":
            detector = (
                "an earlier version's detector"
                if self.outdated or self.detector is None
                else f"{self.detector.name} {self.detector.version}".strip()
            )
            how = f"faces found by {detector}"
        else:
            how = {
                "boxes": f"faces by the dataset's {'points' if self.alignment == 'points' else 'boxes'}",
                "centre": "the middle of each image",
                "whole": "whole images as delivered",
                "rendered": "rendered faces",
            }[self.how]
        margin = f", {self.margin:g} times their box" if self.margin is not None else ""
        margin += ", padded" if self.padding == "replicate" else ""
        return f"{how}{margin}{', aligned by five points' if self.alignment == 'points' else ''}"


RENDERED_ONLY = "trained on rendered faces only"
"""The note on every decision of a detector that has seen no photograph."""


def are_all_rendered(crops: Iterable[CropRecord]) -> bool:
    """Return True if all crops are rendered faces; False if no crop is known."""
    return {crop.how for crop in crops} == {"rendered"}


def from_source(source: str) -> CropRecord | None:
    """Return the crop record implied by the source line of a set without a record, or None."""
    kind, _, rest = source.partition(" ")
    if kind == "synthetic":
        people = rest.startswith("people ")
        return CropRecord(how="rendered", rotation=people, alignment="points" if people else "box")
    choice, people = _CHOICE.search(source), kind == "people"
    if choice is None or kind not in ("folder", "people", "photographs"):
        return None
    if choice[1] == "face" and people:
        return CropRecord(how="detected", detector=OLD_DETECTOR, rotation=True, alignment="points")
    if choice[1] == "face":
        return CropRecord(how="detected", detector=OLD_DETECTOR, margin=_FACE_MARGIN, alignment="box")
    how: Literal["centre", "whole"] = "centre" if choice[1] == "centre" else "whole"
    return CropRecord(how=how, rotation=people, alignment="points" if people else "none")


def are_incompatible(first: CropRecord | None, second: CropRecord | None) -> bool:
    """Return True if two kinds of crops are incompatible.

    Crops without a record never clash. Faces that are aligned by five points lie in the same places with any tool,
    unless the points are known to come from different detectors, or one of them from the old detector. Other crops must
    have been made in the same way; images that were delivered as crops count as equal, whether they were kept whole or
    cut at the centre.
    """
    if first is None or second is None:
        return False
    if first.alignment == second.alignment == "points":
        both_detectors_known = first.detector is not None and second.detector is not None
        return first.outdated != second.outdated or (
            both_detectors_known and _detector_key(first) != _detector_key(second)
        )
    return _kind(first) != _kind(second)


def _kind(record: CropRecord) -> tuple[object, ...]:
    delivered = record.how in ("centre", "whole")
    how = "delivered" if delivered else record.how
    return how, _detector_key(record), record.margin, record.rotation, record.alignment


def _detector_key(record: CropRecord) -> tuple[str, ...]:
    """Return the fields that determine where a detector places a face."""
    detector = record.detector
    return () if detector is None else (detector.name, detector.version, detector.sha256)
