"""Sites side by side in worker processes: the transport of simulations that use more cores than one, to the same bytes.

Each site belongs to one process for the whole run; orders go out together, replies come back in sorted order of sites.
The reasons are in docs/decisions/0015-workers.md.
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
from fedvisage.federation.record.store import Shelf, SiteStore
from fedvisage.federation.secure.calls import AT_THE_DESK
from fedvisage.federation.site_worker import LocalTransport, SiteDesk
from fedvisage.federation.wire.message import plain
from fedvisage.federation.wire.transport import Order, Parcel, Reply, Transport, pack, pack_all
from fedvisage.methods import find, read_method
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import set_up

# What runs in a worker process: the ends of some of a run's sites, and orders that they carry out.


Board = Array[c_longlong]
"""Memory in which a process says how far it is: the place of a site among its own, batches done, and how many."""


@dataclass(frozen=True)
class Place:
    """One site as it travels: its views as paths and positions, and where its private state lies."""

    name: str
    train: View
    held_out: View
    public: View | None
    strangers: View | None
    directory: Path

    @staticmethod
    def of(desk: SiteDesk) -> Place:
        """Take down what a site's end was made of."""
        return Place(desk.name, desk.train, desk.held_out, desk.public, desk.strangers, desk.store.directory)


@dataclass(frozen=True)
class Errand:
    """An order as it travels, and where the reply is to lie."""

    site: str
    order: Order
    """Without its message."""
    message: Parcel
    reply: Path


@dataclass(frozen=True)
class Answer:
    """A reply as it travels."""

    message: Parcel | None
    failure: str
    spent: bool


class _Seat:
    """The sites that this process is there for."""

    board: Board | None = None
    sites: LocalTransport | None = None


def begin(board: Board) -> None:
    """Remember where to say how far the sites are."""
    _Seat.board = board


def packed(recipe: Recipe, method: Declared, places: Sequence[Place]) -> bytes:
    """Return what a process needs to take its place; a method of the list travels by its name.

    The recipe goes as plain values: the options of an algorithm on a model are a class that no process can import.
    """
    return pickle.dumps((recipes.tree_of(recipe), None if in_list(method, recipe) else method, tuple(places)))


def in_list(method: Declared, recipe: Recipe) -> bool:
    """Tell whether a method is the one that every process finds by a recipe's section."""
    try:
        return find(recipe.method) is method
    except UserError:  # one that was handed in may have a name that the list does not know
        return False


def unpacked(sent: bytes) -> tuple[Recipe, Method, Sequence[Place]]:
    """Return what :func:`packed` packed, in another process."""
    tree, method, places = pickle.loads(sent)
    recipe = recipes.validate(tree, read_method if method is None else method.options.model_validate)
    return recipe, method or find(recipe.method), places


def sit(sent: bytes) -> None:
    """Open the sites' data and build the network that they borrow."""
    recipe, method, places = unpacked(sent)
    workspace, shelf = set_up(recipe, method).workspace(), Shelf()
    workspace.on_batch = _told({place.name: number for number, place in enumerate(places)})
    _Seat.sites = LocalTransport(
        [
            SiteDesk(
                place.name, place.train, place.held_out, SiteStore(place.directory, shelf), workspace,
                public=place.public, strangers=place.strangers,
            )
            for place in places
        ]
    )  # fmt: skip


def _told(places: dict[str, int]) -> Callable[[str, int, int], None]:
    board = _Seat.board

    def on_batch(site: str, done: int, of: int) -> None:
        if board is not None:
            board[:] = [places[site], done, of]

    return on_batch


def carry_out(errand: Errand) -> Answer:
    """Carry out one order of one site."""
    order = replace(errand.order, message=errand.message.opened())
    (reply,) = _sites().call({errand.site: order})
    message = None if reply.message is None else pack(reply.message, errand.reply)
    return Answer(message, reply.failure, reply.spent)


def owing(_: object) -> bool:
    """End what visits there are, at a round's end, and say whether a site has private state that is not committed."""
    desks = _sites().desks.values()
    for desk in desks:
        desk.leave()
    return any(desk.store.uncommitted for desk in desks)


