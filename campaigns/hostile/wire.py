"""Messages of a hostile member for NVFlare's decoder: too deep, too many values, too large, or malformed.

A case is one body in NVFlare's own format, perhaps followed by tables of tensors and files, or one envelope of a reply
or an order. The check measures the decoded values independently of the decoder.
"""

from __future__ import annotations

import copy
import io
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch
from campaigns.hostile.case import Case, Rejected, WronglyAccepted, pick
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import dots, lobs
from safetensors.torch import save

from fedvisage.federation.wire.message import Order
from fedvisage.federation.wire.schema import MessageLimits, RefusedMessage
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
"""Exceptions of NVFlare's decoder for malformed messages; each is a failed call of one site."""

FRAME = {fobs.FOBSContextKey.MESSAGE: Message({MessageHeaderKey.ORIGIN: "B.job"})}


class Wire:
    """The decoder of a job's process, with the limits on messages."""

    def __init__(self, prepared: Path) -> None:
        """Install the limits in NVFlare's decoder."""
        bounds.install()
        bounds.limit([LIMITS])
        fobs.loads(fobs.dumps({}))  # NVFlare registers its decoders at the first message

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Create one message."""
        return pick(
            draws, (nested_body, nested_body, body_with_tail, tensor_table, odd_envelope, odd_envelope, changed_bytes)
        )(draws)


def decode_or_reject(work: Callable[[], Any]) -> Any:
    """Decode a message; turn the decoder's exceptions into rejections."""
    try:
        return work()
    except (LimitExceeded, RefusedMessage) as error:
        raise Rejected(str(error)) from error
    except UNDECODED as error:
        raise Rejected(f"{type(error).__name__}: NVFlare could not decode it") from error


def pack_entries(count: int) -> bytes:
    """Return the entries of a map with this number of integer keys."""
    return b"".join(b"\xce" + number.to_bytes(4, "big") + b"\xc0" for number in range(count))


def frame(body: bytes, tail: bytes = b"") -> bytes:
    header: bytes = lobs._Header(lobs.MARKER_MAIN, 0, len(body)).to_bytes()
    return header + body + tail


def check_decoded(whole: bytes) -> None:
    """Decode a message, and check the number and depth of the values."""
    value = decode_or_reject(lambda: fobs.loads(whole, fobs_ctx=dict(FRAME)))
    count, deepest, remaining = 0, 0, [(value, 1)]
    while remaining:
        item, depth = remaining.pop()
        count, deepest = count + 1, max(deepest, depth)
        if isinstance(item, dict):
            remaining += [(inside, depth + 1) for pair in item.items() for inside in pair]
        elif isinstance(item, list):
            remaining += [(inside, depth + 1) for inside in item]
    if count > OBJECTS or deepest > DEPTH:
        raise WronglyAccepted(f"{count} values, {deepest} deep")


