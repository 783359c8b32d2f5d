"""A federated method: its parts and their location, its calls and their uploads, its server program, its prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Literal, get_args

from torch import Generator, Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.base.imports import pause_garbage_collection
from fedvisage.base.streams import seed_global_rng
from fedvisage.federation.privacy.accountant import Charge
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import COST, EXAMPLES, LOSS, SUMMED, Kind, Upload
from fedvisage.recipe import MethodOptions, Recipe
from fedvisage.recipe.data import SITE_NAME

if TYPE_CHECKING:
    from fedvisage.federation.server import Server

__all__ = ["COST", "EXAMPLES", "LOSS", "SUMMED", "Kind", "Message", "Upload"]  # declarations that methods import here

TaskName = Literal["pad", "recognition"]

Capability = Literal["one_mean", "l2sp", "micro_batch", "server_optimizer", "people"]
"""An option of a recipe that a method may support; a recipe that asks a method for another one is refused.

- ``one_mean``: one mean per round combines all uploads of the call ``train``, so ``federation.secure``, ``.combine``,
  ``.dp`` and ``.poisoned`` may replace or protect it.
- ``l2sp``: the sites apply ``training.l2sp``, the pull towards the initial weights.
- ``micro_batch``: the sites minimise means over the images of a batch, which ``training.micro_batch`` may split.
- ``server_optimizer``: the server applies ``training.server_optimizer``.
- ``people``: the sites minimise means over the images of single people, and keep at most what they send, so
  ``training.privacy`` applies.
"""

PEOPLE: Literal["people"] = "people"

START, RESULT = "start", "result"
"""Members of a model that keeps its start beside the result of training (``training.keep: average``)."""


class Home(Enum):
    """Location of a part's live copy."""

    LENT = "at the server, lent to sites for each call"
    SERVER = "never leaves the server"
    SITE = "at each site, kept from turn to turn"


# Defaults of calls, methods and models; named functions, because lambdas cannot be pickled for worker processes.


def accept_any(recipe: Recipe) -> None:
    """Accept every recipe without a warning."""


def one_identity(recipe: Recipe) -> int:
    """Require one identity per site."""
    return 1


def keep_initial_model(server: Server) -> None:
    """Leave the initial model unchanged."""


def _no_weights_beside(recipe: Recipe) -> tuple[Upload, ...]:
    return ()


NUMBERS = (EXAMPLES.name, LOSS.name, "steps")
"""Names of uploads that the record of a round contains as numbers."""

BEFORE_TRAINING = 0
"""The round of calls before training."""


@dataclass(frozen=True)
class Call:
    """A computation that the server can order from a site, with all fields of its reply."""

    run: Callable[[Site, Message], Message]
    """Computes the reply to a message of the server, at the site."""
    uploads: tuple[Upload, ...]
    """The fields of the reply; no other value leaves the site."""
    exact: bool = False
    """The call concerns a finished model, whose weights travel unrounded."""
    private: bool = False
    """The call concerns a finished model and reads the site's private state."""
    takes: Callable[[Recipe], tuple[Upload, ...]] = _no_weights_beside
    """Tensors that an order may contain besides parts of the network; the site refuses all others."""
    visits: int = 1
    """Number of visits per round in which a site answers the call."""
    repeats: bool = False
    """The call is repeated within a visit, once per batch."""
    first_round: int = 1
    """The first round in which a site answers the call; ``BEFORE_TRAINING`` precedes them all."""
    last_round: int | None = None
    """The last round in which a site answers the call; by default the recipe's last one."""
    questions: int = 2
    """Number of finished models per run about which a site answers the call."""
    release_costs: Callable[[Recipe, int], tuple[Charge, ...]] | None = None
    """Bounds the privacy cost of a number of replies of a site; with it, noise on the mean of weights enters the same
    account."""


@dataclass(frozen=True)
class Member:
    """The input of a prediction: a finished model's delivered parts, loaded and in evaluation mode, and images."""

    net: nn.ModuleDict
    """The delivered parts."""
    images: Tensor
    """A batch in the form of the network's input."""
    generator: Generator
    """The stream for predictions that sample."""
    recipe: Recipe
    """The recipe that trained the model."""


@dataclass(frozen=True)
class Personal:
    """Recognition: a personalised model of a site for its own people."""

    weights: Callable[[Site, Message], Message]
    """Returns the delivered parts, from the site's private state and the finished generic model."""
    transform: Callable[[Site], Callable[[Tensor], Tensor]] | None = None
    """Returns the transform that the site applies to features."""


def _finished_model(site: Site, finished: Message) -> Message:
    return finished


GENERIC = Personal(_finished_model)
"""The finished generic model, the same for every site."""


