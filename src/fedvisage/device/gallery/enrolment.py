"""At the door of a gallery: who comes in as a new person, and who is it that stands there. Attacks come first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.device.gallery.file import NotEnrolled
from fedvisage.device.gallery.records import Face, Person
from fedvisage.device.gallery.search import Gallery, Hit
from fedvisage.device.pipeline import ATTACK, BONA_FIDE, MATCH, NO_MATCH, Checked, CheckedFace
from fedvisage.faces.detection import Face as DetectedFace
from fedvisage.metrics.similarity import Faces, Features, measurable, unit

# What a gallery asks of whatever finds, judges and embeds faces: a pipeline on a device, or a finished model's.


Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Model:
    """Of which model embeddings are: its digest, and the similarity from which on two are one person."""

    digest: str
    threshold: float
    operating_point: str


class Engine(Protocol):
    """What finds, judges and embeds faces. Attacks come first: a face that is one has no embedding."""

    @property
    def model(self) -> Model | None:
        """The recognition model, if there is one."""

    @property
    def pad_digest(self) -> str | None:
        """The digest of the model that tells attacks, if there is one."""

    @property
    def graph_digests(self) -> Mapping[str, str]:
        """The digests of the graphs that run, measured when they were opened, by task."""

    @property
    def detector_digest(self) -> str:
        """The digest of the detector's networks."""

    def detect(self, image: Image) -> Sequence[DetectedFace]:
        """Find the faces of a picture (H×W×3, RGB), the largest first."""

    def check(self, image: Image, *, report: bool = False) -> Checked:
        """Judge a picture's faces; with ``report`` an attack is embedded as well."""


def model_of(engine: Engine) -> Model:
    """Return the recognition model, without which nobody can be found."""
    if engine.model is None:
        raise UserError("--recognition", "names no model, and without one nobody can be recognised; give one")
    return engine.model


NO_PAD = "no model tells attacks; give one"


@dataclass(frozen=True)
class Match:
    """A person whom a face is like, and whether that is enough."""

    person: str
    name: str
    similarity: float
    threshold: float
    decision: str
    operating_point: str


@dataclass(frozen=True)
class Enrolled:
    """Who was enrolled, with which faces, which pictures were not taken, and how many old templates are gone."""

    person: Person
    faces: tuple[Face, ...]
    refused: tuple[tuple[str, str], ...]
    replaced: int


def enrol(
    gallery: Gallery, engine: Engine, collection: str, name: str, pictures: Iterable[tuple[str, Image]]
) -> Enrolled:
    """Enrol a person with those of the named pictures that show one living face well."""
    model, taken, refused = model_of(engine), list[CheckedFace](), list[tuple[str, str]]()
    gallery.collection(collection)
    for picture, image in pictures:
        found = face_to_enrol(engine, image)
        if isinstance(found, str):
            refused.append((picture, found))
        else:
            taken.append(found)
    if not taken:
        picture, reason = refused[0] if refused else ("pictures", "there are none")
        more = f", and {len(refused) - 1} more pictures were not taken either" if len(refused) > 1 else ""
        raise NotEnrolled(picture, f"{reason}; nobody was enrolled{more}")
    embeddings = np.stack([embedding for one in taken if (embedding := one.embedding) is not None])
    scores = [one.pad.score if one.pad else None for one in taken]
    person, faces, replaced = gallery.enrol(collection, name, embeddings, model.digest, scores)
    return Enrolled(person, tuple(faces), tuple(refused), replaced)


def face_to_enrol(engine: Engine, image: Image) -> CheckedFace | str:
    """Return the one living face of a picture, or why nobody may be enrolled with it."""
    if engine.pad_digest is None:
        raise NotEnrolled("--pad", NO_PAD)
    seen = engine.check(image)
    if len(seen.faces) != 1:
        return "several faces are on it" if seen.faces else "no face was found"
    (face,) = seen.faces
    if not face.quality.ok:
        return ", ".join(face.quality.reasons)
    if face.pad is None or face.pad.decision != BONA_FIDE:
        return "it is an attack" if face.pad and face.pad.decision == ATTACK else "nothing was decided of attacks"
    return face if face.embedding is not None else "it has no embedding"


def search(gallery: Gallery, engine: Engine, collection: str, face: Features, most: int = 5) -> list[Match]:
    """Return who in a collection is most similar to a face, and whether that is enough."""
    model = model_of(engine)
    (hits,) = gallery.search(collection, face[None], model.digest, most)
    return decided(hits, model)


def verify(gallery: Gallery, engine: Engine, collection: str, person: str, face: Features) -> Match:
    """Return whether a face is one person's."""
    model = model_of(engine)
    (match,) = decided([gallery.similarity(collection, person, face, model.digest)], model)
    return match


