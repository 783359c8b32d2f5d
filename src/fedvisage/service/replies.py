"""What the service says of faces, matches and people, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedvisage.device.checked import CheckedFace
from fedvisage.faces.detection import Face as Found
from fedvisage.gallery.door import Match
from fedvisage.gallery.engine import Engine, Image
from fedvisage.gallery.records import Collection, Face, Person

Values = dict[str, Any]


def found(face: Found, image: Image) -> Values:
    """Return a face that was only found: its box in pixels and as shares of the picture's sides, and its points."""
    x, y, width, height = (float(one) for one in face.box)
    return {
        "box": _box(x, y, width, height, face.confidence),
        "normalised": _shares(image, x, y, width, height),
        "points": [[round(float(one), 1) for one in point] for point in face.points],
    }


def judged(face: CheckedFace, image: Image, *, embedding: bool = False) -> Values:
    """Return a face that was judged; its embedding only where that is what was asked for."""
    box, pad = face.box, face.pad
    said: Values = {
        "box": _box(box.x, box.y, box.width, box.height, box.confidence),
        "normalised": _shares(image, box.x, box.y, box.width, box.height),
        "pad": None if pad is None else {
            "decision": pad.decision, "score": pad.score, "threshold": pad.threshold,
            "operating_point": pad.operating_point,
        },
        "quality": {"ok": face.quality.ok, "reasons": list(face.quality.reasons)},
    }  # fmt: skip
    if embedding:
        said["embedding"] = None if face.embedding is None else [float(one) for one in face.embedding]
    return said


def matched(match: Match) -> Values:
    """Return a person who is similar."""
    return {
        "person_id": match.person,
        "name": match.name,
        "similarity": match.similarity,
        "threshold": match.threshold,
        "decision": match.decision,
        "operating_point": match.operating_point,
    }


def person(one: Person, faces: Sequence[Face] = ()) -> Values:
    """Return somebody who is enrolled, with their faces where these are asked for."""
    said: Values = {"id": one.id, "name": one.name, "created": one.created}
    if faces:
        said["faces"] = [asdict(face) for face in faces]
    return said


def collection(one: Collection) -> Values:
    """Return a collection."""
    return asdict(one)


def pipeline(engine: Engine) -> Values:
    """Return of which models an answer is."""
    return {
        "pad": engine.pad_digest,
        "recognition": None if engine.model is None else engine.model.digest,
        "detector": engine.detector_digest,
        "graphs": dict(engine.graph_digests),
    }


def _box(x: float, y: float, width: float, height: float, confidence: float) -> Values:
    values = {"x": x, "y": y, "width": width, "height": height}
    return {**{name: round(value, 1) for name, value in values.items()}, "confidence": round(confidence, 6)}


def _shares(image: Image, x: float, y: float, width: float, height: float) -> Values:
    high, wide = image.shape[:2]
    values = {"x": x / wide, "y": y / high, "width": width / wide, "height": height / high}
    return {name: round(value, 5) for name, value in values.items()}
