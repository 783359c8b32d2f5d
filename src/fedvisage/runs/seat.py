"""What runs in a worker process: the ends of some of a run's sites, and orders that they carry out."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from ctypes import Array, c_longlong
from dataclasses import dataclass, replace
from pathlib import Path

from fedvisage import recipe as recipes
from fedvisage.data.batches import View
from fedvisage.errors import UserError
from fedvisage.federation.declared import Declared
from fedvisage.federation.desk import SiteDesk
from fedvisage.federation.local import LocalTransport
from fedvisage.federation.method import Method
from fedvisage.federation.record.store import Shelf, SiteStore
from fedvisage.federation.wire.parcel import Parcel, pack
from fedvisage.federation.wire.transport import Order
from fedvisage.methods import find, read_method
from fedvisage.recipe import Recipe
from fedvisage.tasks.setup import set_up

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
