"""The shared loop of federated split learning: tokens go up and gradients back, every batch (FedSIS, §3.3).

N. Alkhunaizi et al., "FedSIS", 2023, after S. Park et al., "Federated Split Task-Agnostic Vision Transformer for
COVID-19 CXR Diagnosis", NeurIPS 2021 (FeSTA). A site keeps its own tokenizer and head; the server has what lies between
them, and visits the sites one after another. A batch takes two calls: ``head`` brings what the server made of the
tokens and returns the loss's gradient by it, ``tokens`` brings the gradient by the last tokens and returns the next.

- The head, the tokenizer and what the server steps ``every_batch`` step after every backward pass. The ``encoder``
  steps at the end of a round, down the mean gradient of all the round's batches (``encoder_update: gradient``, the
  text); or it steps within a visit like the rest, each site beginning from the round's weights, and what the visits
  made of it is averaged (``average``, the authors' code). A round is what ``training.local`` says: ``epochs: 1``, a
  pass over each site's data, as §4.2 and the authors' code have it, or ``batches: 1`` a site, the letter of §3.3.
- With ``leakage`` tokens and gradients are clipped and get noise, and the sites' parts do not learn (``leakage.py``).
- Tokenizers and heads are averaged every ``unify_every`` rounds and in the last one, over the sites whose visit in that
  round was whole. A site takes the result over with the first call of its next visit: so does one that joins, or comes
  back after a while, and in the first round all do ("the server broadcasts"). Until then the model that is evaluated
  has the last average beside the present encoder.
- Which average a site has is part of its own state, which can go back (``restore``), and a visit begins by comparing it
  with the latest: a site that was sent back behind it says so, sits that round out, and is given it in the next.
- A site that is lost in mid-visit forgets the visit. What the server learned from its batches stays: those were true
  gradients, each step was whole, and the encoder's mean counts the batches that arrived. With ``average`` the visit's
  encoder is dropped; its adapter's steps, and Adam's moments, stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.base.progress import counted
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Upload
from fedvisage.federation.protections.combine import Mean
from fedvisage.federation.server import Conversation, Server, SiteLost
from fedvisage.federation.site import Site, TrainingBroke
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.precision import Form, pack, unpack
from fedvisage.methods.models import vit
from fedvisage.methods.pad import leakage
from fedvisage.nn.optimizers import reach
from fedvisage.nn.vit import token_count
from fedvisage.recipe import Recipe

# A site's end of split learning: its tokenizer and head learn with what the server sends back (``methods/split``).


SHARED = ("tokenizer", "head")
"""The parts that live at the sites and are averaged now and then."""

MOST = 1 << 26
LITTLE = 0.05
"""The share of its first size that every weight should be able to change by, to learn anything."""
LEFT = Upload("left", "statistic", dtype="int64", guarantee="number of batches that the site has left in this round")
HAS = "average"
"""Under this name a site keeps, and an order says, of which round the average is; 0 stands for the initial model."""
BEHIND = "does not have the latest average of tokenizers and heads"


class Options(leakage.Options):
    """What split methods share: averages, how sites count, how the encoder learns, in which numbers tensors travel."""

    unify_every: int = Field(10, ge=1)
    """Rounds after which tokenizers and heads are averaged."""
    weight: Literal["uniform", "examples"] = "examples"
    """Sites count alike, or by their number of images."""
    encoder_update: Literal["gradient", "average"] = "gradient"
    """The blocks step down the round's mean gradient, or each visit trains them and the results are averaged
    (``average``)."""
    wire: Form = "fp32"
    """Tokens, pseudo-class tokens and their gradients travel as ``fp32``, ``bf16`` or ``int8`` (one scale a token;
    gradients rounded at random)."""


def tokens(site: Site, message: Message) -> Message:
    """Take over the shared parts, or learn from the last batch's gradient; return the next batch's tokens."""
    if HAS in message:
        take_over(site, message)
    else:
        step_tokenizer(site, message)
    if site.taken == site.batches_per_round:
        raise TrainingBroke("has no batch left in this round")
    site.held["batch"] = site.next_batch()
    with site.autocast():
        site.held["tokens"] = site.net["tokenizer"](site.held["batch"].images).float()
    left = torch.tensor(site.batches_per_round - site.taken)
    return sent(site, "tokens", site.held["tokens"]) | {"left": left}


def take_over(site: Site, message: Message) -> None:
    """Begin a visit with the shared parts as they were lent, or with the site's own if they come of that average."""
    lent = {name: value for name, value in message.items() if name != HAS}
    if lent:
        site.load(lent)
        site.kept[HAS] = message[HAS].cpu()
    elif HAS not in site.kept or not torch.equal(site.kept[HAS], message[HAS].cpu()):
        raise TrainingBroke(BEHIND)


