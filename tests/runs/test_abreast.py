"""Sites side by side in worker processes: the bytes of one process, whatever is killed, and nothing left behind."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tests.contract.examples import two_exchanges
from tests.refusals import failed
from tests.toy import recipe_of, run_toy, settled, silent, tree

from fedvisage.base.errors import RunFailed
from fedvisage.base.progress import Reporter
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Method
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.site_worker import SiteWorker, Workspace
from fedvisage.federation.wire.transport import Order, Reply, pack_all
from fedvisage.methods import METHODS
from fedvisage.nn.compute import resolve_compute
from fedvisage.runs.workers import (
    FOLDER,
    LocalEngine,
    Worker,
    WorkerTransport,
    assign_sites,
    is_picklable,
    pack_input,
    unpack_input,
)

KEPT = {"training__optimizer__state": "kept", "training__rounds": 2}
NORMAL = ("scaffold",)
"""An algorithm on a model, with private state. All together take minutes."""


@pytest.fixture(scope="module")
def crew() -> Iterator[tuple[Worker, ...]]:
    """Two processes, which the runs below have one after another: to start them takes seconds."""
    lanes = Worker(), Worker()
    yield lanes
    for lane in lanes:
        lane.process.end()


@pytest.fixture
def beside(crew: tuple[Worker, ...], tmp_path: Path) -> Callable[[Sequence[SiteWorker]], WorkerTransport]:
    (tmp_path / "handed").mkdir()
    return partial(WorkerTransport, crew=crew, folder=tmp_path / "handed")


def of_a_script(recipe: Any) -> None:
    """Stand for a function of the program that was started, which no other process knows."""


of_a_script.__module__ = "__main__"
OWN = {
    "nested": replace(METHODS["fedpad"], name="nested"),
    "of-a-script": replace(two_exchanges.METHOD, name="of-a-script", check=of_a_script),
}
"""Methods that were handed in and cannot be sent: with functions within functions, and with a script's own."""


class Interrupted(Exception):
    """The power went off."""


class Meddled:
    """The transport, with something done before a call of a round."""

    def __init__(
        self, desks: Sequence[SiteWorker], wire: Any, call: str, number: int, then: Callable[[], None]
    ) -> None:
        self._inner, self._when, self._then = wire(desks), (call, number), then
        self.names, self.commit, self.restore = self._inner.names, self._inner.commit, self._inner.restore

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        if any((order.call, order.round) == self._when for order in orders.values()):
            self._then()
        yield from self._inner.call(orders)


def ended(process: psutil.Process) -> None:
    process.kill()
    process.wait(60)


def kill(lane: Worker) -> None:
    ended(psutil.Process(lane.process.pid))


def alike(content: dict[str, Any], tmp_path: Path, beside: Any, method: Method | None = None) -> None:
    run_toy(content, tmp_path / "alone", method=method)
    run_toy(content, tmp_path / "beside", method=method, wire=beside)
    assert settled(tmp_path / "beside") == settled(tmp_path / "alone")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in NORMAL else pytest.mark.slow)
        for name, method in METHODS.items()
        if not method.pooled
    ],
)
def test_sites_side_by_side_give_the_bytes_of_sites_one_after_another(
    name: str, sets: Mapping[str, Path], tmp_path: Path, beside: Any
) -> None:
    alike(tree(sets, name, **KEPT), tmp_path, beside)


@pytest.mark.parametrize(
    "changes",
    [
        {"federation__secure": {"entropy": "derived"}},
        pytest.param(
            {"federation__dp": {"clip": 1.0, "noise": 0.1, "delta": 1e-5, "entropy": "derived"}}, marks=pytest.mark.slow
        ),
        pytest.param({"federation__participation": 0.67, "federation__wire": "bf16"}, marks=pytest.mark.slow),
    ],
)
def test_protections_and_absent_sites_give_them_too(
    changes: dict[str, Any], sets: Mapping[str, Path], tmp_path: Path, beside: Any
) -> None:
    alike(tree(sets, "scaffold" if "federation__wire" in changes else "fedpad", **KEPT, **changes), tmp_path, beside)


@pytest.mark.slow
def test_a_method_that_was_handed_in_gives_them_too(sets: Mapping[str, Path], tmp_path: Path, beside: Any) -> None:
    alike(tree(sets, two_exchanges.METHOD, **KEPT), tmp_path, beside, two_exchanges.METHOD)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [25.0, 60.0])
def test_a_spent_budget_ends_a_run_where_it_would_alone(
    epsilon: float, sets: Mapping[str, Path], tmp_path: Path, beside: Any
) -> None:
    content = tree(sets, "privacyface", **KEPT, privacy__epsilon=epsilon)
    alike(content, tmp_path, beside)
    charges = [
        sorted(path.read_bytes() for path in (tmp_path / name).rglob("charges.jsonl")) for name in ("alone", "beside")
    ]
    assert charges[0] == charges[1], "nobody paid for a round that came to nothing"


