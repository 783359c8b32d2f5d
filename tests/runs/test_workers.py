"""Parallel sites at workers: the bytes of one process, lost workers, and no remaining processes or files."""

import json
import os
import pickle
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch
from tests.contract.examples import two_exchanges
from tests.methods.interrupting import Interrupted
from tests.refusals import failed, refused
from tests.toy import (
    Sets,
    deterministic_files,
    files_below,
    open_run_data,
    quiet_reporter,
    recipe_of,
    run_toy,
    run_under_same_name,
    tree,
)

from fedvisage.base import parallel as parallel_work
from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.progress import Reporter
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Method
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.site_worker import SiteWorker
from fedvisage.federation.wire.message import Message, Order, Reply
from fedvisage.methods import METHODS, averaging
from fedvisage.methods.models.resnet18 import MODEL
from fedvisage.runs.engine import LocalEngine, Worker, WorkerLost, report_progress
from fedvisage.runs.train import open_site_workers
from fedvisage.runs.workers import (
    SCRATCH,
    WorkerPool,
    WorkerTransport,
    assign_sites,
    execute_order,
    is_picklable,
    pack_setup,
    unpack_setup,
)
from fedvisage.tasks.catalogue import set_up

KEPT: dict[str, Any] = {"training__optimizer__state": "kept", "training__rounds": 2}
NORMAL = ("scaffold",)
"""An algorithm on a model, with private state. All methods take minutes."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(tmp_path / SCRATCH)
    yield engine
    engine.close()
    assert not (tmp_path / SCRATCH).exists()


@pytest.fixture
def workers(engine: LocalEngine) -> Sequence[Worker]:
    return engine.start(2, 1, "cpu")


@pytest.fixture
def parallel(engine: LocalEngine, workers: Sequence[Worker]) -> Callable[[Sequence[SiteWorker]], WorkerTransport]:
    return partial(WorkerTransport, engine=engine, workers=workers)


def check_of_a_script(recipe: Any) -> None:
    """Represent a function of the main program, which no other process can import."""


check_of_a_script.__module__ = "__main__"
OWN = {
    "nested": replace(METHODS["fedpad"], name="nested"),
    "of-a-script": replace(two_exchanges.METHOD, name="of-a-script", check=check_of_a_script),
}
"""Passed methods that cannot be pickled: with nested functions, and with functions of the main program."""


class WatchedTransport:
    """A transport that calls a function after each exchange."""

    def __init__(self, sites: Sequence[SiteWorker], wire: Any, after: Callable[[], None]) -> None:
        self._inner, self._after = wire(sites), after
        self.names, self.commit, self.restore = self._inner.names, self._inner.commit, self._inner.restore
        self.uncommitted, self.in_turn = self._inner.uncommitted, self._inner.in_turn

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        yield from self._inner.call(orders)
        self._after()


class RoundReporter(Reporter):
    """A reporter that calls a function after a round, or after every one."""

    def __init__(self, number: int | None, action: Callable[[], None]) -> None:
        super().__init__(quiet_reporter().console, quiet=True)
        self._number, self._action = number, action

    def ended_round(self, row: Mapping[str, Any], total: int) -> None:
        if self._number in (None, row["round"]):
            self._action()


def interrupt() -> None:
    raise Interrupted


def local_workers() -> list[psutil.Process]:
    """Return the worker processes of this program, which are children of its fork server."""
    return [child for child in psutil.Process().children(recursive=True) if child.ppid() != os.getpid()]


def kill_a_worker() -> None:
    process = local_workers()[0]
    process.kill()
    process.wait(60)


def check_equal(content: dict[str, Any], tmp_path: Path, parallel: Any, method: Method | None = None) -> None:
    run_toy(content, tmp_path / "alone", method=method)
    run_under_same_name(tmp_path / "alone", content, tmp_path / "parallel", method=method, wire=parallel)
    assert deterministic_files(tmp_path / "parallel") == deterministic_files(tmp_path / "alone")
    assert files_below(tmp_path / "parallel" / "sites") == files_below(tmp_path / "alone" / "sites")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in NORMAL else pytest.mark.slow)
        for name, method in METHODS.items()
        if not method.pooled
    ],
)
def test_parallel_sites_give_the_bytes_of_sequential_sites(
    name: str, sets: Sets, tmp_path: Path, parallel: Any
) -> None:
    check_equal(tree(sets, name, **KEPT), tmp_path, parallel)


@pytest.mark.long
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
def test_parallel_sites_give_equal_bytes_with_protections_and_absent_sites(
    changes: dict[str, Any], sets: Sets, tmp_path: Path, parallel: Any
) -> None:
    check_equal(
        tree(sets, "scaffold" if "federation__wire" in changes else "fedpad", **KEPT, **changes), tmp_path, parallel
    )


def draw_from_global_generators(site: Site, batch: Batch) -> torch.Tensor:
    """Return FedPAD's loss times numbers of libraries that draw from NumPy's and Python's global generators."""
    return MODEL.loss(site, batch) * float(np.random.random()) * random.random()


