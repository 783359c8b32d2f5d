"""Access control of the service: hosts, origins, keys, scopes, the audit log, and nonces."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.commands import call, output_of
from tests.device.gallery.tiles import RED, Tiles, tile_of
from tests.device.service.clients import KEY, LIMITS, PERSONS, check_error, connect, png
from tests.refusals import refused

from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service.access import (
    ADMIN,
    CHECK,
    ENROL,
    LIFETIME,
    PENDING,
    Caller,
    KeyFile,
    Keys,
    Nonces,
    read_keys,
)
from fedvisage.device.service.app import build, check_open
from fedvisage.device.service.guard import AuditLog, RequestGuard

FORM: dict[str, Any] = {"data": {"name": "eve"}, "files": {"image": png(tile_of(1))}}
SCOPED = {scope: f"a-key-for-{scope}-0123456789" for scope in (CHECK, ENROL, ADMIN)}


@pytest.fixture
def client_without_keys(gallery: Gallery) -> Iterator[TestClient]:
    with connect(gallery=gallery, hosts=["Door.example"]) as client:
        del client.headers["x-fedvisage"]
        yield client


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "", "[", "a@localhost:x"]
)
def test_foreign_host_name_is_refused_everywhere(client_without_keys: TestClient, host: str) -> None:
    for path in ("/", "/v1/health", PERSONS):
        check_error(client_without_keys.get(path, headers={"host": host}), 403, "foreign_host")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:9", "[::1]:9", "10.1.2.3", "DOOR.example:8443"]
)
def test_addresses_and_names_of_the_service_are_accepted(client_without_keys: TestClient, host: str) -> None:
    assert client_without_keys.get("/v1/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://localhost:9", "http://localhost.evil.example", "https://localhost"],
)
def test_page_of_another_site_is_refused(client_without_keys: TestClient, origin: str) -> None:
    reply = client_without_keys.post(PERSONS, headers={"origin": origin, "x-fedvisage": "1"}, **FORM)
    check_error(reply, 403, "foreign_origin")
    own = client_without_keys.post("/v1/pad", headers={"origin": "http://localhost"}, files=FORM["files"])
    assert own.status_code == 200


def test_service_without_keys_requires_its_header(client_without_keys: TestClient, gallery: Gallery) -> None:
    for method, path in (
        ("POST", PERSONS),
        ("POST", f"{PERSONS}/eve/faces"),
        ("DELETE", f"{PERSONS}/eve"),
        ("POST", "/v1/collections"),
        ("DELETE", "/v1/collections/default"),
        ("POST", "/api/v1/recognition/faces?subject=eve"),
        ("DELETE", "/api/v1/recognition/subjects/eve"),
    ):
        check_error(client_without_keys.request(method, path, **FORM), 403, "no_intent")
    assert gallery.people("default") == []
    assert client_without_keys.post(PERSONS, headers={"X-Fedvisage": "1"}, **FORM).status_code == 201
    place, key = "/api/v1/recognition/faces?subject=bob", {"x-api-key": "any"}
    added = client_without_keys.post(place, headers=key, files=FORM["files"])
    assert added.status_code == 422, added.text  # this route expects the picture in the field "file"
    assert client_without_keys.post("/v1/collections/default/search", files=FORM["files"]).status_code == 200


def test_each_scope_includes_those_before_it_and_no_other(gallery: Gallery) -> None:
    keys = Keys([(key, Caller(scope, scope)) for scope, key in SCOPED.items()])
    attack = {"files": {"image": png(tile_of(1, colour=RED))}}
    requests_of: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
        CHECK: [("POST", "/v1/pad", FORM), ("POST", "/v1/collections/default/search", FORM)],
        ENROL: [("POST", PERSONS, FORM), ("GET", PERSONS, {}), ("GET", "/api/v1/recognition/subjects", {})],
        ADMIN: [("POST", "/v1/embed?pad=report", attack), ("DELETE", f"{PERSONS}/eve", {})],
    }
    with connect(gallery=gallery, keys=keys) as client:
        for place, scope in enumerate(SCOPED):
            for needed, (required, requests) in enumerate(requests_of.items()):
                for method, path, content in requests:
                    reply = client.request(method, path, headers={"x-api-key": SCOPED[scope]}, **content)
                    if needed > place:
                        assert required in check_error(reply, 403, "forbidden")["message"]
                    else:
                        assert reply.status_code in (200, 201, 409), reply.text


def test_every_route_requires_a_scope_except_health() -> None:
    keys = Keys([(SCOPED[CHECK], Caller("terminal", "check"))])
    with connect(keys=keys) as client:
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method in methods:
                status = client.request(method.upper(), path).status_code
                assert status == (200 if path == "/v1/health" else 401), path


def test_key_file_gives_names_and_scopes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the door\n{KEY}\n\nkiosk check {SCOPED[CHECK]}\ndesk\tenrol  {SCOPED[ENROL]}\n")
    keys = KeyFile(file)
    owners = [keys.owner(key) for key in (KEY, SCOPED[CHECK], SCOPED[ENROL], "x", "")]
    assert owners == [Caller("line 2", ADMIN), Caller("kiosk", CHECK), Caller("desk", ENROL), None, None]
    assert keys.without_scope == 1


def test_service_for_other_machines_needs_keys() -> None:
    check_open("0.0.0.0", Keys([(KEY, Caller("door", ADMIN))]), False)
    check_open("127.0.0.1", Keys(), False)
    with refused("--api-keys", "0.0.0.0", "--without-keys"):
        check_open("0.0.0.0", Keys(), False)


@pytest.mark.parametrize(
    ("content", "place", "keyword"),
    [
        ("", "keys", "NAME SCOPE KEY"),
        ("# none\n", "keys", "NAME SCOPE KEY"),
        ("short\n", "keys:1", "short"),
        ("\nkiosk check short\n", "keys:2", "short"),
        ("kiosk a-key-0123456789abcdef\n", "keys:1", "NAME SCOPE KEY"),
        ("kiosk root a-key-0123456789abcdef\n", "keys:1", "scope"),
        ("ki/osk check a-key-0123456789abcdef\n", "keys:1", "name"),
        (f"a check {KEY}\nb admin {KEY}\n", "keys:2", "repeats"),
        (f"a check {KEY}\na check {KEY}2\n", "keys:2", "repeats"),
    ],
)
def test_unusable_lines_of_a_key_file_are_refused(tmp_path: Path, content: str, place: str, keyword: str) -> None:
    (tmp_path / "keys").write_text(content)
    with refused(place, keyword):
        read_keys(tmp_path / "keys")


def test_changed_key_file_is_reloaded_unless_damaged(tmp_path: Path) -> None:
    file, log = tmp_path / "keys", list[str]()
    file.write_text(f"kiosk check {SCOPED[CHECK]}\n")
    keys = KeyFile(file, log.append)
    file.write_text(f"kiosk check {SCOPED[ADMIN]}-rotated\n")
    assert keys.owner(SCOPED[CHECK]) is None
    assert keys.owner(f"{SCOPED[ADMIN]}-rotated") == Caller("kiosk", CHECK)
    file.write_text("short\n")
    assert keys.owner(f"{SCOPED[ADMIN]}-rotated") == Caller("kiosk", CHECK)
    file.unlink()
    assert keys.owner(f"{SCOPED[ADMIN]}-rotated") == Caller("kiosk", CHECK)
    assert [("again" in line, "remain valid" in line) for line in log] == [(True, False), (False, True), (False, True)]
    assert not [line for line in log if SCOPED[ADMIN] in line]


def test_serve_warns_of_readable_key_files_and_keys_without_scope(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"{KEY}\n")
    file.chmod(0o644)
    words = ("serve", "--pad", tmp_path / "nothing", "--api-keys", file)
    notes = call(*words).stderr
    assert "chmod 600" in notes
    assert "NAME SCOPE KEY" in notes
    file.write_text(f"door admin {KEY}\n")
    file.chmod(0o600)
    assert not call(*words).stderr


def test_gallery_without_a_recognition_model_is_refused_at_start(tmp_path: Path) -> None:
    words = ("serve", "--pad", tmp_path / "nothing", "--gallery", tmp_path / "door.gallery", "--key", tmp_path / "key")
    with refused("--gallery", "--recognition"):
        output_of(*words)


def test_audit_log_states_client_and_action_without_names(gallery: Gallery, tmp_path: Path) -> None:
    keys = Keys([(KEY, Caller("desk", ADMIN)), (SCOPED[CHECK], Caller("kiosk", CHECK))])
    path = tmp_path / "audit.jsonl"
    with connect(gallery=gallery, keys=keys, audit=AuditLog(path)) as client:
        desk, kiosk = {"x-api-key": KEY}, {"x-api-key": SCOPED[CHECK]}
        files = {"image": png(tile_of(1))}
        ada = client.post(PERSONS, headers=desk, data={"name": "Ada"}, files=files).json()["id"]
        client.delete(f"{PERSONS}/Ada", headers=kiosk)
        client.delete(f"{PERSONS}/Ada", headers={"x-api-key": "wrong"})
        client.delete(f"{PERSONS}/Ada", headers=desk)
        client.get("/v1/health")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    place = "/v1/collections/{collection}/persons"
    assert [(r["key"], r["method"], r["route"], r["person_id"], r["status"]) for r in records] == [
        ("desk", "POST", place, ada, 201),
        ("kiosk", "DELETE", f"{place}/{{person}}", None, 403),
        (None, "DELETE", "none", None, 401),
        ("desk", "DELETE", f"{place}/{{person}}", ada, 200),
    ]
    assert [record["collection"] for record in records] == ["default", "default", None, "default"]
    assert "Ada" not in path.read_text()
    assert KEY not in path.read_text()
    assert os.stat(path).st_mode & 0o077 == 0


def test_client_cannot_forge_a_line_of_the_audit_log(gallery: Gallery, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with connect(gallery=gallery, audit=AuditLog(path)) as client:
        client.get("/v1/collections/a%E2%80%A8%7B%7D%C2%9B31m%E2%80%AE%0A")
        client.get(f"/v1/collections/{'x' * 20_000}")
    forged, long = path.read_text().splitlines()
    assert json.loads(forged)["collection"].isprintable()
    assert len(long) < 500


def test_unwritable_audit_log_is_refused(tmp_path: Path) -> None:
    with refused(tmp_path, "regular"):
        AuditLog(tmp_path)
    with refused(tmp_path / "nowhere/log", "written"):
        AuditLog(tmp_path / "nowhere/log")


# Nonces: an enrolment from another machine needs one, and cannot be sent twice.


OTHER = "an-enrolment-key-of-another-client"
NONCE_KEYS = Keys([*((key, Caller(scope, scope)) for scope, key in SCOPED.items()), (OTHER, Caller("other", ENROL))])
REMOTE, HERE = ("192.0.2.7", 4000), ("127.0.0.1", 4000)


@pytest.fixture
def clock() -> list[float]:
    """The present time, as the only number."""
    return [0.0]


@pytest.fixture
def service(gallery: Gallery, clock: list[float]) -> RequestGuard:
    nonces = Nonces(lambda: clock[0])
    return build(Tiles(), gallery, keys=NONCE_KEYS, limits=LIMITS, hosts=["door.example"], nonces=nonces)


def connect_to(
    service: RequestGuard, client: tuple[str, int] = REMOTE, host: str = "door.example", key: str = SCOPED[ENROL]
) -> TestClient:
    return TestClient(service, f"http://{host}", headers={"x-api-key": key}, client=client)


@pytest.fixture
def remote(service: RequestGuard) -> Iterator[TestClient]:
    with connect_to(service) as client:
        yield client


def nonce_header(client: TestClient) -> dict[str, str]:
    reply = client.post("/v1/nonces")
    assert reply.status_code == 201
    return {"x-nonce": reply.json()["nonce"]}


def enrol(client: TestClient, headers: dict[str, str] | None = None, path: str = PERSONS, person: int = 1) -> Any:
    words = {"name": f"person {person}", "subject": f"person {person}"}
    picture = png(tile_of(person))
    return client.post(path, headers=headers, data=words, files={"image": picture, "file": picture})


@pytest.mark.parametrize("path", [PERSONS, f"{PERSONS}/person 1/faces", "/api/v1/recognition/faces"])
def test_remote_enrolment_needs_a_fresh_nonce(remote: TestClient, path: str) -> None:
    if path.endswith("1/faces"):
        assert enrol(remote, nonce_header(remote)).status_code == 201
    check_error(enrol(remote, path=path), 403, "bad_nonce")
    check_error(enrol(remote, {"x-nonce": "guessed"}, path), 403, "bad_nonce")
    once = nonce_header(remote)
    assert enrol(remote, once, path).status_code == 201
    check_error(enrol(remote, once, path), 403, "bad_nonce")


def test_nonce_expires(remote: TestClient, clock: list[float]) -> None:
    nonce = nonce_header(remote)
    clock[0] = LIFETIME
    check_error(enrol(remote, nonce), 403, "bad_nonce")


def test_nonce_is_valid_only_for_its_key(service: RequestGuard, remote: TestClient) -> None:
    nonce = nonce_header(remote)
    check_error(enrol(connect_to(service, key=OTHER), nonce), 403, "bad_nonce")
    check_error(connect_to(service, key=SCOPED[CHECK]).post("/v1/nonces"), 403, "forbidden")


@pytest.mark.parametrize(
    ("client", "host", "status"),
    [
        (HERE, "localhost", 201),
        (("::1", 4000), "localhost", 201),
        (HERE, "door.example", 403),  # through a proxy on this machine
        (REMOTE, "localhost", 403),  # a forged host name
    ],
)
def test_only_clients_on_this_machine_need_no_nonce(
    service: RequestGuard, client: tuple[str, int], host: str, status: int
) -> None:
    assert enrol(connect_to(service, client, host)).status_code == status


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Proto"])
def test_client_behind_a_local_proxy_needs_a_nonce(service: RequestGuard, header: str) -> None:
    """The proxy is not named with ``--proxy`` and passes the client's ``Host: localhost`` on."""
    client = connect_to(service, HERE, "localhost")
    check_error(enrol(client, {header: "127.0.0.1"}), 403, "bad_nonce")
    assert enrol(client, {header: "127.0.0.1", **nonce_header(client)}).status_code == 201


def test_every_client_of_a_named_proxy_needs_a_nonce(gallery: Gallery) -> None:
    service = build(Tiles(), gallery, keys=NONCE_KEYS, limits=LIMITS, nonces=Nonces(behind_proxy=True))
    client = connect_to(service, HERE, "localhost")
    check_error(enrol(client), 403, "bad_nonce")
    assert enrol(client, nonce_header(client)).status_code == 201


def test_searches_and_deletions_need_no_nonce(service: RequestGuard, remote: TestClient) -> None:
    assert remote.post("/v1/collections/default/search", files={"image": png(tile_of(1))}).status_code == 200
    assert connect_to(service, key=SCOPED["admin"]).delete(f"{PERSONS}/nobody").status_code == 404


def test_number_of_pending_nonces_is_bounded() -> None:
    nonces = Nonces()
    first = nonces.issue("desk")
    last = [nonces.issue("desk") for _ in range(PENDING)][-1]
    nonces.use(last, "desk")
    with pytest.raises(Exception, match="nonce"):
        nonces.use(first, "desk")
