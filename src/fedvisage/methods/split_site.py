"""A site's end of split learning: its tokenizer and head learn with what the server sends back (``methods/split``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.federation.method import EXAMPLES, LOSS, Call, Message, Upload
from fedvisage.federation.site import Site, TrainingBroke
from fedvisage.federation.wire.precision import Form, pack, unpack
from fedvisage.methods import leakage
from fedvisage.methods.models import vit
from fedvisage.nn.optimizers import reach
from fedvisage.nn.vit import token_count
from fedvisage.progress import counted
from fedvisage.recipe import Recipe

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