def train_with_draws(site: Site, message: Message) -> Message:
    return averaging.local_training(draw_from_global_generators, "model")(site, message)


CALLS = two_exchanges.METHOD.calls
DRAWING = replace(
    two_exchanges.METHOD, name="drawing", calls={**CALLS, "train": replace(CALLS["train"], run=train_with_draws)}
)


@pytest.mark.long
def test_draws_from_global_generators_are_equal_in_every_process(sets: Sets, tmp_path: Path, parallel: Any) -> None:
    content = tree(sets, DRAWING, **KEPT)
    check_equal(content, tmp_path, parallel, DRAWING)
    run_toy(content, tmp_path / "again", method=DRAWING)
    assert deterministic_files(tmp_path / "again") == deterministic_files(tmp_path / "alone")


@pytest.mark.slow
def test_parallel_sites_give_equal_bytes_with_a_passed_method(sets: Sets, tmp_path: Path, parallel: Any) -> None:
    check_equal(tree(sets, two_exchanges.METHOD, **KEPT), tmp_path, parallel, two_exchanges.METHOD)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [25.0, 60.0])
def test_spent_budget_ends_a_parallel_run_in_the_same_round(
    epsilon: float, sets: Sets, tmp_path: Path, parallel: Any
) -> None:
    check_equal(tree(sets, "privacyface", **KEPT, privacy__epsilon=epsilon), tmp_path, parallel)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["fedpad", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedgpad", "privacyface"))]
)
def test_lost_worker_ends_the_run_and_resume_gives_the_same_bytes(name: str, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, name, **{**KEPT, "training__rounds": 3})
    run_toy(content, tmp_path / "alone")
    two = tree(sets, name, **{**KEPT, "training__rounds": 3}, runtime__workers=2)
    with failed(RunFailed, "worker process", "runtime.workers", "--resume"):
        run_under_same_name(tmp_path / "alone", two, tmp_path / "parallel", reporter=RoundReporter(1, kill_a_worker))
    assert local_workers() == []
    assert not (tmp_path / "parallel" / SCRATCH).exists()
    run_toy(two, tmp_path / "parallel", resume=True)
    assert deterministic_files(tmp_path / "parallel") == deterministic_files(tmp_path / "alone")
    assert files_below(tmp_path / "parallel" / "sites") == files_below(tmp_path / "alone" / "sites")


@pytest.mark.long
def test_user_error_at_a_worker_is_one_line(sets: Sets, tmp_path: Path, parallel: Any) -> None:
    call = replace(two_exchanges.METHOD.calls["centre"], run=refuse)
    method = replace(two_exchanges.METHOD, calls={**two_exchanges.METHOD.calls, "centre": call})
    with refused("recipe.method", "mistake") as caught:
        run_toy(tree(sets, method), tmp_path / "run", method=method, wire=parallel)
    assert caught.value.message in {f"is a mistake of site {name}" for name in "ABC"}


def refuse(site: Site, message: Message) -> Message:
    raise UserError("recipe.method", f"is a mistake of site {site.name}")


@pytest.mark.long
def test_free_worker_takes_a_waiting_site_without_state(sets: Sets, tmp_path: Path, parallel: Any) -> None:
    """A and C share a worker in the first round. In the second one A waits for C, which the other worker must take."""
    method = replace(
        two_exchanges.METHOD,
        calls={**two_exchanges.METHOD.calls, "centre": replace(two_exchanges.METHOD.calls["centre"], run=wait_for_c)},
    )
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR)
    try:
        run_toy(tree(sets, method, title=str(pipe), training__rounds=2), tmp_path / "run", method=method, wire=parallel)
    finally:
        os.close(handle)


def wait_for_c(site: Site, message: Message) -> Message:
    """Compute a site's centre; in round 2, site A waits until site C has begun."""
    if site.round == 2 and site.name in ("A", "C"):
        pipe = os.open(site.recipe.title, os.O_RDWR)
        if site.name == "C":
            os.write(pipe, b".")
        else:
            assert select.select([pipe], [], [], 60)[0], "site C has not begun"
        os.close(pipe)
    return two_exchanges.centre(site, message)


