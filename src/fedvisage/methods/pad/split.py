"""The shared loop of federated split learning: in every batch, tokens go up and gradients come back (FedSIS, §3.3).

N. Alkhunaizi et al., "FedSIS", 2023, after S. Park et al., "Federated Split Task-Agnostic Vision Transformer for
COVID-19 CXR Diagnosis", NeurIPS 2021 (FeSTA). A site holds its tokenizer and head; the server holds the parts between
them, and visits the sites one after another. A batch takes two calls. ``head`` delivers the server's output for the
tokens and returns the loss's gradient with respect to it. ``tokens`` delivers the gradient for the last tokens and
returns the next ones.

- The head, the tokenizer and the server's ``every_batch`` parts step after every backward pass. The ``encoder`` steps
  at the end of a round, down the mean gradient of all batches of the round (``encoder_update: gradient``, the text).
  Alternatively it steps within a visit like the rest, starting from the round's weights for each site, and the results
  of the visits are averaged (``average``, the authors' code). ``training.local`` defines a round: ``epochs: 1``, a pass
  over each site's data, as in §4.2 and the authors' code, or ``batches: 1`` per site, the literal reading of §3.3.
- With ``leakage``, tokens and gradients are clipped and receive noise, and the sites' parts do not learn
  (:mod:`fedvisage.methods.pad.leakage`).
- Tokenizers and heads are averaged every ``unify_every`` rounds and in the last one, over the sites that completed
  their visit in that round. A site adopts the result with the first call of its next visit. So does a site that joins,
  or returns after a while; in the first round all sites do ("the server broadcasts"). Until then the evaluated model
  combines the last average with the present encoder.
- A site stores which average it has with its own state, which can be rolled back (``restore``), and a visit begins by
  comparing it with the latest. A site that was rolled back to an earlier average reports this, skips that round, and
  receives the latest in the next.
- A site that fails during a visit discards the visit. The server keeps the updates from its batches: those were true
  gradients, each step was complete, and the encoder's mean counts the batches that arrived. With ``average`` the
  visit's encoder is dropped; the adapter's steps, and Adam's moments, stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.base.progress import format_count
from fedvisage.federation.batch import round_length
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Upload
from fedvisage.federation.protections.combine import Mean
from fedvisage.federation.server import Conversation, Server, SiteLost
from fedvisage.federation.site import Site, TrainingFailed
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.precision import Form, pack, unpack
from fedvisage.federation.wire.schema import MOST_EXAMPLES
from fedvisage.methods.models import vit
from fedvisage.methods.pad import leakage
from fedvisage.nn.optimizers import max_distance
from fedvisage.nn.vit import token_count
from fedvisage.recipe import Recipe

# The site's side of split learning: its tokenizer and head learn from the server's replies.
SHARED = ("tokenizer", "head")
"""Parts that live at the sites and are averaged from time to time."""

MOST = 1 << 26
LITTLE = 0.05
"""Share of its initial size by which every weight must be able to change for training to have an effect."""
LEFT = Upload("left", "statistic", dtype="int64", guarantee="number of batches that the site has left in this round")
HAS = "average"
"""Key under which a site stores, and an order states, the round of the average; 0 is the initial model."""
BEHIND = "does not have the latest average of tokenizers and heads"


class Options(leakage.Options):
    """Options of split methods: averaging, weights of sites, the encoder's update, and the wire format of tensors."""

    unify_every: int = Field(10, ge=1)
    """Number of rounds between averages of tokenizers and heads."""
    weight: Literal["uniform", "examples"] = "examples"
    """Weights of sites in a mean: ``uniform``, or their number of images (``examples``)."""
    encoder_update: Literal["gradient", "average"] = "gradient"
    """Update of the blocks: a step down the round's mean gradient, or training in each visit and averaging the results
    (``average``)."""
    wire: Form = "fp32"
    """Wire format of tokens, pseudo-class tokens and their gradients: ``fp32``, ``bf16`` or ``int8`` (one scale per
    token; gradients are rounded stochastically)."""


def tokens(site: Site, message: Message) -> Message:
    """Adopt the shared parts, or learn from the last batch's gradient; return the next batch's tokens."""
    if HAS in message:
        take_over(site, message)
    else:
        step_tokenizer(site, message)
    if site.batches_taken == site.batches_per_round:
        raise TrainingFailed("has no batch left in this round")
    site.held["batch"] = site.next_batch()
    with site.autocast():
        site.held["tokens"] = site.net["tokenizer"](site.held["batch"].images).float()
    left = torch.tensor(site.batches_per_round - site.batches_taken)
    return encode_rows(site, "tokens", site.held["tokens"]) | {"left": left}


def take_over(site: Site, message: Message) -> None:
    """Begin a visit with the lent shared parts, or with the site's own if they descend from the same average."""
    lent = {name: value for name, value in message.items() if name != HAS}
    if lent:
        site.load(lent)
        site.kept[HAS] = message[HAS].cpu()
    elif HAS not in site.kept or not torch.equal(site.kept[HAS], message[HAS].cpu()):
        raise TrainingFailed(BEHIND)


