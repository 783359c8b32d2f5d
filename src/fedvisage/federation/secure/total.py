"""The server's end of a secure sum: it forwards keys and envelopes, adds masked uploads, and unmasks their sum."""

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
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import SUMMED

ALL = "all sites"
"""Name of a sum's mean loss in a round's record; no site can have this name."""


class TooFewSites(RunFailed):
    """Too few sites finished: the server learned neither the sum nor single uploads."""


@dataclass(frozen=True)
class SecureMean:
    """The mean from a secure sum, in float64, with the sites that contributed."""

    value: Message
    replied: tuple[str, ...]
    failed: Mapping[str, str]


def sum_uploads(exchange: Exchange, message: Message, like: Layout, threshold: int, call: str = SUMMED) -> SecureMean:
    """Sum the sites' uploads of a call by secure aggregation, and return the mean."""
    # Round 0 of the protocol: keys. Only sites that published keys take part in the following steps.
    keys = _ask(exchange, KEYS, {}, {})
    names = tuple(keys)
    _require_sites(len(names), threshold, "published keys")
    roster = torch.stack([reply["public"] for reply in keys.values()])
    # The sites with keys, as positions among all sites, and their signatures.
    everyone = sorted(exchange.transport.names)
    members = torch.tensor([everyone.index(name) for name in names])
    signatures = torch.stack([reply["signature"] for reply in keys.values()])
    signed = {"members": members, "signatures": signatures, "roster": roster}
    # Round 1: shares of the secrets, as envelopes that the server forwards but cannot open.
    sealed = _tables(exchange, _ask(exchange, SHARES, signed, {name: {} for name in names}), "sealed", len(names))
    _require_sites(len(sealed), threshold, "shared their keys")
    present = [index for index, name in enumerate(names) if name in sealed]
    envelopes: dict[str, Message] = {}
    for to in present:  # for each site its envelopes, in the order of the present sites
        rows = torch.stack([sealed[names[sender]][to] for sender in present])
        envelopes[names[to]] = {"present": torch.tensor(present), "sealed": rows}
    # Round 2: masked uploads, added as they arrive, so that only the sum is in memory.
    total, survivors, failed = np.zeros(protocol.size_of(like), dtype=np.uint64), list[str](), dict[str, str]()
    for reply in exchange.run(call, message, each=envelopes, to=tuple(envelopes), combined=True):
        if reply.message is None:
            failed[reply.site] = reply.failure
            continue
        total += reply.message["masked"].numpy().view(np.uint64)
        survivors.append(reply.site)
    _require_sites(len(survivors), threshold, "sent their numbers")
    kept = [index for index in present if names[index] in survivors]
    # Round 3: the survivors sign their list. Round 4: the signers reveal shares.
    agreed = _sign_survivors(exchange, names, kept)
    _require_sites(len(agreed["signers"]), threshold, "signed the list of survivors")
    answers = _ask(exchange, UNMASK, agreed, {names[index]: {} for index in agreed["signers"].tolist()}, late=True)
    shares = _tables(exchange, answers, "shares", len(names))
    revealed = {names.index(name): rows_to_bytes(rows) for name, rows in shares.items()}
    try:
        opened = protocol.unmask_sum(total, roster_of(roster), present, kept, revealed, threshold)
    except protocol.CannotOpen as error:
        raise TooFewSites(f"the sum could not be opened: {error}") from error
    if (wrong := protocol.implausible_part(opened, like, len(survivors))) is not None:
        raise TooFewSites(f"{wrong}: one of {', '.join(survivors)} sent numbers that cannot come from training")
    value, loss = protocol.decode_mean(opened, like, len(survivors))
    exchange.record.loss[ALL] = loss
    return SecureMean(value, tuple(survivors), failed)


def _sign_survivors(exchange: Exchange, names: tuple[str, ...], survivors: list[int]) -> Message:
    """Let the survivors sign their list; a site that does not sign reveals no share, and its numbers remain."""
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
    """Return replies by site; a site lost after its upload (``late``) stays in the sum, and the record says so."""
    replies = {}
    for reply in exchange.run(call, message, each=each, to=tuple(each) or None):
        if reply.message is not None:
            replies[reply.site] = reply.message
        elif late:
            exchange.note_failure(f"{reply.site} (after its upload)", exchange.record.failed.pop(reply.site))
    return replies


def _tables(exchange: Exchange, replies: Mapping[str, Message], field: str, rows: int) -> dict[str, Tensor]:
    """Return a field of the replies, without those that lack one row per site of the roster."""
    tables = {}
    for name, reply in replies.items():
        if len(reply[field]) == rows:
            tables[name] = reply[field]
        else:
            exchange.note_failure(
                name, f"refused: {field}: has {len(reply[field])} rows, must have {rows}, one per site"
            )
    return tables


def _require_sites(count: int, threshold: int, what: str) -> None:
    if count < threshold:
        raise TooFewSites(f"{count} sites {what}, {threshold} needed for a secure sum")
