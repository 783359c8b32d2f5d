"""Parallel simulation of sites in worker processes, with byte-identical results for any number of processes.

Each site belongs to one process for the whole run. The server sends orders together and reads replies in sorted order
of sites. docs/decisions/0015-workers.md gives the reasons.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from ctypes import Array, c_longlong
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from fedvisage import recipe as recipes
from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.parallel import LastingProcess
from fedvisage.base.processes import cores
from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.federation.batch import round_length
from fedvisage.federation.declared import Declared
from fedvisage.federation.method import Method
from fedvisage.federation.record.store import SiteStore, StateCache
from fedvisage.federation.secure.calls import WITHOUT_NETWORK
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import plain
from fedvisage.federation.wire.transport import Order, Reply, TensorFiles, Transport, pack, pack_all
from fedvisage.methods import find, read_method
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import set_up

# Code of a worker process: it holds some of a run's sites and executes their orders.

ProgressUpdate = Array[c_longlong]
"""Shared memory for the progress of a process: the index of a site, its finished batches, and their total."""


@dataclass(frozen=True)
class SiteSpec:
    """One site in a form that can be pickled: its views as paths and positions, and its directory of private state."""

    name: str
    train: View
    held_out: View
    public: View | None
    strangers: View | None
    directory: Path

    @staticmethod
    def of(desk: SiteWorker) -> SiteSpec:
        """Return the parts that a site was built from."""
        return SiteSpec(desk.name, desk.train, desk.held_out, desk.public, desk.strangers, desk.store.directory)


@dataclass(frozen=True)
class SiteTask:
    """An order in a form that can be pickled, and the path for the reply."""

    site: str
    order: Order
    """The order without its message."""
    message: TensorFiles
    reply: Path


@dataclass(frozen=True)
class TaskResult:
    """A reply in a form that can be pickled."""

    message: TensorFiles | None
    failure: str
    spent: bool


class _WorkerState:
    """The sites of this worker process, and its progress memory."""

    board: ProgressUpdate | None = None
    sites: LocalTransport | None = None


def begin(board: ProgressUpdate) -> None:
    """Store the memory for progress updates."""
    _WorkerState.board = board


def pack_input(recipe: Recipe, method: Declared, places: Sequence[SiteSpec]) -> bytes:
    """Pickle the input of a worker process; a method from the catalogue is sent by name.

    The recipe is sent as plain values, because no process can import the generated options class of an algorithm on a
    model.
    """
    return pickle.dumps((recipes.tree_of(recipe), None if is_in_catalogue(method, recipe) else method, tuple(places)))


def is_in_catalogue(method: Declared, recipe: Recipe) -> bool:
    """Return whether every process finds this method by the recipe's section ``method``."""
    try:
        return find(recipe.method) is method
    except UserError:  # the catalogue may not contain a method that was passed in
        return False


def unpack_input(sent: bytes) -> tuple[Recipe, Method, Sequence[SiteSpec]]:
    """Return the arguments of :func:`pack_input`, in another process."""
    tree, method, places = pickle.loads(sent)
    recipe = recipes.validate(tree, read_method if method is None else method.options.model_validate)
    return recipe, method or find(recipe.method), places


def load_sites(sent: bytes) -> None:
    """Open the sites' data and build the network that the sites share."""
    recipe, method, places = unpack_input(sent)
    workspace, shelf = set_up(recipe, method).workspace(), StateCache()
    workspace.on_batch = _progress_callback({place.name: number for number, place in enumerate(places)})
    _WorkerState.sites = LocalTransport(
        [
            SiteWorker(
                place.name,
                place.train,
                place.held_out,
                SiteStore(place.directory, shelf),
                workspace,
                public=place.public,
                strangers=place.strangers,
            )
            for place in places
        ]
    )


def _progress_callback(places: dict[str, int]) -> Callable[[str, int, int], None]:
    board = _WorkerState.board

    def on_batch(site: str, done: int, of: int) -> None:
        if board is not None:
            board[:] = [places[site], done, of]

    return on_batch


def execute_task(errand: SiteTask) -> TaskResult:
    """Execute one order at one site."""
    order = replace(errand.order, message=errand.message.opened())
    (reply,) = _sites().call({errand.site: order})
    message = None if reply.message is None else pack(reply.message, errand.reply)
    return TaskResult(message, reply.failure, reply.spent)


