"""The routes of the service's own interface, below /v1. Attacks come first: no face that is one is searched for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from fedvisage.base.version import VERSION
from fedvisage.device.gallery import enrolment
from fedvisage.device.gallery.enrolment import Engine, Image, Match, model_of
from fedvisage.device.gallery.file import Exists
from fedvisage.device.gallery.records import COLLECTION, Collection, Face, Person
from fedvisage.device.pipeline import MATCH, NO_MATCH, CheckedFace
from fedvisage.device.service.guard import REQUEST
from fedvisage.device.service.requests import Asked, Fault, Times, Work, read_asked
from fedvisage.faces.detection import Face as Found

# What the service says of faces, matches and people, as plain values.


Values = dict[str, Any]


def describe_face(face: Found, image: Image) -> Values:
    """Return a face that was only found: its box in pixels and as shares of the picture's sides, and its points."""
    x, y, width, height = (float(one) for one in face.box)
    return {
        "box": _box(x, y, width, height, face.confidence),
        "normalised": _shares(image, x, y, width, height),
        "points": [[round(float(one), 1) for one in point] for point in face.points],
    }


def describe_checked_face(face: CheckedFace, image: Image, *, embedding: bool = False) -> Values:
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


def describe_match(match: Match) -> Values:
    """Return a person who is similar."""
    return {
        "person_id": match.person,
        "name": match.name,
        "similarity": match.similarity,
        "threshold": match.threshold,
        "decision": match.decision,
        "operating_point": match.operating_point,
    }


def describe_person(one: Person, faces: Sequence[Face] = ()) -> Values:
    """Return somebody who is enrolled, with their faces where these are asked for."""
    said: Values = {"id": one.id, "name": one.name, "created": one.created}
    if faces:
        said["faces"] = [asdict(face) for face in faces]
    return said


def describe_collection(one: Collection) -> Values:
    """Return a collection."""
    return asdict(one)


def describe_pipeline(engine: Engine) -> Values:
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


Report = Annotated[Literal["", "report"], Query(description="report: go on with faces that are attacks, too")]
Most = Annotated[int, Query(ge=1, le=100, description="the most people who are named for a face")]

_PICTURE = {"type": "string", "contentEncoding": "base64", "description": "JPEG, PNG, BMP, WebP, TIFF or HEIC"}


def body(*pictures: str, **words: str) -> dict[str, Any]:
    """Return what a route's documentation says of its body."""
    properties: dict[str, Any] = dict.fromkeys(pictures, _PICTURE)
    properties |= {name: {"type": "string", "description": text} for name, text in words.items()}
    schema = {"schema": {"type": "object", "properties": properties}}
    return {"requestBody": {"content": {"application/json": schema, "multipart/form-data": schema}}}


def routes(work: Work) -> APIRouter:
    """Return the routes over an engine and a gallery."""
    router = APIRouter(prefix="/v1")
    _add_state(router, work)
    _add_faces(router, work)
    _add_comparing(router, work)
    _add_collections(router, work)
    _add_people(router, work)
    return router


def _add_state(router: APIRouter, work: Work) -> None:
    @router.get("/health")
    async def health() -> Values:
        """Say that the service answers."""
        return {"status": "ok", "version": VERSION}

    @router.get("/models")
    async def models() -> Values:
        """Say of which models answers are."""
        model = work.engine.model
        recognised = None if model is None else {"threshold": model.threshold, "operating_point": model.operating_point}
        return {"pipeline": describe_pipeline(work.engine), "recognition": recognised}


def _add_faces(router: APIRouter, work: Work) -> None:
    @router.post("/detect", openapi_extra=body("image"))
    async def detect(request: Request) -> Values:
        """Find the faces of a picture."""
        asked = await read_asked(request)

        def some() -> Values:
            times, image = Times(), _image(work, asked)
            times.done("read")
            faces = [describe_face(face, image) for face in work.engine.detect(image)]
            times.done("detect")
            return _reply(request, work, times, faces=faces)

        return await work.do(some)

    @router.post("/pad", openapi_extra=body("image"))
    async def pad(request: Request) -> Values:
        """Say of each face whether it is one of a living person before the camera."""
        return await _judge(request, work)

    @router.post("/embed", openapi_extra=body("image"))
    async def embed(request: Request, pad: Report = "") -> Values:
        """Return each face's embedding; an attack has none, unless it is asked for by ?pad=report."""
        return await _judge(request, work, ready=lambda: model_of(work.engine), embedding=True, report=pad == "report")