def head(site: Site, message: Message) -> Message:
    """Classify the server's output for the tokens, learn, and return the gradient with respect to it."""
    pseudo = unpack("pseudo", message)
    return encode_rows(site, "gradient", learn_head(site, pseudo, learn=not leakage.needs_noise(site.recipe)))


def encode_rows(site: Site, kind: str, rows: Tensor) -> Message:
    """Return per-image values in the recipe's wire format, with noise if the recipe requires it."""
    rounding = site.rng("rounding", site.batches_taken) if kind == "gradient" else None

    def pack_values(values: Tensor) -> Message:
        return pack(kind, values, form_of(site.recipe), rounding)

    return leakage.release(site, kind, rows, pack_values) if leakage.needs_noise(site.recipe) else pack_values(rows)


def learn_head(site: Site, pseudo: Tensor, *, learn: bool = True) -> Tensor:
    """Take the head's step down the loss of Eq. 4, and return the gradient with respect to the head's input."""
    pseudo.requires_grad_()
    with site.autocast():
        logits = site.net["head"](pseudo)
    loss = cross_entropy(logits.float(), site.held["batch"].labels.long())
    if not learn:
        return torch.autograd.grad(loss, pseudo)[0]
    site.step(site.optimizer("head"), loss)
    assert pseudo.grad is not None
    return pseudo.grad


def finish(site: Site, message: Message) -> Message:
    """Learn from the last batch's gradient, and end the visit."""
    step_tokenizer(site, message)
    statistics = site.statistics()
    return {"examples": statistics["examples"]} if leakage.needs_noise(site.recipe) else statistics


def step_tokenizer(site: Site, message: Message) -> None:
    """Propagate the gradient through the tokenizer; protected runs return no gradient to it."""
    if leakage.needs_noise(site.recipe):
        return
    site.step(site.optimizer("tokenizer"), site.held["tokens"], unpack("gradient", message))


def unify(site: Site, message: Message) -> Message:
    """Upload tokenizer and head."""
    return site.tensors(*SHARED)


def check(recipe: Recipe) -> str | None:
    """Reject images that tokens do not divide; warn if the run is too short to train."""
    vit.check_size(recipe)
    return out_of_reach(recipe)


def out_of_reach(recipe: Recipe) -> str | None:
    """Warn if the batches and the rate are too few and small to train, as 200 single batches at FedSIS's rate."""
    furthest, first = max_distance(recipe.training), recipe.options(vit.Options).network.width ** -0.5
    if furthest is None or furthest >= LITTLE * first:
        return None
    training = recipe.training
    number = format_count(training.local.batches or 0, "batch", "batches")
    return (
        f"{training.rounds} rounds of {number} at Adam's rate {training.optimizer.lr:g} move no weight by "
        f"more than about {furthest:.1g}, {furthest / first:.1%} of the initial scale of weights of this "
        f"width ({first:.2g}); training.local={{epochs: 1}} passes over all data"
    )


def form_of(recipe: Recipe) -> Form:
    """Return the wire format of tokens, pseudo-class tokens and their gradients."""
    return recipe.options(Options).wire


def calls(*, class_token: bool) -> dict[str, Call]:
    """Return a site's calls; the shape of the tokens depends on whether they include a class token."""

    def token_shape(recipe: Recipe) -> tuple[int, ...]:
        count = token_count(recipe.input.size, class_token=class_token)
        return (-1, count, recipe.options(vit.Options).network.width)

    def gradient_shape(recipe: Recipe) -> tuple[int, ...]:
        return (-1, recipe.options(vit.Options).network.width)

    # Fields of the server's orders; the replies' fields are declared with each call.
    back = Upload("gradient", "gradient", shape=token_shape, most=MOST, form=form_of)
    average = Upload(HAS, "statistic", dtype="int64")
    pseudo = Upload("pseudo", "activation", shape=gradient_shape, form=form_of)
    return {
        "tokens": Call(
            tokens,
            (
                Upload("tokens", "activation", shape=token_shape, most=MOST, form=form_of, noised=leakage.needs_noise),
                LEFT,
            ),
            takes=lambda _: (back, average),
            repeats=True,
        ),
        "head": Call(
            head,
            (Upload("gradient", "gradient", shape=gradient_shape, form=form_of, noised=leakage.needs_noise),),
            takes=lambda _: (pseudo,),
            repeats=True,
        ),
        "finish": Call(finish, (EXAMPLES, replace(LOSS, left_out=leakage.needs_noise)), takes=lambda _: (back,)),
        "unify": Call(unify, (Upload("weights", "weights", parts=SHARED),)),
    }


SERVER_SEES = (
    "tokens and head gradients of every batch of every site: labels can be read off, and faces perhaps rebuilt"
)

Represent = Callable[[Tensor], Tensor]
"""The server's mapping from tokens to the head's input: one vector per image."""


@dataclass(frozen=True)
class ServerSide:
    """The server's side of the network: the mapping of tokens, and the parts that step per round or per batch."""

    represent: Callable[[Server, str], Represent]
    encoder: tuple[str, ...]
    every_batch: tuple[str, ...] = ()


