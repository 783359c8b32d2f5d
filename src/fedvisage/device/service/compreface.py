"""Routes that clients of CompreFace know, so that they move here without a change, with liveness in each answer.

Thin: detection, verification of two pictures, and recognition with its subjects and faces, on the collection
``default``. Plugins (age, gender, mask, landmarks of 106 points), stored images, and services with keys of their own
are not here: a key of this service is every service's.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from fedvisage.device.gallery import enrolment
from fedvisage.device.gallery.enrolment import Image, model_of
from fedvisage.device.gallery.records import COLLECTION
from fedvisage.device.pipeline import CheckedFace
from fedvisage.device.service.requests import Asked, Work, read_asked
from fedvisage.device.service.routes import body

Values = dict[str, Any]
Limit = Annotated[int, Query(ge=0, le=1000, description="the most faces; 0: all")]
Sure = Annotated[float, Query(ge=0, le=1, description="the least confidence of a face")]
Count = Annotated[int, Query(ge=1, le=100, description="the most subjects for a face")]
PICTURES = ("file", "source_image", "target_image")


def routes(work: Work) -> APIRouter:
    """Return the routes over an engine and a gallery."""
    router = APIRouter(prefix="/api/v1", tags=["as CompreFace has it"])
    _add_detection(router, work)
    _add_recognition(router, work)
    _add_subjects(router, work)
    return router


def _add_detection(router: APIRouter, work: Work) -> None:
    @router.post("/detection/detect", openapi_extra=body("file"))
    async def detect(request: Request, limit: Limit = 0, det_prob_threshold: Sure = 0.0) -> Values:
        """Find the faces of a picture, and say of each whether it is living."""
        asked = await read_asked(request, PICTURES)
        return await work.do(
            lambda: {"result": [_face(one) for one in _faces(work, asked, "file", limit, det_prob_threshold)]}
        )

    @router.post("/verification/verify", openapi_extra=body("source_image", "target_image"))
    async def verify(request: Request, limit: Limit = 0, det_prob_threshold: Sure = 0.0) -> Values:
        """Compare the largest face of one picture with the faces of another."""
        asked = await read_asked(request, PICTURES)
        model_of(work.engine)

        def some() -> Values:
            sources = _faces(work, asked, "source_image", 1, det_prob_threshold)
            targets = _faces(work, asked, "target_image", limit, det_prob_threshold)
            said: Values = {"source_image_face": _face(sources[0]) if sources else None, "face_matches": []}
            source = sources[0].embedding if sources else None
            for one in targets:
                alike = None if source is None or one.embedding is None else float(source @ one.embedding)
                said["face_matches"].append({**_face(one), "similarity": alike})
            said["face_matches"].sort(key=lambda one: -(one["similarity"] if one["similarity"] is not None else -2))
            return {"result": [said]}

        return await work.do(some)


def _add_recognition(router: APIRouter, work: Work) -> None:
    @router.post("/recognition/recognize", openapi_extra=body("file"))
    async def recognise(
        request: Request, limit: Limit = 0, det_prob_threshold: Sure = 0.0, prediction_count: Count = 1
    ) -> Values:
        """Say who each face of a picture is most similar to; an attack is nobody."""
        asked, gallery = await read_asked(request, PICTURES), work.people()

        def subjects(face: CheckedFace) -> list[Values]:
            if face.embedding is None:
                return []
            found = enrolment.search(gallery, work.engine, COLLECTION, face.embedding, prediction_count)
            return [{"subject": one.name, "similarity": one.similarity} for one in found]

        return await work.do(
            lambda: {
                "result": [
                    {**_face(one), "subjects": subjects(one)}
                    for one in _faces(work, asked, "file", limit, det_prob_threshold)
                ]
            }
        )

    @router.post("/recognition/faces/{image_id}/verify", openapi_extra=body("file"))
    async def verify(request: Request, image_id: str, limit: Limit = 0, det_prob_threshold: Sure = 0.0) -> Values:
        """Say how similar each face of a picture is to the person of a face that was added."""
        asked, gallery = await read_asked(request, PICTURES), work.people()

        def some() -> Values:
            owner = gallery.owner(COLLECTION, image_id)

            def said(face: CheckedFace) -> Values:
                if face.embedding is None:
                    return {"subject": owner.name, "similarity": None}
                found = enrolment.verify(gallery, work.engine, COLLECTION, owner.id, face.embedding)
                return {"subject": found.name, "similarity": found.similarity}

            return {
                "result": [
                    {**_face(one), **said(one)} for one in _faces(work, asked, "file", limit, det_prob_threshold)
                ]
            }

        return await work.do(some)


def _add_subjects(router: APIRouter, work: Work) -> None:
    @router.get("/recognition/subjects")
    async def subjects() -> Values:
        """List who is enrolled."""
        gallery = work.people()
        return {"subjects": [one.name for one in await work.do(lambda: gallery.people(COLLECTION))]}

    @router.delete("/recognition/subjects/{subject}")
    async def remove(subject: str) -> Values:
        """Delete a person."""
        gallery = work.people()
        return {"subject": (await work.do(lambda: gallery.remove(COLLECTION, subject))).name}

    @router.post("/recognition/faces", status_code=201, openapi_extra=body("file", subject="whose face it is"))
    async def add(request: Request, subject: str = "") -> Values:
        """Enrol a face of a person, who is new if nobody has the name."""
        asked, gallery = await read_asked(request, PICTURES), work.people()
        name = subject or asked.word("subject")

        def some() -> Values:
            picture = _image(work, asked, "file")
            done = enrolment.enrol(gallery, work.engine, COLLECTION, name, [("file", picture)])
            return {"image_id": done.faces[0].id, "subject": done.person.name}

        return await work.do(some)

    @router.get("/recognition/faces")
    async def faces(subject: str = "") -> Values:
        """List the faces of a person, or of everybody."""
        gallery = work.people()

        def some() -> Values:
            if subject:
                people = [(gallery.person(COLLECTION, subject), gallery.faces(COLLECTION, subject))]
            else:
                people = gallery.everybody(COLLECTION)
            listed = [{"image_id": face.id, "subject": one.name} for one, faces in people for face in faces]
            return {"faces": listed, "total_elements": len(listed), "page_number": 0, "total_pages": 1}

        return await work.do(some)

    @router.delete("/recognition/faces/{image_id}")
    async def remove_face(image_id: str) -> Values:
        """Delete a face."""
        gallery = work.people()
        owner = await work.do(lambda: gallery.remove_face(COLLECTION, image_id))
        return {"image_id": image_id, "subject": owner.name}


def _image(work: Work, asked: Asked, name: str) -> Image:
    return asked.picture(work.limits.pixels, name)


def _faces(work: Work, asked: Asked, name: str, limit: int, sure: float) -> list[CheckedFace]:
    """Return the largest faces of a picture of which the detector is so sure."""
    seen = [one for one in work.engine.check(_image(work, asked, name)).faces if one.box.confidence >= sure]
    return seen[:limit] if limit else seen


def _face(one: CheckedFace) -> Values:
    """Return a face as CompreFace does, and whether it is living."""
    box, pad = one.box, one.pad
    ends = {"x_min": box.x, "y_min": box.y, "x_max": box.x + box.width, "y_max": box.y + box.height}
    live = None if pad is None else {"probability": pad.score, "decision": pad.decision}
    return {
        "box": {"probability": box.confidence, **{name: round(end) for name, end in ends.items()}},
        "liveness": live,
    }
