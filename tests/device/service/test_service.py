"""Answers and refusals of the service with the engine of tiles and a real gallery."""

import base64
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from tests.device.gallery.files import MODEL, NEWER
from tests.device.gallery.tiles import GREEN, RED, Tiles, row_of, tile_of
from tests.device.service.clients import KEY, KEYS, LIMITS, PERSONS, check_error, connect, png
from tests.documented import ROOT

from fedvisage.device.gallery.enrolment import EmbeddingModel
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service.guard import RateLimiter
from fedvisage.device.service.limits import Limits

NEW_ENGINE = replace(Tiles(), model=EmbeddingModel(NEWER, 0.9, "fmr=1e-3"))


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def client(gallery: Gallery, log: list[str]) -> Iterator[TestClient]:
    with connect(gallery=gallery, keys=KEYS, log=log.append) as test_client:
        test_client.headers["x-api-key"] = KEY
        yield test_client


def enrol(client: TestClient, name: str, person: int) -> dict[str, Any]:
    reply = client.post(PERSONS, data={"name": name}, files={"image": png(tile_of(person))})
    assert reply.status_code == 201, reply.text
    values: dict[str, Any] = reply.json()
    return values


def test_picture_is_accepted_as_form_json_or_raw_bytes(client: TestClient) -> None:
    picture = png(tile_of(1))
    encoded = base64.b64encode(picture).decode()
    replies = [
        client.post("/v1/pad", files={"image": picture}),
        client.post("/v1/pad", files={"file": picture}),
        client.post("/v1/pad", json={"image": encoded}),
        client.post("/v1/pad", json={"image": f"data:image/png;base64,{encoded}"}),
        client.post("/v1/pad", content=picture, headers={"content-type": "image/png"}),
    ]
    assert [reply.status_code for reply in replies] == [200] * 5
    assert all(reply.json()["faces"] == replies[0].json()["faces"] for reply in replies)
    (face,) = replies[0].json()["faces"]
    assert face["pad"].pop("notes") == []
    assert face["pad"] == {"decision": "bona_fide", "score": 0.9, "threshold": 0.5, "operating_point": "fixed"}
    assert face["box"] == {"x": 0, "y": 0, "width": 16, "height": 16, "confidence": 0.99}
    assert face["normalised"] == {"x": 0, "y": 0, "width": 0.5, "height": 1}
    assert replies[0].json()["pipeline"]["pad"].startswith("sha256:c")


def test_faces_are_detected_scored_and_embedded(client: TestClient) -> None:
    picture = png(tile_of(1), tile_of(2, colour=RED), tile_of(3, colour=GREEN))
    assert len(client.post("/v1/detect", files={"image": picture}).json()["faces"]) == 3
    faces = client.post("/v1/embed", files={"image": picture}).json()["faces"]
    assert [face["pad"]["decision"] for face in faces] == ["bona_fide", "attack", "no_decision"]
    assert [face["embedding"] is None for face in faces] == [False, True, True]
    assert np.linalg.norm(faces[0]["embedding"]) == pytest.approx(1, abs=1e-5)
    faces = client.post("/v1/embed?pad=report", files={"image": picture}).json()["faces"]
    assert [face["embedding"] is None for face in faces] == [False, False, True]
    assert faces[2]["quality"]["reasons"] == ["the face is blurred"]


def average_frames(client: TestClient, *tiles: np.ndarray) -> Any:
    files = {f"image{number}": png(tile) for number, tile in enumerate(tiles, 1)}
    return client.post("/v1/pad/frames", files=files).json()


def test_frames_of_one_face_get_one_decision(client: TestClient) -> None:
    answer = average_frames(client, tile_of(1), tile_of(1, 1), tile_of(1, 2))
    assert (answer["decision"], answer["frames"], len(answer["images"])) == ("bona_fide", 3, 3)
    assert answer["pad"]["score"] == pytest.approx(0.9)
    check_error(client.post("/v1/pad/frames", files={"image12": png(tile_of(1))}), 422, "no_image")


def test_frames_without_a_score_do_not_count(client: TestClient) -> None:
    live, attack, blurred, faceless = tile_of(1), tile_of(1, colour=RED), tile_of(1, colour=GREEN), tile_of(1) * 0
    answer = average_frames(client, *[attack] * 8, faceless, live)
    odds = 9 ** (-7 / 9)
    assert (answer["decision"], answer["frames"], answer["reasons"]) == ("attack", 9, [])
    assert answer["pad"]["score"] == pytest.approx(odds / (1 + odds))
    answer = average_frames(client, live, live, blurred)
    assert (answer["decision"], answer["frames"], len(answer["images"])) == ("bona_fide", 2, 3)
    answer = average_frames(client, blurred, faceless)
    assert (answer["decision"], answer["frames"], answer["pad"]) == ("no_decision", 0, None)
    assert answer["reasons"] == ["the face is blurred", "no face found"]


