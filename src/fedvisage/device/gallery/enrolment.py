"""Enrol people in a gallery, search for them, and evaluate the search. Attack detection always comes first."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedvisage.base.errors import UserError
from fedvisage.base.progress import format_count
from fedvisage.device.fused import required_threshold
from fedvisage.device.gallery.file import AlreadyEnrolled, NameTaken, NotEnrolled
from fedvisage.device.gallery.records import Face, Person, appearance, mixes_scripts, new_name, normalise_name
from fedvisage.device.gallery.search import Gallery, SearchHit
from fedvisage.device.pipeline import ATTACK, BONA_FIDE, MATCH, NO_MATCH, Checked, CheckedFace, Pipeline
from fedvisage.faces.align import Image
from fedvisage.faces.cropping import detector_of
from fedvisage.faces.detection import Face as DetectedFace
from fedvisage.metrics.similarity import Faces, Features, measurable_rates, normalise

# The engine behind a gallery. Attack detection comes first: an attack has no embedding.


@dataclass(frozen=True)
class EmbeddingModel:
    """The model of some embeddings: its digest, and the minimum similarity of two images of one person."""

    digest: str
    threshold: float
    operating_point: str


class Engine:
    """A pipeline that evaluates every face of a picture, and states the digests of its models.

    ``graph_digests`` has the digests of the running graphs by task, measured when they were opened.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        """Use an open pipeline, whose recognition model needs a threshold."""
        self._pipeline = pipeline
        self.model: EmbeddingModel | None = None
        self.pad_digest = None if pipeline.pad is None else f"sha256:{pipeline.pad.digest}"
        self.detector_digest = f"sha256:{pipeline.detector_digest}"
        opened = (model for model in (pipeline.pad, pipeline.recognition) if model is not None)
        self.graph_digests: Mapping[str, str] = {model.task: f"sha256:{model.graph_digest}" for model in opened}
        if (recognition := pipeline.recognition) is not None:
            point = required_threshold(recognition)
            digest = recognition.digest
            # A gallery whose faces another detector placed counts as one of another model.
            if pipeline.detector != detector_of(recognition.crop_records):
                digest = hashlib.sha256(f"{digest} {pipeline.detector_digest}".encode()).hexdigest()
            self.model = EmbeddingModel(f"sha256:{digest}", point.value, point.operating_point)

    def detect(self, image: Image) -> Sequence[DetectedFace]:
        """Return the faces of a picture (H×W×3, RGB), the largest first."""
        return self._pipeline.detect(image)

    def check(self, image: Image, *, report: bool = False, most: int | None = None, confidence: float = 0.0) -> Checked:
        """Evaluate the ``most`` largest faces of this detector confidence; with ``report``, embed attacks as well."""
        return self._pipeline.check(image, report=report, most=most, confidence=confidence)


def model_of(engine: Engine) -> EmbeddingModel:
    """Return the recognition model; refuse an engine without one."""
    if engine.model is None:
        raise UserError("--recognition", "does not name a recognition model, which is required; give one")
    return engine.model


NO_PAD = "no attack-detection model was given; give one"


@dataclass(frozen=True)
class PersonMatch:
    """A similar person, and the decision at the model's threshold."""

    person: str
    name: str
    similarity: float
    threshold: float
    decision: str
    operating_point: str


@dataclass(frozen=True)
class EnrolmentResult:
    """An enrolled person: the faces used, the refused pictures, and the number of replaced templates.

    ``unlike`` names the pictures whose face matches none of the others at the model's threshold.
    """

    person: Person
    faces: tuple[Face, ...]
    refused: tuple[tuple[str, str], ...]
    replaced: int
    unlike: tuple[str, ...] = ()


