"""How the crops of a set were made: what `set.json` and `model.json` say of it, and which crops go together.

A network sees where faces lie in its images, so crops that were made in different ways differ for it as cameras do.
Sets from before this was recorded say it in the line of their source: rendered ones were cut exactly, and with
`crop=face` it was the detector of that time, which put boxes and points about 2 % of a face aside.
"""

import re
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

_FACE_MARGIN: Final = 1.4
_CHOICE = re.compile(r"\bcrop=(face|centre|none)\b")


class DetectorRecord(BaseModel):
    """Which detector found the faces, the digest of its files, and whether it sought all faces or the largest first.

    The largest, sought first, is that of all faces but where a smaller one lies within it: crops of both go together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    name: str = Field(min_length=1, max_length=80, pattern=r"^[\w .:+-]+$")
    version: str = Field(max_length=80, pattern=r"^[\w .:+-]*$")
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    search: Literal["all", "largest first"] = "all"

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = handler(self)
        return {key: value for key, value in said.items() if (key, value) != ("search", "all")}


OLD_DETECTOR: Final = DetectorRecord(name="mtcnn on OpenCV", version="")
"""The detector of the versions that did not record it."""


class CropRecord(BaseModel):
    """How crops were made.

    Attributes:
        how: faces found by a detector, given by the dataset's own boxes or points, the middle of each image, whole
            images as they were delivered, or rendered, so that nothing had to be found.
        detector: which one found the faces, if one did.
        margin: side of the crop over the longer side of the face's box, where a box decides.
        rotation: whether crops are turned so that faces stand upright.
        alignment: whether five points, a box, or nothing that is known decides where the face lies in the crop.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    how: Literal["detected", "boxes", "centre", "whole", "rendered"]
    detector: DetectorRecord | None = None
    margin: float | None = Field(default=None, gt=0, le=100)
    rotation: bool = False
    alignment: Literal["points", "box", "none"] = "none"

    @property
    def outdated(self) -> bool:
        """Tell whether the detector of earlier versions made them."""
        return self.detector == OLD_DETECTOR

    def __str__(self) -> str:
        """Return it in words."""
        if self.how == "detected":
            found = "an earlier version's detector" if self.outdated or self.detector is None else _named(self.detector)
            how = f"faces found by {found}"
        else:
            how = {
                "boxes": f"faces by the dataset's {'points' if self.alignment == 'points' else 'boxes'}",
                "centre": "the middle of each image",
                "whole": "whole images as delivered",
                "rendered": "rendered faces",
            }[self.how]
        margin = f", {self.margin:g} times their box" if self.margin is not None else ""
        return f"{how}{margin}{', aligned by five points' if self.alignment == 'points' else ''}"


def from_source(source: str) -> CropRecord | None:
    """Return what the source of a set without a record says, or None if it says nothing."""
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


def clash(one: CropRecord | None, other: CropRecord | None) -> bool:
    """Tell whether two kinds of crops do not go together.

    Nothing is known against crops without a record. Faces that are aligned by five points lie in the same places
    whoever aligned them, unless the points are known to come from different detectors, or from the old one. Other crops
    have to be made alike; images that came cut already count as alike, whole ones and middles of them.
    """
    if one is None or other is None:
        return False
    if one.alignment == other.alignment == "points":
        known = one.detector is not None and other.detector is not None
        return one.outdated != other.outdated or (known and _files(one) != _files(other))
    return _kind(one) != _kind(other)


def _kind(record: CropRecord) -> tuple[object, ...]:
    delivered = record.how in ("centre", "whole")
    how = "delivered" if delivered else record.how
    return how, _files(record), record.margin, record.rotation, record.alignment


def _files(record: CropRecord) -> tuple[str, ...]:
    """Return what decides where a detector puts a face that it finds."""
    found = record.detector
    return () if found is None else (found.name, found.version, found.sha256)


def _named(detector: DetectorRecord) -> str:
    return f"{detector.name} {detector.version}".strip()
