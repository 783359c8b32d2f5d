"""Sites side by side in worker processes: the transport of simulations that use more cores than one, to the same bytes.

Each site belongs to one process for the whole run; orders go out together, replies come back in sorted order of sites.
The reasons are in docs/decisions/0015-workers.md.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from fedvisage.federation.desk import SiteDesk
from fedvisage.federation.method import Method
from fedvisage.federation.wire.message import plain
from fedvisage.federation.wire.parcel import pack_all
from fedvisage.federation.wire.transport import Order, Reply, Transport
from fedvisage.federation.workload import round_length
from fedvisage.progress import Say
from fedvisage.recipe import Recipe
from fedvisage.runs.lane import Asked, Lane
from fedvisage.runs.seat import Answer, Errand, Place, in_list, packed
from fedvisage.workers.machine import cores

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