def _add_comparing(router: APIRouter, work: Work) -> None:
    @router.post("/compare", openapi_extra=body("image1", "image2"))
    async def compare(request: Request, pad: Report = "") -> Values:
        """Say whether the largest faces of two pictures are one person's."""
        asked, model = await read_asked(request, ("image1", "image2")), model_of(work.engine)

        def some() -> Values:
            times, seen = Times(), list[Values]()
            largest = list[CheckedFace]()
            for name in ("image1", "image2"):
                image = _image(work, asked, name)
                faces = _faces(work, image, report=pad == "report")
                seen.append({"faces": [describe_checked_face(face, image) for face in faces]})
                largest += faces[:1]
            times.done("check")
            embeddings = [face.embedding for face in largest if face.embedding is not None]
            said: Values = {"decision": "no_decision", "similarity": None}
            if len(embeddings) == 2:
                alike = float(embeddings[0] @ embeddings[1])
                said = {"decision": MATCH if alike >= model.threshold else NO_MATCH, "similarity": alike}
            said |= {"threshold": model.threshold, "operating_point": model.operating_point}
            return _reply(request, work, times, images=seen, **said)

        return await work.do(some)

    @router.post("/collections/{collection}/search", openapi_extra=body("image"))
    async def search(request: Request, collection: str, limit: Most = 5, pad: Report = "") -> Values:
        """Say who in a collection each face of a picture is most similar to."""
        gallery = work.people()

        def matches(face: CheckedFace) -> Values:
            if face.embedding is None:
                return {"matches": []}
            found = enrolment.search(gallery, work.engine, collection, face.embedding, limit)
            return {"matches": [describe_match(one) for one in found]}

        def ready() -> None:
            gallery.collection(collection)
            model_of(work.engine)

        return await _judge(request, work, matches, ready, report=pad == "report")

    @router.post("/verify", openapi_extra=body("image", person="name or id", collection="default, if not given"))
    async def verify(request: Request, pad: Report = "") -> Values:
        """Say whether the largest face of a picture is one person's."""
        asked, gallery = await read_asked(request), work.people()
        wanted, collection = asked.word("person"), asked.word("collection", COLLECTION)

        def some() -> Values:
            times, image = Times(), _image(work, asked)
            times.done("read")
            one = gallery.person(collection, wanted)
            faces = _faces(work, image, report=pad == "report")
            times.done("check")
            said: Values = {"decision": "no_decision", "match": None}
            if faces and (embedding := faces[0].embedding) is not None:
                match = enrolment.verify(gallery, work.engine, collection, one.id, embedding)
                said = {"decision": match.decision, "match": describe_match(match)}
            times.done("search")
            return _reply(request, work, times, faces=[describe_checked_face(face, image) for face in faces], **said)

        return await work.do(some)


def _add_collections(router: APIRouter, work: Work) -> None:
    @router.get("/collections")
    async def collections() -> Values:
        """List the collections."""
        found = await work.do(work.people().collections)
        return {"collections": [describe_collection(one) for one in found]}

    @router.post("/collections", status_code=201, openapi_extra=body(name="of the collection", renewable="true, false"))
    async def add(request: Request) -> Values:
        """Add a collection."""
        asked, gallery = await read_asked(request), work.people()
        name, renewable = asked.word("name"), asked.word("renewable", "false") == "true"
        return describe_collection(await work.do(lambda: gallery.add_collection(name, renewable=renewable)))

    @router.get("/collections/{collection}")
    async def one(collection: str) -> Values:
        """Say what a collection is."""
        gallery = work.people()
        return describe_collection(await work.do(lambda: gallery.collection(collection)))

    @router.delete("/collections/{collection}")
    async def remove(collection: str) -> Values:
        """Delete a collection with everybody in it."""
        gallery = work.people()
        await work.do(lambda: gallery.remove_collection(collection))
        return {"deleted": collection}