def end_visits(_: object) -> bool:
    """End all visits after a round, and return whether a site has uncommitted private state."""
    desks = _sites().desks.values()
    for desk in desks:
        desk.leave()
    return any(desk.store.uncommitted for desk in desks)


def commit(generation: int) -> dict[str, int]:
    """Make the private state of this process's sites durable."""
    return _sites().commit(generation)


def restore(generations: dict[str, int]) -> None:
    """Restore this process's sites to earlier generations of their private state."""
    _sites().restore(generations)


def _sites() -> LocalTransport:
    assert _WorkerState.sites is not None, "nobody has taken this seat"
    return _WorkerState.sites


# The main process's side of one worker process.

TRIES = 3
"""The number of times that a process is replaced between two commits."""
POLL_SECONDS = 0.1
"""The time in seconds between two checks of the sites' progress."""


@dataclass
class PendingTask:
    """One task of a worker process, and its future result."""

    job: Callable[[Any], Any]
    what: Any
    future: Future[Any]

    @property
    def secret(self) -> bool:
        """True for a task that drew or used secrets, which cannot be drawn again."""
        return isinstance(self.what, SiteTask) and self.what.order.call in WITHOUT_NETWORK


class Worker:
    """A worker process that executes the orders of its sites one after another.

    If the process is killed, a new one repeats all tasks since the last commit.
    """

    def __init__(self) -> None:
        """Start the process without sites."""
        self.names: tuple[str, ...] = ()
        self.board: ProgressUpdate = get_context("spawn").RawArray("q", 3)
        self.process = LastingProcess(partial(begin, self.board))
        self.draws_anew = False
        self._sent = b""
        self._seated: Future[None] = Future()
        self._log: list[PendingTask] = []
        self._generations: dict[str, int] = {}
        self._lost = 0

    def take(self, names: tuple[str, ...], sent: bytes, *, draws_anew: bool) -> None:
        """Load these sites from the output of :func:`fedvisage.runs.workers.pack_input`.

        With ``draws_anew`` the operating system draws the secrets of secure sums, so a repeated draw gives other ones.
        """
        self.names, self._sent, self.draws_anew = names, sent, draws_anew
        self._log, self._lost, self.board[:] = [], 0, [0, 0, 0]
        self._seated = self._handed_in(load_sites, sent)

    def ask(self, errand: SiteTask) -> PendingTask:
        """Submit an order."""
        return self._ask(execute_task, errand)

    def commit(self, generation: int) -> PendingTask:
        """Submit a commit."""
        return self._ask(commit, generation)

    def owing(self) -> PendingTask:
        """Submit a check, between two rounds, whether the process holds uncommitted private state."""
        return self._ask(end_visits, None)

    def restore(self, generations: dict[str, int]) -> PendingTask:
        """Submit a restore of the sites, and log all tasks from here on."""
        self._log, self._generations = [], generations
        return self._ask(restore, generations)

    def forget(self, generations: dict[str, int] | None = None) -> None:
        """Drop tasks that need no repetition: the sites are at these generations, or still at the last ones."""
        if generations is not None:
            self._generations = generations
        restored: Future[None] = Future()
        restored.set_result(None)
        self._log, self._lost = [PendingTask(restore, self._generations, restored)], 0

    def result(self, asked: PendingTask, glance: Callable[[], None]) -> Any:
        """Wait for a task's result and replace the process if it ends; call ``glance`` at regular intervals."""
        while True:
            try:
                for future in (self._seated, asked.future):
                    while not future.done():
                        wait([future], POLL_SECONDS)
                        glance()
                    future.result()
                return asked.future.result()
            except BrokenProcessPool:
                self._begin_again()

    def _ask(self, job: Callable[[Any], Any], what: Any) -> PendingTask:
        self._log.append(PendingTask(job, what, self._handed_in(job, what)))
        return self._log[-1]

    def _begin_again(self) -> None:
        """Replace the process, and submit all tasks since the last commit again."""
        self._lost += 1
        if self._lost > TRIES:
            raise RunFailed(self._why())
        if self.draws_anew and any(task.secret for task in self._log):
            raise RunFailed("a worker process was killed, and its sites' secrets with it; --resume continues the run")
        self.process.replace()
        self._seated = self._handed_in(load_sites, self._sent)
        for task in self._log:
            task.future = self._handed_in(task.job, task.what)

    def _why(self) -> str:
        if self._seated.done() and self._seated.exception() is None:
            return "a worker process ended by itself again and again, perhaps for lack of memory; use fewer workers"
        return "no worker process could begin; use runtime.workers=1"

    def _handed_in(self, job: Callable[[Any], Any], what: Any) -> Future[Any]:
        try:
            return self.process.submit(job, what)
        except BrokenProcessPool as error:
            broken: Future[Any] = Future()
            broken.set_exception(error)
            return broken


