"""The server as a method's program sees it: ``ask``, ``reduce`` and ``visit`` block, so programs are straight-line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NoReturn

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.streams import torch_rng
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.method import Home, Method
from fedvisage.federation.protections.combine import cast, combination_of
from fedvisage.federation.protections.compatible import check_request, protections_of_mean, weighs_by_examples
from fedvisage.federation.protections.dp import add_noise
from fedvisage.federation.protections.steps import clip_at_server
from fedvisage.federation.record.attendance import NO_QUORUM
from fedvisage.federation.record.releases import Releases
from fedvisage.federation.secure.calls import layout_of, threshold_of
from fedvisage.federation.secure.total import TooFewSites, sum_uploads
from fedvisage.federation.wire.message import Message, load_parts, plain, state_of, under
from fedvisage.federation.wire.precision import wide_type
from fedvisage.federation.wire.schema import LOSS, SUMMED, schema_of
from fedvisage.nn import optimizers
from fedvisage.nn.compute import Compute
from fedvisage.recipe import Recipe


class SiteLost(Exception):
    """The site of a conversation stopped answering, or sent an invalid reply."""

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(site, reason)
        self.reason = reason


@dataclass(frozen=True)
class Conversation:
    """Several exchanges with one site in a row, which form one visit; they end if the site is lost."""

    name: str
    """The site's name."""
    exchange: Exchange
    """Orders and replies."""
    device: torch.device
    """The device of the replies."""
    visit: int
    """The visit's number, which tells the site that the visit continues."""

    def ask(self, call: str, message: Message | None = None, *, like: Mapping[str, Tensor] | None = None) -> Message:
        """Order a call and wait; a lost site or a field of the wrong shape ends the conversation.

        ``like`` adds shapes that a schema leaves open: a gradient has the shape of its variable.
        """
        for reply in self.exchange.run(call, message or {}, to=(self.name,), visit=self.visit):
            if reply.message is None:
                raise SiteLost(self.name, reply.failure)
            for name, model in (like or {}).items():
                if reply.message[name].shape != model.shape:
                    shapes = f"{tuple(reply.message[name].shape)}, must be {tuple(model.shape)}"
                    self.refuse(name, f"has shape {shapes}")
            return {name: value.to(self.device) for name, value in reply.message.items()}
        raise SiteLost(self.name, "did not answer")

    def refuse(self, field: str, reason: str) -> NoReturn:
        """End the conversation because of a field that fits its declaration but not the method."""
        why = f"refused: {field}: {reason}"
        self.exchange.note_failure(self.name, why)
        raise SiteLost(self.name, why)


# Finished models with one member per site, under the site's name.


def members_of(finished: Message) -> dict[str, Message]:
    """Split a finished model into its members; a single model is the member with the empty name."""
    members: dict[str, Message] = {}
    for key, tensor in finished.items():
        name, slash, rest = key.partition("/")
        members.setdefault(name if slash else "", {})[rest if slash else key] = tensor
    return members


def join_members(members: Mapping[str, Message]) -> Message:
    """Join members into one finished model: the inverse of :func:`members_of`."""
    return {
        f"{name}/{key}" if name else key: value for name, member in members.items() for key, value in member.items()
    }


def separate_models(method: Method, finished: Message) -> dict[str, Message]:
    """Return the models that are evaluated separately: one per site, or the whole model under the empty name."""
    return members_of(finished) if method.members == "each" else {"": finished}


class NoQuorum(RunFailed):
    """Fewer sites than the quorum sent a valid reply."""


@dataclass(frozen=True)
class Reduced:
    """The result of combining uploads, with the sites that contributed."""

    value: Message
    """The combination, under the names of the uploads."""
    replied: tuple[str, ...]
    """The sites that contributed."""
    failed: Mapping[str, str]
    """The sites that failed, with the reason."""
    losses: Mapping[str, float]
    """The mean training loss of each site that declared and sent it; empty if a protection covers the mean only."""