def head(site: Site, message: Message) -> Message:
    """Classify what the server made of the tokens, learn, and return the gradient by it."""
    pseudo = unpack("pseudo", message)
    return sent(site, "gradient", learn_head(site, pseudo, learn=not leakage.protected(site.recipe)))


def sent(site: Site, kind: str, rows: Tensor) -> Message:
    """Return values of images as they travel: in the recipe's numbers, and with noise if it wants that."""
    rounding = site.rng("rounding", site.taken) if kind == "gradient" else None

    def packed(values: Tensor) -> Message:
        return pack(kind, values, form_of(site.recipe), rounding)

    return leakage.release(site, kind, rows, packed) if leakage.protected(site.recipe) else packed(rows)


def learn_head(site: Site, pseudo: Tensor, *, learn: bool = True) -> Tensor:
    """Take the head's step down the loss of Eq. 4, and return the loss's gradient by what the head saw."""
    pseudo.requires_grad_()
    with site.autocast():
        two = site.net["head"](pseudo)
    loss = cross_entropy(two.float(), site.held["batch"].labels.long())
    if not learn:
        return torch.autograd.grad(loss, pseudo)[0]
    site.step(site.optimizer("head"), loss)
    assert pseudo.grad is not None
    return pseudo.grad


def finish(site: Site, message: Message) -> Message:
    """Learn from the last batch's gradient, and end the visit."""
    step_tokenizer(site, message)
    statistics = site.statistics()
    return {"examples": statistics["examples"]} if leakage.protected(site.recipe) else statistics


def step_tokenizer(site: Site, message: Message) -> None:
    """Carry the gradient on through the tokenizer; what is sent with noise brings none back."""
    if leakage.protected(site.recipe):
        return
    site.step(site.optimizer("tokenizer"), site.held["tokens"], unpack("gradient", message))


def unify(site: Site, message: Message) -> Message:
    """Upload tokenizer and head."""
    return site.tensors(*SHARED)


def out_of_reach(recipe: Recipe) -> str | None:
    """Warn when so few batches at so low a rate cannot train anything, as 200 single ones at FedSIS's rate."""
    furthest, first = reach(recipe.training), recipe.options(vit.Options).network.width ** -0.5
    if furthest is None or furthest >= LITTLE * first:
        return None
    training = recipe.training
    number = counted(training.local.batches or 0, "batch", "batches")
    return (
        f"{training.rounds} rounds of {number} at Adam's rate {training.optimizer.lr:g} move no weight by more than "
        f"about {furthest:.1g}, {furthest / first:.1%} of what weights of this width begin with ({first:.2g}); "
        "training.local={epochs: 1} passes over all data"
    )


def form_of(recipe: Recipe) -> Form:
    """Return in which numbers tokens, what is made of them and their gradients travel."""
    return recipe.options(Options).wire


def calls(*, class_token: bool) -> dict[str, Call]:
    """Return what a site answers; the tokens' shape depends on whether a class token is among them."""

    def token_shape(recipe: Recipe) -> tuple[int, ...]:
        count = token_count(recipe.input.size, class_token=class_token)
        return (-1, count, recipe.options(vit.Options).network.width)

    def gradient_shape(recipe: Recipe) -> tuple[int, ...]:
        return (-1, recipe.options(vit.Options).network.width)

    back = Upload("gradient", "gradient", shape=token_shape, most=MOST, form=form_of)
    average = Upload(HAS, "statistic", dtype="int64")
    pseudo = Upload("pseudo", "activation", shape=gradient_shape, form=form_of)
    return {
        "tokens": Call(
            tokens,
            (
                Upload("tokens", "activation", shape=token_shape, most=MOST, form=form_of, noised=leakage.protected),
                LEFT,
            ),
            takes=lambda _: (back, average),
            repeats=True,
        ),
        "head": Call(
            head,
            (Upload("gradient", "gradient", shape=gradient_shape, form=form_of, noised=leakage.protected),),
            takes=lambda _: (pseudo,),
            repeats=True,
        ),
        "finish": Call(finish, (EXAMPLES, replace(LOSS, left_out=leakage.protected)), takes=lambda _: (back,)),
        "unify": Call(unify, (Upload("weights", "weights", parts=SHARED),)),
    }


SERVER_SEES = (
    "tokens and head gradients of every batch of every site: labels can be read off, and faces perhaps rebuilt"
)

Represent = Callable[[Tensor], Tensor]
"""What the server makes of tokens for the head: one vector an image."""


@dataclass(frozen=True)
class ServerSide:
    """What lies at the server: how tokens pass through it, and which of its parts step when."""

    represent: Callable[[Server, str], Represent]
    encoder: tuple[str, ...]
    every_batch: tuple[str, ...] = ()


