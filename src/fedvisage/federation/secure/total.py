"""The server's end of a secure sum: it carries keys and envelopes between sites, adds, and takes the masks off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvisage.base.errors import RunFailed
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.secure import protocol
from fedvisage.federation.secure.calls import CONSISTENCY, KEYS, SHARES, UNMASK, Layout, roster_of, rows_to_bytes
from fedvisage.federation.secure.protocol import Words
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import SUMMED

ALL = "all sites"
"""Under what the mean loss of a sum stands in a round's record; no site can be called so."""


class NoSum(RunFailed):
    """Too few sites took part to the end: nothing was learnt, of the sum as little as of single uploads."""


@dataclass(frozen=True)
class Summed:
    """A mean out of a secure sum, in float64, and whose uploads are in it."""

    value: Message
    replied: tuple[str, ...]
    failed: Mapping[str, str]


def summed(exchange: Exchange, message: Message, like: Layout, threshold: int) -> Summed:
    """Have the sites add their uploads up by secure aggregation, and return the mean."""
    keys = _ask(exchange, KEYS, {}, {})
    names = tuple(keys)
    _need(len(names), threshold, "published keys")
    roster = torch.stack([reply["public"] for reply in keys.values()])
    signed = _signed_roster(exchange, keys) | {"roster": roster}
    sealed = _tables(exchange, _ask(exchange, SHARES, signed, {name: {} for name in names}), "sealed", len(names))
    _need(len(sealed), threshold, "shared their keys")
    present = [index for index, name in enumerate(names) if name in sealed]
    envelopes = {names[to]: _addressed(sealed, names, present, to) for to in present}
    total, survivors, failed = _sum(exchange, message, envelopes, protocol.size_of(like))
    _need(len(survivors), threshold, "sent their numbers")
    kept = [index for index in present if names[index] in survivors]
    agreed = _agreed(exchange, names, kept)
    _need(len(agreed["signers"]), threshold, "signed the list of survivors")
    answers = _ask(exchange, UNMASK, agreed, {names[index]: {} for index in agreed["signers"].tolist()}, late=True)
    shares = _tables(exchange, answers, "shares", len(names))
    revealed = {names.index(name): rows_to_bytes(rows) for name, rows in shares.items()}
    try:
        opened = protocol.opened_sum(total, roster_of(roster), present, kept, revealed, threshold)
    except protocol.CannotOpen as error:
        raise NoSum(f"the sum could not be opened: {error}") from error
    if (wrong := protocol.absurd(opened, like, len(survivors))) is not None:
        raise NoSum(f"{wrong}: one of {', '.join(survivors)} sent numbers that are none of training")
    value, loss = protocol.decode_mean(opened, like, len(survivors))
    exchange.record.loss[ALL] = loss
    return Summed(value, survivors, failed)


def _signed_roster(exchange: Exchange, keys: Mapping[str, Message]) -> Message:
    """Return who published keys, as positions among all sites, and the signatures of the keys."""
    names = sorted(exchange.transport.names)
    positions = [names.index(name) for name in keys]
    signatures = torch.stack([reply["signature"] for reply in keys.values()])
    return {"members": torch.tensor(positions), "signatures": signatures}


def _agreed(exchange: Exchange, names: tuple[str, ...], survivors: list[int]) -> Message:
    """Have the survivors sign their list; a site that does not sign reveals no share, and its numbers stay in."""
    to: dict[str, Message] = {names[index]: {} for index in survivors}
    replies = _ask(exchange, CONSISTENCY, {"survivors": torch.tensor(survivors)}, to, late=True)
    signatures = [reply["signature"] for reply in replies.values()]
    return {
        "survivors": torch.tensor(survivors),
        "signers": torch.tensor([names.index(name) for name in replies]),
        "signatures": torch.stack(signatures) if signatures else torch.empty(0),
    }


def _ask(
    exchange: Exchange, call: str, message: Message, each: Mapping[str, Message], *, late: bool = False
) -> dict[str, Message]:
    """Return replies by site; who is lost after its numbers are in the sum is still part of it, and recorded so."""
    replies = {}
    for reply in exchange.run(call, message, each=each, to=tuple(each) or None):
        if reply.message is not None:
            replies[reply.site] = reply.message
        elif late:
            exchange.note_failure(f"{reply.site} (after its upload)", exchange.record.failed.pop(reply.site))
    return replies


def _tables(exchange: Exchange, replies: Mapping[str, Message], field: str, rows: int) -> dict[str, Tensor]:
    """Return a field of the replies; refuse those that have not one row for each site of the roster."""
    tables = {}
    for name, reply in replies.items():
        if len(reply[field]) == rows:
            tables[name] = reply[field]
        else:
            exchange.note_failure(name, f"refused: {field}: has {len(reply[field])} rows, must have {rows}, one a site")
    return tables


def _addressed(sealed: Mapping[str, Tensor], names: tuple[str, ...], present: list[int], to: int) -> Message:
    """Return the envelopes that are addressed to a site, in the order of those who are present."""
    rows = torch.stack([sealed[names[sender]][to] for sender in present])
    return {"present": torch.tensor(present), "sealed": rows}


def _sum(
    exchange: Exchange, message: Message, envelopes: Mapping[str, Message], size: int
) -> tuple[Words, tuple[str, ...], dict[str, str]]:
    """Add the masked uploads up as they come; only the sum is in memory."""
    total, survivors, failed = np.zeros(size, dtype=np.uint64), [], {}
    for reply in exchange.run(SUMMED, message, each=envelopes, to=tuple(envelopes)):
        if reply.message is None:
            failed[reply.site] = reply.failure
            continue
        total += reply.message["masked"].numpy().view(np.uint64)
        survivors.append(reply.site)
    return total, tuple(survivors), failed


def _need(count: int, threshold: int, what: str) -> None:
    if count < threshold:
        raise NoSum(f"{count} sites {what}, {threshold} needed for a secure sum")