@dataclass
class Server:
    """State of the federation at the server. It never holds an image, a label or an identity."""

    method: Method
    """The method's declaration."""
    recipe: Recipe
    """The resolved recipe; ``recipe.options(Options)`` are the method's own options."""
    net: nn.ModuleDict
    """All parts."""
    exchange: Exchange
    """Orders and replies."""
    compute: Compute
    """Device and precision."""
    releases: Releases | None = None
    """The log of noisy means and their cost."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """This machine's copies of the recipe's files, by entry."""
    start: Message = field(default_factory=dict)
    """The weights that the network took from the recipe's start file."""
    round: int = 0
    """The round, counted from 1."""
    stopped: bool = False
    """True if an early stop ends the run."""
    ended: str = ""
    """The reason why the program ended before the recipe's last round."""
    without_quorum: int = 0
    """Number of consecutive rounds without a quorum."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """State that is part of every checkpoint."""
    _optimizers: dict[str, Optimizer] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all sites, sorted."""
        return self.exchange.transport.names

    @property
    def present(self) -> tuple[str, ...]:
        """Return the sites selected for this round, sorted."""
        return self.exchange.present

    def rounds(self) -> Iterator[int]:
        """Yield the remaining rounds; a resumed program continues here with its restored state."""
        while self.round < self.recipe.training.rounds and not self.stopped:
            self.round += 1
            self.exchange.open_round(self.round)
            yield self.round

    def end_before_this_round(self, reason: str) -> None:
        """End the program with the model of the previous round, for a reason; the program must return at once."""
        self.round -= 1
        self.ended = reason

    def once(self, name: str, make: Callable[[], Message]) -> Message:
        """Return the first result of ``make``, also after a resume."""
        prefix = f"once/{name}/"
        if not any(key.startswith(prefix) for key in self.kept):
            self.kept |= {f"{prefix}{key}": plain(value) for key, value in make().items()}
        return under(prefix, self.kept)

    def file(self, entry: str) -> Path:
        """Return the file of a recipe's entry: its path, or this machine's copy under that name."""
        return self.files.get(entry, Path(entry))

    def lent(self) -> Message:
        """Return the lent parts as a message."""
        return self.tensors(*self.method.parts_at(Home.LENT))

    def tensors(self, *parts: str) -> Message:
        """Return the current state of parts."""
        return state_of(self.net, *parts)

    def load(self, message: Message) -> None:
        """Load combined uploads into the parts that they name; a part must be complete."""
        if not isinstance(message, Mapping) or not any(name.partition(".")[0] in self.net for name in message):
            content = next(iter(message), "nothing") if isinstance(message, Mapping) else type(message).__name__
            fault = f"server.load needs tensors of a part ({', '.join(self.net)}), as in result.value; got {content}"
            raise UserError(f"method {self.method.name!r}", fault)
        load_parts(self.net, message)

    def step(self, *parts: str, scale: float = 1.0) -> None:
        """Step down the gradients accumulated in parts of the server, then clear them.

        The server's optimizers last for the whole run, and their state is part of every checkpoint.
        """
        settings, name = self.recipe.training, "+".join(parts)
        if name not in self._optimizers:
            parameters = [p for part in parts for p in self.net[part].parameters()]
            self._optimizers[name] = optimizers.build(parameters, settings.optimizer)
            if state := under(f"optimizer/{name}/", self.kept):
                optimizers.restore(self._optimizers[name], state)
        optimizer = self._optimizers[name]
        for group in optimizer.param_groups:
            group["lr"] = settings.optimizer.lr * optimizers.rate_factor(settings.schedule, self.round, settings.rounds)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        optimizers.step(optimizer, settings.optimizer.clip_norm)
        optimizer.zero_grad(set_to_none=True)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for the server's own forward passes in the run's precision."""
        return self.compute.autocast()

    def rng(self, *purpose: str | int) -> Generator:
        """Return the server's stream for a purpose in this round."""
        return torch_rng(self.recipe.runtime.seed, "server", self.round, *purpose)

    def ask(
        self,
        call: str,
        message: Message | None = None,
        *,
        each: Mapping[str, Message] | None = None,
        to: Sequence[str] | None = None,
    ) -> dict[str, Message]:
        """Order a call from this round's sites, or from those in ``to``, and return their replies by name."""
        replies = {}
        for reply in self.exchange.run(call, message or {}, each=each, to=to):
            if reply.message is not None:
                replies[reply.site] = reply.message
        self.check_quorum(len(replies))
        return replies

    def reduce(
        self,
        call: str,
        message: Message | None = None,
        *,
        weight: str | Mapping[str, float] = "uniform",
        to: Sequence[str] | None = None,
    ) -> Reduced:
        """Order a call from this round's sites, or from those in ``to``, and combine the uploads by the recipe's rule.

        Statistics are recorded, not combined. ``weight`` is ``uniform``, ``examples``, or a mapping from the sites'
        names.
        """
        federation = self.recipe.federation
        if isinstance(weight, str) and weight not in ("uniform", "examples"):
            fault = f"server.reduce has the unknown weight {weight!r}; use uniform, examples, or numbers by site"
            raise UserError(f"method {self.method.name!r}", fault)
        protected = call == SUMMED and bool(protections_of_mean(federation))
        if to is not None or weight != ("examples" if weighs_by_examples(self.recipe) else "uniform"):
            check_request(self.recipe, call, "one of chosen sites, or with other weights than the recipe's")
        if protected and federation.secure is not None:
            # The sites weight their own uploads, and their losses are part of the sum.
            plain_schema = schema_of(self.method.calls[SUMMED].uploads, self.recipe, self.net)
            layout, needed = layout_of(plain_schema), threshold_of(self.recipe, self.round)
            try:
                total = sum_uploads(self.exchange, message or {}, layout, needed)
            except TooFewSites as error:
                raise NoQuorum(f"{error}{self.exchange.record.reasons()}") from error
            self.check_quorum(len(total.replied))
            return Reduced(self._finish_mean(SUMMED, total.value, len(total.replied)), total.replied, total.failed, {})
        lent = cache(lambda: self.exchange.as_lent(self.tensors(*self.net)))
        combined = combination_of(federation, lent)
        replied, failed, losses = [], {}, {}
        for reply in self.exchange.run(call, message or {}, to=to, combined=True):
            if reply.message is None:
                failed[reply.site] = reply.failure
                continue
            tensors = self.exchange.schemas[call].tensors
            upload = {name: value for name, value in reply.message.items() if tensors[name].kind != "statistic"}
            if call == SUMMED:  # the protections are for the call whose uploads form one mean
                upload = clip_at_server(upload, lent, federation)
            if isinstance(weight, str):
                share = float(reply.message["examples"]) if weight == "examples" else 1.0
            else:
                share = weight[reply.site]
            combined.add(upload, share)
            replied.append(reply.site)
            if LOSS.name in reply.message and not protected:
                losses[reply.site] = float(reply.message[LOSS.name])
        self.check_quorum(len(replied), least=federation.combine.least)
        return Reduced(self._finish_mean(call, combined.exact(), len(replied)), tuple(replied), failed, losses)

    def _finish_mean(self, call: str, mean: Message, count: int) -> Message:
        """Return a mean of ``count`` uploads in the types of the uploads, with the noise that the recipe requests."""
        if call == SUMMED:
            mean = add_noise(mean, lambda: self.tensors(*self.net), count, self.recipe, self.round, self.releases)
        types = schema_of(self.method.calls[call].uploads, self.recipe, self.net).tensors
        return {name: cast(value, wide_type(types[name].dtype)) for name, value in mean.items()}

    @contextmanager
    def visit(self, name: str) -> Iterator[Conversation]:
        """Talk to one site over several exchanges; a lost site ends the block, and the round goes on."""
        try:
            yield Conversation(name, self.exchange, self.compute.device, self.exchange.new_visit())
        except SiteLost:
            return

    @contextmanager
    def quorum(self) -> Iterator[None]:
        """Guard a round's step: without a quorum nothing is combined, and too many such rounds end the run."""
        try:
            yield
            self.check_quorum(len(self.exchange.record.replied - self.exchange.record.failed.keys()))
        except NoQuorum as error:
            self.net.zero_grad(set_to_none=True)
            self.without_quorum += 1
            self.exchange.note_failure(NO_QUORUM, str(error).removesuffix(self.exchange.record.reasons()))
            if self.without_quorum >= (limit := self.recipe.federation.give_up_after):
                raise RunFailed(f"{limit} rounds in a row without a quorum; last: {error}") from error
        else:
            self.without_quorum = 0

    def check_quorum(self, replied: int, least: int = 1) -> None:
        """Raise :class:`NoQuorum` if fewer sites have replied than the recipe and the rule need."""
        needed = max(self.recipe.federation.quorum, least)
        if replied < needed:
            counts = f"{replied} of {len(self.present)} sites sent a usable reply, {needed} needed"
            raise NoQuorum(f"{counts}{self.exchange.record.reasons()}")

    def finished(self) -> Message:
        """Return the finished model: the delivered parts, or one member per site."""
        if not self.method.several_models:
            return self.tensors(*self.method.finished)
        return join_members({name: self.member(name) for name in self.names})

    def member(self, name: str) -> Message:
        """Return a site's own model, for methods with one per site; at first every member is the initial model."""
        return under(f"member/{name}/", self.kept) or self.tensors(*self.method.finished)

    def keep_member(self, name: str, message: Message) -> None:
        """Store a site's own model: the weights of a reply, without its statistics."""
        weights = {key: value for key, value in message.items() if key.split(".")[0] in self.net}
        self.kept |= {f"member/{name}/{key}": value for key, value in weights.items()}

    def state(self) -> Message:
        """Return the server's state for a checkpoint."""
        for name, optimizer in self._optimizers.items():
            self.kept |= {f"optimizer/{name}/{key}": value for key, value in optimizers.state_of(optimizer).items()}
        for key, value in self.kept.items():  # a copy, because the network may change a value that it shares
            self.kept[key] = plain(value)
        net = {f"net/{key}": value for key, value in self.tensors(*self.net).items()}
        return net | {f"kept/{key}": value for key, value in self.kept.items()}

    def restore(self, state: Message, round_number: int) -> None:
        """Restore the state of a checkpoint."""
        load_parts(self.net, under("net/", state))
        self.kept = under("kept/", state)
        self.round = round_number
