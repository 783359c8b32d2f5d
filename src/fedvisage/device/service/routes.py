"""Routes of the service's own API, below /v1. Attack detection comes first: no search is made for an attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from inspect import iscoroutinefunction
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AfterValidator

from fedvisage.base.version import VERSION
from fedvisage.device.gallery import enrolment
from fedvisage.device.gallery.enrolment import Engine, PersonMatch, model_of
from fedvisage.device.gallery.records import COLLECTION, Face, Person
from fedvisage.device.pipeline import (
    MATCH,
    NO_DECISION,
    NO_MATCH,
    Box,
    Checked,
    CheckedFace,
    PadVerdict,
    decide_by_mean,
)
from fedvisage.device.service import responses
from fedvisage.device.service.access import ADMIN, CALLER, CHECK, ENROL, LIFETIME, Nonces, client_of, needs, needs_nonce
from fedvisage.device.service.guard import REQUEST, record_person
from fedvisage.device.service.requests import (
    CHARGE,
    Fault,
    Picture,
    RequestContent,
    ServiceContext,
    StepTimes,
    content_of,
    slashes_of,
)

# Descriptions of faces, matches and people as plain values.


Values = dict[str, Any]


def _describe_verdict(pad: PadVerdict | None) -> Values | None:
    return None if pad is None else {name: getattr(pad, name) for name in responses.PadResult.model_fields}


def describe_match(match: PersonMatch) -> Values:
    """Return a similar person."""
    values = asdict(match)
    return {"person_id": values.pop("person"), **values}


def describe_person(person: Person, faces: Sequence[Face] = ()) -> Values:
    """Return an enrolled person, with faces if any are given."""
    return {**asdict(person), **({"faces": [asdict(face) for face in faces]} if faces else {})}


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
Content = Annotated[RequestContent, content_of("image")]
PairContent = Annotated[RequestContent, content_of("image1", "image2")]
FRAMES = tuple(f"image{number}" for number in range(1, 11))
FrameContent = Annotated[RequestContent, content_of(*FRAMES)]
PathName = Annotated[str, AfterValidator(slashes_of)]
"""A name in a path, which may contain slashes."""

Most = Annotated[int, Query(ge=1, le=100, description="maximum number of people per face")]

_PICTURE = {"type": "string", "contentEncoding": "base64", "description": "JPEG, PNG, BMP, WebP, TIFF or HEIC"}
FORCE = "true: enrol even if the face matches a person of another name"

Answer = TypeVar("Answer", bound=Callable[..., Any])


class Routes:
    """Routes below a prefix, each with the schema of its response and the scope that it needs."""

    def __init__(self, work: ServiceContext, nonces: Nonces | None, prefix: str, tags: Sequence[str] = ()) -> None:
        """Start without routes; with ``nonces``, enrolment from other machines needs one."""
        self.router, self._work, self._nonces = APIRouter(prefix=prefix, tags=list(tags)), work, nonces

    def add(
        self,
        route: str,
        reply: Any,
        scope: str | None,
        *pictures: str,
        enrols: bool = False,
        created: bool = False,
        schema: Values | None = None,
        **words: str,
    ) -> Callable[[Answer], Answer]:
        """Return a decorator that adds a function as the route METHOD PATH; without ``async``, a thread calls it.

        The body has ``pictures`` and ``words``, the latter with their descriptions, or the given schema.
        """
        method, path = route.split()
        dependencies = [needs(scope)] if scope else []
        dependencies += [needs_nonce(self._nonces)] if enrols else []
        properties: Values = dict.fromkeys(pictures, _PICTURE)
        properties |= {name: {"type": "string", "description": text} for name, text in words.items()}
        form = {"schema": {"type": "object", "properties": properties}}
        content = {"application/json": form, "multipart/form-data": form} if properties else {}
        if schema is not None:
            content = {"application/json": {"schema": schema}}

        def decorate(answer: Answer) -> Answer:
            self.router.add_api_route(
                path,
                answer if iscoroutinefunction(answer) else self._work.in_thread(answer),
                methods=[method],
                status_code=201 if created else 200,
                response_model=reply,
                response_model_exclude_unset=True,
                responses={"default": {"model": responses.ErrorReply, "description": "an error"}},
                dependencies=dependencies,
                openapi_extra={"requestBody": {"content": content}} if content else None,
            )
            return answer

        return decorate


def routes(work: ServiceContext, nonces: Nonces | None = None) -> APIRouter:
    """Return the routes for an engine and a gallery; with ``nonces``, enrolment from other machines needs one."""
    listed = Routes(work, nonces, "/v1")

    @listed.add("GET /health", responses.Health, None)
    async def health() -> Values:
        """Report that the service is running."""
        return {"status": "ok", "version": VERSION}

    @listed.add("GET /models", responses.Models, CHECK)
    async def models() -> Values:
        """Report the models of the service."""
        model = work.engine.model
        recognised = None if model is None else {"threshold": model.threshold, "operating_point": model.operating_point}
        return {"pipeline": describe_pipeline(work.engine), "recognition": recognised}

    _add_faces(listed, work)
    _add_collections(listed, work)
    _add_people(listed, work, nonces or Nonces())
    return listed.router


def _add_faces(listed: Routes, work: ServiceContext) -> None:
    @listed.add("POST /detect", responses.Detection, CHECK, "image")
    def detect(request: Request, content: Content) -> Values:
        """Detect the faces of a picture."""
        times, picture = StepTimes(), _picture(work, content)
        times.record_step("read")
        faces = []
        for face in work.engine.detect(picture.image):
            x, y, width, height = (float(value) for value in face.box)
            points = [[round(float(value) * picture.divisor, 1) for value in point] for point in face.points]
            faces.append({**_describe_box(Box(x, y, width, height, face.confidence), picture), "points": points})
        times.record_step("detect")
        return _reply(request, work, times, faces=faces)

    @listed.add("POST /pad", responses.Evaluation, CHECK, "image")
    def pad(request: Request, content: Content) -> Values:
        """Decide for each face whether it is a living person in front of the camera."""
        return _evaluate_picture(request, work, content)

    @listed.add("POST /pad/frames", responses.Averaged, CHECK, *FRAMES)
    def average(request: Request, content: FrameContent) -> Values:
        """Decide on one face by the mean log-odds of up to ten frames; frames without a score do not count."""
        times, frames, images = StepTimes(), list[Checked](), list[Values]()
        sent = [name for name in FRAMES if name in content.files]
        request.scope[CHARGE](max(0, len(sent) - 1))
        for name in sent or FRAMES[:1]:
            picture = _picture(work, content, name)
            checked = check_faces(request, work, picture)
            images.append(_describe_checked(checked, picture))
            frames.append(checked)
        times.record_step("check")
        largest = [checked.faces[0].pad for checked in frames if checked.faces]
        scored = [verdict for verdict in largest if verdict is not None and verdict.logit is not None]
        result: Values = {"decision": NO_DECISION, "reasons": [], "pad": None, "frames": len(scored), "images": images}
        if scored:
            verdict = decide_by_mean(scored)
            result |= {"decision": verdict.decision, "pad": _describe_verdict(verdict)}
        else:
            result["reasons"] = list(dict.fromkeys(reason for checked in frames for reason in checked.reasons))
        return _reply(request, work, times, **result)

    @listed.add("POST /embed", responses.Evaluation, CHECK, "image")
    def embed(request: Request, report: Report, content: Content) -> Values:
        """Return the embedding of each face; attacks have none, except with ?pad=report."""
        model_of(work.engine)

        def embedding(face: CheckedFace) -> Values:
            return {"embedding": None if face.embedding is None else face.embedding.tolist()}

        return _evaluate_picture(request, work, content, embedding, report=report)

    @listed.add("POST /compare", responses.Comparison, CHECK, "image1", "image2")
    def compare(request: Request, report: Report, content: PairContent) -> Values:
        """Decide whether the largest faces of two pictures belong to one person."""
        model, times, images = model_of(work.engine), StepTimes(), list[Values]()
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

    @listed.add("POST /collections/{collection}/search", responses.Evaluation, CHECK, "image")
    def search(request: Request, collection: PathName, report: Report, content: Content, limit: Most = 5) -> Values:
        """Return the most similar people of a collection for each face of a picture."""
        gallery = work.people()
        gallery.collection(collection)
        model_of(work.engine)

        def matches(face: CheckedFace) -> Values:
            if face.embedding is None:
                return {"matches": []}
            hits = enrolment.search(gallery, work.engine, collection, face.embedding, limit)
            return {"matches": [describe_match(hit) for hit in hits]}

        return _evaluate_picture(request, work, content, matches, report=report)

    person, place = "name or id", "default, if not given"

    @listed.add("POST /verify", responses.Verification, CHECK, "image", person=person, collection=place)
    def verify(request: Request, report: Report, content: Content) -> Values:
        """Compare the largest face of a picture with one person."""
        gallery, name, collection = work.people(), content.word("person"), content.word("collection", COLLECTION)
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


def _add_collections(listed: Routes, work: ServiceContext) -> None:
    place, name, renewable = "/collections/{collection}", "of the collection", "true, false"

    @listed.add("GET /collections", responses.Collections, CHECK)
    def collections() -> Values:
        """List the collections."""
        return {"collections": [asdict(collection) for collection in work.people().collections()]}

    @listed.add("POST /collections", responses.Collection, ADMIN, created=True, name=name, renewable=renewable)
    def add(content: Content) -> Values:
        """Add a collection."""
        if unknown := sorted(content.words.keys() - {"name", "renewable"}):
            raise Fault(422, "invalid", f"{unknown[0][:50]} is no field of a collection; send name and renewable")
        return asdict(work.people().add_collection(content.word("name"), renewable=content.flag("renewable")))

    @listed.add(f"GET {place}", responses.Collection, CHECK)
    def one(collection: PathName) -> Values:
        """Describe a collection."""
        return asdict(work.people().collection(collection))

    @listed.add(f"DELETE {place}", responses.Deleted, ADMIN)
    def remove(collection: PathName) -> Values:
        """Delete a collection with all its people."""
        work.people().remove_collection(collection)
        return {"deleted": collection}


def _add_people(listed: Routes, work: ServiceContext, nonces: Nonces) -> None:
    people = "/collections/{collection}/persons"
    place, name_text = f"{people}/{{person}}", "the person's name"

    @listed.add("POST /nonces", responses.Nonce, ENROL, created=True)
    async def nonce(request: Request) -> Values:
        """Issue a nonce, which admits one enrolment of this client."""
        return {"nonce": nonces.issue(client_of(request)), "seconds": LIFETIME}

    @listed.add(f"GET {people}", responses.Persons, ENROL)
    def persons(collection: PathName) -> Values:
        """List the enrolled people."""
        return {"persons": [describe_person(person) for person in work.people().people(collection)]}

    @listed.add(
        f"POST {people}", responses.Enrolment, ENROL, "image", enrols=True, created=True, name=name_text, force=FORCE
    )
    def enrol(request: Request, collection: PathName, content: Content) -> Values:
        """Enrol a person with a picture of one living face."""
        return _enrol_person(request, work, content, collection, content.word("name"), new=True)

    @listed.add(f"GET {place}", responses.Person, ENROL)
    def one(request: Request, collection: PathName, person: PathName) -> Values:
        """Describe a person and their faces."""
        owner = work.people().person(collection, person)
        record_person(request, collection, owner.id)
        return describe_person(owner, work.people().faces(collection, owner.id))

    @listed.add(f"DELETE {place}", responses.Deleted, ADMIN)
    def remove(request: Request, collection: PathName, person: PathName) -> Values:
        """Delete a person; their key and templates are overwritten."""
        removed = work.people().remove(collection, person)
        record_person(request, collection, removed.id)
        return {"deleted": removed.id}

    @listed.add(f"POST {place}/faces", responses.Enrolment, ENROL, "image", enrols=True, created=True, force=FORCE)
    def add(request: Request, collection: PathName, person: PathName, content: Content) -> Values:
        """Add a face to a person."""
        name = work.people().person(collection, person).name
        return _enrol_person(request, work, content, collection, name, new=False)

    @listed.add(f"DELETE {place}/faces/{{face}}", responses.Deleted, ADMIN)
    def remove_face(request: Request, collection: PathName, person: PathName, face: str) -> Values:
        """Delete one face of a person."""
        gallery = work.people()
        owner = gallery.person(collection, person)
        record_person(request, collection, owner.id)
        if gallery.owner(collection, face).id != owner.id:
            raise Fault(404, "not_found", "this person has no face with this id")
        gallery.remove_face(collection, face)
        return {"deleted": face}


def _evaluate_picture(
    request: Request,
    work: ServiceContext,
    content: RequestContent,
    more: Callable[[CheckedFace], Values] = lambda face: {},
    *,
    report: bool = False,
) -> Values:
    """Evaluate the faces of a picture; ``more`` adds values to each face."""
    times, picture = StepTimes(), _picture(work, content)
    times.record_step("read")
    checked = check_faces(request, work, picture, report=report)
    times.record_step("check")
    faces = _describe_checked(checked, picture, more)
    times.record_step("search")
    return _reply(request, work, times, **faces)


def _picture(work: ServiceContext, content: RequestContent, name: str = "image") -> Picture:
    return content.picture(work.limits.pixels, name, "file")


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
    checked: Checked, picture: Picture, more: Callable[[CheckedFace], Values] = lambda face: {}
) -> Values:
    faces = [
        {
            **_describe_box(face.box, picture),
            "pad": _describe_verdict(face.pad),
            "quality": {"ok": face.quality.ok, "reasons": list(face.quality.reasons)},
            **more(face),
        }
        for face in checked.faces
    ]
    return {"faces": faces, "left_out": checked.left_out}


def _enrol_person(
    request: Request, work: ServiceContext, content: RequestContent, collection: str, name: str, *, new: bool
) -> Values:
    pictures, force = [("image", _picture(work, content).image)], content.flag("force")
    done = enrolment.enrol(work.people(), work.engine, collection, name, pictures, force=force, new=new)
    record_person(request, collection, done.person.id)
    return {**describe_person(done.person, done.faces), "replaced": done.replaced}


def _reply(request: Request, work: ServiceContext, times: StepTimes, **values: Any) -> Values:
    """Return a response with its request ID, its models, and its durations."""
    models, milliseconds = describe_pipeline(work.engine), times.values
    return {"request_id": request.scope[REQUEST], **values, "pipeline": models, "execution_ms": milliseconds}