def test_two_pictures_are_compared(client: TestClient) -> None:
    def compare(first: np.ndarray, second: np.ndarray) -> Any:
        files = {"image1": png(first), "image2": png(second)}
        return client.post("/v1/compare", files=files).json()

    assert compare(tile_of(1), tile_of(1, 1))["decision"] == "match"
    assert compare(tile_of(1), tile_of(2))["decision"] == "no_match"
    answer = compare(tile_of(1), tile_of(1, colour=RED))
    assert (answer["decision"], answer["similarity"]) == ("no_decision", None)


def test_people_are_enrolled_searched_verified_and_deleted(client: TestClient, gallery: Gallery) -> None:
    anna, bob = enrol(client, "anna", 1), enrol(client, "bob", 2)
    place = "/v1/collections/default"
    check_error(client.post(PERSONS, data={"name": "anna"}, files={"image": png(tile_of(1))}), 409, "exists")
    added = client.post(f"{place}/persons/{anna['id']}/faces", files={"image": png(tile_of(1, 1))})
    assert added.status_code == 201
    assert len(client.get(f"{place}/persons/anna").json()["faces"]) == 2
    matches = client.post(f"{place}/search?limit=1", files={"image": png(tile_of(2, 5), tile_of(1, 5))}).json()
    assert [[person["name"] for person in face["matches"]] for face in matches["faces"]] == [["bob"], ["anna"]]
    match = matches["faces"][0]["matches"][0]
    assert (match["person_id"], match["decision"], match["operating_point"]) == (bob["id"], "match", "fmr=1e-3")
    verified = client.post("/v1/verify", data={"person": "bob"}, files={"image": png(tile_of(1))}).json()
    assert verified["decision"] == "no_match"
    face = added.json()["faces"][0]["id"]
    check_error(client.delete(f"{place}/persons/bob/faces/{face}"), 404, "not_found")
    assert client.delete(f"{place}/persons/anna/faces/{face}").json() == {"deleted": face}
    assert client.delete(f"{place}/persons/bob").json() == {"deleted": bob["id"]}
    assert [person["name"] for person in client.get(f"{place}/persons").json()["persons"]] == ["anna"]
    check_error(client.get(f"{place}/persons/bob"), 404, "not_found")
    assert [person.name for person in gallery.people("default")] == ["anna"]


def test_names_with_slashes_are_addressed_in_paths(client: TestClient) -> None:
    enrol(client, "a/b", 1)
    enrol(client, "a", 2)
    assert client.post("/v1/collections", json={"name": "x/y"}).status_code == 201
    assert client.get(f"{PERSONS}/a%2Fb").json()["name"] == "a/b"
    assert client.post(f"{PERSONS}/a%2fb/faces", files={"image": png(tile_of(1, 1))}).status_code == 201
    assert client.delete(f"{PERSONS}/a%2Fb").status_code == 200
    assert client.get("/v1/collections/x%2Fy").json()["name"] == "x/y"
    assert client.delete("/api/v1/recognition/subjects/a").json() == {"subject": "a"}
    check_error(client.get(f"{PERSONS}/a/b"), 404, "not_found")


@pytest.mark.parametrize("composed", [True, False])
def test_normal_forms_of_an_accent_are_one_name(client: TestClient, composed: bool) -> None:
    forms = unicodedata.normalize("NFC", "Jos\u00e9"), unicodedata.normalize("NFD", "Jos\u00e9")
    name, same_name = forms if composed else forms[::-1]
    enrol(client, name, 1)
    again = client.post(PERSONS, data={"name": same_name}, files={"image": png(tile_of(1))})
    check_error(again, 409, "exists")
    assert client.delete(f"{PERSONS}/{same_name}").status_code == 200


@pytest.mark.parametrize("value", ["True", "1", "yes", 1, ""])
def test_malformed_truth_value_is_refused(client: TestClient, value: str | int) -> None:
    error = check_error(client.post("/v1/collections", json={"name": "staff", "renewable": value}), 422, "invalid")
    assert error["details"] == {"field": "renewable"}
    reply = client.post(PERSONS, data={"name": "bob", "force": str(value)}, files={"image": png(tile_of(2))})
    assert check_error(reply, 422, "invalid")["details"] == {"field": "force"}
    assert [entry["name"] for entry in client.get("/v1/collections").json()["collections"]] == ["default"]