@dataclass
class Visits:
    """The result of a round's visits: images at the sites with a complete visit, and batches of all sites."""

    examples: dict[str, int] = field(default_factory=dict)
    batches: int = 0


def program(side: ServerSide) -> Callable[[Server], Iterator[None]]:
    """Return the server program for this side of the network."""

    def server(s: Server) -> Iterator[None]:
        options = s.recipe.options(Options)
        collaborate = by_gradient if options.encoder_update == "gradient" else by_average
        for number in s.rounds():
            with s.quorum():
                visits = collaborate(s, side)
                if number % options.unify_every == 0 or number == s.recipe.training.rounds:
                    average_shared(s, site_weights(s, visits))
            yield

    return server


def by_gradient(s: Server, side: ServerSide) -> Visits:
    """Visit all sites, then step the encoder once, down the mean gradient of their batches."""
    visits = Visits()
    for name in s.present:
        with s.visit(name) as site:
            train_with_site(s, site, side.represent(s, name), side.every_batch, visits)
    s.check_quorum(len(visits.examples))
    s.step(*side.encoder, scale=1 / visits.batches)
    return visits


def by_average(s: Server, side: ServerSide) -> Visits:
    """Let every site's visit train the encoder from the same start, then average the results."""
    visits, start, mean = Visits(), s.tensors(*side.encoder), Mean()
    for name in s.present:
        with s.visit(name) as site:
            train_with_site(s, site, side.represent(s, name), (*side.every_batch, *side.encoder), visits)
            mean.add(s.tensors(*side.encoder), site_weights(s, visits)[name])
        s.load(start)
    s.check_quorum(len(visits.examples))
    s.load(mean.result())
    return visits


def train_with_site(s: Server, site: Conversation, represent: Represent, step: tuple[str, ...], visits: Visits) -> None:
    """Process one site's batches of a round; the two halves of the network learn as one network would."""
    message, form, noised = opening_message(s, site.name), form_of(s.recipe), leakage.needs_noise(s.recipe)
    left = None
    while left != 0:
        # First call of a batch: the site learns from the last gradient and sends the next tokens.
        reply = ask_tokens(s, site, message)
        left = check_batches_left(s, site, left, int(reply["left"]))
        received = unpack("tokens", reply).requires_grad_()
        if len(received) > s.recipe.training.batch.of(site.name):
            site.refuse("tokens", f"are for {len(received)} images, more than a batch")
        with s.autocast():
            pseudo = represent(received).float()
        # Second call: the site returns the gradient, which continues through the server's parts.
        reply = site.ask("head", pack("pseudo", pseudo, form), like={"gradient": pseudo})
        pseudo.backward(unpack("gradient", reply))  # type: ignore[no-untyped-call]
        visits.batches += 1
        if step:
            s.step(*step)
        assert received.grad is not None
        message = {} if noised else pack("gradient", received.grad, form, s.rng("rounding", site.name, left))
    visits.examples[site.name] = int(site.ask("finish", message)["examples"])
    s.kept[f"has/{site.name}"] = latest_average(s).clone()


def ask_tokens(s: Server, site: Conversation, message: Message) -> Message:
    """Request a batch's tokens; a site with an outdated average receives the latest at its next visit."""
    try:
        return site.ask("tokens", message)
    except SiteLost as lost:
        if lost.reason == BEHIND:
            s.kept.pop(f"has/{site.name}", None)
        raise


def check_batches_left(s: Server, site: Conversation, before: int | None, left: int) -> int:
    """Return the number of batches that a site has left; reject a wrong count, which could block the server forever.

    The server does not know how many batches an epoch has, but no site has more than ``MOST_EXAMPLES`` images.
    """
    is_claim = before is None and s.recipe.training.local.batches is None
    most = before if before is not None else round_length(s.recipe, site.name, MOST_EXAMPLES)
    if not (left < most if is_claim else left == most - 1):
        site.refuse("left", f"is {left}, must be {'at most ' if is_claim else ''}{most - 1}")
    return left


def opening_message(s: Server, name: str) -> Message:
    """Return the first message of a visit: the round of the latest average, and the shared parts if necessary."""
    has, newest = s.kept.get(f"has/{name}"), latest_average(s)
    lent = {} if has is not None and torch.equal(has, newest) else s.tensors(*SHARED)
    return {HAS: newest} | lent


def latest_average(s: Server) -> Tensor:
    """Return the round of the latest average; 0 is the initial model."""
    return s.kept.get("unified", torch.tensor(0))


def site_weights(s: Server, visits: Visits) -> dict[str, float]:
    """Return the weight of each site: ρ_k of Eq. 3, which is N_k / N up to a factor, or equal weights."""
    by_examples = s.recipe.options(Options).weight == "examples"
    return {name: float(count) if by_examples else 1.0 for name, count in visits.examples.items()}


def average_shared(s: Server, weights: Mapping[str, float]) -> None:
    """Average tokenizers and heads (Eq. 3); sites adopt the result at their next visit."""
    s.load(s.reduce("unify", to=tuple(weights), weight=weights).value)
    s.kept["unified"] = torch.tensor(s.round)
