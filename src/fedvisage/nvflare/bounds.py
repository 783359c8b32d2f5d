"""Limits on messages from other organisations: their size, number and nesting are checked before they are decoded.

NVFlare receives a message, fetches its tensors and builds its objects before our code sees any of it. So the limits
apply where NVFlare allows them: at the streams that bring a message, at its decoder, and at the class that fetches
tensors. Before a job's recipe is read, no tensor is fetched at all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.app_opt.pt.tensor_downloader import TensorConsumer
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.download_service import download_object
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import dots, lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager

from fedvisage.base.errors import plain_line
from fedvisage.base.files import parse_json
from fedvisage.federation.wire.schema import MessageLimits

OBJECTS, DEPTH = 200_000, 64
"""Values in a message's body, and the depth of their nesting. NVFlare's own messages name every site of a job."""

HEADER = 4096
"""Bytes of the header of one tensor: its name, type and shape."""

QUOTED = 120
"""Characters of a decoder's error that a reason quotes."""

CHUNK, SLACK = 1 << 21, 1 << 22
"""Bytes of small tensors that NVFlare sends together, and bytes of a message's other content."""


class LimitExceeded(Exception):
    """A message is larger, longer or deeper than the job needs."""


_limits = MessageLimits()
_refusals: dict[str, str] = {}


def refusal(site: str) -> str | None:
    """Return the reason why a site's message was not decoded, and forget it."""
    return _refusals.pop(site, None)


def limit(extents: Iterable[MessageLimits], cell: Any = None) -> None:
    """Set the limits of this process, and of the streams of its cell, to the largest message that a job may have."""
    global _limits
    all_extents = list(extents)
    _limits = MessageLimits(
        *(max((getattr(extent, name) for extent in all_extents), default=0) for name in ("tensors", "size", "largest"))
    )
    if cell is None:
        return
    most = max(_limits.largest, CHUNK) + SLACK
    for callback in cell.byte_receiver.registry.reg.values():
        # NVFlare's own limit ends the stream; our wrapper only records the reason.
        handler = getattr(callback.cb, "__self__", None)
        if isinstance(handler, BlobHandler):
            handler.max_blob_size = most
            callback.cb = _note_large_messages(callback.cb, most)


def _note_large_messages(handle: Callable[..., int], most: int) -> Callable[..., int]:
    """Wrap NVFlare's end of a stream, and note the sender of a message that is too large."""

    def check_and_handle(future: Any, stream: Any, *arguments: Any, **options: Any) -> int:
        if stream.get_size() > most:
            _note(str((stream.headers or {}).get(MessageHeaderKey.ORIGIN)), f"a message has more than {most} bytes")
        return handle(future, stream, *arguments, **options)

    return check_and_handle


def install() -> None:
    """Put the limits in front of NVFlare's decoder; call this before a job begins."""
    fobs.register(BoundedTensors)
    if not isinstance(fobs.get_dot_handler(dots.TENSOR_DOWNLOAD), BoundedTensors):
        raise RuntimeError("NVFlare decoded tensors before their limits were set")
    lobs.deserialize, lobs.get_datum_dir = _deserialize, _no_files
    # No error from a site ends the server's process, as after too large a message.
    cells._is_server_job_cell = lambda info: False


def check_body(body: bytes, objects: int = OBJECTS) -> None:
    """Refuse a msgpack body with too many or too deeply nested values, before any object is made of it."""
    # ``remaining`` is a stack: the number of values that each open list or map still has to read.
    remaining, position, count = [1], 0, 0
    while remaining:
        if not remaining[-1]:
            remaining.pop()
            continue
        remaining[-1] -= 1
        count += 1
        if position >= len(body):
            raise LimitExceeded("a message ends too early")
        length, inner = _value(body, position)
        position += length
        if count + inner > objects:
            raise LimitExceeded(f"a message has more than {objects} values")
        if inner:
            if len(remaining) >= DEPTH:
                raise LimitExceeded(f"a message is nested more than {DEPTH} deep")
            remaining.append(inner)