def _add_people(router: APIRouter, work: Work) -> None:
    @router.get("/collections/{collection}/persons")
    async def persons(collection: str) -> Values:
        """List who is enrolled."""
        gallery = work.people()
        return {"persons": [describe_person(one) for one in await work.do(lambda: gallery.people(collection))]}

    @router.post("/collections/{collection}/persons", status_code=201, openapi_extra=body("image", name="whose it is"))
    async def enrol(request: Request, collection: str) -> Values:
        """Enrol a person with a picture of one living face."""
        asked, gallery = await read_asked(request), work.people()
        name = asked.word("name")

        def some() -> Values:
            if gallery.has(collection, name):
                raise Exists(name, "is enrolled already; add faces to them")
            return _enrolled(work, asked, collection, name)

        return await work.do(some)

    @router.get("/collections/{collection}/persons/{person}")
    async def one(collection: str, person: str) -> Values:
        """Say who somebody is, and which faces they have."""
        gallery = work.people()
        return await work.do(
            lambda: describe_person(gallery.person(collection, person), gallery.faces(collection, person))
        )

    @router.delete("/collections/{collection}/persons/{person}")
    async def remove(collection: str, person: str) -> Values:
        """Delete a person: their key and templates are overwritten."""
        gallery = work.people()
        return {"deleted": (await work.do(lambda: gallery.remove(collection, person))).id}

    @router.post("/collections/{collection}/persons/{person}/faces", status_code=201, openapi_extra=body("image"))
    async def add(request: Request, collection: str, person: str) -> Values:
        """Add a face to a person."""
        asked, gallery = await read_asked(request), work.people()
        return await work.do(lambda: _enrolled(work, asked, collection, gallery.person(collection, person).name))

    @router.delete("/collections/{collection}/persons/{person}/faces/{face}")
    async def remove_face(collection: str, person: str, face: str) -> Values:
        """Delete one face of a person."""
        gallery = work.people()

        def some() -> Values:
            if gallery.owner(collection, face).id != gallery.person(collection, person).id:
                raise Fault(404, "not_found", "this person has no face of this id")
            gallery.remove_face(collection, face)
            return {"deleted": face}

        return await work.do(some)


async def _judge(
    request: Request,
    work: Work,
    more: Callable[[CheckedFace], Values] = lambda face: {},
    ready: Callable[[], object] = lambda: None,
    *,
    embedding: bool = False,
    report: bool = False,
) -> Values:
    """Judge the faces of a picture, if all is ready for it, and say more of each."""
    asked = await read_asked(request)

    def some() -> Values:
        ready()
        times, image = Times(), _image(work, asked)
        times.done("read")
        seen = _faces(work, image, report=report)
        times.done("check")
        faces = [{**describe_checked_face(face, image, embedding=embedding), **more(face)} for face in seen]
        times.done("search")
        return _reply(request, work, times, faces=faces)

    return await work.do(some)


def _image(work: Work, asked: Asked, name: str = "image") -> Image:
    return asked.picture(work.limits.pixels, name, "file")


def _faces(work: Work, image: Image, *, report: bool) -> list[CheckedFace]:
    faces = list(work.engine.check(image, report=report).faces)
    for face in faces:
        work.counts.decided("unjudged" if face.pad is None else face.pad.decision)
    return faces


def _enrolled(work: Work, asked: Asked, collection: str, name: str) -> Values:
    done = enrolment.enrol(work.people(), work.engine, collection, name, [("image", _image(work, asked))])
    return {**describe_person(done.person, done.faces), "replaced": done.replaced}


def _reply(request: Request, work: Work, times: Times, **said: Any) -> Values:
    """Return an answer with its request's id, its models, and how long it took."""
    return {
        "request_id": request.scope[REQUEST], **said, "pipeline": describe_pipeline(work.engine),
        "execution_ms": times.values,
    }  # fmt: skip
