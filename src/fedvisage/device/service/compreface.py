"""Routes compatible with CompreFace clients, which work here unchanged; each response adds liveness.

Supported: detection, verification of two pictures, and recognition with its subjects and faces, on the collection
``default``. Not supported: plugins (age, gender, mask, landmarks of 106 points), stored images, services with their own
keys, subjects without a face, and new names for subjects.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError

from fedvisage.device.gallery import enrolment
from fedvisage.device.gallery.enrolment import model_of
from fedvisage.device.gallery.file import UnknownName
from fedvisage.device.gallery.records import COLLECTION, ID
from fedvisage.device.pipeline import Box, CheckedFace
from fedvisage.device.service import responses
from fedvisage.device.service.access import ADMIN, CHECK, ENROL, Nonces
from fedvisage.device.service.guard import record_person
from fedvisage.device.service.requests import RequestContent, ServiceContext, content_of, read_json
from fedvisage.device.service.routes import PathName, Routes, check_faces

Values = dict[str, Any]
Limit = Annotated[int, Query(ge=0, le=1000, description="maximum number of faces; 0: the service's")]
Sure = Annotated[float, Query(ge=0, le=1, description="minimum confidence of a face")]
Count = Annotated[int, Query(ge=1, le=100, description="maximum number of subjects per face")]
Content = Annotated[RequestContent, content_of("file", "source_image", "target_image")]
_FACE_IDS = TypeAdapter(Annotated[list[Annotated[str, Field(pattern=f"^{ID}$")]], Field(max_length=1000)])


async def _read_face_ids(request: Request) -> list[str]:
    try:
        return _FACE_IDS.validate_python(read_json(await request.body()))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


FaceIds = Annotated[list[str], Depends(_read_face_ids)]


def routes(work: ServiceContext, nonces: Nonces | None = None) -> APIRouter:
    """Return the routes for an engine and a gallery; with ``nonces``, enrolment from other machines needs one."""
    listed = Routes(work, nonces, "/api/v1", ["compatible with CompreFace"])
    _add_detection(listed, work)
    _add_recognition(listed, work)
    _add_subjects(listed, work)
    return listed.router


def _add_detection(listed: Routes, work: ServiceContext) -> None:
    @listed.add("POST /detection/detect", responses.CompreFaceFaces, CHECK, "file")
    def detect(request: Request, content: Content, limit: Limit = 0, det_prob_threshold: Sure = 0.0) -> Values:
        """Detect the faces of a picture, with a liveness decision for each."""
        return {"result": [_face(face) for face in _faces(request, work, content, "file", limit, det_prob_threshold)]}

    @listed.add("POST /verification/verify", responses.PictureComparisons, CHECK, "source_image", "target_image")
    def verify(request: Request, content: Content, limit: Limit = 0, det_prob_threshold: Sure = 0.0) -> Values:
        """Compare the largest face of one picture with all faces of another."""
        model_of(work.engine)
        sources = _faces(request, work, content, "source_image", 1, det_prob_threshold)
        targets = _faces(request, work, content, "target_image", limit, det_prob_threshold)
        source = sources[0].embedding if sources else None
        matches: list[Values] = []
        for face in targets:
            alike = None if source is None or face.embedding is None else float(source @ face.embedding)
            matches.append({**_face(face), "similarity": alike})
        # Faces without a similarity come last.
        matches.sort(key=lambda row: -(row["similarity"] if row["similarity"] is not None else -2))
        return {"result": [{"source_image_face": _face(sources[0]) if sources else None, "face_matches": matches}]}


def _add_recognition(listed: Routes, work: ServiceContext) -> None:
    @listed.add("POST /recognition/recognize", responses.CompreFaceFaces, CHECK, "file")
    def recognise(
        request: Request,
        content: Content,
        limit: Limit = 0,
        det_prob_threshold: Sure = 0.0,
        prediction_count: Count = 1,
    ) -> Values:
        """Search the gallery for each face of a picture; attacks match no person."""
        gallery, result = work.people(), []
        for face in _faces(request, work, content, "file", limit, det_prob_threshold):
            matches = (
                []
                if face.embedding is None
                else enrolment.search(gallery, work.engine, COLLECTION, face.embedding, prediction_count)
            )
            subjects = [{"subject": match.name, "similarity": match.similarity} for match in matches]
            result.append({**_face(face), "subjects": subjects})
        return {"result": result}

    @listed.add("POST /recognition/faces/{image_id}/verify", responses.CompreFaceFaces, CHECK, "file")
    def verify(
        request: Request, content: Content, image_id: str, limit: Limit = 0, det_prob_threshold: Sure = 0.0
    ) -> Values:
        """Compare each face of a picture with the person of an enrolled face."""
        gallery, result = work.people(), []
        owner = gallery.owner(COLLECTION, image_id)
        record_person(request, COLLECTION, owner.id)
        for face in _faces(request, work, content, "file", limit, det_prob_threshold):
            similarity = None
            if face.embedding is not None:
                match = enrolment.verify(gallery, work.engine, COLLECTION, owner.id, face.embedding)
                similarity = match.similarity
            result.append({**_face(face), "subject": owner.name, "similarity": similarity})
        return {"result": result}


def _add_subjects(listed: Routes, work: ServiceContext) -> None:
    @listed.add("GET /recognition/subjects", responses.Subjects, ENROL)
    def subjects() -> Values:
        """List the enrolled people."""
        return {"subjects": [person.name for person in work.people().people(COLLECTION)]}

    @listed.add("DELETE /recognition/subjects/{subject}", responses.Subject, ADMIN)
    def remove(request: Request, subject: PathName) -> Values:
        """Delete a person."""
        removed = work.people().remove(COLLECTION, subject)
        record_person(request, COLLECTION, removed.id)
        return {"subject": removed.name}

    place, subject_text = "/recognition/faces", "the subject of the face"

    @listed.add(f"POST {place}", responses.Example, ENROL, "file", enrols=True, created=True, subject=subject_text)
    def add(request: Request, content: Content, subject: str = "", force: bool = False) -> Values:
        """Enrol a face of a person, who is created if the name is new; one that matches another person needs force."""
        pictures = [("file", content.picture(work.limits.pixels, "file").image)]
        name = subject or content.word("subject")
        result = enrolment.enrol(work.people(), work.engine, COLLECTION, name, pictures, force=force)
        record_person(request, COLLECTION, result.person.id)
        return {"image_id": result.faces[0].id, "subject": result.person.name}

    @listed.add(f"GET {place}", responses.Examples, ENROL)
    def faces(subject: str = "") -> Values:
        """List the faces of one person, or of all people."""
        gallery = work.people()
        if subject:
            people = [(gallery.person(COLLECTION, subject), gallery.faces(COLLECTION, subject))]
        else:
            people = gallery.everybody(COLLECTION)
        listed = [{"image_id": face.id, "subject": person.name} for person, faces in people for face in faces]
        return {"faces": listed, "total_elements": len(listed), "page_number": 0, "total_pages": 1}

    @listed.add(f"DELETE {place}", responses.DeletedCount, ADMIN)
    def remove_faces(request: Request, subject: str = "") -> Values:
        """Delete all faces of one person, or of all people."""
        gallery = work.people()
        with gallery.transaction():
            people = [gallery.person(COLLECTION, subject)] if subject else gallery.people(COLLECTION)
            faces = [face for person in people for face in gallery.faces(COLLECTION, person.id)]
            for face in faces:
                gallery.remove_face(COLLECTION, face.id)
        if subject:
            record_person(request, COLLECTION, people[0].id)
        return {"deleted": len(faces)}

    @listed.add(f"POST {place}/delete", list[responses.Example], ADMIN, schema=_FACE_IDS.json_schema())
    def remove_listed(image_ids: FaceIds) -> list[Values]:
        """Delete the faces with these ids; others are left out of the response."""
        removed = list[Values]()
        for image_id in image_ids:
            with suppress(UnknownName):
                owner = work.people().remove_face(COLLECTION, image_id)
                removed.append({"image_id": image_id, "subject": owner.name})
        return removed

    @listed.add(f"DELETE {place}/{{image_id}}", responses.Example, ADMIN)
    def remove_face(request: Request, image_id: str) -> Values:
        """Delete a face."""
        owner = work.people().remove_face(COLLECTION, image_id)
        record_person(request, COLLECTION, owner.id)
        return {"image_id": image_id, "subject": owner.name}


def _faces(
    request: Request, work: ServiceContext, content: RequestContent, name: str, limit: int, confidence: float
) -> list[CheckedFace]:
    """Return the largest faces of a picture with at least this confidence, in pixels of the picture as sent."""
    picture = content.picture(work.limits.pixels, name)
    checked = check_faces(request, work, picture, most=limit, confidence=confidence)
    faces, factor = list[CheckedFace](), picture.divisor
    for face in checked.faces:
        box = face.box
        sent = Box(box.x * factor, box.y * factor, box.width * factor, box.height * factor, box.confidence)
        faces.append(replace(face, box=sent))
    return faces


def _face(face: CheckedFace) -> Values:
    """Return a face in CompreFace's form, with its liveness."""
    box, pad = face.box, face.pad
    ends = {"x_min": box.x, "y_min": box.y, "x_max": box.x + box.width, "y_max": box.y + box.height}
    corners = {name: round(end) for name, end in ends.items()}
    live = None if pad is None else {"probability": pad.score, "decision": pad.decision}
    return {"box": {"probability": box.confidence, **corners}, "liveness": live}
