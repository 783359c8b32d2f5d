"""Routes of the service's own API, below /v1. Attack detection comes first: no search is made for an attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AfterValidator, BaseModel

from fedvisage.base.version import VERSION
from fedvisage.device.gallery import enrolment
from fedvisage.device.gallery.enrolment import Engine, PersonMatch, model_of
from fedvisage.device.gallery.records import COLLECTION, Collection, Face, Person
from fedvisage.device.pipeline import MATCH, NO_MATCH, Box, Checked, CheckedFace
from fedvisage.device.service import responses
from fedvisage.device.service.access import ADMIN, CALLER, CHECK, ENROL, needs
from fedvisage.device.service.audit import record_person
from fedvisage.device.service.guard import REQUEST
from fedvisage.device.service.nonces import LIFETIME, Nonces, client_of, needs_nonce
from fedvisage.device.service.requests import (
    CHARGE,
    Fault,
    Picture,
    RequestContent,
    ServiceContext,
    StepTimes,
    read_content,
    slashes_of,
)
from fedvisage.faces.detection import Face as Found

# Descriptions of faces, matches and people as plain values.


Values = dict[str, Any]


def describe_face(face: Found, picture: Picture) -> Values:
    """Return a detected face: its box in pixels and as shares of the picture's sides, and its points."""
    x, y, width, height = (float(value) for value in face.box)
    return {
        **_describe_box(Box(x, y, width, height, face.confidence), picture),
        "points": [[round(float(value) * picture.divisor, 1) for value in point] for point in face.points],
    }


def describe_checked_face(face: CheckedFace, picture: Picture, *, embedding: bool = False) -> Values:
    """Return an evaluated face; its embedding only if ``embedding`` is set."""
    pad = face.pad
    values: Values = {
        **_describe_box(face.box, picture),
        "pad": None
        if pad is None
        else {
            "decision": pad.decision,
            "score": pad.score,
            "threshold": pad.threshold,
            "operating_point": pad.operating_point,
        },
        "quality": {"ok": face.quality.ok, "reasons": list(face.quality.reasons)},
    }
    if embedding:
        values["embedding"] = None if face.embedding is None else [float(value) for value in face.embedding]
    return values


def describe_match(match: PersonMatch) -> Values:
    """Return a similar person."""
    return {
        "person_id": match.person,
        "name": match.name,
        "similarity": match.similarity,
        "threshold": match.threshold,
        "decision": match.decision,
        "operating_point": match.operating_point,
    }


def describe_person(person: Person, faces: Sequence[Face] = ()) -> Values:
    """Return an enrolled person, with faces if any are given."""
    values: Values = {"id": person.id, "name": person.name, "created": person.created}
    if faces:
        values["faces"] = [asdict(face) for face in faces]
    return values


def describe_collection(collection: Collection) -> Values:
    """Return a collection."""
    return asdict(collection)


def describe_pipeline(engine: Engine) -> Values:
    """Return the digests of the models behind a response."""
    return {
        "pad": engine.pad_digest,
        "recognition": None if engine.model is None else engine.model.digest,
        "detector": engine.detector_digest,
        "graphs": dict(engine.graph_digests),
    }


def _describe_box(box: Box, picture: Picture) -> Values:
    """Return a box in pixels of the picture as sent, and as shares of its sides."""
    high, wide = picture.image.shape[:2]
    sides = {"x": (box.x, wide), "y": (box.y, high), "width": (box.width, wide), "height": (box.height, high)}
    pixels = {name: round(value * picture.divisor, 1) for name, (value, _) in sides.items()}
    shares = {name: round(value / side, 5) for name, (value, side) in sides.items()}
    return {"box": {**pixels, "confidence": round(box.confidence, 6)}, "normalised": shares}


def _allows_report(
    request: Request, pad: Annotated[Literal["", "report"], Query(description="report: continue with attacks")] = ""
) -> bool:
    """Return whether a request continues with faces that are attacks, which needs the scope admin."""
    if pad == "report":
        request.scope[CALLER].require(ADMIN)
    return pad == "report"


Report = Annotated[bool, Depends(_allows_report)]
PathName = Annotated[str, AfterValidator(slashes_of)]
"""A name in a path, which may contain slashes."""

Most = Annotated[int, Query(ge=1, le=100, description="maximum number of people per face")]

_PICTURE = {"type": "string", "contentEncoding": "base64", "description": "JPEG, PNG, BMP, WebP, TIFF or HEIC"}


FORCE = "true: enrol even if the face matches a person of another name"