def enrol(
    gallery: Gallery,
    engine: Engine,
    collection: str,
    name: str,
    pictures: Iterable[tuple[str, Image]],
    *,
    force: bool = False,
    new: bool | None = None,
) -> EnrolmentResult:
    """Enrol a person with those of the named pictures that show one living face well.

    A face that matches another enrolled person, and a name that looks like another, are refused; ``force`` omits these
    checks. ``new`` requires a person who is not enrolled yet, and ``new=False`` one who is.
    """
    model, usable, refused = model_of(engine), list[tuple[str, CheckedFace]](), list[tuple[str, str]]()
    gallery.collection(collection)
    if not gallery.has(collection, name):
        new_name(name, "person")
    for picture, image in pictures:
        checked = face_to_enrol(engine, image)
        if isinstance(checked, str):
            refused.append((picture, checked))
        else:
            usable.append((picture, checked))
    if not usable:
        picture, reason = refused[0] if refused else ("pictures", "there are none")
        remainder = f", and {format_count(len(refused) - 1, 'more image')} refused" if len(refused) > 1 else ""
        raise NotEnrolled(picture, f"{reason}; nobody was enrolled{remainder}")
    embeddings = np.stack([embedding for _, face in usable if (embedding := face.embedding) is not None])
    scores = [face.pad.score if face.pad else None for _, face in usable]
    matches = (embeddings @ embeddings.T >= model.threshold).sum(axis=1) - 1  # each face matches itself
    unlike = [picture for (picture, _), count in zip(usable, matches.tolist(), strict=True) if count == 0]

    def refuse() -> None:
        if new is False:
            gallery.person(collection, name)
        if new and gallery.has(collection, name):
            raise NameTaken(name, "is already enrolled; add faces to this person")
        if not force:
            if not gallery.has(collection, name):
                _refuse_lookalike(gallery, model, collection, name, embeddings.shape[1])
            _refuse_duplicate(gallery, model, collection, name, embeddings)

    refuse()  # before the transaction, because loading a collection takes a while
    with gallery.transaction():
        refuse()
        person, faces, replaced = gallery.enrol(collection, name, embeddings, model.digest, scores)
    return EnrolmentResult(person, tuple(faces), tuple(refused), replaced, tuple(unlike) if len(usable) > 1 else ())


def _refuse_lookalike(gallery: Gallery, model: EmbeddingModel, collection: str, name: str, size: int) -> None:
    """Refuse a new name that readers may take for another."""
    if mixes_scripts(name):
        raise AlreadyEnrolled(name, "mixes letters of scripts that look alike; correct it, or use force")
    loaded, form = gallery.load(collection, model.digest, size, partial=True), appearance(name)
    if other := next((other for other in list(loaded.names.values()) if appearance(other) == form), None):
        raise AlreadyEnrolled(name, f"looks like the enrolled {other}; add the faces to {other}, or use force")


def _refuse_duplicate(gallery: Gallery, model: EmbeddingModel, collection: str, name: str, faces: Features) -> None:
    """Refuse faces that match a person of another name at the model's threshold."""
    for hits in gallery.search(collection, faces, model.digest, 2, partial=True):
        for match in decide(hits, model):
            if match.decision == MATCH and normalise_name(match.name) != normalise_name(name):
                raise AlreadyEnrolled(
                    name,
                    f"matches {match.name}, who is already enrolled (similarity {match.similarity:+.4f}, threshold "
                    f"{match.threshold:+.4f}); add the faces to {match.name}, or use force for a different person",
                )


def face_to_enrol(engine: Engine, image: Image) -> CheckedFace | str:
    """Return the single living face of a picture, or the reason why it cannot be used for enrolment."""
    if engine.pad_digest is None:
        raise NotEnrolled("--pad", NO_PAD)
    checked = engine.check(image, most=2)
    if len(checked.faces) != 1:
        return "several faces were found" if checked.faces else "no face was found"
    (face,) = checked.faces
    if not face.quality.ok:
        return ", ".join(face.quality.reasons)
    if face.pad is None or face.pad.decision != BONA_FIDE:
        return "it is an attack" if face.pad and face.pad.decision == ATTACK else "attack detection gave no decision"
    return face if face.embedding is not None else "it has no embedding"


def search(gallery: Gallery, engine: Engine, collection: str, face: Features, most: int = 5) -> list[PersonMatch]:
    """Return the people of a collection who are most similar to a face, with a decision each."""
    model = model_of(engine)
    (hits,) = gallery.search(collection, face[None], model.digest, most)
    return decide(hits, model)


def verify(gallery: Gallery, engine: Engine, collection: str, person: str, face: Features) -> PersonMatch:
    """Return the similarity of a face to one person, with a decision."""
    model = model_of(engine)
    (match,) = decide([gallery.similarity(collection, person, face, model.digest)], model)
    return match


def decide(hits: Sequence[SearchHit], model: EmbeddingModel) -> list[PersonMatch]:
    """Decide by the model's threshold; a similarity equal to it is a match."""
    matches = []
    for hit in hits:
        decision = MATCH if hit.similarity >= model.threshold else NO_MATCH
        match = PersonMatch(hit.person, hit.name, hit.similarity, model.threshold, decision, model.operating_point)
        matches.append(match)
    return matches


