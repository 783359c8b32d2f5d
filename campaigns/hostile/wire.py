"""Messages of a hostile member as NVFlare's decoder gets them: too deep, too many, too large, or no message at all.

A case is one body in NVFlare's own format, with tables of tensors and files behind it, or one parcel of a reply or an
order. What the decoder takes in is measured here by other means than those that took it in.
"""

from __future__ import annotations

import copy
import io
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch
from campaigns.hostile.case import Admitted, Case, Turned, pick
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import dots, lobs
from safetensors.torch import save

from fedvisage.federation.wire.schema import MessageLimits, RefusedMessage
from fedvisage.federation.wire.transport import Order
from fedvisage.nvflare import bounds, transport
from fedvisage.nvflare.bounds import DEPTH, HEADER, OBJECTS, CountingConsumer, LimitExceeded

LIMITS = MessageLimits(tensors=8, size=1 << 16, largest=1 << 14)
WORDS = {"call": "train", "round": 1, "visit": 1, "ticket": "t"}
UNDECODED = (
    AssertionError,
    AttributeError,
    KeyError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    msgpack.UnpackException,
)
"""How NVFlare's decoder ends on what is no message; all of it is one site's failed call."""

FRAME = {fobs.FOBSContextKey.MESSAGE: Message({MessageHeaderKey.ORIGIN: "B.job"})}