FOLDER = ".handed"
"""The folder in a run's directory for messages between processes."""

Wire = Callable[[Sequence[SiteWorker]], Transport]
"""A function that makes a transport from the sites of this process."""

Workers = Literal["auto"] | int | None
"""The values of ``runtime.workers``."""


def without_workers(recipe: Recipe) -> Recipe:
    """Return a recipe without its number of worker processes, as no byte of the result depends on it."""
    if recipe.runtime.workers is None:
        return recipe
    return recipe.model_copy(update={"runtime": recipe.runtime.model_copy(update={"workers": None})})


class LocalEngine:
    """The worker processes of a run; none before :meth:`start`."""

    def __init__(self, asked: Workers) -> None:
        """Store the number of processes that the recipe asks for."""
        self._asked = asked
        self.lanes: list[Worker] = []

    def start(self, recipe: Recipe, method: Method, ours: bool, say: Say) -> None:
        """Start the useful number of processes; they import their modules while the run opens its data.

        If the sites cannot train in parallel, report the reason in one line and start none; the sites then train one
        after another, as without the key. ``ours`` is false if the caller passed in another transport.
        """
        sites, threads = 1 if method.pooled else len(recipe.data.sites), recipe.runtime.threads
        if self._asked in (None, 1) or sites == 1:
            return
        count = min(sites, _best_worker_count(sites, threads) if isinstance(self._asked, str) else self._asked or 1)
        reason = "one process has all cores with its threads" if count == 1 else _why_not_parallel(recipe, method, ours)
        if reason is not None:
            say(f"note: {reason}; runtime.workers changes nothing")
            return
        if threads > 1 and count * threads > cores():
            say(f"note: {count} processes of {threads} threads are more than {cores()} cores; see runtime.threads")
        for _ in range(count):
            self.lanes.append(Worker())

    @contextmanager
    def wire(self, otherwise: Wire, out: Path) -> Iterator[Wire]:
        """Yield a function that makes a transport from a run's sites: in these processes, if there are any."""
        if not self.lanes:
            yield otherwise
            return
        folder = out / FOLDER
        folder.mkdir()
        try:
            yield partial(WorkerTransport, crew=self.lanes, folder=folder)
        finally:
            remove_messages(out)

    @property
    def pids(self) -> list[int]:
        """The process IDs."""
        return [lane.process.pid for lane in self.lanes]

    def end(self) -> None:
        """End all processes."""
        for lane in self.lanes:
            lane.process.end()


@contextmanager
def open_engine(asked: Workers) -> Iterator[LocalEngine]:
    """Yield the worker processes of a run, and end them all when the run ends or fails."""
    crew = LocalEngine(asked)
    try:
        yield crew
    finally:
        crew.end()


def _why_not_parallel(recipe: Recipe, method: Method, ours: bool) -> str | None:
    """Return the reason why sites cannot train in parallel, or None if they can."""
    if not ours:
        return "a transport was handed in, which has the sites where it wants"
    if method.in_turn:
        return f"{method.name} visits its sites one after another"
    if not is_picklable(method, recipe):
        return (
            f"{method.name} was handed in and cannot be sent to another process, as not all of its functions can be"
            " imported by name"
        )
    return None