# Evaluation of a gallery on labelled pictures: TPIR at stated FPIR.


FPIRS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class SearchFigures:
    """Results of searching for the face of every picture; ``not_judged`` counts pictures without a usable face."""

    collection: str
    people: int
    mated: int
    unmated: int
    not_judged: dict[str, int]
    rank_one: float
    tpir_at_fpir: dict[float, float]
    threshold_at_fpir: dict[float, float]
    threshold: float
    """The model's threshold; ``tpir`` and ``fpir`` below are the rates at it."""
    tpir: float
    fpir: float | None

    def as_values(self) -> dict[str, Any]:
        """Return all results as plain values, for programs."""
        rates = {
            name: {f"{rate:g}": value for rate, value in asdict(self)[name].items()}
            for name in ("tpir_at_fpir", "threshold_at_fpir")
        }
        return {**asdict(self), **rates}

    def lines(self) -> list[str]:
        """Return all results as lines, for people."""
        false = "" if self.fpir is None else f", and of {self.fpir:.2%} of searches for strangers somebody"
        return [
            f"{self.people} people in {self.collection}; {self.mated} searches for them, {self.unmated} for strangers",
            *(f"not evaluated: {count} ({reason})" for reason, count in sorted(self.not_judged.items())),
            f"the correct person is first: {self.rank_one:.2%}",
            f"at the model's threshold {self.threshold:+.4f}: finds {self.tpir:.2%}{false}",
            *(
                f"TPIR at FPIR {rate:g}: {value:.2%} (threshold {self.threshold_at_fpir[rate]:+.4f})"
                for rate, value in self.tpir_at_fpir.items()
            ),
        ]


def evaluate(gallery: Gallery, engine: Engine, collection: str, pictures: Iterable[tuple[str, Image]]) -> SearchFigures:
    """Search for the face of every picture, given with its person's name; unknown names count as strangers."""
    # Imported here because only an evaluation needs it.
    from fedvisage.metrics.identification import identify
    from fedvisage.metrics.identification import search as search_all

    embeddings, names, refused = list[Features](), list[str](), Counter[str]()
    for name, image in pictures:
        face = face_to_enrol(engine, image)
        if isinstance(face, str):
            refused[face] += 1
        elif (embedding := face.embedding) is not None:
            embeddings.append(embedding)
            names.append(normalise_name(name))
    if not embeddings:
        raise UserError("probes", f"no image shows a face usable for a search ({dict(refused)})")
    faces = normalise(np.stack(embeddings))
    model = model_of(engine)
    loaded = gallery.load(collection, model.digest, faces.shape[1])
    ids, vectors = loaded.index.all_templates()
    number = {normalise_name(loaded.names[person]): row for row, person in enumerate(ids)}
    # Strangers get numbers after those of the enrolled people.
    strangers = {name: len(number) + index for index, name in enumerate(sorted(set(names) - number.keys()))}
    enrolled = Faces(vectors, np.arange(len(ids), dtype=np.int64))
    queries = np.stack([loaded.form.make_query(face) for face in faces])
    probes = Faces(queries, np.array([(number | strangers)[name] for name in names], np.int64))
    results = search_all(enrolled, probes)
    if not results.mated.any():
        raise UserError("probes", f"show no person of {collection}; name each folder after its person")
    # Convert products of search vectors to cosines, the scale of the model's threshold.
    mate, rival = (
        np.array([loaded.form.similarity(float(vector)) for vector in values[results.mated]])
        for values in (results.mate, results.rival)
    )
    first = mate > rival
    unmated = [loaded.form.similarity(float(vector)) for vector in results.rival[~results.mated]]
    rates = measurable_rates(FPIRS, len(unmated)) if unmated else ()
    tpir, thresholds = dict[float, float](), dict[float, float]()
    if rates:
        (identification,) = identify([enrolled], probes, rates, "nist")
        tpir = identification.tpir
        thresholds = {rate: loaded.form.similarity(value) for rate, value in identification.threshold.items()}
    return SearchFigures(
        collection=collection,
        people=len(ids),
        mated=int(results.mated.sum()),
        unmated=len(unmated),
        not_judged=dict(refused),
        rank_one=float(first.mean()),
        tpir_at_fpir=tpir,
        threshold_at_fpir=thresholds,
        threshold=model.threshold,
        tpir=float((first & (mate >= model.threshold)).mean()),
        fpir=float(np.mean(np.array(unmated) >= model.threshold)) if unmated else None,
    )