def returns(model: type[BaseModel]) -> dict[str, Any]:
    """Return the arguments of a route whose response has a schema."""
    return {
        "response_model": model,
        "response_model_exclude_unset": True,
        "responses": {"default": {"model": responses.ErrorReply, "description": "an error"}},
    }


def body(*pictures: str, **words: str) -> dict[str, Any]:
    """Return the OpenAPI schema of a route's body."""
    properties: dict[str, Any] = dict.fromkeys(pictures, _PICTURE)
    properties |= {name: {"type": "string", "description": text} for name, text in words.items()}
    schema = {"schema": {"type": "object", "properties": properties}}
    return {"requestBody": {"content": {"application/json": schema, "multipart/form-data": schema}}}


def routes(work: ServiceContext, nonces: Nonces | None = None) -> APIRouter:
    """Return the routes for an engine and a gallery; with ``nonces``, enrolment from other machines needs one."""
    router = APIRouter(prefix="/v1")
    _add_state(router, work)
    _add_faces(router, work)
    _add_comparing(router, work)
    _add_collections(router, work)
    _add_people(router, work, nonces)
    return router


def _add_state(router: APIRouter, work: ServiceContext) -> None:
    @router.get("/health", **returns(responses.Health))
    async def health() -> Values:
        """Report that the service is running."""
        return {"status": "ok", "version": VERSION}

    @router.get("/models", **returns(responses.Models), dependencies=[needs(CHECK)])
    async def models() -> Values:
        """Report the models of the service."""
        model = work.engine.model
        recognised = None if model is None else {"threshold": model.threshold, "operating_point": model.operating_point}
        return {"pipeline": describe_pipeline(work.engine), "recognition": recognised}


def _add_faces(router: APIRouter, work: ServiceContext) -> None:
    @router.post("/detect", **returns(responses.Detection), dependencies=[needs(CHECK)], openapi_extra=body("image"))
    async def detect(request: Request) -> Values:
        """Detect the faces of a picture."""
        content = await read_content(request)

        def some() -> Values:
            times, picture = StepTimes(), _picture(work, content)
            times.record_step("read")
            faces = [describe_face(face, picture) for face in work.engine.detect(picture.image)]
            times.record_step("detect")
            return _reply(request, work, times, faces=faces)

        return await work.do(some)

    @router.post("/pad", **returns(responses.Evaluation), dependencies=[needs(CHECK)], openapi_extra=body("image"))
    async def pad(request: Request) -> Values:
        """Decide for each face whether it is a living person in front of the camera."""
        return await _evaluate_picture(request, work)

    @router.post("/embed", **returns(responses.Evaluation), dependencies=[needs(CHECK)], openapi_extra=body("image"))
    async def embed(request: Request, report: Report) -> Values:
        """Return the embedding of each face; attacks have none, except with ?pad=report."""
        return await _evaluate_picture(
            request, work, ready=lambda: model_of(work.engine), embedding=True, report=report
        )