def commit(generation: int) -> dict[str, int]:
    """Make the private state of this process's sites durable."""
    return _sites().commit(generation)


def restore(generations: dict[str, int]) -> None:
    """Send this process's sites back."""
    _sites().restore(generations)


def _sites() -> LocalTransport:
    assert _Seat.sites is not None, "nobody has taken this seat"
    return _Seat.sites


# One worker process with its sites: what it was asked since the last commit is asked again if it is killed.


TRIES = 3
"""Times that a process is replaced between two commits."""
GLANCE = 0.1
"""Seconds between two looks at how far the sites are."""


@dataclass
class Asked:
    """One thing that the process was asked, and what comes of it."""

    job: Callable[[Any], Any]
    what: Any
    future: Future[Any]

    @property
    def secret(self) -> bool:
        """Whether it drew or used secrets that nobody can draw again."""
        return isinstance(self.what, Errand) and self.what.order.call in AT_THE_DESK


class Lane:
    """A process that carries out the orders of its sites one after another."""

    def __init__(self) -> None:
        """Start the process; it has no sites yet."""
        self.names: tuple[str, ...] = ()
        self.board: Board = get_context("spawn").RawArray("q", 3)
        self.process = LastingProcess(partial(begin, self.board))
        self.draws_anew = False
        self._sent = b""
        self._seated: Future[None] = Future()
        self._log: list[Asked] = []
        self._generations: dict[str, int] = {}
        self._lost = 0

    def take(self, names: tuple[str, ...], sent: bytes, *, draws_anew: bool) -> None:
        """Take these sites, with what :func:`fedvisage.runs.workers.packed` made of them.

        ``draws_anew``: secrets of a secure sum come from the operating system, and would be others the next time.
        """
        self.names, self._sent, self.draws_anew = names, sent, draws_anew
        self._log, self._lost, self.board[:] = [], 0, [0, 0, 0]
        self._seated = self._handed_in(sit, sent)

    def ask(self, errand: Errand) -> Asked:
        """Hand in an order."""
        return self._ask(carry_out, errand)

    def commit(self, generation: int) -> Asked:
        """Hand in the wish to commit."""
        return self._ask(commit, generation)

    def owing(self) -> Asked:
        """Ask, between two rounds, whether what was written down is needed after a kill."""
        return self._ask(owing, None)

    def restore(self, generations: dict[str, int]) -> Asked:
        """Send the sites back; from here on everything is written down."""
        self._log, self._generations = [], generations
        return self._ask(restore, generations)

    def forget(self, generations: dict[str, int] | None = None) -> None:
        """Forget what need not be asked again: sites are as they were at these generations, or still at the last."""
        if generations is not None:
            self._generations = generations
        done: Future[None] = Future()
        done.set_result(None)
        self._log, self._lost = [Asked(restore, self._generations, done)], 0

    def result(self, asked: Asked, glance: Callable[[], None]) -> Any:
        """Wait for what comes of it; a process that ended is replaced meanwhile. ``glance`` is called now and then."""
        while True:
            try:
                for future in (self._seated, asked.future):
                    while not future.done():
                        wait([future], GLANCE)
                        glance()
                    future.result()
                return asked.future.result()
            except BrokenProcessPool:
                self._begin_again()

    def _ask(self, job: Callable[[Any], Any], what: Any) -> Asked:
        self._log.append(Asked(job, what, self._handed_in(job, what)))
        return self._log[-1]

    def _begin_again(self) -> None:
        """Replace the process, and ask it all that its predecessor was asked since the last commit."""
        self._lost += 1
        if self._lost > TRIES:
            raise RunFailed(self._why())
        if self.draws_anew and any(asked.secret for asked in self._log):
            raise RunFailed("a worker process was killed, and its sites' secrets with it; --resume continues the run")
        self.process.replace()
        self._seated = self._handed_in(sit, self._sent)
        for asked in self._log:
            asked.future = self._handed_in(asked.job, asked.what)

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
"""Where, in a run's directory, messages lie while they go from process to process."""

