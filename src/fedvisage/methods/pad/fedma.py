"""FedMA: federated matched averaging, layer by layer, and FedAvg on the same network.

H. Wang, M. Yurochkin, Y. Sun, D. Papailiopoulos, Y. Khazaeni, "Federated learning with matched averaging", ICLR 2020,
Algorithm 1. The neurons of a layer can stand in any order without changing what a network computes, so a plain mean may
average neurons that have nothing to do with each other. Here the server gets one layer of every site, finds out which
neuron is which (Eq. 2, by linear assignment), averages those, and sends the layer back; the sites put the inputs of
their next layer in the same order, and train the later layers while the matched ones stand still. The last layer has
classes for neurons, which need no matching: it is averaged by each site's share of the images of a class.

One round is one such pass over all layers: as many exchanges as the network has layers, each with the recipe's local
work. Each layer goes up once. A pass begins with the whole joint network ("FedMA with communication"). A site that
misses an exchange sits out the rest of the pass. ``matching: none`` is FedAvg, with one exchange a round; eight of its
rounds have as many batches as one of FedMA's.

Why not on the ResNet-18 of FedPAD: a skip connection adds the outputs of layers, so that their neurons cannot be put in
order one layer at a time; and BatchNorm keeps statistics of each site's own neurons, which have no mean that fits the
averaged ones. The paper, too, matches networks without either.

Deviations from the paper: the network has global average pooling and a single logit, so the last layer counts a site by
its mean share of the bona fide and of the attack images, which is the paper's rule for the difference of two class
scores. By default the network's width is kept, and every neuron has a partner at every site. With ``growth``, a neuron
that fits nowhere may open a new one, out of a fixed number of spare neurons a layer, whose weights are zero until then:
messages keep their declared shapes. An opened neuron is the mean over the sites that have it, without the prior's pull
to zero, so that sites that agree change nothing. A round starts from the whole joint network at each site, where the
paper goes back to each site's own neurons. Sites are matched in sorted order, not in random order, until nothing
changes. An optimizer's kept state is one of each exchange, and stays with a neuron's place.

In the first round each site draws its initial weights, as in the authors' released code. With ``initial: shared`` they
are the server's; neurons then tend to keep their places in local training, and there is little to match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.base.errors import UserError
from fedvisage.base.streams import scoped
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Member, Method, Upload
from fedvisage.federation.protections.combine import Mean
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site, TrainingBroke
from fedvisage.federation.wire.message import Message, under
from fedvisage.methods.algorithms import fedavg
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.matching import Prior, match, reordered, rows_of, weights_of
from fedvisage.nn.vgg import LAYERS, VGG, through, vgg
from fedvisage.recipe import Recipe, Section

OWN = "network"
"""Where a site keeps its own layers, from one exchange of a round to the next."""

CLASSES = Upload("classes", "statistic", shape=(2,), dtype="int64", guarantee="numbers of attack and bona fide images")


class Growth(Section):
    """Room for new neurons in each layer, and the model that decides when one is opened."""

    spare: int = Field(8, ge=1, le=64)
    """Neurons a layer that matching may open."""
    sigma: float = Field(1.0, gt=0)
    """Of the model by which it does."""
    sigma0: float = Field(1.0, gt=0)
    """Of the prior."""
    gamma: float = Field(7.0, gt=0)
    """How readily."""


class Matching(Section):
    """Whose weights a run begins with, and whether layers may grow; without growth the network's width is kept."""

    initial: Literal["own", "shared"] = "own"
    """Each site draws its ``own`` first weights, or ``shared`` ones."""
    growth: Growth | None = None
    """Whether matching may open neurons."""


class Options(fedavg.AveragingOptions):
    """FedMA's options; ``matching: none`` is FedAvg."""

    network: VGG = VGG()
    matching: Matching | None = Matching()
    """How layers are matched; ``none`` is FedAvg on its network."""

    @field_validator("matching", mode="before")
    @classmethod
    def _none_is_a_word(cls, value: object) -> object:
        return None if value == "none" else value


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the network; each layer is a part."""
    options = recipe.options(Options)
    matching = options.matching
    if matching is not None and matching.initial == "own" and recipe.training.start is not None:
        problem = "would be ignored, as each site draws its own; set method.matching.initial to shared"
        raise UserError("recipe.training.start", problem)
    spare = matching.growth.spare if matching is not None and matching.growth is not None else 0
    return vgg(options.network, CHANNELS[recipe.input.colour], spare)


def loss(site: Site, batch: Batch, fixed: int = 0) -> Tensor:
    """Binary cross-entropy; so many of the first layers stand still."""
    with torch.no_grad():
        values = through(site.net, batch.images, LAYERS[:fixed])
    logits = through(site.net, values, LAYERS[fixed:]).float().squeeze(1)
    return binary_cross_entropy_with_logits(logits, batch.labels)


def retraining(layer: str) -> Callable[[Site, Message], Message]:
    """Return the site's turn at a layer: the ones before it are matched, and from it on all are trained (Algorithm 1).

    What it trained stays at the site until the round is over; only this layer goes to the server.
    """
    number = LAYERS.index(layer)

    def train(site: Site, message: Message) -> Message:
        site.load(_continued(site, message, layer) if number else _beginning(site, message))
        optimizer = site.optimizer(*LAYERS[number:])

        def value(batch: Batch) -> Tensor:
            with site.autocast():
                return loss(site, batch, number)

        for batch in site.batches_numbered(_batches(site, number)):
            site.learn(optimizer, value, batch)
        site.scratch[OWN] = site.tensors(*LAYERS)
        reply = site.tensors(layer) | site.statistics()
        return reply | ({CLASSES.name: _classes(site)} if layer == LAYERS[-1] else {})

    return train


def _beginning(site: Site, message: Message) -> Message:
    """Return the network that a site begins a round with."""
    matching = site.recipe.options(Options).matching
    if site.round > 1 or matching is None or matching.initial == "shared":
        return message
    with scoped(site.recipe.runtime.seed, site.name, "initial weights"):
        own = network(site.recipe)
    return {f"{layer}.{name}": value for layer, part in own.items() for name, value in part.state_dict().items()}


def _continued(site: Site, message: Message, layer: str) -> Message:
    """Return the site's network with the layer that was matched, and with the next layer's inputs in its order."""
    if OWN not in site.scratch:
        raise TrainingBroke("has lost what it trained earlier in this round")
    own: Message = site.scratch[OWN] | {name: value for name, value in message.items() if name != "order"}
    weight = f"{layer}.0.weight"
    return own | {weight: reordered(own[weight], message["order"])}


def _batches(site: Site, exchange: int) -> range:
    """Return the numbers of an exchange's batches: no two exchanges of a run look at the same."""
    count = site.batches_per_round
    first = ((site.round - 1) * len(LAYERS) + exchange) * count
    return range(first, first + count)


