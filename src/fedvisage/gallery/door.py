"""At the door of a gallery: who comes in as a new person, and who is it that stands there. Attacks come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedvisage.device.checked import ATTACK, BONA_FIDE, MATCH, NO_MATCH, CheckedFace
from fedvisage.gallery.engine import Engine, Image, Model, model_of
from fedvisage.gallery.records import Face, Person
from fedvisage.gallery.refusals import NotEnrolled
from fedvisage.gallery.search import Gallery, Hit
from fedvisage.metrics.similarity import Features

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
