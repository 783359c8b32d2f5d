"""Send orders over NVFlare: sites work in parallel, replies arrive in sorted order, and an absent site costs one wait.

A site that misses the deadline, or cannot be reached, sits out some rounds, so that one machine that is switched off
costs one deadline and not one per call. Before its first order, and when it comes back, a site receives the generation
of its private state that the server's checkpoint names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from nvflare.apis.signal import Signal
from nvflare.collab.api.exceptions import CollabCallError, RunAborted

from fedvisage.base.errors import plain_line
from fedvisage.base.progress import Say
from fedvisage.federation.wire.message import Message, Order, Reply, is_plain
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.nvflare import bounds
from fedvisage.recipe import Federation

# Orders and replies in NVFlare's form: plain values and tensors that are detached, contiguous, on the CPU. Tensors stay
# tensors: one blob of bytes would take four times as long and twice the memory.


Parcel = dict[str, Any]

ORDER = frozenset(("call", "round", "visit", "ticket"))
REPLY = frozenset(("ticket", "failure", "spent"))
"""The keys of a reply's plain values; ``ORDER`` has those of an order."""

LONGEST = 300
"""Characters of a value or a name, at most."""


def pack_order(order: Order) -> Parcel:
    """Return an order in NVFlare's form."""
    words = {"call": order.call, "round": order.round, "visit": order.visit, "ticket": order.ticket}
    return {"words": words, "tensors": _detach_tensors(order.message)}


def ticket_of(parcel: object) -> str:
    """Return an order's ticket, if it has one, for the answer to an unreadable order."""
    words = parcel.get("words") if isinstance(parcel, dict) else None
    ticket = words.get("ticket") if isinstance(words, dict) else None
    return ticket[:LONGEST] if isinstance(ticket, str) else ""


def unpack_order(parcel: object) -> Order:
    """Read an order from NVFlare's form, and check every part of that form."""
    words, tensors = _open_parcel(parcel, ORDER)
    types = {"call": str, "round": int, "visit": int, "ticket": str}
    for name, kind in types.items():
        if type(words.get(name)) is not kind:
            raise RefusedMessage(f"order: {name}", "is missing, or has the wrong type")
    return Order(words["call"], words["round"], tensors, words["visit"], words["ticket"])


def pack_reply(message: Message, ticket: str) -> Parcel:
    """Return a reply in NVFlare's form."""
    return {"words": {"ticket": ticket}, "tensors": _detach_tensors(message)}


def pack_failure(reason: str, ticket: str = "", *, spent: bool = False) -> Parcel:
    """Return the reason for a missing reply; ``spent`` marks a spent budget, which is more than a lost site."""
    return {"words": {"ticket": ticket, "failure": reason, "spent": spent}, "tensors": {}}


def unpack_reply(site: str, parcel: object) -> Reply:
    """Read a reply, and check every part of its form, because it comes from another organisation."""
    try:
        words, tensors = _open_parcel(parcel, REPLY)
    except RefusedMessage as error:
        return Reply(site, None, f"refused: {error}")
    ticket, failure = words.get("ticket", ""), words.get("failure", "")
    if not (isinstance(ticket, str) and isinstance(failure, str)):
        return Reply(site, None, "refused: is not a reply")
    if failure:
        return Reply(site, None, plain_line(failure, LONGEST), ticket, spent=words.get("spent") is True)
    return Reply(site, tensors, ticket=ticket)


def _generation_of(reply: Reply, newest: int) -> int:
    """Return the generation that a site has committed; refuse a reply without a possible one."""
    value = (reply.message or {}).get("generation")
    if value is None or value.dtype != torch.int64 or value.ndim or not 0 <= int(value) <= newest:
        raise RefusedMessage("generation", f"must be one int64 from 0 to {newest}")
    return int(value)


