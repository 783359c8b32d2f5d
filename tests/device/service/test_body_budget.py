"""The byte budget of open requests is charged before a body is read, and always released."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import pytest
from starlette.types import Message, Scope
from tests.device.gallery.tiles import Tiles, tile_of
from tests.device.service.clients import png

from fedvisage.device.service.access import CHECK, Caller, Keys
from fedvisage.device.service.app import build
from fedvisage.device.service.guard import HEADERS, RequestGuard
from fedvisage.device.service.limits import Limits

BODY = 1000
NAMES = ("kiosk", "desk", "gate", "hall", "yard")
KEYS = Keys((f"the-key-of-the-{name}", Caller(name, CHECK)) for name in NAMES)


def make_service(**limits: Any) -> RequestGuard:
    return build(Tiles(), keys=KEYS, limits=Limits(**{"body": BODY, "bodies": 8 * BODY, "rate": 0, **limits}))


@dataclass
class Request:
    """A request whose body is sent in parts; the service requests each part."""

    guard: RequestGuard
    length: int | None = None
    name: str = "kiosk"
    parts: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    part_requests: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    sent: list[Message] = field(default_factory=list)

    def start(self) -> asyncio.Task[None]:
        length = {} if self.length is None else {"content-length": str(self.length)}
        chunked = {"transfer-encoding": "chunked"} if self.length is None else {}
        headers = {"host": "localhost", "x-api-key": f"the-key-of-the-{self.name}", "content-type": "image/png"}
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/pad",
            "raw_path": b"/v1/pad",
            "query_string": b"",
            "scheme": "http",
            "client": ("192.0.2.7", 4000),
            "headers": [(name.encode(), value.encode()) for name, value in (headers | length | chunked).items()],
        }

        async def receive() -> Message:
            self.part_requests.release()
            return await self.parts.get()

        async def send(message: Message) -> None:
            self.sent.append(message)

        return asyncio.create_task(self.guard(scope, receive, send))

    async def is_read(self) -> asyncio.Task[None]:
        """Start, and return once the service waits for the body."""
        task = self.start()
        await self.part_requests.acquire()
        return task

    async def refusal(self) -> tuple[int, str]:
        """Start, and return the status and code of the answer; the service must not wait for the body."""
        await self.start()
        assert self.part_requests.locked(), "the body was read"
        error = json.loads(self.sent[1]["body"])["error"]
        assert "\n" not in error["message"]
        return self.sent[0]["status"], error["code"]

    def put(self, content: bytes, *, more: bool = True) -> None:
        self.parts.put_nowait({"type": "http.request", "body": content, "more_body": more})


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


@in_event_loop
async def test_sixty_unfinished_bodies_of_one_key_reserve_no_more_than_its_share() -> None:
    guard = build(Tiles(), keys=KEYS, limits=Limits(rate=0))
    requests = [Request(guard, 9_800_000) for _ in range(60)]
    tasks = [request.start() for request in requests]
    await asyncio.gather(*tasks[5:])
    assert [request.part_requests.locked() for request in requests] == [False] * 5 + [True] * 55
    assert {request.sent[0]["status"] for request in requests[5:]} == {429}
    for task in tasks:
        task.cancel()


@in_event_loop
async def test_one_key_gets_a_quarter_of_the_bytes_and_all_keys_the_whole() -> None:
    guard = make_service()
    tasks = [await Request(guard, BODY).is_read() for _ in range(2)]
    assert await Request(guard, 1).refusal() == (429, "too_many_bytes")
    tasks += [await Request(guard, BODY, name).is_read() for name in NAMES[1:4] for _ in range(2)]
    assert await Request(guard, 1, NAMES[4]).refusal() == (503, "busy")
    for task in tasks:
        task.cancel()


@in_event_loop
async def test_body_without_length_is_charged_on_arrival() -> None:
    guard = make_service()
    first, second, third = Request(guard, BODY), Request(guard), Request(guard)
    tasks = [await request.is_read() for request in (first, second, third)]
    second.put(bytes(800))
    await second.part_requests.acquire()
    third.put(bytes(300))
    await tasks[2]
    assert third.sent[0]["status"] == 429
    assert not second.sent
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("end", ["answer", "refusal", "disconnect", "timeout", "cancelled"])
@in_event_loop
async def test_bytes_are_released_at_every_end_of_a_request(end: str) -> None:
    picture = png(tile_of(1))
    guard = make_service(body=len(picture), bodies=1, seconds=0.2 if end == "timeout" else 30)
    request = Request(guard, len(picture))
    task = await request.is_read()
    assert await Request(guard, 1).refusal() == (429, "too_many_bytes")
    if end == "answer":
        request.put(picture, more=False)
    elif end == "refusal":
        request.put(b"no picture", more=False)
    elif end == "disconnect":
        request.parts.put_nowait({"type": "http.disconnect"})
    elif end == "cancelled":
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if status := {"answer": 200, "refusal": 422, "timeout": 503}.get(end):
        assert request.sent[0]["status"] == status
    after = await Request(guard, len(picture)).is_read()
    after.cancel()


@in_event_loop
async def test_header_size_is_limited_in_one_or_many_parts() -> None:
    assert await Request(make_service(), 1, "k" * HEADERS).refusal() == (431, "headers_too_large")