@pytest.mark.parametrize(
    "name", ["fedpad", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedgpad", "privacyface"))]
)
def test_a_killed_process_is_replaced_and_asked_again(
    name: str, sets: Mapping[str, Path], tmp_path: Path, beside: Any, crew: tuple[Worker, ...]
) -> None:
    """Before it is killed it has done a round that is not committed and, with PrivacyFace, one exchange of the next."""
    content = tree(sets, name, **KEPT, runtime__checkpoint_every=2)
    run_toy(content, tmp_path / "alone")
    first = crew[0].process.pid
    killing = partial(Meddled, wire=beside, call="train", number=2, then=lambda: kill(crew[0]))
    run_toy(content, tmp_path / "beside", wire=killing)
    assert crew[0].process.pid != first
    assert settled(tmp_path / "beside") == settled(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "files"), [({}, 2), (KEPT, 4)])
def test_messages_lie_there_no_longer_than_they_may_be_needed(
    kept: dict[str, Any], files: int, sets: Mapping[str, Path], tmp_path: Path, beside: Any
) -> None:
    """Two a round: what trains, and what is judged. Private state needs all of them since the last commit."""
    content = tree(sets, **{**kept, "training__rounds": 3, "runtime__checkpoint_every": 3})
    seen: list[int] = []
    looking = partial(
        Meddled,
        wire=beside,
        call="train",
        number=3,
        then=lambda: seen.append(len(list((tmp_path / "handed").iterdir()))),
    )
    run_toy(content, tmp_path / "run", wire=looking)
    assert seen == [files]


@pytest.mark.slow
def test_secrets_that_nobody_can_draw_again_end_the_run_in_one_line(
    sets: Mapping[str, Path], tmp_path: Path, beside: Any, crew: tuple[Worker, ...]
) -> None:
    content = tree(sets, federation__secure={"entropy": "system"}, training__rounds=1, evaluation__every=0)
    killing = partial(Meddled, wire=beside, call="train", number=1, then=lambda: kill(crew[1]))
    with failed(RunFailed, "secrets", "--resume"):
        run_toy(content, tmp_path / "run", wire=killing)
    crew[1].process.replace()


@pytest.mark.slow
def test_a_process_that_ends_again_and_again_ends_the_run(
    sets: Mapping[str, Path], tmp_path: Path, beside: Any
) -> None:
    method = replace(
        two_exchanges.METHOD,
        calls={
            **two_exchanges.METHOD.calls,
            "centre": replace(two_exchanges.METHOD.calls["centre"], run=killing_itself),
        },
    )
    with failed(RunFailed, "worker", "fewer workers"):
        run_toy(tree(sets, method), tmp_path / "run", method=method, wire=beside)