class RepeatingTransport:
    """A transport whose first commit fails, because the directory of a site's state cannot be written."""

    def __init__(self, sites: Sequence[SiteWorker], wire: Any, blocked: Path) -> None:
        self._inner, self._blocked = wire(sites), blocked
        self.names, self.call, self.restore = self._inner.names, self._inner.call, self._inner.restore
        self.uncommitted, self.in_turn = self._inner.uncommitted, self._inner.in_turn

    def commit(self, generation: int) -> Any:
        if generation == 1:
            self._blocked.parent.mkdir(exist_ok=True)
            self._blocked.touch()
            with pytest.raises(FileExistsError):
                self._inner.commit(generation)
            self._blocked.unlink()
        return self._inner.commit(generation)


@pytest.mark.long
def test_failed_commit_can_be_repeated(sets: Sets, tmp_path: Path, parallel: Any) -> None:
    blocked = tmp_path / "parallel" / "sites" / "B"
    check_equal(tree(sets, **KEPT), tmp_path, partial(RepeatingTransport, wire=parallel, blocked=blocked))


@pytest.mark.long
def test_site_with_state_stays_at_its_worker(sets: Sets, tmp_path: Path, parallel: Any) -> None:
    calls = {**two_exchanges.METHOD.calls, "centre": replace(two_exchanges.METHOD.calls["centre"], run=note_process)}
    method = replace(two_exchanges.METHOD, calls=calls)
    notes = tmp_path / "notes"
    notes.mkdir()
    content = tree(sets, method, title=str(notes), **{**KEPT, "training__rounds": 4})
    run_toy(content, tmp_path / "run", method=method, wire=parallel)
    processes = {path.name: set(path.read_text().split()) for path in notes.iterdir()}
    assert {name: len(numbers) for name, numbers in processes.items()} == {"A": 1, "B": 1, "C": 1}
    assert len(set().union(*processes.values())) == 2


def note_process(site: Site, message: Message) -> Message:
    """Compute a site's centre, and note which process did."""
    with (Path(site.recipe.title) / site.name).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return two_exchanges.centre(site, message)


@pytest.mark.long
def test_message_files_are_removed_after_their_exchange(
    sets: Sets, tmp_path: Path, parallel: Any, workers: Sequence[Worker]
) -> None:
    left: list[Path] = []

    def list_files() -> None:
        for worker in workers:
            worker.submit(os.getpid).result()  # afterwards the engine holds no reference to the last job
        left.extend(path for path in (tmp_path / SCRATCH).rglob("*") if path.is_file())

    run_toy(tree(sets), tmp_path / "run", wire=partial(WatchedTransport, wire=parallel, after=list_files))
    assert left == []


@pytest.mark.long
def test_worker_executes_jobs_in_order_and_maps_messages(engine: LocalEngine, workers: Sequence[Worker]) -> None:
    message = {"z": torch.arange(12.0).reshape(3, 4).T, "a": torch.tensor(7)}
    stored = engine.put(message)
    futures = [worker.submit(describe, stored, factor) for factor in (2, 3) for worker in workers]
    assert [future.result() for future in futures] == [(["z", "a"], 66.0 * factor, 7) for factor in (2, 2, 3, 3)]
    assert workers[0].submit(os.getpid).result() != workers[1].submit(os.getpid).result()


def describe(message: Message, factor: int) -> tuple[list[str], float, int]:
    return list(message), factor * float(message["z"].sum()), int(message["a"])


@pytest.mark.slow
def test_workers_start_on_a_system_without_a_fork_server(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_work, "FORK_SERVER", False)
    (worker,) = engine.start(1, 1, "cpu")
    stored = engine.put({"z": torch.ones(3), "a": torch.tensor(7)})
    assert worker.submit(describe, stored, 2).result() == (["z", "a"], 6.0, 7)
    assert worker.submit(os.getppid).result() == os.getpid()


def test_lost_worker_fails_only_its_own_jobs(workers: Sequence[Worker]) -> None:
    lost: list[Future[Any]] = [workers[0].submit(os.kill, workers[0].submit(os.getpid).result(), signal.SIGKILL)]
    lost += [workers[0].submit(os.getpid) for _ in range(2)]
    for future in lost:
        with pytest.raises(WorkerLost):
            future.result()
    with pytest.raises(WorkerLost):
        workers[0].submit(os.getpid).result()
    assert workers[1].submit(os.getpid).result() != os.getpid()


@pytest.mark.long
def test_worker_reports_its_progress(workers: Sequence[Worker]) -> None:
    assert workers[0].progress() == (0, 0)
    workers[0].submit(report_progress, 3, 7).result()
    assert workers[0].progress() == (3, 7)
    assert workers[1].progress() == (0, 0)