@pytest.mark.parametrize("name", ["", " ", " anna"])
def test_bad_name_of_a_known_face_is_invalid(client: TestClient, name: str) -> None:
    enrol(client, "anna", 1)
    reply = client.post(PERSONS, data={"name": name}, files={"image": png(tile_of(1, 1))})
    check_error(reply, 422, "invalid")


def test_duplicate_enrolment_under_another_name_is_reported(client: TestClient) -> None:
    enrol(client, "anna", 1)
    again: dict[str, Any] = {"data": {"name": "eve"}, "files": {"image": png(tile_of(1, 1))}}
    assert "anna" in check_error(client.post(PERSONS, **again), 409, "duplicate")["message"]
    subject = "/api/v1/recognition/faces?subject=eve"
    check_error(client.post(subject, files={"file": png(tile_of(1, 1))}), 409, "duplicate")
    assert [person["name"] for person in client.get(PERSONS).json()["persons"]] == ["anna"]
    again["data"]["force"] = "true"
    assert client.post(PERSONS, **again).status_code == 201
    assert client.post(f"{subject}&force=true", files={"file": png(tile_of(1, 2))}).status_code == 201


def test_people_can_be_reenrolled_after_a_model_change(client: TestClient, gallery: Gallery) -> None:
    enrol(client, "anna", 1)
    enrol(client, "bob", 2)
    with connect(NEW_ENGINE, gallery) as other:
        assert other.post(f"{PERSONS}/anna/faces", files={"image": png(tile_of(1))}).json()["replaced"] == 1
        check_error(other.post(f"{PERSONS}/bob/faces", files={"image": png(tile_of(1, 1))}), 409, "duplicate")


def test_attack_is_not_enrolled_or_searched(client: TestClient) -> None:
    enrol(client, "anna", 1)
    attack = {"image": png(tile_of(1, colour=RED))}
    (face,) = client.post("/v1/collections/default/search", files=attack).json()["faces"]
    assert (face["pad"]["decision"], face["matches"]) == ("attack", [])
    (face,) = client.post("/v1/collections/default/search?pad=report", files=attack).json()["faces"]
    assert face["matches"][0]["name"] == "anna"
    assert client.post("/v1/verify", data={"person": "anna"}, files=attack).json()["decision"] == "no_decision"
    attacks, nobody, two = png(tile_of(5, colour=RED)), png(), png(*[tile_of(5)] * 2)
    for picture, word in ((attacks, "attack"), (nobody, "no face"), (two, "several")):
        reply = client.post(PERSONS, data={"name": "eve"}, files={"image": picture})
        assert word in check_error(reply, 422, "not_enrolled")["message"]


def test_collections_are_created_and_deleted(client: TestClient) -> None:
    assert client.post("/v1/collections", json={"name": "staff", "renewable": True}).status_code == 201
    check_error(client.post("/v1/collections", json={"name": "staff"}), 409, "exists")
    listed = client.get("/v1/collections").json()["collections"]
    assert [(entry["name"], entry["renewable"]) for entry in listed] == [("default", False), ("staff", True)]
    assert client.delete("/v1/collections/staff").json() == {"deleted": "staff"}
    check_error(client.get("/v1/collections/staff"), 404, "not_found")


def test_collection_is_deleted_under_every_normal_form(client: TestClient) -> None:
    assert client.post("/v1/collections", json={"name": "Jos\u00e9"}).status_code == 201
    assert client.delete("/v1/collections/Jose\u0301").status_code == 200
    assert [entry["name"] for entry in client.get("/v1/collections").json()["collections"]] == ["default"]


@dataclass
class Interrupted(Tiles):
    """An engine that makes another change during its evaluation."""

    meanwhile: Callable[[], object] = lambda: None

    def check(self, image: np.ndarray, *, report: bool = False, most: int | None = None, confidence: float = 0) -> Any:
        self.meanwhile()
        return super().check(image, report=report, most=most, confidence=confidence)


