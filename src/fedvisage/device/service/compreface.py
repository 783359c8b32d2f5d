"""Routes compatible with CompreFace clients, which work here unchanged; each response adds liveness.

Supported: detection, verification of two pictures, and recognition with its subjects and faces, on the collection
``default``. Not supported: plugins (age, gender, mask, landmarks of 106 points), stored images, services with their own
keys, subjects without a face, and new names for subjects.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError

from fedvisage.device.gallery import enrolment
from fedvisage.device.gallery.enrolment import model_of
from fedvisage.device.gallery.file import UnknownName
from fedvisage.device.gallery.records import COLLECTION, ID
from fedvisage.device.pipeline import Box, CheckedFace
from fedvisage.device.service import responses
from fedvisage.device.service.access import ADMIN, CHECK, ENROL, needs
from fedvisage.device.service.audit import record_person
from fedvisage.device.service.nonces import Nonces, needs_nonce
from fedvisage.device.service.requests import RequestContent, ServiceContext, read_content, read_json
from fedvisage.device.service.routes import PathName, body, check_faces, returns

Values = dict[str, Any]
Limit = Annotated[int, Query(ge=0, le=1000, description="maximum number of faces; 0: the service's")]
Sure = Annotated[float, Query(ge=0, le=1, description="minimum confidence of a face")]
Count = Annotated[int, Query(ge=1, le=100, description="maximum number of subjects per face")]
_FACE_IDS = TypeAdapter(Annotated[list[Annotated[str, Field(pattern=f"^{ID}$")]], Field(max_length=1000)])
PICTURES = ("file", "source_image", "target_image")


def routes(work: ServiceContext, nonces: Nonces | None = None) -> APIRouter:
    """Return the routes for an engine and a gallery; with ``nonces``, enrolment from other machines needs one."""
    router = APIRouter(prefix="/api/v1", tags=["compatible with CompreFace"])
    _add_detection(router, work)
    _add_recognition(router, work)
    _add_subjects(router, work, nonces)
    return router


def _add_detection(router: APIRouter, work: ServiceContext) -> None:
    @router.post(
        "/detection/detect",
        **returns(responses.CompreFaceFaces),
        dependencies=[needs(CHECK)],
        openapi_extra=body("file"),
    )
    async def detect(request: Request, limit: Limit = 0, det_prob_threshold: Sure = 0.0) -> Values:
        """Detect the faces of a picture, with a liveness decision for each."""
        content = await read_content(request, PICTURES)
        return await work.do(
            lambda: {
                "result": [_face(face) for face in _faces(request, work, content, "file", limit, det_prob_threshold)]
            }
        )

    @router.post(
        "/verification/verify",
        **returns(responses.PictureComparisons),
        dependencies=[needs(CHECK)],
        openapi_extra=body("source_image", "target_image"),
    )
    async def verify(request: Request, limit: Limit = 0, det_prob_threshold: Sure = 0.0) -> Values:
        """Compare the largest face of one picture with all faces of another."""
        content = await read_content(request, PICTURES)
        model_of(work.engine)

        def some() -> Values:
            sources = _faces(request, work, content, "source_image", 1, det_prob_threshold)
            targets = _faces(request, work, content, "target_image", limit, det_prob_threshold)
            result: Values = {"source_image_face": _face(sources[0]) if sources else None, "face_matches": []}
            source = sources[0].embedding if sources else None
            for face in targets:
                alike = None if source is None or face.embedding is None else float(source @ face.embedding)
                result["face_matches"].append({**_face(face), "similarity": alike})
            # Faces without a similarity come last.
            result["face_matches"].sort(key=lambda row: -(row["similarity"] if row["similarity"] is not None else -2))
            return {"result": [result]}

        return await work.do(some)


def _add_recognition(router: APIRouter, work: ServiceContext) -> None:
    @router.post(
        "/recognition/recognize",
        **returns(responses.CompreFaceFaces),
        dependencies=[needs(CHECK)],
        openapi_extra=body("file"),
    )
    async def recognise(
        request: Request, limit: Limit = 0, det_prob_threshold: Sure = 0.0, prediction_count: Count = 1
    ) -> Values:
        """Search the gallery for each face of a picture; attacks match no person."""
        content, gallery = await read_content(request, PICTURES), work.people()

        def subjects(face: CheckedFace) -> list[Values]:
            if face.embedding is None:
                return []
            matches = enrolment.search(gallery, work.engine, COLLECTION, face.embedding, prediction_count)
            return [{"subject": match.name, "similarity": match.similarity} for match in matches]

        return await work.do(
            lambda: {
                "result": [
                    {**_face(face), "subjects": subjects(face)}
                    for face in _faces(request, work, content, "file", limit, det_prob_threshold)
                ]
            }
        )

    @router.post(
        "/recognition/faces/{image_id}/verify",
        **returns(responses.CompreFaceFaces),
        dependencies=[needs(CHECK)],
        openapi_extra=body("file"),
    )
    async def verify(request: Request, image_id: str, limit: Limit = 0, det_prob_threshold: Sure = 0.0) -> Values:
        """Compare each face of a picture with the person of an enrolled face."""
        content, gallery = await read_content(request, PICTURES), work.people()

        def some() -> Values:
            owner = gallery.owner(COLLECTION, image_id)
            record_person(request, COLLECTION, owner.id)

            def compare_with_owner(face: CheckedFace) -> Values:
                if face.embedding is None:
                    return {"subject": owner.name, "similarity": None}
                match = enrolment.verify(gallery, work.engine, COLLECTION, owner.id, face.embedding)
                return {"subject": match.name, "similarity": match.similarity}

            return {
                "result": [
                    {**_face(face), **compare_with_owner(face)}
                    for face in _faces(request, work, content, "file", limit, det_prob_threshold)
                ]
            }

        return await work.do(some)


def _add_subjects(router: APIRouter, work: ServiceContext, nonces: Nonces | None) -> None:
    @router.get("/recognition/subjects", **returns(responses.Subjects), dependencies=[needs(ENROL)])
    async def subjects() -> Values:
        """List the enrolled people."""
        gallery = work.people()
        return {"subjects": [person.name for person in await work.do(lambda: gallery.people(COLLECTION))]}

    @router.delete("/recognition/subjects/{subject}", **returns(responses.Subject), dependencies=[needs(ADMIN)])
    async def remove(request: Request, subject: PathName) -> Values:
        """Delete a person."""
        gallery = work.people()
        removed = await work.do(lambda: gallery.remove(COLLECTION, subject))
        record_person(request, COLLECTION, removed.id)
        return {"subject": removed.name}

    @router.post(
        "/recognition/faces",
        **returns(responses.Example),
        dependencies=[needs(ENROL), needs_nonce(nonces)],
        status_code=201,
        openapi_extra=body("file", subject="the subject of the face"),
    )
    async def add(request: Request, subject: str = "", force: bool = False) -> Values:
        """Enrol a face of a person, who is created if the name is new; one that matches another person needs force."""
        content, gallery = await read_content(request, PICTURES), work.people()
        name = subject or content.word("subject")

        def some() -> Values:
            picture = content.picture(work.limits.pixels, "file").image
            done = enrolment.enrol(gallery, work.engine, COLLECTION, name, [("file", picture)], force=force)
            record_person(request, COLLECTION, done.person.id)
            return {"image_id": done.faces[0].id, "subject": done.person.name}

        return await work.do(some)

    @router.get("/recognition/faces", **returns(responses.Examples), dependencies=[needs(ENROL)])
    async def faces(subject: str = "") -> Values:
        """List the faces of one person, or of all people."""
        gallery = work.people()

        def some() -> Values:
            if subject:
                people = [(gallery.person(COLLECTION, subject), gallery.faces(COLLECTION, subject))]
            else:
                people = gallery.everybody(COLLECTION)
            listed = [{"image_id": face.id, "subject": person.name} for person, faces in people for face in faces]
            return {"faces": listed, "total_elements": len(listed), "page_number": 0, "total_pages": 1}

        return await work.do(some)

    @router.delete("/recognition/faces", **returns(responses.DeletedCount), dependencies=[needs(ADMIN)])
    async def remove_faces(request: Request, subject: str = "") -> Values:
        """Delete all faces of one person, or of all people."""
        gallery = work.people()

        def some() -> Values:
            with gallery.transaction():
                people = [gallery.person(COLLECTION, subject)] if subject else gallery.people(COLLECTION)
                faces = [face for person in people for face in gallery.faces(COLLECTION, person.id)]
                for face in faces:
                    gallery.remove_face(COLLECTION, face.id)
            if subject:
                record_person(request, COLLECTION, people[0].id)
            return {"deleted": len(faces)}

        return await work.do(some)

    @router.post(
        "/recognition/faces/delete",
        response_model=list[responses.Example],
        dependencies=[needs(ADMIN)],
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": _FACE_IDS.json_schema()}}}},
    )
    async def remove_listed(request: Request) -> list[Values]:
        """Delete the faces with these ids; others are left out of the response."""
        try:
            image_ids = _FACE_IDS.validate_python(read_json(await request.body()))
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None
        gallery = work.people()

        def some() -> list[Values]:
            removed = list[Values]()
            for image_id in image_ids:
                with suppress(UnknownName):
                    owner = gallery.remove_face(COLLECTION, image_id)
                    removed.append({"image_id": image_id, "subject": owner.name})
            return removed

        return await work.do(some)

    @router.delete("/recognition/faces/{image_id}", **returns(responses.Example), dependencies=[needs(ADMIN)])
    async def remove_face(request: Request, image_id: str) -> Values:
        """Delete a face."""
        gallery = work.people()
        owner = await work.do(lambda: gallery.remove_face(COLLECTION, image_id))
        record_person(request, COLLECTION, owner.id)
        return {"image_id": image_id, "subject": owner.name}


def _faces(
    request: Request, work: ServiceContext, asked: RequestContent, name: str, limit: int, confidence: float
) -> list[CheckedFace]:
    """Return the largest faces of a picture with at least this confidence, in pixels of the picture as sent."""
    picture = asked.picture(work.limits.pixels, name)
    return [
        replace(face, box=_enlarge(face.box, picture.divisor))
        for face in check_faces(request, work, picture, most=limit, confidence=confidence).faces
    ]


def _enlarge(box: Box, factor: int) -> Box:
    return Box(box.x * factor, box.y * factor, box.width * factor, box.height * factor, box.confidence)


def _face(face: CheckedFace) -> Values:
    """Return a face in CompreFace's form, with its liveness."""
    box, pad = face.box, face.pad
    ends = {"x_min": box.x, "y_min": box.y, "x_max": box.x + box.width, "y_max": box.y + box.height}
    live = None if pad is None else {"probability": pad.score, "decision": pad.decision}
    return {
        "box": {"probability": box.confidence, **{name: round(end) for name, end in ends.items()}},
        "liveness": live,
    }
