"""A finished model of several members: one a site, under the site's name."""

from __future__ import annotations

from collections.abc import Mapping

from fedvisage.federation.wire.message import Message


def members_of(finished: Message) -> dict[str, Message]:
    """Split a finished model into its members; one model is the member with the empty name."""
    members: dict[str, Message] = {}
    for key, tensor in finished.items():
        name, slash, rest = key.partition("/")
        members.setdefault(name if slash else "", {})[rest if slash else key] = tensor
    return members


def joined(members: Mapping[str, Message]) -> Message:
    """Put members into one finished model: the inverse of :func:`members_of`."""
    return {
        f"{name}/{key}" if name else key: value for name, member in members.items() for key, value in member.items()
    }