def decided(hits: Sequence[Hit], model: Model) -> list[Match]:
    """Decide by the model's threshold, which belongs to a match."""
    return [
        Match(one.person, one.name, one.similarity, model.threshold,
              MATCH if one.similarity >= model.threshold else NO_MATCH, model.operating_point)
        for one in hits
    ]  # fmt: skip


# How well a gallery finds its people, and strangers pass: TPIR at stated FPIR, on pictures that say whose they are.


FPIRS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Figures:
    """What searching for every picture's face showed. Pictures that are not judged are counted, and no searches."""

    collection: str
    people: int
    mated: int
    unmated: int
    not_judged: dict[str, int]
    rank_one: float
    tpir_at_fpir: dict[float, float]
    threshold_at_fpir: dict[float, float]
    threshold: float
    """The model's own, and what comes of it:"""
    tpir: float
    fpir: float | None

    def as_values(self) -> dict[str, Any]:
        """Return all as plain values, for programs."""
        rates = {name: {f"{rate:g}": value for rate, value in asdict(self)[name].items()}
                 for name in ("tpir_at_fpir", "threshold_at_fpir")}  # fmt: skip
        return {**asdict(self), **rates}

    def lines(self) -> list[str]:
        """Return all as lines, for people."""
        false = "" if self.fpir is None else f", and of {self.fpir:.2%} of searches for strangers somebody"
        return [
            f"{self.people} people in {self.collection}; {self.mated} searches for them, {self.unmated} for strangers",
            *(f"not judged: {count} ({reason})" for reason, count in sorted(self.not_judged.items())),
            f"the right person is first: {self.rank_one:.2%}",
            f"at the model's threshold {self.threshold:+.4f}: finds {self.tpir:.2%}{false}",
            *(
                f"TPIR at FPIR {rate:g}: {value:.2%} (threshold {self.threshold_at_fpir[rate]:+.4f})"
                for rate, value in self.tpir_at_fpir.items()
            ),
        ]


def evaluate(gallery: Gallery, engine: Engine, collection: str, pictures: Iterable[tuple[str, Image]]) -> Figures:
    """Search for the face of every picture, which comes with its person's name; names that nobody has are strangers."""
    embeddings, names, refused = list[Features](), list[str](), Counter[str]()
    for name, image in pictures:
        found = face_to_enrol(engine, image)
        if isinstance(found, str):
            refused[found] += 1
        elif (embedding := found.embedding) is not None:
            embeddings.append(embedding)
            names.append(name)
    if not embeddings:
        raise UserError("probes", f"no picture shows a face that can be searched for ({dict(refused)})")
    return figures_of(gallery, engine, collection, unit(np.stack(embeddings)), names, dict(refused))


def figures_of(
    gallery: Gallery, engine: Engine, collection: str, faces: Features, names: list[str], refused: dict[str, int]
) -> Figures:
    """Return the figures of faces (a row each) with their people's names."""
    # Here, because it loads what only judging needs.
    from fedvisage.metrics.identification import identify
    from fedvisage.metrics.identification import search as search_all

    model = model_of(engine)
    loaded = gallery.load(collection, model.digest, faces.shape[1])
    ids, vectors = loaded.index.everybody()
    number = {loaded.names[one]: place for place, one in enumerate(ids)}
    strangers = {name: len(number) + place for place, name in enumerate(sorted(set(names) - number.keys()))}
    enrolled = Faces(vectors, np.arange(len(ids), dtype=np.int64))
    asked = np.stack([loaded.form.asked(one) for one in faces])
    probes = Faces(asked, np.array([(number | strangers)[name] for name in names], np.int64))
    found = search_all(enrolled, probes)
    if not found.mated.any():
        raise UserError("probes", f"nobody of {collection} is on them; name folders as the people")
    mate, rival = (
        np.array([loaded.form.similarity(float(one)) for one in values[found.mated]])
        for values in (found.mate, found.rival)
    )
    first = mate > rival
    unmated = [loaded.form.similarity(float(one)) for one in found.rival[~found.mated]]
    rates = measurable(FPIRS, len(unmated)) if unmated else ()
    (said,) = identify([enrolled], probes, rates, "nist") if rates else (None,)
    return Figures(
        collection=collection, people=len(ids), mated=int(found.mated.sum()), unmated=len(unmated),
        not_judged=refused, rank_one=float(first.mean()),
        tpir_at_fpir={} if said is None else said.tpir,
        threshold_at_fpir={} if said is None else {
            rate: loaded.form.similarity(value) for rate, value in said.threshold.items()
        },
        threshold=model.threshold, tpir=float((first & (mate >= model.threshold)).mean()),
        fpir=float(np.mean(np.array(unmated) >= model.threshold)) if unmated else None,
    )  # fmt: skip
