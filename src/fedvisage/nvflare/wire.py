"""Orders and replies as NVFlare carries them: plain values beside tensors that are detached, contiguous, on the CPU.

Tensors stay tensors: one blob of bytes would take four times as long and twice the memory.
"""

from __future__ import annotations

from typing import Any

from fedvisage.federation.method import Message
from fedvisage.federation.wire.message import is_plain
from fedvisage.federation.wire.schema import Refused
from fedvisage.federation.wire.transport import Order, Reply

Parcel = dict[str, Any]

ORDER = frozenset(("call", "round", "visit", "ticket"))
REPLY = frozenset(("ticket", "failure", "spent"))
"""The words of a parcel."""

LONGEST = 300
"""Letters of a word or a name."""


def pack_order(order: Order) -> Parcel:
    """Return an order ready to travel."""
    words = {"call": order.call, "round": order.round, "visit": order.visit, "ticket": order.ticket}
    return {"words": words, "tensors": _plain(order.message)}


def ticket_of(parcel: object) -> str:
    """Return an order's ticket, as far as it has one, for the answer to an order that cannot be read."""
    words = parcel.get("words") if isinstance(parcel, dict) else None
    ticket = words.get("ticket") if isinstance(words, dict) else None
    return ticket[:LONGEST] if isinstance(ticket, str) else ""


def unpack_order(parcel: object) -> Order:
    """Read an order back; nothing about its form is taken for granted."""
    words, tensors = _opened(parcel, ORDER)
    types = {"call": str, "round": int, "visit": int, "ticket": str}
    for name, kind in types.items():
        if type(words.get(name)) is not kind:
            raise Refused(f"order: {name}", "is missing, or of another type")
    return Order(words["call"], words["round"], tensors, words["visit"], words["ticket"])


def pack_reply(message: Message, ticket: str) -> Parcel:
    """Return a reply ready to travel."""
    return {"words": {"ticket": ticket}, "tensors": _plain(message)}


def pack_failure(reason: str, ticket: str = "", *, spent: bool = False) -> Parcel:
    """Return the reason why there is no reply; one of them, a spent budget, is more than a lost site."""
    return {"words": {"ticket": ticket, "failure": reason, "spent": spent}, "tensors": {}}


def unpack_reply(site: str, parcel: object) -> Reply:
    """Read a reply; it comes from another organisation, so nothing about its form is taken for granted."""
    try:
        words, tensors = _opened(parcel, REPLY)
    except Refused as error:
        return Reply(site, None, f"refused: {error}")
    ticket, failure = words.get("ticket", ""), words.get("failure", "")
    if not (isinstance(ticket, str) and isinstance(failure, str)):
        return Reply(site, None, "refused: is no reply")
    if failure:
        return Reply(site, None, failure[:LONGEST], ticket, spent=words.get("spent") is True)
    return Reply(site, tensors, ticket=ticket)


def _opened(parcel: object, known: frozenset[str]) -> tuple[dict[str, Any], Message]:
    """Return a parcel's words and tensors; refuse one that holds anything else."""
    if type(parcel) is not dict or parcel.keys() != {"words", "tensors"}:
        raise Refused("parcel", "must hold words and tensors, and nothing else")
    words, tensors = parcel["words"], parcel["tensors"]
    if type(words) is not dict or type(tensors) is not dict:
        raise Refused("parcel", "must hold words and tensors by name")
    if unknown := sorted(str(word)[:LONGEST] for word in words.keys() - known):
        raise Refused("parcel", f"holds the unknown word {unknown[0]!r}")
    if not all(type(name) is str and len(name) <= LONGEST and is_plain(value) for name, value in tensors.items()):
        raise Refused("parcel", f"holds something that is no plain tensor, or a name of more than {LONGEST} letters")
    return words, dict(tensors)


def _plain(message: Message) -> Message:
    return {name: value.detach().to("cpu").contiguous() for name, value in message.items()}