@dataclass
class Visits:
    """What a round's visits came to: images at the sites whose visit was whole, and batches of all sites."""

    examples: dict[str, int] = field(default_factory=dict)
    batches: int = 0


def program(side: ServerSide) -> Callable[[Server], Iterator[None]]:
    """Return the server program for what lies at the server."""

    def server(s: Server) -> Iterator[None]:
        options = s.recipe.options(Options)
        collaborate = by_gradient if options.encoder_update == "gradient" else by_average
        for number in s.rounds():
            with s.quorum():
                visits = collaborate(s, side)
                if number % options.unify_every == 0 or number == s.recipe.training.rounds:
                    average_shared(s, shares(s, visits))
            yield

    return server


def by_gradient(s: Server, side: ServerSide) -> Visits:
    """Visit all sites, then step the encoder once, down the mean gradient of their batches."""
    visits = Visits()
    for name in s.present:
        with s.visit(name) as site:
            converse(s, site, side.represent(s, name), side.every_batch, visits)
    s.check_quorum(len(visits.examples))
    s.step(*side.encoder, scale=1 / visits.batches)
    return visits


def by_average(s: Server, side: ServerSide) -> Visits:
    """Let every site's visit train the encoder from the same start, then average what came of it."""
    visits, start, mean = Visits(), s.tensors(*side.encoder), Mean()
    for name in s.present:
        with s.visit(name) as site:
            converse(s, site, side.represent(s, name), (*side.every_batch, *side.encoder), visits)
            mean.add(s.tensors(*side.encoder), shares(s, visits)[name])
        s.load(start)
    s.check_quorum(len(visits.examples))
    s.load(mean.result())
    return visits


def converse(s: Server, site: Conversation, represent: Represent, step: tuple[str, ...], visits: Visits) -> None:
    """Go through one site's batches of a round; the two halves of the network learn as one would."""
    message, form, noised = opening(s, site.name), form_of(s.recipe), leakage.protected(s.recipe)
    left = None
    while left != 0:
        reply = ask_tokens(s, site, message)
        left = counted_down(s, site, left, int(reply["left"]))
        received = unpack("tokens", reply).requires_grad_()
        if len(received) > s.recipe.training.batch.of(site.name):
            site.refuse("tokens", f"are of {len(received)} images, more than a batch")
        with s.autocast():
            pseudo = represent(received).float()
        reply = site.ask("head", pack("pseudo", pseudo, form), like={"gradient": pseudo})
        pseudo.backward(unpack("gradient", reply))  # type: ignore[no-untyped-call]
        visits.batches += 1
        if step:
            s.step(*step)
        assert received.grad is not None
        message = {} if noised else pack("gradient", received.grad, form, s.rng("rounding", site.name, left))
    visits.examples[site.name] = int(site.ask("finish", message)["examples"])
    s.kept[f"has/{site.name}"] = latest(s).clone()


def ask_tokens(s: Server, site: Conversation, message: Message) -> Message:
    """Ask for a batch's tokens; who turns out to be behind the latest average is given it next time."""
    try:
        return site.ask("tokens", message)
    except SiteLost as lost:
        if lost.reason == BEHIND:
            s.kept.pop(f"has/{site.name}", None)
        raise


def counted_down(s: Server, site: Conversation, before: int | None, left: int) -> int:
    """Return how many batches a site has left; what does not count down would keep the server for ever."""
    batches = s.recipe.training.local.batches
    expected = before - 1 if before is not None else batches - 1 if batches is not None else max(left, 0)
    if left != expected:
        site.refuse("left", f"is {left}, must be {expected}")
    return left


def opening(s: Server, name: str) -> Message:
    """Return how a visit begins: which average is the latest, and the shared parts if the site does not have it."""
    has, newest = s.kept.get(f"has/{name}"), latest(s)
    lent = {} if has is not None and torch.equal(has, newest) else s.tensors(*SHARED)
    return {HAS: newest} | lent


def latest(s: Server) -> Tensor:
    """Return the round of the latest average; 0 stands for the initial model."""
    return s.kept.get("unified", torch.tensor(0))


def shares(s: Server, visits: Visits) -> dict[str, float]:
    """Return how much each site counts: ρ_k of Eq. 3, which is N_k / N up to a factor, or the same for all."""
    by_examples = s.recipe.options(Options).weight == "examples"
    return {name: float(count) if by_examples else 1.0 for name, count in visits.examples.items()}


def average_shared(s: Server, weights: Mapping[str, float]) -> None:
    """Average tokenizers and heads (Eq. 3); sites take the result over at their next visit."""
    s.load(s.reduce("unify", to=tuple(weights), weight=weights).value)
    s.kept["unified"] = torch.tensor(s.round)