@pytest.mark.parametrize(
    ("earlier", "face", "code"), [("anna", 2, "exists"), ("bob", 1, "duplicate")], ids=["same name", "same face"]
)
def test_one_of_two_concurrent_enrolments_is_refused(gallery: Gallery, earlier: str, face: int, code: str) -> None:
    embedding = Tiles().check(row_of(tile_of(face))).faces[0].embedding
    assert embedding is not None
    engine = Interrupted(meanwhile=lambda: gallery.enrol("default", earlier, embedding[None], MODEL))
    with connect(engine, gallery) as client:
        form: dict[str, Any] = {"data": {"name": "anna"}, "files": {"image": png(tile_of(1))}}
        check_error(client.post(PERSONS, **form), 409, code)
    assert [(person.name, len(rows)) for person, rows in gallery.everybody("default")] == [(earlier, 1)]


def test_added_face_does_not_restore_a_deleted_person(client: TestClient, gallery: Gallery) -> None:
    enrol(client, "anna", 1)
    engine = Interrupted(meanwhile=lambda: gallery.remove("default", "anna"))
    with connect(engine, gallery) as other:
        place = f"{PERSONS}/anna/faces"
        check_error(other.post(place, files={"image": png(tile_of(1))}), 404, "not_found")
    assert gallery.people("default") == []


def test_search_reports_a_model_change(client: TestClient, gallery: Gallery) -> None:
    enrol(client, "anna", 1)
    with connect(NEW_ENGINE, gallery) as other:
        reply = other.post("/v1/collections/default/search", files={"image": png(tile_of(1))})
    assert "anna" in check_error(reply, 409, "model_changed")["message"]


@pytest.mark.long
def test_compreface_clients_have_their_routes(client: TestClient) -> None:
    place = "/api/v1/recognition"
    added = client.post(f"{place}/faces?subject=anna", files={"file": png(tile_of(1))}).json()
    assert added["subject"] == "anna"
    assert client.get(f"{place}/subjects").json() == {"subjects": ["anna"]}
    assert client.get(f"{place}/faces?subject=anna").json()["faces"] == [added]
    both = {"file": png(tile_of(1, 3), tile_of(2, colour=RED))}
    first, second = client.post(f"{place}/recognize?prediction_count=1", files=both).json()["result"]
    assert first["subjects"][0]["subject"] == "anna"
    assert first["box"] == {"probability": 0.99, "x_min": 0, "y_min": 0, "x_max": 16, "y_max": 16}
    assert second["liveness"] == {"probability": 0.1, "decision": "attack"}
    assert second["subjects"] == []
    encoded = {"file": base64.b64encode(png(tile_of(1, 3))).decode()}
    (result,) = client.post(f"{place}/faces/{added['image_id']}/verify", json=encoded).json()["result"]
    assert (result["subject"], result["similarity"] > 0.9) == ("anna", True)
    assert len(client.post("/api/v1/detection/detect?limit=1", files=both).json()["result"]) == 1
    pair = {"source_image": png(tile_of(1)), "target_image": png(tile_of(2), tile_of(1, 1))}
    (result,) = client.post("/api/v1/verification/verify", files=pair).json()["result"]
    assert [match["similarity"] > 0.9 for match in result["face_matches"]] == [True, False]
    assert client.delete(f"{place}/faces/{added['image_id']}").json()["subject"] == "anna"
    again = client.post(f"{place}/faces?subject=anna", files={"file": png(tile_of(1))}).json()
    listed = client.post(f"{place}/faces/delete", json=[again["image_id"], "f_0123456789abcdef"]).json()
    assert listed == [again]
    for number in (1, 2):
        client.post(f"{place}/faces?subject=anna", files={"file": png(tile_of(1, number))})
    assert client.delete(f"{place}/faces?subject=anna").json() == {"deleted": 2}
    assert client.get(f"{place}/faces").json()["faces"] == []
    assert client.delete(f"{place}/subjects/anna").json() == {"subject": "anna"}