Wire = Callable[[Sequence[SiteDesk]], Transport]
"""What makes a transport of the sites of this process."""

Workers = Literal["auto"] | int | None
"""What a recipe says about processes."""


def without_workers(recipe: Recipe) -> Recipe:
    """Return a recipe that does not say how many processes work on it: no byte of a result depends on that."""
    if recipe.runtime.workers is None:
        return recipe
    return recipe.model_copy(update={"runtime": recipe.runtime.model_copy(update={"workers": None})})


class Crew:
    """The processes of a run, none before it knows how many."""

    def __init__(self, asked: Workers) -> None:
        """Remember what the recipe asked for."""
        self._asked = asked
        self.lanes: list[Lane] = []

    def start(self, recipe: Recipe, method: Method, ours: bool, say: Say) -> None:
        """Start as many as are of use; they load what they need while the run's data is opened.

        What cannot go side by side is said in one line, and goes one after another as it would without the key.
        ``ours`` is false where another transport was handed in.
        """
        sites, threads = 1 if method.pooled else len(recipe.data.sites), recipe.runtime.threads
        if self._asked in (None, 1) or sites == 1:
            return
        count = min(sites, _fitting(sites, threads) if isinstance(self._asked, str) else self._asked or 1)
        why = "one process has all cores with its threads" if count == 1 else _hindered(recipe, method, ours)
        if why is not None:
            say(f"note: {why}; runtime.workers changes nothing")
            return
        if threads > 1 and count * threads > cores():
            say(f"note: {count} processes of {threads} threads are more than {cores()} cores; see runtime.threads")
        for _ in range(count):
            self.lanes.append(Lane())

    @contextmanager
    def wire(self, otherwise: Wire, out: Path) -> Iterator[Wire]:
        """Lend what makes a transport of a run's sites: of these processes, if there are any."""
        if not self.lanes:
            yield otherwise
            return
        folder = out / FOLDER
        folder.mkdir()
        try:
            yield partial(Abreast, crew=self.lanes, folder=folder)
        finally:
            swept(out)

    @property
    def pids(self) -> list[int]:
        """The processes, as the system numbers them."""
        return [lane.process.pid for lane in self.lanes]

    def end(self) -> None:
        """End them all."""
        for lane in self.lanes:
            lane.process.end()


@contextmanager
def gathered(asked: Workers) -> Iterator[Crew]:
    """Lend a crew; whatever becomes of the run, none of its processes is left."""
    crew = Crew(asked)
    try:
        yield crew
    finally:
        crew.end()


def _hindered(recipe: Recipe, method: Method, ours: bool) -> str | None:
    """Say why sites cannot train side by side."""
    if not ours:
        return "a transport was handed in, which has the sites where it wants"
    if method.in_turn:
        return f"{method.name} visits its sites one after another"
    if not travels(method, recipe):
        return (
            f"{method.name} was handed in and cannot be sent to another process, as not all of its functions can be"
            " imported by name"
        )
    return None