@pytest.mark.slow
def test_run_started_with_two_workers_resumes_with_one(sets: Sets, tmp_path: Path) -> None:
    """Only the environment record of the run contains the number of workers."""
    content = tree(sets, "fedpad", **KEPT)
    run_toy(content, tmp_path / "alone")

    two = tree(sets, "fedpad", **KEPT, runtime__workers=2)
    with pytest.raises(Interrupted):
        run_toy(two, tmp_path / "parallel", reporter=RoundReporter(2, interrupt))
    assert local_workers() == []
    assert json.loads((tmp_path / "parallel" / "environment.json").read_text())["workers"] == 2
    assert not (tmp_path / "parallel" / SCRATCH).exists()
    run_toy(content, tmp_path / "parallel", resume=True)
    assert deterministic_files(tmp_path / "parallel") == deterministic_files(tmp_path / "alone")


@pytest.mark.parametrize(
    ("name", "ours", "reason"),
    [
        ("fedsis", True, "one after another"),
        ("fedpad", False, "transport"),
        ("nested", True, "imported"),
        ("of-a-script", True, "imported"),
        ("too-many-threads", True, "all cores"),
    ],
)
def test_reason_against_parallel_sites_is_one_line(
    name: str, ours: bool, reason: str, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "check_of_a_script", check_of_a_script, raising=False)
    method = OWN[name] if name in OWN else METHODS.get(name, METHODS["fedpad"])
    threads = 256 if name == "too-many-threads" else 1
    pool, lines = WorkerPool("auto" if threads > 1 else 2, LocalEngine(tmp_path)), list[str]()
    pool.start(recipe_of(tree(sets, method, runtime__threads=threads), method), method, ours, lines.append)
    assert pool.workers == ()
    (line,) = lines
    assert reason in line
    assert "runtime.workers" in line


class SmallEngine(LocalEngine):
    """An engine of one core whose workers cannot share it, like a cluster."""

    shared = False

    def capacity(self, threads: int) -> int:
        return 1 // threads


@pytest.mark.parametrize(
    ("name", "requested", "threads", "place", "keywords"),
    [
        ("fedsis", None, 1, "--on", ("one after another",)),
        ("pooled", None, 1, "--on", ("merges",)),
        ("fedpad", 2, 1, "recipe.runtime.workers", ("2 workers", "1 of them")),
        ("fedpad", "auto", 2, "recipe.runtime.workers", ("2 threads", "0 of them")),
    ],
)
def test_engine_that_cannot_share_cores_refuses_a_run_that_it_cannot_train(
    name: str, requested: Any, threads: int, place: str, keywords: tuple[str, ...], sets: Sets, tmp_path: Path
) -> None:
    pool = WorkerPool(requested, SmallEngine(tmp_path))
    with refused(place, *keywords):
        pool.start(recipe_of(tree(sets, name, runtime__threads=threads)), METHODS[name], True, print)
    assert pool.workers == ()


def test_engine_that_cannot_share_cores_trains_even_at_one_worker(sets: Sets, tmp_path: Path) -> None:
    pool = WorkerPool(None, SmallEngine(tmp_path))
    pool.start(recipe_of(tree(sets)), METHODS["fedpad"], True, print)
    assert len(pool.workers) == 1


def test_method_of_importable_functions_is_pickled(sets: Sets) -> None:
    method = two_exchanges.METHOD
    recipe = recipe_of(tree(sets, method), method)
    assert is_picklable(method, recipe)
    packed = pack_setup(recipe, method)
    unpacked_recipe, unpacked_method = unpack_setup(packed)
    assert unpacked_recipe == recipe
    assert unpacked_method.calls == method.calls
    # Partial functions are compared by their parts, because they have no equality of their own.
    original = cast("partial[Any]", method.prediction.predict)
    copied = cast("partial[Any]", unpacked_method.prediction.predict)
    assert (copied.func, copied.args, copied.keywords) == (original.func, original.args, original.keywords)


@pytest.mark.parametrize(("name", "requested"), [("fedpad", None), ("fedpad", 1), ("pooled", 4)])
def test_one_site_or_worker_starts_no_processes(name: str, requested: int | None, sets: Sets, tmp_path: Path) -> None:
    pool, lines = WorkerPool(requested, LocalEngine(tmp_path)), list[str]()
    pool.start(recipe_of(tree(sets, name)), METHODS[name], True, lines.append)
    assert (pool.workers, lines) == ((), [])


