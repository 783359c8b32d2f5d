"""Orders and replies as NVFlare carries them: plain values beside tensors that are detached, contiguous, on the CPU.

Tensors stay tensors: one blob of bytes would take four times as long and twice the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvisage.federation.method import Message
from fedvisage.federation.wire.message import is_plain
from fedvisage.federation.wire.transport import Order, Reply

Parcel = dict[str, Any]


def pack_order(order: Order) -> Parcel:
    """Return an order ready to travel."""
    words = {"call": order.call, "round": order.round, "visit": order.visit, "ticket": order.ticket}
    return {"words": words, "tensors": _plain(order.message)}


def unpack_order(parcel: Mapping[str, Any]) -> Order:
    """Read an order back."""
    words = parcel["words"]
    return Order(
        str(words["call"]), int(words["round"]), dict(parcel["tensors"]), int(words["visit"]), str(words["ticket"])
    )


def pack_reply(message: Message, ticket: str) -> Parcel:
    """Return a reply ready to travel."""
    return {"words": {"ticket": ticket}, "tensors": _plain(message)}


def pack_failure(reason: str, ticket: str = "", *, spent: bool = False) -> Parcel:
    """Return the reason why there is no reply; one of them, a spent budget, is more than a lost site."""
    return {"words": {"ticket": ticket, "failure": reason, "spent": spent}, "tensors": {}}


def unpack_reply(site: str, parcel: object) -> Reply:
    """Read a reply; it comes from another organisation, so nothing about its form is taken for granted."""
    try:
        words, tensors = parcel["words"], parcel["tensors"]  # type: ignore[index]
        ticket, failure = words.get("ticket", ""), words.get("failure", "")
        if not (isinstance(ticket, str) and isinstance(failure, str) and isinstance(tensors, dict)):
            raise TypeError
        if not all(isinstance(name, str) and is_plain(value) for name, value in tensors.items()):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        return Reply(site, None, "refused: is no reply")
    if failure:
        return Reply(site, None, failure[:300], ticket, spent=words.get("spent") is True)
    return Reply(site, dict(tensors), ticket=ticket)


def _plain(message: Message) -> Message:
    return {name: value.detach().to("cpu").contiguous() for name, value in message.items()}
