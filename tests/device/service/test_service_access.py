"""Access control of the service: hosts, origins, keys, scopes, and the audit log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.device.gallery.tiles import RED, Tiles, tile_of
from tests.device.service.test_service import KEY, LIMITS, LOCAL, check_error, gallery, png
from tests.refusals import refused
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service.access import ADMIN, CHECK, ENROL, Caller, KeyFile, Keys, read_keys
from fedvisage.device.service.app import build, check_open
from fedvisage.device.service.guard import AuditLog

__all__ = ["gallery"]

PERSONS = "/v1/collections/default/persons"
SCOPED = {scope: f"a-key-for-{scope}-0123456789" for scope in (CHECK, ENROL, ADMIN)}


@pytest.fixture
def client_without_keys(gallery: Gallery) -> Iterator[TestClient]:
    with TestClient(build(Tiles(), gallery, limits=LIMITS, hosts=["Door.example"]), LOCAL) as client:
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
    form = {"data": {"name": "eve"}, "files": {"image": png(tile_of(1))}}
    check_error(
        client_without_keys.post(PERSONS, headers={"origin": origin, "x-fedvisage": "1"}, **form), 403, "foreign_origin"
    )
    own = client_without_keys.post("/v1/pad", headers={"origin": "http://localhost"}, files={"image": png(tile_of(1))})
    assert own.status_code == 200


def test_service_without_keys_requires_its_header_for_changes(
    client_without_keys: TestClient, gallery: Gallery
) -> None:
    form: dict[str, Any] = {"data": {"name": "eve"}, "files": {"image": png(tile_of(1))}}
    for method, path in (
        ("POST", PERSONS),
        ("POST", f"{PERSONS}/eve/faces"),
        ("DELETE", f"{PERSONS}/eve"),
        ("POST", "/v1/collections"),
        ("DELETE", "/v1/collections/default"),
        ("POST", "/api/v1/recognition/faces?subject=eve"),
        ("DELETE", "/api/v1/recognition/subjects/eve"),
    ):
        check_error(client_without_keys.request(method, path, **form), 403, "no_intent")
    assert gallery.people("default") == []
    assert client_without_keys.post(PERSONS, headers={"X-Fedvisage": "1"}, **form).status_code == 201
    added = client_without_keys.post(
        "/api/v1/recognition/faces?subject=bob", headers={"x-api-key": "any"}, files=form["files"]
    )
    assert added.status_code == 422, added.text  # this route expects the picture in the field "file"
    assert client_without_keys.post("/v1/collections/default/search", files=form["files"]).status_code == 200


def test_each_scope_includes_those_before_it_and_no_other(gallery: Gallery) -> None:
    keys = Keys([(key, Caller(scope, scope)) for scope, key in SCOPED.items()])
    form: dict[str, Any] = {"data": {"name": "anna"}, "files": {"image": png(tile_of(1))}}
    attack = {"files": {"image": png(tile_of(1, colour=RED))}}
    requests_of: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
        CHECK: [("POST", "/v1/pad", form), ("POST", "/v1/collections/default/search", form)],
        ENROL: [("POST", PERSONS, form), ("GET", PERSONS, {}), ("GET", "/api/v1/recognition/subjects", {})],
        ADMIN: [("POST", "/v1/embed?pad=report", attack), ("DELETE", f"{PERSONS}/anna", {})],
    }
    with TestClient(build(Tiles(), gallery, keys=keys, limits=LIMITS), LOCAL) as client:
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
    with TestClient(build(Tiles(), None, keys=keys, limits=LIMITS), LOCAL) as client:
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method in methods:
                status = client.request(method.upper(), path).status_code
                assert status == (200 if path == "/v1/health" else 401), path


def test_key_file_gives_names_and_scopes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the door\n{KEY}\n\nkiosk check {SCOPED[CHECK]}\ndesk\tenrol  {SCOPED[ENROL]}\n")
    keys = KeyFile(file)
    assert [keys.owner(key) for key in (KEY, SCOPED[CHECK], SCOPED[ENROL], "x", "")] == [
        Caller("line 2", ADMIN),
        Caller("kiosk", CHECK),
        Caller("desk", ENROL),
        None,
        None,
    ]
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
    nothing = str(tmp_path / "nothing")
    notes = CliRunner().invoke(app, ["serve", "--pad", nothing, "--api-keys", str(file)]).stderr
    assert "chmod 600" in notes
    assert "NAME SCOPE KEY" in notes
    file.write_text(f"door admin {KEY}\n")
    file.chmod(0o600)
    assert not CliRunner().invoke(app, ["serve", "--pad", nothing, "--api-keys", str(file)]).stderr


def test_audit_log_states_client_and_action_without_names(gallery: Gallery, tmp_path: Path) -> None:
    keys = Keys([(KEY, Caller("desk", ADMIN)), (SCOPED[CHECK], Caller("kiosk", CHECK))])
    path = tmp_path / "audit.jsonl"
    with TestClient(build(Tiles(), gallery, keys=keys, limits=LIMITS, audit=AuditLog(path)), LOCAL) as client:
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
    with TestClient(build(Tiles(), gallery, limits=LIMITS, audit=AuditLog(path)), LOCAL) as client:
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