class HeldWorker:
    """A worker whose first order lasts until the run asks for its progress; all other jobs end at once."""

    def __init__(self, begun: list[str]) -> None:
        self._begun, self._held, self.begun_before_the_first_reply = begun, list[Future[Any]](), list[str]()

    def submit(self, job: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future = Future[Any]()
        if job is not execute_order:
            future.set_result(set())
            return future
        self._begun.append(args[0])
        if args[0] == FIRST:
            self._held.append(future)
        else:
            future.set_result(Reply(args[0], None, "absent"))
        return future

    def progress(self) -> tuple[int, int]:
        if self._held:
            self.begun_before_the_first_reply = list(self._begun)
            self._held.pop().set_result(Reply(FIRST, None, "absent"))
        return 0, 0

    def close(self) -> None: ...


FIRST = "S00"


def test_sites_begin_in_sorted_order_and_only_a_few_replies_wait(
    sets: Sets, tmp_path: Path, engine: LocalEngine
) -> None:
    """The first site takes longest. Meanwhile the other worker may take only the next three of twenty sites."""
    names = [f"S{number:02}" for number in range(20)]
    content = tree(sets, data__sites={name: str(sets["ABC"[number % 3]]) for number, name in enumerate(names)})
    setup = set_up(recipe_of(content), METHODS["fedpad"])
    data = open_run_data(content, tmp_path / "cache")
    (tmp_path / "recipe.yaml").touch()
    site_workers, _ = open_site_workers(setup, tmp_path, data, quiet_reporter())
    begun = list[str]()
    workers = [HeldWorker(begun) for _ in range(2)]
    transport = WorkerTransport(site_workers, engine, workers)
    replies = list(transport.call({name: Order("train", 1, {}, 0) for name in reversed(names)}))
    assert [reply.site for reply in replies] == names == begun
    assert sorted(worker.begun_before_the_first_reply for worker in workers) == [[], names[:4]]


def test_sites_are_assigned_by_their_images() -> None:
    assert assign_sites({"a": 8, "b": 8, "c": 24, "d": 8}, 2) == [["c"], ["a", "b", "d"]]


def test_set_is_pickled_as_its_path(sets: Sets) -> None:
    whole = View.of(PreparedSet.open(sets["A"]), "train")
    sent = pickle.dumps(whole)
    assert len(sent) < whole.batch(np.arange(len(whole))).images.numel()
    positions = np.array([3, 1])
    assert torch.equal(pickle.loads(sent).batch(positions).images, whole.batch(positions).images)


@pytest.mark.long
def test_message_to_all_sites_is_stored_once(
    sets: Sets, tmp_path: Path, parallel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trained model goes to all sites in one file; the centres of all, too."""
    stored: list[list[str]] = []
    put = LocalEngine.put

    def note(engine: LocalEngine, message: Message) -> Any:
        stored.append(sorted(message))
        return put(engine, message)

    monkeypatch.setattr(LocalEngine, "put", note)
    method = two_exchanges.METHOD
    content = tree(sets, method, training__rounds=1, evaluation__every=0)
    run_toy(content, tmp_path / "run", method=method, wire=parallel)
    assert len([names for names in stored if "centre/A" in names]) == 1


@pytest.mark.long
def test_parallel_sites_report_their_batches(sets: Sets, tmp_path: Path, parallel: Any) -> None:
    reported_sites: set[str] = set()

    class ListeningReporter(Reporter):
        def batch(self, site: str, done: int, of: int) -> None:
            assert 0 <= done < of
            reported_sites.add(site)

    content = tree(sets, training__rounds=1, training__local={"batches": 30}, evaluation__every=0)
    run_toy(content, tmp_path / "run", wire=parallel, reporter=ListeningReporter(quiet_reporter().console, quiet=True))
    assert reported_sites
    assert reported_sites <= set(content["data"]["sites"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGKILL, -signal.SIGKILL, "")],
)
def test_ended_run_leaves_no_process_and_can_be_resumed(
    number: signal.Signals, code: int, message: str, sets: Sets, tmp_path: Path
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
        assert sum(child.ppid() != running.pid for child in children) == 2, "two workers of one fork server"
        if number == signal.SIGKILL:
            running.kill()
        else:
            os.killpg(running.pid, number)
        assert message in running.communicate(timeout=60)[1]
        assert running.returncode == code
        assert psutil.wait_procs(children, timeout=60)[1] == []
    finally:
        running.kill()
    assert (out / SCRATCH).exists() == (number == signal.SIGKILL)

    with pytest.raises(Interrupted):
        run_toy(content, out, resume=True, reporter=RoundReporter(None, interrupt))
    assert not (out / SCRATCH).exists()