def _open_parcel(parcel: object, allowed: frozenset[str]) -> tuple[dict[str, Any], Message]:
    """Return a parcel's plain values and tensors; refuse a parcel with anything else."""
    if type(parcel) is not dict or parcel.keys() != {"words", "tensors"}:
        raise RefusedMessage("parcel", "must contain only strings and tensors")
    words, tensors = parcel["words"], parcel["tensors"]
    if type(words) is not dict or type(tensors) is not dict:
        raise RefusedMessage("parcel", "must contain strings and tensors by name")
    if unknown := sorted(str(word)[:LONGEST] for word in words.keys() - allowed):
        raise RefusedMessage("parcel", f"contains the unknown word {unknown[0]!r}")
    if not all(type(name) is str and len(name) <= LONGEST and is_plain(value) for name, value in tensors.items()):
        raise RefusedMessage(
            "parcel", f"contains a value that is not a plain tensor, or a name of more than {LONGEST} characters"
        )
    return words, dict(tensors)


def _detach_tensors(message: Message) -> Message:
    """Return tensors detached, on the CPU, and contiguous."""
    return {name: value.detach().to("cpu").contiguous() for name, value in message.items()}


logger = logging.getLogger("fedvisage.transport")

PREPARING = 120.0
"""Seconds that a site has at least to open its data and build its network."""


GRACE = 8.0
"""Seconds until NVFlare notices that a job must end; the longest measured time is three."""


class LeaveSignal(Signal):  # type: ignore[misc]
    """NVFlare's signal to end a pending call: when the job is aborted, or the called site has left."""

    def __init__(self, name: str, job: Signal, left: Callable[[], Mapping[str, str]]) -> None:
        """Take the site, the job's own signal, and a function that returns the sites that have left."""
        super().__init__(job)
        self._name, self._left = name, left

    @property
    def triggered(self) -> bool:
        """Return whether the call must end."""
        return self._name in self._left() or bool(super().triggered)