def _fitting(sites: int, threads: int) -> int:
    """Return how many processes use this machine's cores best.

    Where sites do not divide evenly among the cores there is a process more: the operating system shares the cores.
    """
    room = max(1, cores() // threads)
    return room if room == 1 or sites % room == 0 else room + 1


def travels(method: Method, recipe: Recipe) -> bool:
    """Return whether a method can be sent to another process of this machine."""
    if in_list(method, recipe):
        return True
    try:
        sent = pickle.dumps(method)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return b"__main__" not in sent  # what a program's own file defines, no other process knows


def swept(out: Path) -> None:
    """Remove the messages that a run was handing on, also one that was killed."""
    shutil.rmtree(out / FOLDER, ignore_errors=True)


class Abreast:
    """All sites in worker processes: the transport."""

    def __init__(self, desks: Sequence[SiteDesk], crew: Sequence[Lane], folder: Path) -> None:
        """Deal the sites out to the processes of a crew; messages lie in a folder meanwhile."""
        workspace = desks[0].workspace
        self.names = tuple(sorted(desk.name for desk in desks))
        self._schemas, self._folder, self._on_batch = workspace.schemas, folder, workspace.on_batch
        self._crew, self._exchanges, self._round = crew, 0, 0
        self._seen: dict[Lane, tuple[int, ...]] = {}
        self._lanes: dict[str, Lane] = {}
        secure = workspace.recipe.federation.secure
        for lane, places in zip(crew, dealt(desks, len(crew)), strict=True):
            sent = packed(workspace.recipe, workspace.method, places)
            names = tuple(place.name for place in places)
            lane.take(names, sent, draws_anew=secure is not None and secure.entropy == "system")
            self._lanes |= dict.fromkeys(names, lane)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Have all sites carry out their orders at once; those that release under a budget go in turn.

        A site whose budget is spent ends the round, and nobody behind it should have paid for that.
        """
        self._open_round(max((order.round for order in orders.values()), default=self._round))
        self._exchanges += 1
        parcels = pack_all(orders, self._folder, self._exchanges)
        errands = {
            name: Errand(
                name, replace(order, message={}), parcels[name], self._folder / f"{self._exchanges}-{place}-up"
            )
            for place, (name, order) in enumerate(orders.items())
        }
        names = sorted(orders)
        in_turn = any(self._schemas[order.call].releases for order in orders.values())
        for together in [[name] for name in names] if in_turn else [names]:
            asked = {name: self._lanes[name].ask(errands[name]) for name in together}
            for name in together:
                yield self._reply(name, orders[name].ticket, asked[name])

    def commit(self, generation: int) -> dict[str, int]:
        """Commit every site."""
        asked = [(lane, lane.commit(generation)) for lane in self._crew]
        reached: dict[str, int] = {}
        for lane, one in asked:
            reached |= lane.result(one, self._glance)
        for lane in self._crew:
            lane.forget({name: reached[name] for name in lane.names})
        self._clear()
        return {name: reached[name] for name in self.names}

    def restore(self, generations: Mapping[str, int]) -> None:
        """Restore every site."""
        asked = [
            (lane, lane.restore({name: generations[name] for name in lane.names if name in generations}))
            for lane in self._crew
        ]
        for lane, one in asked:
            lane.result(one, self._glance)

    def _open_round(self, number: int) -> None:
        """Forget the rounds before this one, unless a site has private state from them that is not committed."""
        if self._round == number:
            return
        self._round = number
        asked = [(lane, lane.owing()) for lane in self._crew]
        if not any(lane.result(one, self._glance) for lane, one in asked):
            for lane in self._crew:
                lane.forget()
            self._clear()

    def _clear(self) -> None:
        """Remove messages that nobody needs any more."""
        for path in self._folder.iterdir():
            path.unlink()

    def _reply(self, name: str, ticket: str, asked: Asked) -> Reply:
        answer: Answer = self._lanes[name].result(asked, self._glance)
        if answer.message is None:
            return Reply(name, None, answer.failure, ticket, answer.spent)
        message = {key: plain(value) for key, value in answer.message.opened().items()}
        for path in answer.message.paths:
            path.unlink()
        return Reply(name, message, ticket=ticket)

    def _glance(self) -> None:
        """Tell how far the sites are, where that has changed."""
        for lane in self._crew:
            place, done, of = now = tuple(lane.board)
            if of and self._seen.get(lane) != now:
                self._seen[lane] = now
                self._on_batch(lane.names[place], done, of)


def dealt(desks: Sequence[SiteDesk], count: int) -> list[list[Place]]:
    """Deal sites out by how many images they train on in a round, the largest first, to whom has least so far."""

    def work(desk: SiteDesk) -> int:
        recipe = desk.workspace.recipe
        return round_length(recipe, desk.name, len(desk.train)) * recipe.training.batch.of(desk.name)

    hands: list[list[Place]] = [[] for _ in range(count)]
    held = [0] * count
    for desk in sorted(desks, key=lambda desk: (-work(desk), desk.name)):
        least = held.index(min(held))
        hands[least].append(Place.of(desk))
        held[least] += work(desk)
    return [sorted(hand, key=lambda place: place.name) for hand in hands]