def _best_worker_count(sites: int, threads: int) -> int:
    """Return the number of processes that uses this machine's cores best.

    If the sites do not divide evenly among the cores, one more process runs and the operating system shares the cores.
    """
    slots = max(1, cores() // threads)
    return slots if slots == 1 or sites % slots == 0 else slots + 1


def is_picklable(method: Method, recipe: Recipe) -> bool:
    """Return whether a method can be pickled for another process of this machine."""
    if is_in_catalogue(method, recipe):
        return True
    try:
        sent = pickle.dumps(method)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return b"__main__" not in sent  # no other process can import from the program's main file


def remove_messages(out: Path) -> None:
    """Remove the messages between processes, including those of a killed run."""
    shutil.rmtree(out / FOLDER, ignore_errors=True)


class WorkerTransport:
    """The transport to sites in worker processes."""

    def __init__(self, desks: Sequence[SiteWorker], crew: Sequence[Worker], folder: Path) -> None:
        """Assign the sites to worker processes; messages pass through files in a folder."""
        workspace = desks[0].workspace
        self.names = tuple(sorted(desk.name for desk in desks))
        self._schemas, self._folder, self._on_batch = workspace.schemas, folder, workspace.on_batch
        self._crew, self._exchanges, self._round = crew, 0, 0
        self._seen: dict[Worker, tuple[int, ...]] = {}
        self._lanes: dict[str, Worker] = {}
        secure = workspace.recipe.federation.secure
        for lane, places in zip(crew, assign_sites(desks, len(crew)), strict=True):
            sent = pack_input(workspace.recipe, workspace.method, places)
            names = tuple(place.name for place in places)
            lane.take(names, sent, draws_anew=secure is not None and secure.entropy == "system")
            self._lanes |= dict.fromkeys(names, lane)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Execute the orders of all sites in parallel, or in turn if the call releases values under a budget.

        A site with a spent budget ends the round, and the sites after it must not be charged for that round.
        """
        self._open_round(max((order.round for order in orders.values()), default=self._round))
        self._exchanges += 1
        parcels = pack_all(orders, self._folder, self._exchanges)
        errands = {
            name: SiteTask(
                name, replace(order, message={}), parcels[name], self._folder / f"{self._exchanges}-{place}-up"
            )
            for place, (name, order) in enumerate(orders.items())
        }
        names = sorted(orders)
        in_turn = any(self._schemas[order.call].releases for order in orders.values())
        for together in [[name] for name in names] if in_turn else [names]:
            tasks = {name: self._lanes[name].ask(errands[name]) for name in together}
            for name in together:
                yield self._reply(name, orders[name].ticket, tasks[name])

    def commit(self, generation: int) -> dict[str, int]:
        """Commit every site."""
        tasks = [(lane, lane.commit(generation)) for lane in self._crew]
        reached: dict[str, int] = {}
        for lane, task in tasks:
            reached |= lane.result(task, self._glance)
        for lane in self._crew:
            lane.forget({name: reached[name] for name in lane.names})
        self._clear()
        return {name: reached[name] for name in self.names}

    def restore(self, generations: Mapping[str, int]) -> None:
        """Restore every site."""
        tasks = [
            (lane, lane.restore({name: generations[name] for name in lane.names if name in generations}))
            for lane in self._crew
        ]
        for lane, task in tasks:
            lane.result(task, self._glance)

    def _open_round(self, number: int) -> None:
        """Drop the tasks of earlier rounds, unless a site still has uncommitted private state from them."""
        if self._round == number:
            return
        self._round = number
        tasks = [(lane, lane.owing()) for lane in self._crew]
        if not any(lane.result(task, self._glance) for lane, task in tasks):
            for lane in self._crew:
                lane.forget()
            self._clear()

    def _clear(self) -> None:
        """Remove all message files."""
        for path in self._folder.iterdir():
            path.unlink()

    def _reply(self, name: str, ticket: str, asked: PendingTask) -> Reply:
        answer: TaskResult = self._lanes[name].result(asked, self._glance)
        if answer.message is None:
            return Reply(name, None, answer.failure, ticket, answer.spent)
        message = {key: plain(value) for key, value in answer.message.opened().items()}
        for path in answer.message.paths:
            path.unlink()
        return Reply(name, message, ticket=ticket)

    def _glance(self) -> None:
        """Report the progress of the sites, if it has changed."""
        for lane in self._crew:
            index, finished, total = now = tuple(lane.board)
            if total and self._seen.get(lane) != now:
                self._seen[lane] = now
                self._on_batch(lane.names[index], finished, total)


def assign_sites(desks: Sequence[SiteWorker], count: int) -> list[list[SiteSpec]]:
    """Assign sites to processes, largest first, each to the process with the fewest images per round so far."""

    def work(desk: SiteWorker) -> int:
        recipe = desk.workspace.recipe
        return round_length(recipe, desk.name, len(desk.train)) * recipe.training.batch.of(desk.name)

    assigned: list[list[SiteSpec]] = [[] for _ in range(count)]
    images = [0] * count
    for desk in sorted(desks, key=lambda desk: (-work(desk), desk.name)):
        process = images.index(min(images))
        assigned[process].append(SiteSpec.of(desk))
        images[process] += work(desk)
    return [sorted(places, key=lambda place: place.name) for places in assigned]
