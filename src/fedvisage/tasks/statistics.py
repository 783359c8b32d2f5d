"""Exact BatchNorm statistics of a finished model, over the sites' training images: ``training.statistics: exact``.

While a federation trains, every site keeps running statistics of its own last batches under weights that still move,
and the server takes their mean; in it the variance between the sites is lost. With this option the server asks once
more after training, layer by layer in the order of a forward pass: each site tells mean and variance of what comes to
the layer when all layers before it go by the new statistics, and the server works out those of all images together.
That is what one batch of all training images would give, whatever the sites' sizes. A model that is a site's own is
asked about at that site alone.

Images are those of training as they lie in the sets, without augmentation. A layer that a network passes several times
goes by all its passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedvisage.data.batches import View
from fedvisage.errors import RunFailed, UserError
from fedvisage.federation.declared import Call
from fedvisage.federation.members import joined, members_of
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.upload import EXAMPLES, Upload
from fedvisage.nn.batchnorm import Pooled, before, passed, pooled
from fedvisage.recipe import Recipe
from fedvisage.tasks.scoring import Scorer

CALL, LAYER = "statistics", "layer"
MEAN, VARIANCE = "running_mean", "running_var"
"""How BatchNorm calls them; under these names variances below zero are refused."""

MOST = 1 << 16
"""No layer has more channels."""

_SAID = "of each channel before one BatchNorm layer, over the training images"
UPLOADS = (
    Upload(MEAN, "statistic", shape=(-1,), dtype="float64", most=MOST, guarantee=f"mean {_SAID}"),
    Upload(VARIANCE, "statistic", shape=(-1,), dtype="float64", most=MOST, guarantee=f"variance {_SAID}"),
    EXAMPLES,
)


def wanted(recipe: Recipe) -> bool:
    """Tell whether a recipe wants exact statistics."""
    return recipe.training.statistics == "exact"


def calls(scorer: Scorer) -> dict[str, Call]:
    """Return the call, where the recipe wants it; a network that has no BatchNorm is refused."""
    if not wanted(scorer.recipe):
        return {}
    layers = layers_of(scorer)

    def of_layer(site: Site, message: Message) -> Message:
        number = int(message[LAYER])
        scorer.load({name: value for name, value in message.items() if name != LAYER})
        name, times = list(layers.items())[number]
        with torch.inference_mode():
            found = before(scorer.net.get_submodule(name), times, _passes(scorer, site.data))
        return {MEAN: found.mean, VARIANCE: found.variance, EXAMPLES.name: torch.tensor(len(site.data))}

    return {CALL: Call(of_layer, UPLOADS, exact=True, private=True, takes=_takes, questions=len(layers))}


def _takes(recipe: Recipe) -> tuple[Upload, ...]:
    return (Upload(LAYER, "statistic", dtype="int64", guarantee="which layer is asked about"),)


def layers_of(scorer: Scorer) -> Mapping[str, int]:
    """Return the BatchNorm layers that a score passes, in their order, and how often."""
    size = scorer.recipe.input.size
    layers = passed(scorer.net, lambda: scorer.score_images(torch.zeros(1, 3, size, size, dtype=torch.uint8)))
    if not layers:
        wrong = f"exact statistics are of BatchNorm layers, and {scorer.method.name}'s network has none; leave it out"
        raise UserError("recipe.training.statistics", wrong)
    return layers


def with_exact_statistics(server: Server, scorer: Scorer, finished: Message) -> Message:
    """Return a finished model with the statistics of all training images of its sites; own members have their site's.

    One layer is asked for after another. A site that was lost is not asked about the layers behind.
    """
    members, sites = members_of(finished), server.present
    one = list(members) == [""]
    for number, layer in enumerate(layers_of(scorer)):
        which: Message = {LAYER: torch.tensor(number)}
        if one:
            replies = server.ask(CALL, {**members[""], **which}, to=sites)
        else:
            replies = server.ask(CALL, which, each={name: members[name] for name in sites}, to=sites)
        channels = next(iter(members.values()))[f"{layer}.{MEAN}"].shape
        sites = tuple(name for name, reply in replies.items() if _fits(server, name, reply, channels))
        if not sites:
            raise RunFailed(f"no site told the statistics before {layer}")
        for whose, names in {"": sites}.items() if one else ((name, (name,)) for name in sites):
            members[whose] = _with(members[whose], layer, [replies[name] for name in names])
    return joined(members)


def _with(member: Message, layer: str, replies: Sequence[Message]) -> Message:
    """Return a model's weights with one layer's statistics those of all images that sites told of."""
    every = pooled(Pooled(one[MEAN], one[VARIANCE], float(one[EXAMPLES.name])) for one in replies)
    new = {f"{layer}.{MEAN}": every.mean, f"{layer}.{VARIANCE}": every.variance}
    return {**member, **{name: value.to(member[name]) for name, value in new.items()}}


def _fits(server: Server, name: str, reply: Message, channels: torch.Size) -> bool:
    """Tell whether a site told as many numbers as the layer has channels; another one does not count."""
    fits = reply[MEAN].shape == reply[VARIANCE].shape == channels
    if not fits:
        server.exchange.note_failure(name, f"refused: told {len(reply[MEAN])} channels of {channels[0]}")
    return fits


def _passes(scorer: Scorer, view: View) -> Iterator[Callable[[], Tensor]]:
    """Return forward passes over a view's images, in order."""
    size = scorer.recipe.evaluation.batch
    for start in range(0, len(view), size):
        yield partial(scorer.live, view, np.arange(start, min(start + size, len(view))))
