"""Nonces of the service: an enrolment from another machine needs one, and cannot be sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.device.gallery.tiles import Tiles, tile_of
from tests.device.service.test_service import LIMITS, check_error, gallery, png
from tests.device.service.test_service_access import PERSONS, SCOPED

from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service.access import CHECK, ENROL, LIFETIME, PENDING, Caller, Keys, Nonces
from fedvisage.device.service.app import build
from fedvisage.device.service.guard import RequestGuard

__all__ = ["gallery"]

OTHER = "an-enrolment-key-of-another-client"
KEYS = Keys([*((key, Caller(scope, scope)) for scope, key in SCOPED.items()), (OTHER, Caller("other", ENROL))])
REMOTE, HERE = ("192.0.2.7", 4000), ("127.0.0.1", 4000)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(gallery: Gallery, clock: Clock) -> RequestGuard:
    return build(Tiles(), gallery, keys=KEYS, limits=LIMITS, hosts=["door.example"], nonces=Nonces(clock))


def connect(
    service: RequestGuard, client: tuple[str, int] = REMOTE, host: str = "door.example", key: str = SCOPED[ENROL]
) -> TestClient:
    return TestClient(service, f"http://{host}", headers={"x-api-key": key}, client=client)


@pytest.fixture
def remote(service: RequestGuard) -> Iterator[TestClient]:
    with connect(service) as client:
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


def test_nonce_expires(remote: TestClient, clock: Clock) -> None:
    nonce = nonce_header(remote)
    clock.now = LIFETIME
    check_error(enrol(remote, nonce), 403, "bad_nonce")


def test_nonce_is_valid_only_for_its_key(service: RequestGuard, remote: TestClient) -> None:
    nonce = nonce_header(remote)
    check_error(enrol(connect(service, key=OTHER), nonce), 403, "bad_nonce")
    check_error(connect(service, key=SCOPED[CHECK]).post("/v1/nonces"), 403, "forbidden")


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
    assert enrol(connect(service, client, host)).status_code == status


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Proto"])
def test_client_behind_a_local_proxy_needs_a_nonce(service: RequestGuard, header: str) -> None:
    """The proxy is not named with ``--proxy`` and passes the client's ``Host: localhost`` on."""
    client = connect(service, HERE, "localhost")
    check_error(enrol(client, {header: "127.0.0.1"}), 403, "bad_nonce")
    assert enrol(client, {header: "127.0.0.1", **nonce_header(client)}).status_code == 201


def test_every_client_of_a_named_proxy_needs_a_nonce(gallery: Gallery) -> None:
    service = build(Tiles(), gallery, keys=KEYS, limits=LIMITS, nonces=Nonces(behind_proxy=True))
    client = connect(service, HERE, "localhost")
    check_error(enrol(client), 403, "bad_nonce")
    assert enrol(client, nonce_header(client)).status_code == 201


def test_searches_and_deletions_need_no_nonce(service: RequestGuard, remote: TestClient) -> None:
    assert remote.post("/v1/collections/default/search", files={"image": png(tile_of(1))}).status_code == 200
    assert connect(service, key=SCOPED["admin"]).delete(f"{PERSONS}/nobody").status_code == 404


def test_number_of_pending_nonces_is_bounded() -> None:
    nonces = Nonces()
    first = nonces.issue("desk")
    last = [nonces.issue("desk") for _ in range(PENDING)][-1]
    nonces.use(last, "desk")
    with pytest.raises(Exception, match="nonce"):
        nonces.use(first, "desk")