def _classes(site: Site) -> Tensor:
    return torch.bincount(torch.from_numpy(site.data.labels.astype("int64")), minlength=2)


def server(s: Server) -> Iterator[None]:
    """One pass over all layers a round; a site that is lost on the way sits out the rest of the pass."""
    if s.recipe.options(Options).matching is None:
        yield from fedavg.server(s)
        return
    for _ in s.rounds():
        with s.quorum():
            s.load(one_pass(s))
        yield


def one_pass(s: Server) -> Message:
    """Algorithm 1: ask for a layer, match and average it, send it back with each site's order, go on to the next."""
    weights: Message = {}
    orders: dict[str, Message] = {}
    down, names = s.lent(), s.present
    for layer in LAYERS:
        replies = s.ask(layer, down, each=orders, to=names)
        names = tuple(replies)
        if layer == LAYERS[-1]:
            down = averaged_by_class(_sound(s, replies), layer)
        else:
            down, orders = matched(replies, layer, s.recipe.options(Options))
        weights |= down
    return weights


def _sound(s: Server, replies: Mapping[str, Message]) -> dict[str, Message]:
    """Refuse sites whose numbers of images a class cannot be: a site has some of each, and its examples in all."""
    sound = {}
    for name, reply in replies.items():
        classes, examples = reply[CLASSES.name], reply[EXAMPLES.name]
        if int(classes.min()) >= 1 and int(classes.sum()) == int(examples):
            sound[name] = reply
        else:
            problem = f"are {classes.tolist()}, must be 1 or more each and add up to its {int(examples)} examples"
            s.exchange.note_failure(name, f"refused: {CLASSES.name}: {problem}")
    s.check_quorum(len(sound))
    return sound


def matched(replies: Mapping[str, Message], layer: str, options: Options) -> tuple[Message, dict[str, Message]]:
    """Match and average a layer; return it, and for each site the order of its neurons."""
    weight, bias = f"{layer}.0.weight", f"{layer}.0.bias"
    growth = options.matching.growth if options.matching is not None else None
    prior = Prior(growth.sigma, growth.sigma0, growth.gamma) if growth else None
    counts = [float(reply["examples"]) if options.weight == "examples" else 1.0 for reply in replies.values()]
    shares = [len(counts) * count / sum(counts) for count in counts]
    result = match([rows_of(reply[weight], reply[bias]) for reply in replies.values()], shares, prior)
    like = next(iter(replies.values()))[weight]
    mean = dict(zip((weight, bias), weights_of(result.mean, like), strict=True))
    orders = {name: {"order": torch.from_numpy(order)} for name, order in zip(replies, result.orders, strict=True)}
    return mean, orders


def averaged_by_class(replies: Mapping[str, Message], layer: str) -> Message:
    """Average the last layer: each site counts by its share of the images of a class, in the mean over the classes."""
    totals = torch.stack([reply[CLASSES.name] for reply in replies.values()]).sum(dim=0).double()
    mean = Mean()
    for reply in replies.values():
        shares = reply[CLASSES.name].double() / totals
        mean.add({f"{layer}.{name}": value for name, value in under(f"{layer}.", reply).items()}, float(shares.mean()))
    return mean.result()


def user(member: Member) -> Tensor:
    """Return the live logit."""
    return through(member.net, member.images, LAYERS).squeeze(1)


def features(member: Member) -> Tensor:
    """Return what the last layer sees."""
    return through(member.net, member.images, LAYERS[:-1])


ORDER = Upload("order", "statistic", shape=(-1,), dtype="int64")
"""In an order: where the server put each of the site's neurons of the layer before."""


def _call(layer: str) -> Call:
    uploads = (Upload("weights", "weights", parts=(layer,)), EXAMPLES, LOSS)
    declared = (*uploads, CLASSES) if layer == LAYERS[-1] else uploads
    return Call(retraining(layer), declared, takes=lambda _: (ORDER,))


METHOD = Method(
    name="fedma",
    title="FedMA",
    paper="Wang et al., Federated Learning with Matched Averaging, 2020",
    task="pad",
    options=Options,
    network=network,
    home=dict.fromkeys(LAYERS, Home.LENT),
    calls={**{layer: _call(layer) for layer in LAYERS}, "train": fedavg.training_call(loss, *LAYERS)},
    server=server,
    user=user,
    features=features,
)