class CollabTransport:
    """The sites of a federation that take part in this job."""

    in_turn = False

    def __init__(
        self,
        names: Sequence[str],
        proxies: Sequence[Any],
        settings: Federation,
        aborted: Callable[[], bool],
        say: Say = logger.warning,
        left: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Take all sites of the recipe, NVFlare's proxies of the connected ones, and a check for the end of the job.

        ``left`` returns the sites that were stopped or revoked since the job began, and the reasons.
        """
        self.names = tuple(sorted(names))
        self._here = {proxy.name: proxy for proxy in proxies if proxy.name in self.names}
        self._settings, self._aborted, self._say, self._left = settings, aborted, say, left
        self._generations = dict.fromkeys(self.names, 0)
        self.uncommitted: Mapping[str, str] = {}
        self._ready: set[str] = set()
        self._behind: set[str] = set()
        self._absent: dict[str, tuple[int, str]] = {}
        self._round = 0
        self._pool = ThreadPoolExecutor(max(1, len(self._here)), thread_name_prefix="site")

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Have sites execute their orders in parallel, and yield the replies in sorted order."""
        for order in orders.values():
            self._round = order.round
        for _, reply in self._side_by_side(sorted(orders), lambda name: self._send_order(name, orders[name])):
            yield reply

    def commit(self, generation: int) -> dict[str, int]:
        """Commit the sites that can be reached; the others go back to their last known generation.

        They would do so anyway if the run were submitted again now: the checkpoint names that generation.
        """
        uncommitted, taking_part = dict[str, str](), self._here.keys() - self._behind - self.absent
        for name, reply in self._side_by_side(self.names, lambda name: self._commit(name, generation)):
            try:
                self._generations[name] = _generation_of(reply, generation)
            except RefusedMessage as error:
                reason = reply.failure or f"refused: {error}"
                self._behind.add(name)
                if name in taking_part:
                    uncommitted[name] = reason
                self._say(f"{name} did not commit round {generation}: {reason}")
        self.uncommitted = uncommitted
        return dict(self._generations)

    def restore(self, generations: Mapping[str, int]) -> None:
        """Send the sites their generations; a site that cannot be reached now receives its own when it comes back."""
        self._generations |= generations
        self._behind = set(self._here)
        for name, reply in self._side_by_side(sorted(self._here), self._catch_up):
            if reply.message is None:
                logger.warning("%s did not begin: %s", name, reply.failure)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def absent(self) -> set[str]:
        """The sites that sit out this round, or have left."""
        return {name for name, (last, _) in self._absent.items() if last >= self._round} | self._left().keys()

    def _side_by_side(self, names: Sequence[str], work: Callable[[str], Reply]) -> Iterator[tuple[str, Reply]]:
        """Run a task for all sites in parallel, and yield the replies in the order of the names."""
        if len(names) == 1:
            yield names[0], work(names[0])
            return
        futures: dict[str, Future[Reply]] = {name: self._pool.submit(work, name) for name in names}
        for name, future in futures.items():
            yield name, future.result()

    def _send_order(self, name: str, order: Order) -> Reply:
        """Send an order to a site, unless it is not connected or sits out; a site that is behind catches up."""
        if name not in self._here:
            return Reply(name, None, "is not connected", order.ticket)
        if (reason := self._left().get(name)) is not None:
            return Reply(name, None, reason, order.ticket)
        if name in self.absent:
            last, reason = self._absent[name]
            return Reply(name, None, f"{reason}; sits out until round {last}", order.ticket)
        if name in self._behind and (caught_up := self._catch_up(name)).message is None:
            return Reply(name, None, caught_up.failure, order.ticket)
        reply = self._ask(name, self._settings.deadline, lambda proxy: proxy.carry_out(pack_order(order)))
        return reply if reply.message is not None else replace(reply, ticket=order.ticket)

    def _commit(self, name: str, generation: int) -> Reply:
        """Have a site commit a generation, if it takes part."""
        if name not in self._here or name in self._behind or name in self.absent:
            return Reply(name, None, "is not taking part")
        return self._ask(name, self._settings.deadline, lambda proxy: proxy.commit(generation))

    def _catch_up(self, name: str) -> Reply:
        """Send a site its generation. The first call allows more time, in which the site opens its data."""
        deadline = self._settings.deadline
        patience = deadline if name in self._ready else max(PREPARING, deadline)
        reply = self._ask(name, patience, lambda proxy: proxy.restore(self._generations[name]))
        if reply.message is not None:
            self._ready.add(name)
            self._behind.discard(name)
        return reply

    def _ask(self, name: str, seconds: float, what: Callable[[Any], object]) -> Reply:
        """Call a site; a site that does not answer in time, or at all, sits out; one that leaves is not waited for."""
        began = time.monotonic()
        try:
            return unpack_reply(name, what(self._here[name](timeout=seconds)))
        except RunAborted:
            if (reason := self._left().get(name)) is None:
                raise
            return Reply(name, None, reason)
        except CollabCallError as error:
            if (limit_reason := bounds.refusal(name)) is not None:
                return Reply(name, None, f"refused: {limit_reason}")
            # A call that fails early can be a sign that the job ends, as after a crash at a site, which NVFlare notices
            # seconds later. A round that loses sites only because the job is ending must not be kept: the job that
            # follows repeats it.
            late = time.monotonic() - began >= seconds
            until = time.monotonic() + (0.0 if late else GRACE)
            while not self._aborted() and time.monotonic() <= until:
                time.sleep(0.1)
            if self._aborted():
                raise RunAborted("the job has ended") from error
            reason = f"did not answer within {seconds:g} s" if late else "could not be reached"
            self._absent[name] = (self._round + self._settings.sit_out, reason)
            self._behind.add(name)  # its work for an unanswered order must not count
            logger.warning("%s %s: %s", name, reason, error)
            return Reply(name, None, reason)