def _add_comparing(router: APIRouter, work: ServiceContext) -> None:
    @router.post(
        "/compare", **returns(responses.Comparison), dependencies=[needs(CHECK)], openapi_extra=body("image1", "image2")
    )
    async def compare(request: Request, report: Report) -> Values:
        """Decide whether the largest faces of two pictures belong to one person."""
        content, model = await read_content(request, ("image1", "image2")), model_of(work.engine)

        def some() -> Values:
            times, images = StepTimes(), list[Values]()
            largest = list[CheckedFace]()
            for name in ("image1", "image2"):
                picture = _picture(work, content, name)
                checked = check_faces(request, work, picture, report=report)
                images.append(_describe_checked(checked, picture))
                largest += checked.faces[:1]
            times.record_step("check")
            embeddings = [face.embedding for face in largest if face.embedding is not None]
            result: Values = {"decision": "no_decision", "similarity": None}
            if len(embeddings) == 2:
                alike = float(embeddings[0] @ embeddings[1])
                result = {"decision": MATCH if alike >= model.threshold else NO_MATCH, "similarity": alike}
            result |= {"threshold": model.threshold, "operating_point": model.operating_point}
            return _reply(request, work, times, images=images, **result)

        return await work.do(some)

    @router.post(
        "/collections/{collection}/search",
        **returns(responses.Evaluation),
        dependencies=[needs(CHECK)],
        openapi_extra=body("image"),
    )
    async def search(request: Request, collection: PathName, report: Report, limit: Most = 5) -> Values:
        """Return the most similar people of a collection for each face of a picture."""
        gallery = work.people()

        def matches(face: CheckedFace) -> Values:
            if face.embedding is None:
                return {"matches": []}
            hits = enrolment.search(gallery, work.engine, collection, face.embedding, limit)
            return {"matches": [describe_match(hit) for hit in hits]}

        def ready() -> None:
            gallery.collection(collection)
            model_of(work.engine)

        return await _evaluate_picture(request, work, matches, ready, report=report)

    @router.post(
        "/verify",
        **returns(responses.Verification),
        dependencies=[needs(CHECK)],
        openapi_extra=body("image", person="name or id", collection="default, if not given"),
    )
    async def verify(request: Request, report: Report) -> Values:
        """Compare the largest face of a picture with one person."""
        content, gallery = await read_content(request), work.people()
        name, collection = content.word("person"), content.word("collection", COLLECTION)

        def some() -> Values:
            times, picture = StepTimes(), _picture(work, content)
            times.record_step("read")
            person = gallery.person(collection, name)
            record_person(request, collection, person.id)
            checked = check_faces(request, work, picture, report=report)
            times.record_step("check")
            result: Values = {"decision": "no_decision", "match": None}
            if checked.faces and (embedding := checked.faces[0].embedding) is not None:
                match = enrolment.verify(gallery, work.engine, collection, person.id, embedding)
                result = {"decision": match.decision, "match": describe_match(match)}
            times.record_step("search")
            return _reply(request, work, times, **_describe_checked(checked, picture), **result)

        return await work.do(some)


def _add_collections(router: APIRouter, work: ServiceContext) -> None:
    @router.get("/collections", **returns(responses.Collections), dependencies=[needs(CHECK)])
    async def collections() -> Values:
        """List the collections."""
        listed = await work.do(work.people().collections)
        return {"collections": [describe_collection(collection) for collection in listed]}

    @router.post(
        "/collections",
        **returns(responses.Collection),
        dependencies=[needs(ADMIN)],
        status_code=201,
        openapi_extra=body(name="of the collection", renewable="true, false"),
    )
    async def add(request: Request) -> Values:
        """Add a collection."""
        content, gallery = await read_content(request), work.people()
        name, renewable = content.word("name"), content.word("renewable", "false") == "true"
        return describe_collection(await work.do(lambda: gallery.add_collection(name, renewable=renewable)))

    @router.get("/collections/{collection}", **returns(responses.Collection), dependencies=[needs(CHECK)])
    async def one(collection: PathName) -> Values:
        """Describe a collection."""
        gallery = work.people()
        return describe_collection(await work.do(lambda: gallery.collection(collection)))

    @router.delete("/collections/{collection}", **returns(responses.Deleted), dependencies=[needs(ADMIN)])
    async def remove(collection: PathName) -> Values:
        """Delete a collection with all its people."""
        gallery = work.people()
        await work.do(lambda: gallery.remove_collection(collection))
        return {"deleted": collection}