def nested_body(draws: np.random.Generator) -> Case:
    """A body of many or deeply nested values, in any of msgpack's forms."""
    size = int(10 ** draws.uniform(0, 6))
    forms: dict[str, Callable[[], bytes]] = {
        "lists in lists": lambda: b"\x91" * size + b"\x90",
        "maps in maps": lambda: b"\x81\xa1a" * size + b"\x80",
        "long lists in lists": lambda: b"\xdc\x00\x01" * size + b"\xc0",
        "many empty lists": lambda: b"\xdd" + size.to_bytes(4, "big") + b"\x90" * size,
        "many numbers": lambda: b"\xdd" + size.to_bytes(4, "big") + b"\x07" * size,
        "many entries": lambda: b"\xdf" + size.to_bytes(4, "big") + pack_entries(size),
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
    return Case([name, str(len(body))], lambda: check_decoded(frame(body)))


def body_with_tail(draws: np.random.Generator) -> Case:
    """A valid body followed by files, texts, or tables of tensors that must be downloaded."""
    tail, changes = b"", []
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
        changes.append(f"{marker}/{dot}")
    return Case(["tail", *changes], lambda: check_decoded(frame(msgpack.packb({"words": {}}), tail)))


def tensor_table(draws: np.random.Generator) -> Case:
    """Parts of a table of tensors, as the other end sends them."""
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

    def check() -> None:
        consumer, tensors = CountingConsumer("B.job", LIMITS), None
        for items in pieces:
            tensors = decode_or_reject(partial(consumer.consume_items, items, tensors))
        assert tensors is not None
        size = sum(value.numel() * value.element_size() for value in tensors.values())
        if size > LIMITS.size + HEADER * LIMITS.tensors:
            raise WronglyAccepted(f"{size} bytes")
        if sum(map(len, pieces)) > LIMITS.tensors:
            raise WronglyAccepted("more pieces than tensors")

    return Case(["table", *(str(len(items)) for items in pieces)], check)


ODD: tuple[Any, ...] = (None, 7, "", "x" * 100_000, [], {}, b"bytes", float("nan"), True, -1, 10**30, ["a"], {"a": {}})


def odd_envelope(draws: np.random.Generator) -> Case:
    """A reply or an order with invalid header fields, names or values."""
    envelope: Any = {"words": dict(WORDS), "tensors": {"a.weight": torch.zeros(2)}}
    order = draws.random() < 0.5
    if not order:
        envelope["words"] = {"ticket": "t"}
    changes = ["order" if order else "reply"]
    for _ in range(int(draws.integers(1, 4))):
        place = pick(draws, ("words", "tensors", "top", "whole", "word", "name"))
        changes.append(place)
        if place == "whole" or type(envelope) is not dict:
            envelope = pick(draws, ODD)
        elif place in ("words", "tensors"):
            envelope[place] = copy.copy(pick(draws, ODD))
        elif place == "top":
            envelope[pick(draws, ("more", "words ", 7))] = pick(draws, ODD)
        elif place == "word" and type(envelope.get("words")) is dict:
            envelope["words"][pick(draws, (*WORDS, "failure", "spent", "more", 7))] = pick(draws, ODD)
        elif place == "name" and type(envelope.get("tensors")) is dict:
            envelope["tensors"][pick(draws, ("a" * 1000, 7, None, "a"))] = pick(draws, (torch.zeros(1), *ODD))

    def check() -> None:
        if order:
            unpacked = decode_or_reject(lambda: transport.unpack_order(envelope))
            sound = isinstance(unpacked, Order) and set(envelope["words"]) == set(WORDS) and type(unpacked.round) is int
            transport.ticket_of(envelope)
        else:
            reply = transport.unpack_reply("B", envelope)
            if reply.message is None:
                raise Rejected(reply.failure[:300].encode("ascii", "replace").decode())
            sound = set(envelope["words"]) <= {"ticket", "failure", "spent"} and type(reply.ticket) is str
        if not sound or set(envelope) != {"words", "tensors"}:
            raise WronglyAccepted(f"an {changes[0]} with other words: {str(envelope)[:200]}")
        if not all(
            type(name) is str and len(name) <= 300 and type(value) is torch.Tensor
            for name, value in envelope["tensors"].items()
        ):
            raise WronglyAccepted("something that is no tensor, or a long name")

    return Case(changes, check)


def changed_bytes(draws: np.random.Generator) -> Case:
    """A valid message with some changed bytes."""
    stream = io.BytesIO(
        fobs.dumps({"words": dict(WORDS), "numbers": list(range(50)), "texts": {"a": ["b", None, 1.5]}})
    )
    raw = bytearray(stream.getvalue())
    for _ in range(int(draws.integers(1, 9))):
        raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
    if draws.random() < 0.3:
        raw = raw[: int(draws.integers(len(raw)))]
    return Case(["bytes"], lambda: check_decoded(bytes(raw)))