FIELD = b'--y\r\nContent-Disposition: form-data; name="person"\r\n\r\nanna\r\n'


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"", "image/png", 422, "bad_image"),
        (b"no picture", "image/png", 422, "bad_image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "image/png", 422, "bad_image"),
        (b"{", "application/json", 400, "bad_json"),
        (b"[1]", "application/json", 400, "bad_json"),
        (b"[" * 5000, "application/json", 400, "bad_json"),
        (b'{"image": 7}', "application/json", 422, "bad_image"),
        (b'{"image": "%%%"}', "application/json", 422, "bad_image"),
        (b'{"person": "anna", "person": "bob"}', "application/json", 400, "bad_json"),
        (2 * FIELD + b"--y--\r\n", "multipart/form-data; boundary=y", 400, "bad_form"),
        (b"{}", "application/json", 422, "no_image"),
        (b'{"\xed\xa0\x80": [1]}', "application/json", 400, "bad_json"),
        (b'{"a": [' + b"[]," * 2000 + b"1]}", "application/json", 400, "bad_json"),
        (b"x", "multipart/form-data", 400, "bad_form"),
        (b"x", "multipart/form-data; boundary=y", 400, "bad_form"),
        (b"--y--", "multipart/form-data; boundary=y; charset=unicode_escape", 415, "unsupported"),
        (b"--y--", "multipart/form-data; boundary=y; charset=UTF-8", 422, "no_image"),
        (b"x", "text/plain", 415, "unsupported"),
        (b"\0" * 300_001, "image/png", 413, "too_large"),
    ],
)
def test_body_without_a_picture_is_refused(
    client: TestClient, content: bytes, kind: str, status: int, code: str
) -> None:
    check_error(client.post("/v1/pad", content=content, headers={"content-type": kind}), status, code)


@pytest.mark.parametrize(
    "content", [b'["\\ud800"]', b'{"a": 1}', b'["f_1"]', b"[" * 5000, b"[" + b"{}," * 3000 + b"1]"]
)
def test_invalid_list_of_faces_is_refused(client: TestClient, content: bytes) -> None:
    place, kind = "/api/v1/recognition/faces/delete", {"content-type": "application/json"}
    reply = client.post(place, content=content, headers=kind)
    assert reply.status_code in (400, 422)
    assert reply.json()["request_id"] == reply.headers["x-request-id"]


@dataclass
class Defective(Tiles):
    """An engine with a defect."""

    def detect(self, image: np.ndarray) -> Any:
        raise AssertionError("a message that may quote a name")


@pytest.mark.long
def test_defect_is_answered_in_the_form_of_the_service() -> None:
    with connect(Defective()) as client:
        check_error(client.post("/v1/detect", files={"image": png(tile_of(1))}), 500, "internal")


def test_decompression_bomb_is_refused(client: TestClient) -> None:
    bomb = io.BytesIO()
    Image.new("1", (3_000, 3_000)).save(bomb, "PNG")
    assert len(bomb.getvalue()) < LIMITS.body
    check_error(client.post("/v1/pad", files={"image": bomb.getvalue()}), 413, "image_too_large")


def test_body_without_length_is_cut_off_at_the_limit(client: TestClient) -> None:
    pieces = (b"\0" * 50_000 for _ in range(1000))
    check_error(client.post("/v1/pad", content=pieces, headers={"content-type": "image/png"}), 413, "too_large")


def test_unknown_routes_and_parameters_are_refused(client: TestClient) -> None:
    assert "path" in check_error(client.get("/v1/nothing"), 404, "not_found")["message"]
    assert "method" in check_error(client.get("/v1/pad"), 405, "method_not_allowed")["message"]
    check_error(client.get("/docs"), 404, "not_found")
    check_error(client.get("/v1/health/"), 404, "not_found")
    check_error(client.post("/v1/collections/none/search", files={"image": png(tile_of(1))}), 404, "not_found")
    check_error(client.post("/v1/collections/default/search?limit=0", files={"image": png(tile_of(1))}), 422, "invalid")
    check_error(client.post("/v1/verify", files={"image": png(tile_of(1))}), 422, "missing")
    check_error(client.post("/v1/collections", json={"name": "a\nb"}), 422, "invalid")
    check_error(client.post("/v1/collections", json={"name": "staff", "renewabel": True}), 422, "invalid")
    with connect(Tiles(model=None)) as bare:
        check_error(bare.post("/v1/embed", files={"image": png(tile_of(1))}), 422, "invalid")
        check_error(bare.get("/v1/collections"), 422, "invalid")


def test_requests_without_a_key_are_refused(client: TestClient) -> None:
    wrong = ({"x-api-key": "wrong"}, {"x-api-key": ""}, {"authorization": "Bearer wrong"}, {"authorization": KEY})
    for headers in wrong:
        empty = {"x-api-key": "", **headers}
        check_error(client.get("/v1/models", headers=empty), 401, "unauthorised")
        check_error(client.get("/metrics", headers=empty), 401, "unauthorised")
        assert client.get("/v1/health", headers=empty).status_code == 200
    assert client.get("/v1/models", headers={"x-api-key": "", "authorization": f"Bearer {KEY}"}).status_code == 200


