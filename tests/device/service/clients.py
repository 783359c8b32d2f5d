"""Clients of a service in memory, its keys, and the form of its errors."""

import io
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient
from tests.device.gallery.tiles import Tiles, row_of

from fedvisage.device.gallery.enrolment import Engine
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service.access import ADMIN, Caller, Keys
from fedvisage.device.service.app import build
from fedvisage.device.service.limits import Limits

KEY = "a-key-of-the-tests-0123456789"
KEYS = Keys([(KEY, Caller("tests", ADMIN))])
LIMITS = Limits(body=300_000, pixels=100_000, rate=0)
PERSONS = "/v1/collections/default/persons"


def png(*tiles: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(row_of(*tiles)).save(out, "PNG")
    return out.getvalue()


def connect(engine: Engine | None = None, gallery: Gallery | None = None, **options: Any) -> TestClient:
    """Return a client on this machine that announces its changes, of a service with these options."""
    guard = build(engine or Tiles(), gallery, **{"limits": LIMITS, **options})
    return TestClient(guard, "http://localhost", headers={"x-fedvisage": "1"}, raise_server_exceptions=False)


def check_error(reply: Any, status: int, code: str) -> dict[str, Any]:
    """Check a refusal's status, code and form, and return its error."""
    assert reply.status_code == status, reply.text
    values = reply.json()
    assert set(values) == {"error", "request_id"}
    error: dict[str, Any] = values["error"]
    assert set(error) == {"code", "message", "details"}
    assert error["code"] == code
    assert values["request_id"] == reply.headers["x-request-id"]
    assert "\n" not in error["message"]
    return error
