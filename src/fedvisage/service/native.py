"""The routes of the service's own interface, below /v1. Attacks come first: no face that is one is searched for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from fedvisage.device.checked import MATCH, NO_MATCH, CheckedFace
from fedvisage.gallery import door
from fedvisage.gallery.engine import Image, model_of
from fedvisage.gallery.records import COLLECTION
from fedvisage.gallery.refusals import Exists
from fedvisage.service import replies
from fedvisage.service.asked import Asked, read_asked
from fedvisage.service.faults import Fault
from fedvisage.service.guarding import REQUEST
from fedvisage.service.replies import Values
from fedvisage.service.work import Times, Work
from fedvisage.version import VERSION

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
        return {"pipeline": replies.pipeline(work.engine), "recognition": recognised}


def _add_faces(router: APIRouter, work: Work) -> None:
    @router.post("/detect", openapi_extra=body("image"))
    async def detect(request: Request) -> Values:
        """Find the faces of a picture."""
        asked = await read_asked(request)

        def some() -> Values:
            times, image = Times(), _image(work, asked)
            times.done("read")
            faces = [replies.found(face, image) for face in work.engine.detect(image)]
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
                seen.append({"faces": [replies.judged(face, image) for face in faces]})
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
            found = door.search(gallery, work.engine, collection, face.embedding, limit)
            return {"matches": [replies.matched(one) for one in found]}

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
                match = door.verify(gallery, work.engine, collection, one.id, embedding)
                said = {"decision": match.decision, "match": replies.matched(match)}
            times.done("search")
            return _reply(request, work, times, faces=[replies.judged(face, image) for face in faces], **said)

        return await work.do(some)


def _add_collections(router: APIRouter, work: Work) -> None:
    @router.get("/collections")
    async def collections() -> Values:
        """List the collections."""
        found = await work.do(work.people().collections)
        return {"collections": [replies.collection(one) for one in found]}

    @router.post("/collections", status_code=201, openapi_extra=body(name="of the collection", renewable="true, false"))
    async def add(request: Request) -> Values:
        """Add a collection."""
        asked, gallery = await read_asked(request), work.people()
        name, renewable = asked.word("name"), asked.word("renewable", "false") == "true"
        return replies.collection(await work.do(lambda: gallery.add_collection(name, renewable=renewable)))

    @router.get("/collections/{collection}")
    async def one(collection: str) -> Values:
        """Say what a collection is."""
        gallery = work.people()
        return replies.collection(await work.do(lambda: gallery.collection(collection)))

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
        return {"persons": [replies.person(one) for one in await work.do(lambda: gallery.people(collection))]}

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
            lambda: replies.person(gallery.person(collection, person), gallery.faces(collection, person))
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
        faces = [{**replies.judged(face, image, embedding=embedding), **more(face)} for face in seen]
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
    done = door.enrol(work.people(), work.engine, collection, name, [("image", _image(work, asked))])
    return {**replies.person(done.person, done.faces), "replaced": done.replaced}


def _reply(request: Request, work: Work, times: Times, **said: Any) -> Values:
    """Return an answer with its request's id, its models, and how long it took."""
    return {
        "request_id": request.scope[REQUEST], **said, "pipeline": replies.pipeline(work.engine),
        "execution_ms": times.values,
    }  # fmt: skip
