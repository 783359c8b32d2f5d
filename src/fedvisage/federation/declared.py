"""What a method declares: its parts and who holds them, its calls and what they upload, its user.

Sites, server and judges work on this description; only the course of a training also runs the program of a
:class:`fedvisage.federation.method.Method`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

from torch import Generator, Tensor, nn

from fedvisage.federation.privacy.accountant import Charge
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import Upload
from fedvisage.recipe import MethodOptions, Recipe

TaskName = Literal["pad", "recognition"]


class Home(Enum):
    """Where the live copy of a part is."""

    LENT = "at the server, lent to sites for each call"
    SERVER = "never leaves the server"
    SITE = "at each site, kept from turn to turn"


def _nothing_beside(recipe: Recipe) -> tuple[Upload, ...]:
    """Take nothing beside parts of the network: a function with a name, which can be sent to another process."""
    return ()


@dataclass(frozen=True)
class Call:
    """One thing that a site computes when asked, and all that it may answer with."""

    run: Callable[[Site, Message], Message]
    """What the site does with a message of the server, and answers."""
    uploads: tuple[Upload, ...]
    """The fields of the answer; nothing else leaves the site."""
    exact: bool = False
    """It is about a finished model, whose weights travel as they are."""
    private: bool = False
    """And it looks at what the site has kept to itself."""
    takes: Callable[[Recipe], tuple[Upload, ...]] = _nothing_beside
    """What an order may hold beside parts of the network; a site refuses everything else."""
    visits: int = 1
    """In how many visits of a round a site answers it."""
    repeats: bool = False
    """Within a visit it is asked once for each batch."""
    questions: int = 2
    """About how many finished models of a run a site answers it."""


@dataclass(frozen=True)
class Member:
    """One finished model on its way to a score: the delivered parts, loaded and in evaluation mode."""

    net: nn.ModuleDict
    """The delivered parts."""
    images: Tensor
    """A batch, as the network takes it."""
    generator: Generator
    """The stream for a user that draws."""
    recipe: Recipe
    """The recipe that the model was trained by."""


@dataclass(frozen=True)
class Personal:
    """Recognition: one of the models by which a site can know its own people."""

    weights: Callable[[Site, Message], Message]
    """The delivered parts, from the site's private state and the finished generic model."""
    transform: Callable[[Site], Callable[[Tensor], Tensor]] | None = None
    """What the site does to features afterwards."""


def _nothing(recipe: Recipe) -> None:
    """Have nothing to say about any recipe: a function with a name, by which it can be sent to another process."""


def _one(recipe: Recipe) -> int:
    return 1


def _leave(net: nn.ModuleDict) -> None:
    """Leave the parts of a finished model as they are."""


def _fix_nothing(net: nn.ModuleDict, recipe: Recipe, files: Mapping[str, Path]) -> None:
    """Leave the network as it is."""


def _no_tensors(net: nn.ModuleDict) -> Message:
    return {}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a method declares to everybody who carries it out: all of it but its server program."""

    name: str
    """What a recipe calls it."""
    title: str
    """What tables call it."""
    paper: str
    """Authors, title, year."""
    task: TaskName
    """``pad`` or ``recognition``."""
    options: type[MethodOptions]
    """What a recipe can say in its section ``method``."""
    network: Callable[[Recipe], nn.ModuleDict]
    """Builds all parts, with random weights."""
    home: Mapping[str, Home]
    """Where each part lives."""
    calls: Mapping[str, Call]
    """What sites compute when asked, by name."""
    user: Callable[[Member], Tensor]
    """The user's live logits, or features of faces."""
    features: Callable[[Member], Tensor] | None = None
    """What the last layer sees, for figures."""
    step: Callable[[Member], Tensor] | None = None
    """What a training step passes images through, where that is more than what a user has; only its time counts."""
    spread: Callable[[Member], Tensor] | None = None
    """How far apart the draws of each image's prediction lie, for a user that draws."""
    as_graph: Callable[[Member], Tensor] | None = None
    """What the user computes, or its draws come to in the mean, by operations that an exported graph can have."""
    delivered: tuple[str, ...] = ()
    """The parts that a user downloads; empty: all that live at the server."""
    members: Literal["one", "each", "mean"] = "one"
    """One model; one a site, judged each on its own; or one a site, whose scores are averaged."""
    pooled: bool = False
    """All sites' data are merged into one pseudo-site: simulation only, refused between real organisations."""
    server_sees: str = "every site's upload singly"
    """What ``fedvisage methods`` says that the server sees."""
    averages: bool = False
    """All that sites upload meets in one mean a round, whose place robust or secure aggregation can take."""
    personal: Mapping[str, Personal] = field(default_factory=dict)
    """Recognition: the models that a site judges on its own people, the method's choice last; none: the generic."""
    prices: Callable[[Recipe, int], tuple[Charge, ...]] | None = None
    """What so many releases of a site cost at most: with it, noise on the mean of weights is accounted together."""
    check: Callable[[Recipe], None] = _nothing
    """Refuses a recipe that the method cannot run, before anything is opened or built."""
    in_turn: bool = False
    """Its server visits the sites one after another, so they cannot train side by side."""
    accumulates: bool = False
    """Its sites minimise means over the images of a batch, which ``training.micro_batch`` may take in parts."""
    pulls: bool = False
    """Its sites are held near where training started as ``training.l2sp`` says."""
    steps_at_server: bool = False
    """Its server steps as ``training.server_optimizer`` says."""
    warning: Callable[[Recipe], str | None] = _nothing
    """What a recipe's owner should hear before it runs."""
    least_identities: Callable[[Recipe], int] = _one
    """Recognition: how many identities a site needs, for its loss to have a gradient."""
    fix: Callable[[nn.ModuleDict, Recipe, Mapping[str, Path]], None] = _fix_nothing
    """Puts weights that every machine has into what never travels, from this machine's copies of files."""
    beside: Callable[[nn.ModuleDict], Message] = _no_tensors
    """What never travels and a finished model holds all the same, under the names that it has there."""
    merged: Callable[[nn.ModuleDict], None] = _leave
    """Makes of a finished model's parts plain ones that compute the same, for an export."""

    def parts_at(self, *homes: Home) -> tuple[str, ...]:
        """Return the names of the parts with one of these homes, in the network's order."""
        return tuple(part for part, home in self.home.items() if home in homes)

    @property
    def releases(self) -> bool:
        """Whether sites tell something under differential privacy."""
        return any(upload.kind == "dp" for call in self.calls.values() for upload in call.uploads)

    def noised(self, recipe: Recipe) -> bool:
        """Whether the recipe has them tell it so, where the method leaves that open."""
        uploads = [upload for call in self.calls.values() for upload in call.uploads]
        return any(upload.noised is not None and upload.noised(recipe) for upload in uploads)

    @property
    def finished(self) -> tuple[str, ...]:
        """The parts that make the finished model."""
        return self.delivered or self.parts_at(Home.LENT, Home.SERVER)