def _add_people(router: APIRouter, work: ServiceContext, nonces: Nonces | None) -> None:
    @router.post("/nonces", **returns(responses.Nonce), dependencies=[needs(ENROL)], status_code=201)
    async def nonce(request: Request) -> Values:
        """Issue a nonce, which admits one enrolment of this client."""
        return {"nonce": (nonces or Nonces()).issue(client_of(request)), "seconds": LIFETIME}

    @router.get("/collections/{collection}/persons", **returns(responses.Persons), dependencies=[needs(ENROL)])
    async def persons(collection: PathName) -> Values:
        """List the enrolled people."""
        gallery = work.people()
        return {"persons": [describe_person(person) for person in await work.do(lambda: gallery.people(collection))]}

    @router.post(
        "/collections/{collection}/persons",
        **returns(responses.Enrolment),
        dependencies=[needs(ENROL), needs_nonce(nonces)],
        status_code=201,
        openapi_extra=body("image", name="the person's name", force=FORCE),
    )
    async def enrol(request: Request, collection: PathName) -> Values:
        """Enrol a person with a picture of one living face."""
        content = await read_content(request)
        name = content.word("name")
        return await work.do(lambda: _enrol_person(request, work, content, collection, name, new=True))

    @router.get("/collections/{collection}/persons/{person}", **returns(responses.Person), dependencies=[needs(ENROL)])
    async def one(request: Request, collection: PathName, person: PathName) -> Values:
        """Describe a person and their faces."""
        gallery = work.people()

        def some() -> Values:
            owner = gallery.person(collection, person)
            record_person(request, collection, owner.id)
            return describe_person(owner, gallery.faces(collection, owner.id))

        return await work.do(some)

    @router.delete(
        "/collections/{collection}/persons/{person}", **returns(responses.Deleted), dependencies=[needs(ADMIN)]
    )
    async def remove(request: Request, collection: PathName, person: PathName) -> Values:
        """Delete a person; their key and templates are overwritten."""
        gallery = work.people()
        removed = await work.do(lambda: gallery.remove(collection, person))
        record_person(request, collection, removed.id)
        return {"deleted": removed.id}

    @router.post(
        "/collections/{collection}/persons/{person}/faces",
        **returns(responses.Enrolment),
        dependencies=[needs(ENROL), needs_nonce(nonces)],
        status_code=201,
        openapi_extra=body("image", force=FORCE),
    )
    async def add(request: Request, collection: PathName, person: PathName) -> Values:
        """Add a face to a person."""
        content, gallery = await read_content(request), work.people()

        def some() -> Values:
            name = gallery.person(collection, person).name
            return _enrol_person(request, work, content, collection, name, new=False)

        return await work.do(some)

    @router.delete(
        "/collections/{collection}/persons/{person}/faces/{face}",
        **returns(responses.Deleted),
        dependencies=[needs(ADMIN)],
    )
    async def remove_face(request: Request, collection: PathName, person: PathName, face: str) -> Values:
        """Delete one face of a person."""
        gallery = work.people()

        def some() -> Values:
            owner = gallery.person(collection, person)
            record_person(request, collection, owner.id)
            if gallery.owner(collection, face).id != owner.id:
                raise Fault(404, "not_found", "this person has no face with this id")
            gallery.remove_face(collection, face)
            return {"deleted": face}

        return await work.do(some)


async def _evaluate_picture(
    request: Request,
    work: ServiceContext,
    more: Callable[[CheckedFace], Values] = lambda face: {},
    ready: Callable[[], object] = lambda: None,
    *,
    embedding: bool = False,
    report: bool = False,
) -> Values:
    """Evaluate the faces of a picture after calling ``ready``; ``more`` adds values to each face."""
    content = await read_content(request)

    def some() -> Values:
        ready()
        times, picture = StepTimes(), _picture(work, content)
        times.record_step("read")
        checked = check_faces(request, work, picture, report=report)
        times.record_step("check")
        faces = _describe_checked(checked, picture, more, embedding=embedding)
        times.record_step("search")
        return _reply(request, work, times, **faces)

    return await work.do(some)


def _picture(work: ServiceContext, asked: RequestContent, name: str = "image") -> Picture:
    return asked.picture(work.limits.pixels, name, "file")


def check_faces(
    request: Request,
    work: ServiceContext,
    picture: Picture,
    *,
    report: bool = False,
    most: int = 0,
    confidence: float = 0.0,
) -> Checked:
    """Evaluate the largest faces of a picture, charge the further ones to the caller, and count the decisions."""
    limit = min(most or work.limits.faces, work.limits.faces)
    checked = work.engine.check(picture.image, report=report, most=limit, confidence=confidence)
    request.scope[CHARGE](max(0, len(checked.faces) - 1))
    for face in checked.faces:
        work.counts.count_decision("unjudged" if face.pad is None else face.pad.decision)
    return checked


def _describe_checked(
    checked: Checked,
    picture: Picture,
    more: Callable[[CheckedFace], Values] = lambda face: {},
    *,
    embedding: bool = False,
) -> Values:
    faces = [{**describe_checked_face(face, picture, embedding=embedding), **more(face)} for face in checked.faces]
    return {"faces": faces, "left_out": checked.left_out}


def _enrol_person(
    request: Request, work: ServiceContext, asked: RequestContent, collection: str, name: str, *, new: bool
) -> Values:
    pictures, force = [("image", _picture(work, asked).image)], asked.word("force", "false") == "true"
    done = enrolment.enrol(work.people(), work.engine, collection, name, pictures, force=force, new=new)
    record_person(request, collection, done.person.id)
    return {**describe_person(done.person, done.faces), "replaced": done.replaced}


def _reply(request: Request, work: ServiceContext, times: StepTimes, **values: Any) -> Values:
    """Return a response with its request ID, its models, and its durations."""
    return {
        "request_id": request.scope[REQUEST],
        **values,
        "pipeline": describe_pipeline(work.engine),
        "execution_ms": times.values,
    }