@dataclass(frozen=True)
class Prediction:
    """What a finished model computes."""

    predict: Callable[[Member], Tensor]
    """Returns live logits, or features of faces, for the target."""
    features: Callable[[Member], Tensor] | None = None
    """Returns the input of the last layer, for plots."""
    exportable_predict: Callable[[Member], Tensor] | None = None
    """Predicts like ``predict``, or its mean over draws, with operations that an exported graph supports."""
    draw_spread: Callable[[Member], Tensor] | None = None
    """Returns the spread of each image's draws, for predictions that sample."""
    personal: Mapping[str, Personal] = field(default_factory=dict)
    """Recognition: the models that a site evaluates on its own people, the method's choice last; empty: the generic
    one."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Method:
    """A method as its paper prescribes it, without loops, transport or files."""

    name: str
    """Name in recipes."""
    title: str
    """Name in tables."""
    paper: str
    """Authors, title, year."""
    task: TaskName
    """``pad`` or ``recognition``."""
    advice: str = ""
    """When to use the method, in one line."""
    options: type[MethodOptions]
    """The method's options in the section ``method``."""
    network: Callable[[Recipe], nn.ModuleDict]
    """Builds all parts with random weights."""
    home: Mapping[str, Home]
    """Location of each part."""
    calls: Mapping[str, Call]
    """The sites' computations, by name."""
    prediction: Prediction
    """What the finished model computes."""
    server: Callable[[Server], Iterator[None]]
    """The server program, a generator that yields when its state is consistent."""
    begin: Callable[[Server], None] = keep_initial_model
    """Loads weights that the recipe names into the initial model, before the first round."""
    delivered: tuple[str, ...] = ()
    """The parts that a finished model delivers; empty: all parts at the server."""
    members: Literal["one", "pooled", "each", "mean"] = "one"
    """One model of the federation; one of all sites' merged data (in simulations only); one per site, each evaluated
    separately; or one per site, with averaged scores."""
    supports: frozenset[Capability] = frozenset()
    """The options of recipes that the method supports."""
    server_sees: str = "every site's upload singly"
    """The server's view in the output of ``fedvisage methods``; a server with merged data sees everything."""
    check: Callable[[Recipe], str | None] = accept_any
    """Raises an error for a recipe that the method cannot run, before any data is opened or a network is built; returns
    a warning, if there is one, about a recipe that it can run."""
    least_identities: Callable[[Recipe], int] = one_identity
    """Recognition: number of identities that a site needs for its loss to have a gradient."""

    def __post_init__(self) -> None:
        """Refuse an invalid name, a server program without a yield, and uploads that no site could send."""
        place, shared = f"method {self.name!r}", self.parts_at(Home.LENT, Home.SITE)
        if not SITE_NAME.fullmatch(self.name):
            raise UserError(place, "has an invalid name: use letters, digits, '-' and '_', at most 64")
        if not isgeneratorfunction(self.server):
            raise UserError(place, "server must be a generator function over s.rounds(): yield in each round")
        for name, call in self.calls.items():
            for upload in call.uploads:
                fault = ""
                if unknown := [part for part in upload.parts if part not in shared]:
                    fault = f"part {unknown[0]!r}, which home does not place at the sites, as {', '.join(shared)}"
                elif upload.kind not in get_args(Kind):
                    fault = f"kind {upload.kind!r}; use one of {', '.join(get_args(Kind))}"
                elif upload.kind == "dp" and COST not in call.uploads:
                    fault = "kind 'dp' without a cost; declare COST, too, and reply with site.release(…)"
                elif upload.name in NUMBERS and (upload.parts or upload.shape != ()):
                    fault = "a name that means a single number; use another name"
                if fault:
                    raise UserError(place, f"upload {upload.name!r} of the call {name!r} has {fault}")

    def __repr__(self) -> str:
        """Return the name, title and task."""
        return f"Method(name={self.name!r}, title={self.title!r}, task={self.task!r})"

    def initial_network(self, recipe: Recipe) -> nn.ModuleDict:
        """Build all parts with the weights of the recipe's seed."""
        # The first call imports the libraries of the network.
        with seed_global_rng(recipe.runtime.seed, "initial weights"), pause_garbage_collection():
            net = self.network(recipe)
        if {*net} != {*self.home}:
            parts = f"network has the parts {', '.join(net)}, and home places {', '.join(self.home)}; they must agree"
            raise UserError(f"method {self.name!r}", parts)
        return net

    def parts_at(self, *homes: Home) -> tuple[str, ...]:
        """Return the names of the parts with one of these homes, in the network's order."""
        return tuple(part for part, home in self.home.items() if home in homes)

    @property
    def pooled(self) -> bool:
        """Return whether all sites' data form one pseudo-site; between real organisations this is an error."""
        return self.members == "pooled"

    @property
    def several_models(self) -> bool:
        """Return whether the finished model consists of one model per site."""
        return self.members in ("each", "mean")

    @property
    def in_turn(self) -> bool:
        """Return whether the server visits the sites one after another, so that they cannot train in parallel."""
        return any(call.repeats for call in self.calls.values())

    @property
    def release_costs(self) -> Callable[[Recipe, int], tuple[Charge, ...]] | None:
        """Return the bound on the cost of the sites' releases, if a call has one."""
        return next((call.release_costs for call in self.calls.values() if call.release_costs is not None), None)

    @property
    def releases(self) -> bool:
        """Return whether sites release values under differential privacy."""
        return any(upload.kind == "dp" for call in self.calls.values() for upload in call.uploads)

    def noised(self, recipe: Recipe) -> bool:
        """Return whether the recipe adds noise to uploads of a method that leaves this open."""
        uploads = [upload for call in self.calls.values() for upload in call.uploads]
        return any(upload.noised is not None and upload.noised(recipe) for upload in uploads)

    @property
    def finished(self) -> tuple[str, ...]:
        """Return the parts of the finished model."""
        return self.delivered or self.parts_at(Home.LENT, Home.SERVER)