def killing_itself(site: Any, message: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_run_begun_with_two_processes_goes_on_with_one(sets: Mapping[str, Path], tmp_path: Path) -> None:
    """By the key of the recipe, which stands in no file of the run but the one about the machine."""
    content = tree(sets, "fedpad", **KEPT)
    run_toy(content, tmp_path / "alone")

    class Stopping(Reporter):
        def ended_round(self, row: Mapping[str, Any], total: int) -> None:
            if row["round"] == 2:
                raise Interrupted

    before = set(psutil.Process().children(recursive=True))
    two = tree(sets, "fedpad", **KEPT, runtime__workers=2)
    with pytest.raises(Interrupted):
        run_toy(two, tmp_path / "beside", reporter=Stopping(silent().console, quiet=True))
    assert not [
        child
        for child in set(psutil.Process().children(recursive=True)) - before
        if "spawn_main" in " ".join(child.cmdline())
    ]
    assert json.loads((tmp_path / "beside" / "environment.json").read_text())["workers"] == 2
    assert not (tmp_path / "beside" / FOLDER).exists()
    run_toy(content, tmp_path / "beside", resume=True)
    assert settled(tmp_path / "beside") == settled(tmp_path / "alone")


@pytest.mark.parametrize(
    ("name", "ours", "said"),
    [
        ("fedsis", True, "one after another"),
        ("fedpad", False, "transport"),
        ("nested", True, "imported"),
        ("of-a-script", True, "imported"),
        ("too-many-threads", True, "all cores"),
    ],
)
def test_what_cannot_go_side_by_side_is_said_in_one_line(
    name: str, ours: bool, said: str, sets: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "of_a_script", of_a_script, raising=False)
    method = OWN[name] if name in OWN else METHODS.get(name, METHODS["fedpad"])
    threads = 256 if name == "too-many-threads" else 1
    crew, lines = LocalEngine("auto" if threads > 1 else 2), list[str]()
    crew.start(recipe_of(tree(sets, method, runtime__threads=threads), method), method, ours, lines.append)
    assert crew.lanes == []
    (line,) = lines
    assert said in line
    assert "runtime.workers" in line


def test_a_method_of_named_functions_travels(sets: Mapping[str, Path]) -> None:
    method = two_exchanges.METHOD
    recipe = recipe_of(tree(sets, method), method)
    assert is_picklable(method, recipe)
    assert unpack_input(pack_input(recipe, method, ()))[:2] == (recipe, method)


@pytest.mark.parametrize(("name", "asked"), [("fedpad", None), ("fedpad", 1), ("pooled", 4)])
def test_one_process_is_enough_for_one_site_and_unless_more_are_asked_for(
    name: str, asked: int | None, sets: Mapping[str, Path]
) -> None:
    crew, lines = LocalEngine(asked), list[str]()
    crew.start(recipe_of(tree(sets, name)), METHODS[name], True, lines.append)
    assert (crew.lanes, lines) == ([], [])


def test_sites_are_dealt_out_by_their_work(sets: Mapping[str, Path], tmp_path: Path) -> None:
    recipe = recipe_of(tree(sets, training__local={"epochs": 1}))
    space = Workspace(METHODS["fedpad"], recipe, resolve_compute("cpu", "fp32"))
    images = View.of(PreparedSet.open(sets["A"]))

    def desk(name: str, count: int) -> SiteWorker:
        few = images.subset(np.arange(count))
        return SiteWorker(name, few, few, SiteStore(tmp_path / name), space)

    hands = assign_sites([desk("a", 8), desk("b", 8), desk("c", 24), desk("d", 8)], 2)
    assert [[place.name for place in hand] for hand in hands] == [["c"], ["a", "b", "d"]]


def test_a_set_travels_as_its_path(sets: Mapping[str, Path]) -> None:
    whole = View.of(PreparedSet.open(sets["A"]), "train")
    sent = pickle.dumps(whole)
    assert len(sent) < whole.batch(np.arange(len(whole))).images.numel()
    positions = np.array([3, 1])
    assert torch.equal(pickle.loads(sent).batch(positions).images, whole.batch(positions).images)


def test_what_all_sites_are_sent_is_written_once(tmp_path: Path) -> None:
    lent, own = torch.arange(12.0).reshape(3, 4).T, torch.tensor(7)
    messages = {"a": {"z": lent, "own": own}, "b": {"z": lent}}
    orders = {name: Order("train", 1, message, 1) for name, message in messages.items()}
    parcels = pack_all(orders, tmp_path, 1)
    assert len(list(tmp_path.iterdir())) == 2
    for name, message in messages.items():
        found = parcels[name].opened()
        assert list(found) == list(message)
        assert all(torch.equal(found[key], value) for key, value in message.items())


def test_how_far_sites_are_is_told_here(sets: Mapping[str, Path], tmp_path: Path, beside: Any) -> None:
    heard: set[str] = set()

    class Listening(Reporter):
        def batch(self, site: str, done: int, of: int) -> None:
            assert 0 <= done < of
            heard.add(site)

    content = tree(sets, training__rounds=1, training__local={"batches": 30}, evaluation__every=0)
    run_toy(content, tmp_path / "run", wire=beside, reporter=Listening(silent().console, quiet=True))
    assert heard
    assert heard <= set(content["data"]["sites"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 1, "interrupted"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGKILL, -signal.SIGKILL, "")],
)
def test_no_process_outlives_a_run_that_is_ended_and_it_can_be_resumed(
    number: signal.Signals, code: int, said: str, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    """The signal goes to the whole group, as a terminal's does."""
    content, out = tree(sets, training__rounds=300, runtime__workers=2), tmp_path / "run"
    (tmp_path / "recipe.yaml").write_text(json.dumps(content))
    command = [sys.executable, "-m", "fedvisage", "run", str(tmp_path / "recipe.yaml"), "--out", str(out)]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert running.stdout is not None
        assert any(line.startswith("round 2/") for line in running.stdout)
        children = psutil.Process(running.pid).children(recursive=True)
        assert sum("spawn_main" in " ".join(child.cmdline()) for child in children) == 2
        if number == signal.SIGKILL:
            running.kill()
        else:
            os.killpg(running.pid, number)
        assert said in running.communicate(timeout=60)[1]
        assert running.returncode == code
        assert psutil.wait_procs(children, timeout=60)[1] == []
    finally:
        running.kill()
    assert (out / FOLDER).exists() == (number == signal.SIGKILL)

    class Stopping(Reporter):
        def ended_round(self, row: Mapping[str, Any], total: int) -> None:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_toy(content, out, resume=True, reporter=Stopping(silent().console, quiet=True))
    assert not (out / FOLDER).exists()