class Wire:
    """The decoder of a job's process, with limits."""

    def __init__(self, prepared: Path) -> None:
        """Put the limits in front of NVFlare's decoder."""
        bounds.install()
        bounds.limit([LIMITS])
        fobs.loads(fobs.dumps({}))  # NVFlare registers what it can decode with its first message

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Make one message."""
        return pick(draws, (a_body, a_body, a_tail, a_table, a_parcel, a_parcel, spoilt_bytes))(draws)


def turned(work: Callable[[], Any]) -> Any:
    """Decode something; whatever ends a call of NVFlare's ends one site's answer."""
    try:
        return work()
    except (LimitExceeded, RefusedMessage) as error:
        raise Turned(str(error)) from error
    except UNDECODED as error:
        raise Turned(f"{type(error).__name__}: NVFlare could not decode it") from error


def entries(count: int) -> bytes:
    """Return the inside of a map with so many numbers as its keys."""
    return b"".join(b"\xce" + number.to_bytes(4, "big") + b"\xc0" for number in range(count))


def framed(body: bytes, tail: bytes = b"") -> bytes:
    return lobs._Header(lobs.MARKER_MAIN, 0, len(body)).to_bytes() + body + tail


def decoded(whole: bytes) -> None:
    """Decode a message, and count what came of it."""
    held = turned(lambda: fobs.loads(whole, fobs_ctx=dict(FRAME)))
    count, deepest, left = 0, 0, [(held, 1)]
    while left:
        value, depth = left.pop()
        count, deepest = count + 1, max(deepest, depth)
        if isinstance(value, dict):
            left += [(inside, depth + 1) for pair in value.items() for inside in pair]
        elif isinstance(value, list):
            left += [(inside, depth + 1) for inside in value]
    if count > OBJECTS or deepest > DEPTH:
        raise Admitted(f"{count} values, {deepest} deep")


def a_body(draws: np.random.Generator) -> Case:
    """A body of many or deep values, in any of msgpack's forms."""
    size = int(10 ** draws.uniform(0, 6))
    forms: dict[str, Callable[[], bytes]] = {
        "lists in lists": lambda: b"\x91" * size + b"\x90",
        "maps in maps": lambda: b"\x81\xa1a" * size + b"\x80",
        "long lists in lists": lambda: b"\xdc\x00\x01" * size + b"\xc0",
        "many empty lists": lambda: b"\xdd" + size.to_bytes(4, "big") + b"\x90" * size,
        "many numbers": lambda: b"\xdd" + size.to_bytes(4, "big") + b"\x07" * size,
        "many entries": lambda: b"\xdf" + size.to_bytes(4, "big") + entries(size),
        "a claimed length": lambda: pick(draws, (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")) + b"\xff" * 4,
        "wide and deep": lambda: b"\x9f" * min(size, 5000) + b"\xc0" * 16,
        "a long text": lambda: b"\xdb" + size.to_bytes(4, "big") + b"a" * size,
        "extensions": lambda: b"\xdd" + (size // 4).to_bytes(4, "big") + b"\xd4\x05\x00" * (size // 4),
        "random bytes": lambda: draws.bytes(min(size, 10_000)),
        "a type": lambda: msgpack.packb(
            {
                "__fobs_type__": pick(draws, ("os.system", "torch.Tensor", 7)),
                "__fobs_data__": pick(
                    draws, ({}, [], "x", {"type": "ref", "data": "T0"}, {"type": "native", "data": b"x"})
                ),
                "__fobs_dc__": pick(draws, ("subprocess.Popen", None, "x")),
            }
        ),
    }
    name = pick(draws, list(forms))
    body = forms[name]()
    if draws.random() < 0.2:
        body = body[: int(draws.integers(len(body) + 1))]
    return Case([name, str(len(body))], lambda: decoded(framed(body)))


def a_tail(draws: np.random.Generator) -> Case:
    """An honest body with something behind it: files, texts, tables of tensors that lie elsewhere."""
    tail, done = b"", []
    for _ in range(int(draws.integers(1, 5))):
        marker = pick(draws, (lobs.MARKER_DATUM_FILE, lobs.MARKER_DATUM_TEXT, lobs.MARKER_DATUM_BLOB, 7))
        dot = pick(draws, (0, dots.TENSOR_DOWNLOAD, 99))
        value = pick(
            draws, (b"x", b"[" * 50_000, b'{"fqcn": "A.job", "ref_id": "1"}', b'{"fqcn": "", "ref_id": 7}', b"7")
        )
        tail += (
            lobs._Header(marker, dot, 16 + len(value)).to_bytes() + uuid.UUID(int=int(draws.integers(1 << 30))).bytes
        )
        tail += value
        done.append(f"{marker}/{dot}")
    return Case(["tail", *done], lambda: decoded(framed(msgpack.packb({"words": {}}), tail)))


def a_table(draws: np.random.Generator) -> Case:
    """Pieces of a table of tensors, as they come from the other end."""
    forms: list[Callable[[], bytes]] = [
        lambda: save({"T0": torch.zeros(int(10 ** draws.uniform(0, 6)))}),
        lambda: save({f"T{number}": torch.zeros(0) for number in range(int(draws.integers(1, 2000)))}),
        lambda: save({"a" * int(draws.integers(1, 10_000)): torch.zeros(1)}),
        lambda: int(draws.integers(1 << 62)).to_bytes(8, "little") + draws.bytes(30),
        lambda: draws.bytes(int(draws.integers(40))),
    ]
    pieces = [
        [pick(draws, forms)() for _ in range(int(draws.integers(1, 12)))] for _ in range(int(draws.integers(1, 4)))
    ]

    def take() -> None:
        consumer, held = CountingConsumer("B.job", LIMITS), None
        for items in pieces:
            held = turned(lambda items=items, held=held: consumer.consume_items(items, held))  # type: ignore[misc]
        size = sum(value.numel() * value.element_size() for value in held.values())
        if size > LIMITS.size + HEADER * LIMITS.tensors:
            raise Admitted(f"{size} bytes")
        if sum(map(len, pieces)) > LIMITS.tensors:
            raise Admitted("more pieces than tensors")

    return Case(["table", *(str(len(items)) for items in pieces)], take)


ODD: tuple[Any, ...] = (None, 7, "", "x" * 100_000, [], {}, b"bytes", float("nan"), True, -1, 10**30, ["a"], {"a": {}})


def a_parcel(draws: np.random.Generator) -> Case:
    """A reply or an order whose words, names or values are not ours."""
    parcel: Any = {"words": dict(WORDS), "tensors": {"a.weight": torch.zeros(2)}}
    order = draws.random() < 0.5
    if not order:
        parcel["words"] = {"ticket": "t"}
    done = ["order" if order else "reply"]
    for _ in range(int(draws.integers(1, 4))):
        place = pick(draws, ("words", "tensors", "top", "whole", "word", "name"))
        done.append(place)
        if place == "whole" or type(parcel) is not dict:
            parcel = pick(draws, ODD)
        elif place in ("words", "tensors"):
            parcel[place] = copy.copy(pick(draws, ODD))
        elif place == "top":
            parcel[pick(draws, ("more", "words ", 7))] = pick(draws, ODD)
        elif place == "word" and type(parcel.get("words")) is dict:
            parcel["words"][pick(draws, (*WORDS, "failure", "spent", "more", 7))] = pick(draws, ODD)
        elif place == "name" and type(parcel.get("tensors")) is dict:
            parcel["tensors"][pick(draws, ("a" * 1000, 7, None, "a"))] = pick(draws, (torch.zeros(1), *ODD))

    def take() -> None:
        if order:
            found = turned(lambda: transport.unpack_order(parcel))
            sound = isinstance(found, Order) and set(parcel["words"]) == set(WORDS) and type(found.round) is int
            transport.ticket_of(parcel)
        else:
            reply = transport.unpack_reply("B", parcel)
            if reply.message is None:
                raise Turned(reply.failure[:300].encode("ascii", "replace").decode())
            sound = set(parcel["words"]) <= {"ticket", "failure", "spent"} and type(reply.ticket) is str
        if not sound or set(parcel) != {"words", "tensors"}:
            raise Admitted(f"an {done[0]} with other words: {str(parcel)[:200]}")
        if not all(
            type(name) is str and len(name) <= 300 and type(value) is torch.Tensor
            for name, value in parcel["tensors"].items()
        ):
            raise Admitted("something that is no tensor, or a long name")

    return Case(done, take)


def spoilt_bytes(draws: np.random.Generator) -> Case:
    """An honest message with some bytes changed."""
    stream = io.BytesIO(
        fobs.dumps({"words": dict(WORDS), "numbers": list(range(50)), "texts": {"a": ["b", None, 1.5]}})
    )
    raw = bytearray(stream.getvalue())
    for _ in range(int(draws.integers(1, 9))):
        raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
    if draws.random() < 0.3:
        raw = raw[: int(draws.integers(len(raw)))]
    return Case(["bytes"], lambda: decoded(bytes(raw)))
