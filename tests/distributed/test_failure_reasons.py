"""The reason that a site sends after a failure contains no text of an exception."""

from collections.abc import Callable

import pytest

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.federation.site import TrainingFailed
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.nvflare.owner.submission import NotReady
from fedvisage.nvflare.site_program import SiteProgram
from fedvisage.nvflare.transport import unpack_reply

SECRET = "/srv/secret-subject-A3.png"


def raise_in_call(error: Exception) -> Callable[[], dict[str, object]]:
    def work() -> dict[str, object]:
        raise error

    return work


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError(SECRET), OSError(2, "gone", SECRET), KeyError(SECRET), RunFailed(SECRET)),
        *(UserError("data.sites.A", SECRET), UserError(SECRET, "is gone")),
    ],
)
def test_text_of_an_exception_stays_at_the_site(error: Exception) -> None:
    reply = unpack_reply("A", SiteProgram()._answer(raise_in_call(error), "ticket"))  # type: ignore[arg-type]
    assert reply.message is None
    assert "see its log" in reply.failure
    assert "secret" not in reply.failure
    assert reply.ticket == "ticket"


@pytest.mark.parametrize(
    "error", [TrainingFailed("the loss is not finite"), RefusedMessage("a", "is missing"), NotReady("no set")]
)
def test_own_reasons_are_sent(error: Exception) -> None:
    reply = unpack_reply("A", SiteProgram()._answer(raise_in_call(error)))  # type: ignore[arg-type]
    assert reply.failure == str(error)


def test_order_before_the_restore_gets_a_reason() -> None:
    parcel = SiteProgram().carry_out({"words": {"ticket": "first"}, "tensors": {}})
    assert "before its starting point" in unpack_reply("A", parcel).failure
