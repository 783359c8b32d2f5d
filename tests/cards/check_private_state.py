"""A site's private state stays on an emulated card between visits while it fits. `test_cards.py` runs this file."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from tests.cards.emulated_card import CardModule, emulated_cards
from tests.toy import open_run_data, recipe_of, tree
from torch import Tensor

from fedvisage.federation.method import Home
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.site import TrainingFailed
from fedvisage.federation.site_worker import SiteWorker, Workspace
from fedvisage.federation.wire.message import Message, Order, state_of
from fedvisage.methods import METHODS
from fedvisage.nn.compute import Compute

CARD, CPU = torch.device("card:1"), torch.device("cpu")
METHOD_OF = {"part/": "fedgpad", "own/": "fedavg"}
"""A method for each kind of private state; both also keep their optimizers."""


@pytest.fixture(autouse=True)
def cards() -> Iterator[None]:
    with emulated_cards():
        yield


class Visits:
    """A site on a device, and the weights that it receives in each visit."""

    def __init__(self, name: str, device: torch.device, sets: Mapping[str, Path], folder: Path) -> None:
        changes = {"method__centres": "random"} if name == "fedavg" else {}
        content = tree(sets, name, training__optimizer={"lr": 0.01, "state": "kept"}, **changes)
        data, workspace = (
            open_run_data(content, folder),
            Workspace(METHODS[name], recipe_of(content), Compute(device, False)),
        )
        self.lent = state_of(workspace.net, *METHODS[name].parts_at(Home.LENT))
        site, public = data.sites["A"], data.people.public if data.people else None
        self.worker = SiteWorker("A", site.train, site.heldout, SiteStore(folder / "state"), workspace, public=public)

    def train(self, number: int, factor: float = 1.0) -> Message:
        message = {name: value * factor if value.is_floating_point() else value for name, value in self.lent.items()}
        return self.worker.execute(Order("train", number, message, 1))

    def state(self) -> dict[str, Tensor]:
        self.worker.end_visit()
        return self.worker.store.load()


def copied_to_cpu(function: Callable[[], object]) -> int:
    before = CardModule.copied_to_cpu
    function()
    return CardModule.copied_to_cpu - before


@pytest.mark.parametrize("prefix", METHOD_OF)
def test_private_state_stays_on_the_card_between_visits(prefix: str, sets: Mapping[str, Path], tmp_path: Path) -> None:
    visits = Visits(METHOD_OF[prefix], CARD, sets, tmp_path)
    first = copied_to_cpu(lambda: visits.train(1))
    assert copied_to_cpu(visits.worker.end_visit) == 0
    assert copied_to_cpu(lambda: visits.train(2)) == first > 0, "a site without state copies only its reply"
    state = visits.state()
    assert {value.device for name, value in state.items() if name.startswith(prefix)} == {CARD}
    assert {value.device for name, value in state.items() if name.endswith("exp_avg")} == {CARD}
    assert {value.device for name, value in state.items() if name.endswith("step")} == {CPU}


@pytest.mark.parametrize("prefix", METHOD_OF)
def test_committed_bytes_are_those_of_a_cpu_with_and_without_room_on_the_card(
    prefix: str, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    replies, contents, devices = [], [], []
    for number, (device, free) in enumerate([(CPU, 0), (CARD, CardModule.free_bytes), (CARD, 0)]):
        with patch.object(CardModule, "free_bytes", free):
            visits = Visits(METHOD_OF[prefix], device, sets, tmp_path / str(number))
            visits.train(1)
            devices.append({value.device for name, value in visits.state().items() if name.startswith(prefix)})
            replies.append(visits.train(2))
            visits.worker.commit(1)
        contents.append(visits.worker.store.committed_content())
    assert devices == [{CPU}, {CARD}, {CPU}]
    assert contents[0] == contents[1] == contents[2]
    for reply in replies:
        assert {name: value.tolist() for name, value in reply.items()} == {
            name: value.tolist() for name, value in replies[0].items()
        }


def test_state_goes_to_the_cpu_if_the_backend_does_not_report_free_memory(
    sets: Mapping[str, Path], tmp_path: Path
) -> None:
    with patch.object(CardModule, "mem_get_info", side_effect=RuntimeError("not supported")):
        visits = Visits("fedgpad", CARD, sets, tmp_path)
        visits.train(1)
        assert {value.device for value in visits.state().values()} == {CPU}


@pytest.mark.parametrize("prefix", METHOD_OF)
def test_a_failed_visit_leaves_the_state_on_the_card_as_it_was(
    prefix: str, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    failing, other = (Visits(METHOD_OF[prefix], CARD, sets, tmp_path / name) for name in ("failing", "other"))
    for visits in (failing, other):
        visits.train(1)
    before = {name: value.cpu() for name, value in failing.state().items()}
    for value in failing.state().values():
        value.fill_(7)
    with pytest.raises(TrainingFailed, match="finite"):
        failing.train(2, factor=1e30)
    assert all(torch.equal(value.cpu(), before[name]) for name, value in failing.state().items())
    after, expected = failing.train(3), other.train(3)
    assert all(torch.equal(value, expected[name]) for name, value in after.items())