def test_rate_limit_states_when_to_retry() -> None:
    now = [0.0]
    rates = RateLimiter(Limits(rate=2, burst=3), lambda: now[0])
    assert [rates.wait("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert rates.wait("b") == 0
    now[0] = 0.6
    assert rates.wait("a") == 0
    assert rates.wait("a") > 0
    with connect(limits=Limits(rate=0.001, burst=2)) as client:
        assert [client.get("/v1/health").status_code for _ in range(2)] == [200, 200]
        reply = client.get("/v1/health")
        check_error(reply, 429, "too_many_requests")
        assert int(reply.headers["retry-after"]) > 100


def test_largest_faces_are_evaluated_and_each_counts_as_a_request() -> None:
    three = {"image": png(tile_of(1), tile_of(2), tile_of(3))}
    limits = Limits(rate=0.001, burst=5, faces=2)
    with connect(limits=limits) as client:
        reply = client.post("/v1/pad", files=three).json()
        assert (len(reply["faces"]), reply["left_out"]) == (2, 1)
        assert [client.post("/v1/pad", files=three).status_code for _ in range(3)] == [200, 200, 429]


def test_compreface_limits_and_thresholds_apply_before_faces_are_evaluated() -> None:
    three = {"file": png(tile_of(1), tile_of(2), tile_of(3))}
    with connect(limits=Limits(rate=0.001, burst=5)) as client:
        place = "/api/v1/detection/detect"
        assert len(client.post(f"{place}?limit=1", files=three).json()["result"]) == 1
        assert client.post(f"{place}?det_prob_threshold=1", files=three).json()["result"] == []
        assert 'decision="bona_fide"} 1\n' in client.get("/metrics").text
        assert [client.post(f"{place}?limit=1", files=three).status_code for _ in range(3)] == [200, 200, 429]


def test_boxes_of_a_reduced_picture_are_in_pixels_of_the_picture_as_sent() -> None:
    photograph = Image.fromarray(row_of(tile_of(1))).resize((64, 32), Image.Resampling.NEAREST)
    out = io.BytesIO()
    photograph.save(out, "JPEG", quality=100)
    with connect(limits=replace(LIMITS, pixels=512)) as client:
        for route in ("detect", "pad"):
            face = client.post(f"/v1/{route}", files={"image": out.getvalue()}).json()["faces"][0]
            assert face["box"] == {"x": 0, "y": 0, "width": 32, "height": 32, "confidence": 0.99}
            assert face["normalised"] == {"x": 0, "y": 0, "width": 0.5, "height": 1}
        reply = client.post("/api/v1/detection/detect", files={"file": out.getvalue()}).json()
        assert reply["result"][0]["box"]["x_max"] == 32


def test_requests_keep_their_ids_and_the_log_has_no_names(client: TestClient, log: list[str]) -> None:
    enrol(client, "Ada Lovelace", 1)
    client.get("/v1/collections/default/persons/Ada Lovelace", headers={"x-request-id": "from-the-client"})
    client.get("/api/v1/recognition/faces?subject=Ada Lovelace")
    reply = client.get("/v1/health", headers={"x-request-id": "a b\tc"})
    assert "from-the-client" in log[1]
    assert " GET /v1/collections/{collection}/persons/{person} 200 " in log[1]
    assert len(reply.headers["x-request-id"]) == 32
    assert not [line for line in log if "Ada" in line or KEY in line or "\n" in line]
    counted = client.get("/metrics").text
    assert 'fedvisage_requests_total{method="GET",route="/v1/health",status="200"} 1' in counted
    assert "Ada" not in counted


def test_documentation_of_the_service_lists_its_routes(client: TestClient) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `") and "/v1/" in line]
    listed = {
        (method, path)
        for row in rows
        for methods, path in re.findall(r"((?:`?[A-Z]+`?,? ?)+)(/[^`]+)`", row)
        for method in re.findall(r"[A-Z]+", methods)
    }
    paths = client.get("/openapi.json").json()["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods if path.startswith("/v1")}
    assert listed == served | {("GET", "/v1/metrics"), ("GET", "/metrics")}


@pytest.mark.long
def test_every_response_has_a_schema(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            (success,) = [code for code in operation["responses"] if code.startswith("2")]
            content = operation["responses"][success]["content"]["application/json"]["schema"]
            name = (content.get("items") or content)["$ref"].rpartition("/")[2]
            assert schemas[name]["properties"], f"{method} {path}"
            assert schemas[name]["additionalProperties"] is False


def test_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert "/v1/collections/{collection}/search" in page.text
    assert "http:" not in page.text
    assert "https:" not in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "/v1/compare" in json.loads(client.get("/openapi.json").text)["paths"]