_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""Types of msgpack with a size: the bytes of the size itself, and bytes that it does not count."""
_FIXED = dict(zip(range(0xCA, 0xD9), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), strict=True))
"""Types of msgpack with a fixed number of bytes after the type's own."""
_LISTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Lists and maps: the bytes of their count, and the values per counted entry."""


def _value(body: bytes, at: int) -> tuple[int, int]:
    """Return the bytes of a msgpack value without its inner values, and the number of inner values."""
    tag = body[at]
    if tag in _SIZED:
        width, extra = _SIZED[tag]
        return 1 + width + extra + int.from_bytes(body[at + 1 : at + 1 + width], "big"), 0
    if tag in _LISTS:
        width, per_entry = _LISTS[tag]
        return 1 + width, per_entry * int.from_bytes(body[at + 1 : at + 1 + width], "big")
    if 0x80 <= tag <= 0x8F:
        return 1, 2 * (tag & 15)
    if 0x90 <= tag <= 0x9F:
        return 1, tag & 15
    if 0xA0 <= tag <= 0xBF:
        return 1 + (tag & 31), 0
    return 1 + _FIXED.get(tag, 0), 0


_decode = lobs.deserialize


def _deserialize(data: bytes, manager: DatumManager, **options: Any) -> Any:
    try:
        check_body(data)
    except LimitExceeded as error:
        _note(_origin(manager), str(error))
        raise
    try:
        return _decode(data, manager, **options)
    except Exception as error:  # the tensors have arrived: whatever is wrong is the message itself, and its sender's
        cause = plain_line(str(error).partition(". ")[0], QUOTED)
        _note(_origin(manager), f"a message cannot be decoded ({cause or type(error).__name__})")
        raise


def _no_files() -> str:
    """Refuse a message with a file."""
    raise LimitExceeded("a message contains a file")


def _origin(manager: DatumManager) -> str:
    """Return the sender of the message that is being decoded."""
    message = manager.fobs_ctx.get(fobs.FOBSContextKey.MESSAGE)
    return "" if message is None else str(message.get_header(MessageHeaderKey.ORIGIN))


def _note(origin: str, reason: str) -> None:
    _refusals[FQCN.split(origin)[0]] = reason


class CountingConsumer(TensorConsumer):  # type: ignore[misc]
    """Takes tensors up to the limits of the job's messages."""

    def __init__(self, origin: str, limits: MessageLimits) -> None:
        super().__init__(None, {})
        self.origin, self.limits, self.count, self.size = origin, limits, 0, 0

    def consume_items(self, items: list[Any], result: Any) -> Any:
        """Count tensors and bytes before they are read."""
        self.count += len(items)
        self.size += sum(map(len, items))
        if self.count > self.limits.tensors:
            self._refuse(f"a message has more than {self.limits.tensors} tensors")
        if self.size > self.limits.size + HEADER * self.limits.tensors:
            self._refuse(f"a message has more than {self.limits.size} bytes of tensors")
        if any(len(item) < 8 or struct.unpack("<Q", bytes(item[:8]))[0] > HEADER for item in items):
            self._refuse(f"a tensor's header has more than {HEADER} bytes")
        return super().consume_items(items, result)

    def _refuse(self, reason: str) -> None:
        _note(self.origin, reason)
        raise LimitExceeded(reason)


class BoundedTensors(TensorDecomposer):  # type: ignore[misc]
    """Fetches a message's tensors within the limits, from its sender, and once."""

    def process_datum(self, datum: Datum, manager: DatumManager) -> None:
        """Refuse a second table of tensors, which could be as large as the first, and a table of another member."""
        origin, reason = _origin(manager), ""
        if self.items_key in manager.fobs_ctx:
            reason = "a message has two tables of tensors"
        elif parse_json(datum.value)["fqcn"] != origin:
            reason = "a message has tensors stored outside it"
        if reason:
            _note(origin, reason)
            raise LimitExceeded(reason)
        super().process_datum(datum, manager)

    def download(self, from_fqcn: str, ref_id: str, per_request_timeout: float, cell: Any, **options: Any) -> Any:
        """Fetch tensors, and count them as they arrive."""
        options.pop("fobs_ctx", None)
        consumer = CountingConsumer(from_fqcn, _limits)
        options |= {"consumer": consumer, "cell": cell, "per_request_timeout": per_request_timeout}
        download_object(from_fqcn=from_fqcn, ref_id=ref_id, **options)
        return consumer.error, consumer.result

    def native_recompose(self, data: bytes, manager: DatumManager | None = None) -> Any:
        """Refuse tensors in the body itself: our messages have none there."""
        raise LimitExceeded("a message has a tensor in its body")
