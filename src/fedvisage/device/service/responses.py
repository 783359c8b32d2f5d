"""The schemas of the service's responses, for OpenAPI; each response is checked against its schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

PadDecision = Literal["bona_fide", "attack", "no_decision"]
MatchDecision = Literal["match", "no_match", "no_decision"]


class _Response(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Health(_Response):
    """The state and version of the service."""

    status: Literal["ok"]
    version: str


class PipelineDigests(_Response):
    """The digests of the models behind a response."""

    pad: str | None
    recognition: str | None
    detector: str
    graphs: dict[str, str]


class OperatingPoint(_Response):
    """A threshold, and the rule that chose it."""

    threshold: float
    operating_point: str


class Models(_Response):
    """The models of the service."""

    pipeline: PipelineDigests
    recognition: OperatingPoint | None


class Box(_Response):
    """A face's place in pixels, or as shares of the picture's sides, then without a confidence."""

    x: float
    y: float
    width: float
    height: float
    confidence: float = 0.0


class PadResult(OperatingPoint):
    """The decision of attack detection."""

    decision: PadDecision
    score: float | None
    notes: list[str] = []
    """Why the decision is less certain, such as little context around the face."""


class Match(OperatingPoint):
    """A similar person."""

    person_id: str
    name: str
    similarity: float
    decision: MatchDecision


class Quality(_Response):
    """The suitability of a face for evaluation, with the reasons against it."""

    ok: bool
    reasons: list[str]


class DetectedFace(_Response):
    """A face with its five points."""

    box: Box
    normalised: Box
    points: list[list[float]]


class CheckedFace(_Response):
    """An evaluated face; only some routes return an embedding or matches."""

    box: Box
    normalised: Box
    pad: PadResult | None
    quality: Quality
    embedding: list[float] | None = None
    matches: list[Match] = []


class CheckedPicture(_Response):
    """The evaluated faces of a picture, the largest first, and the number of others."""

    faces: list[CheckedFace]
    left_out: int


class Reply(_Response):
    """The fields of every response about a picture."""

    request_id: str
    pipeline: PipelineDigests
    execution_ms: dict[str, float]


class Detection(Reply):
    """The faces of a picture."""

    faces: list[DetectedFace]


class Evaluation(Reply, CheckedPicture):
    """The evaluated faces of a picture."""


class Averaged(Reply):
    """The decision on one face by the mean log-odds of several frames, with the number of frames in the mean."""

    decision: PadDecision
    reasons: list[str]
    """Why there is no decision."""
    pad: PadResult | None
    frames: int
    images: list[CheckedPicture]


class Comparison(Reply, OperatingPoint):
    """The comparison of two pictures."""

    images: list[CheckedPicture]
    decision: MatchDecision
    similarity: float | None


class Verification(Evaluation):
    """The comparison of a picture with a person."""

    decision: MatchDecision
    match: Match | None


class Collection(_Response):
    """A collection."""

    name: str
    created: str
    people: int
    renewable: bool


class Collections(_Response):
    """All collections."""

    collections: list[Collection]


class Deleted(_Response):
    """The name or id of what was deleted."""

    deleted: str


class EnrolledFace(_Response):
    """A face of a person."""

    id: str
    person: str
    model: str
    created: str
    pad_score: float | None


class Nonce(_Response):
    """A nonce, and the seconds for which it is valid."""

    nonce: str
    seconds: float


class Person(_Response):
    """A person, with their faces if one person was requested."""

    id: str
    name: str
    created: str
    faces: list[EnrolledFace] = []


class Persons(_Response):
    """The people of a collection."""

    persons: list[Person]


class Enrolment(Person):
    """An enrolled person, and the number of replaced templates of an earlier model."""

    replaced: int


class Error(_Response):
    """An error: a code for programs, a line for people, and details."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorReply(_Response):
    """The body of every error."""

    error: Error
    request_id: str


# CompreFace's forms.


class CompreFaceBox(_Response):
    """A box by its corners."""

    probability: float
    x_min: int
    y_min: int
    x_max: int
    y_max: int


class Liveness(_Response):
    """The decision of attack detection."""

    probability: float | None
    decision: PadDecision


class CompreFaceFace(_Response):
    """A face; only some routes return a subject, subjects or a similarity."""

    box: CompreFaceBox
    liveness: Liveness | None
    subjects: list[Subject] = []
    subject: str = ""
    similarity: float | None = None


class Subject(_Response):
    """A person, with the similarity to a face if there is one."""

    subject: str
    similarity: float = 0.0


class CompreFaceFaces(_Response):
    """The faces of a picture."""

    result: list[CompreFaceFace]


class PictureComparison(_Response):
    """The largest face of one picture, and the faces of another with their similarity to it."""

    source_image_face: CompreFaceFace | None
    face_matches: list[CompreFaceFace]


class PictureComparisons(_Response):
    """The comparison of two pictures."""

    result: list[PictureComparison]


class Subjects(_Response):
    """The names of all people."""

    subjects: list[str]


class Example(_Response):
    """An enrolled face."""

    image_id: str
    subject: str


class Examples(_Response):
    """Enrolled faces, on one page."""

    faces: list[Example]
    total_elements: int
    page_number: int
    total_pages: int


class DeletedCount(_Response):
    """The number of deleted faces."""

    deleted: int
