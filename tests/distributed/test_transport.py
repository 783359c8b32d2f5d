"""The server's waiting time for a site whose proxy stops answering."""

from typing import Any, Self

import pytest
import torch
from nvflare.apis.signal import Signal
from nvflare.collab.api.exceptions import CollabCallError, RunAborted

from fedvisage.federation.wire.message import Message, Order
from fedvisage.nvflare import transport
from fedvisage.nvflare.transport import CollabTransport
from fedvisage.recipe import Federation


class Proxy:
    """NVFlare's end of a site that answers some calls and then none; it records the timeouts."""

    name = "A"

    def __init__(self, answers: int) -> None:
        self.answers, self.timeouts = answers, list[float]()

    def __call__(self, timeout: float) -> Self:
        self.timeouts.append(timeout)
        return self

    def __getattr__(self, call: str) -> Any:
        return lambda *_: self._answer(call)

    def _answer(self, call: str) -> Any:
        if len(self.timeouts) > self.answers:
            raise CollabCallError("A", call, TimeoutError())
        return transport.pack_reply({}, "")


@pytest.mark.parametrize(
    ("answers", "rounds", "timeouts"),
    [
        # It begins, and is lost in round 1. It sits out round 2, and gets its generation in rounds 3 and 5.
        (1, 5, [transport.PREPARING, 5.0, 5.0, 5.0]),
        # Lost at the beginning, it sits out round 1, and is tried in rounds 2 and 4.
        (0, 4, [transport.PREPARING] * 3),
        (9, 3, [transport.PREPARING, 5.0, 5.0, 5.0]),
    ],
    ids=["lost later", "never began", "responsive"],
)
def test_site_has_extra_time_to_begin_and_later_the_deadline(
    answers: int, rounds: int, timeouts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "GRACE", 0.0)  # no job is about to end
    proxy = Proxy(answers)
    transport_to_site = CollabTransport(("A",), [proxy], Federation(deadline=5.0, sit_out=1), lambda: False)
    transport_to_site.restore({"A": 0})
    for number in range(1, rounds + 1):
        list(transport_to_site.call({"A": Order("train", number, {}, 1)}))
    transport_to_site.close()
    assert proxy.timeouts == timeouts


class Forgetful(Proxy):
    """A site that fails to commit, as with a full disk; it records its calls."""

    def __init__(self) -> None:
        super().__init__(99)
        self.calls = list[tuple[str, int]]()

    def restore(self, generation: int) -> Any:
        self.calls.append(("restore", generation))
        return transport.pack_reply({}, "")

    def commit(self, generation: int) -> Any:
        self.calls.append(("commit", generation))
        return transport.pack_failure("OSError at the site")

    def carry_out(self, order: dict[str, Any]) -> Any:
        self.calls.append(("train", int(order["words"]["round"])))
        return transport.pack_reply({}, "")


def test_site_without_a_commit_returns_to_the_checkpoints_generation() -> None:
    """As it would if the run were submitted again: else the bytes depended on whether it was."""
    proxy, lines = Forgetful(), list[str]()
    transport_to_site = CollabTransport(("A",), [proxy], Federation(deadline=5.0), lambda: False, lines.append)
    transport_to_site.restore({"A": 3})
    list(transport_to_site.call({"A": Order("train", 4, {}, 1)}))
    assert transport_to_site.commit(4) == {"A": 3}
    assert transport_to_site.uncommitted == {"A": "OSError at the site"}
    assert transport_to_site.commit(5) == {"A": 3}
    assert transport_to_site.uncommitted == {}, "it did not take part since"
    list(transport_to_site.call({"A": Order("train", 6, {}, 1)}))
    transport_to_site.close()
    assert proxy.calls == [("restore", 3), ("train", 4), ("commit", 4), ("restore", 3), ("train", 6)]
    assert lines[0] == "A did not commit round 4: OSError at the site"


class Committing(Proxy):
    """A site that answers every commit with the same values."""

    def __init__(self, values: Message) -> None:
        super().__init__(99)
        self.values = values

    def commit(self, generation: int) -> Any:
        return transport.pack_reply(self.values, "")


@pytest.mark.parametrize(
    "generation",
    [
        torch.tensor(float("nan")),
        torch.tensor(float("inf")),
        torch.tensor(1 + 1j),
        torch.tensor(1.0),
        torch.tensor([1]),
        torch.tensor(-1),
        torch.tensor(2),
        torch.tensor(2**62),
    ],
    ids=str,
)
def test_site_with_an_impossible_generation_did_not_commit(generation: torch.Tensor) -> None:
    proxy = Committing({"generation": generation})
    transport_to_site = CollabTransport(("A",), [proxy], Federation(deadline=5.0), lambda: False)
    transport_to_site.restore({"A": 0})
    assert transport_to_site.commit(1) == {"A": 0}
    assert transport_to_site.uncommitted == {"A": "refused: generation: must be one int64 from 0 to 1"}
    transport_to_site.close()


def test_earlier_generation_of_a_site_is_accepted() -> None:
    transport_to_site = CollabTransport(
        ("A",), [Committing({"generation": torch.tensor(3)})], Federation(deadline=5.0), lambda: False
    )
    transport_to_site.restore({"A": 3})
    assert transport_to_site.commit(4) == {"A": 3}
    assert transport_to_site.uncommitted == {}
    transport_to_site.close()


def test_reason_of_a_site_is_one_printable_line() -> None:
    reply = transport.unpack_reply("A", transport.pack_failure("x\x1b[2J\nrun approved"))
    assert reply.failure == "x\N{REPLACEMENT CHARACTER}[2J run approved"


class Pending(Proxy):
    """A site that leaves during an order: NVFlare ends the pending call when the site's signal is triggered."""

    def __init__(self, left: dict[str, str]) -> None:
        super().__init__(99)
        self.left, self.signal = left, transport.LeaveSignal("A", Signal(), lambda: left)

    def carry_out(self, order: dict[str, Any]) -> Any:
        assert not self.signal.triggered
        self.left["A"] = "was stopped at the site"
        if self.signal.triggered:
            raise RunAborted("run is aborted while waiting for remote responses")


def test_leaving_site_ends_its_pending_order() -> None:
    """Neither is it in the orders and commits that follow."""
    left: dict[str, str] = {}
    proxy = Pending(left)
    transport_to_site = CollabTransport(("A",), [proxy], Federation(deadline=600.0), lambda: False, left=lambda: left)
    transport_to_site.restore({"A": 0})
    for number in (1, 2):
        (reply,) = transport_to_site.call({"A": Order("train", number, {}, 1)})
        assert (reply.message, reply.failure) == (None, "was stopped at the site")
    assert transport_to_site.commit(2) == {"A": 0}
    transport_to_site.close()
    assert transport_to_site.uncommitted == {}
    assert len(proxy.timeouts) == 2, "a generation and one order"


def test_aborted_job_ends_pending_calls() -> None:
    job = Signal()
    signal = transport.LeaveSignal("A", job, lambda: {"B": "was stopped at the site"})
    assert not signal.triggered
    job.trigger("abort")
    assert signal.triggered
