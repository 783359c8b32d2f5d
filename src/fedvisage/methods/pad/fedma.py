"""FedMA: federated matched averaging, layer by layer, and FedAvg on the same network.

H. Wang, M. Yurochkin, Y. Sun, D. Papailiopoulos, Y. Khazaeni, "Federated learning with matched averaging", ICLR 2020,
Algorithm 1. The order of the neurons in a layer does not affect a network's output, so a plain mean may average
unrelated neurons. Here the server receives one layer from every site, matches its neurons (Eq. 2, by linear
assignment), averages the matched ones, and sends the layer back. The sites reorder the inputs of their next layer
accordingly, and train the later layers while the matched ones stay fixed. The last layer has classes as neurons, which
need no matching: it is averaged by each site's share of the images of a class.

One round is one pass over all layers: one exchange per layer of the network, each with the recipe's local work. Each
layer is uploaded once. A pass begins with the whole joint network ("FedMA with communication"). A site that misses an
exchange takes no further part in the pass. ``matching: none`` is FedAvg, with one exchange per round; eight of its
rounds have as many batches as one of FedMA's.

FedMA does not run on FedPAD's ResNet-18. A skip connection adds the outputs of layers, so their neurons cannot be
reordered one layer at a time; and BatchNorm keeps statistics of each site's own neurons, whose mean does not fit the
averaged neurons. The paper, too, matches networks without either.

Deviations from the paper: the network has global average pooling and a single logit, so the last layer weights a site
by its mean share of the bona fide and of the attack images, which is the paper's rule for the difference of two class
scores. By default the network keeps its width, and every neuron has a partner at every site. With ``growth``, a neuron
without a good match may open a new one, out of a fixed number of spare neurons per layer, whose weights are zero until
then: messages keep their declared shapes. An opened neuron is the mean over the sites that have it, without the prior's
pull towards zero, so sites that agree change nothing. A round starts from the whole joint network at each site, while
the paper returns to each site's own neurons. Sites are matched in sorted order, not in random order, until nothing
changes. An optimizer keeps one state per exchange, and its values belong to a neuron's position.

In the first round each site draws its initial weights, as in the authors' released code. With ``initial: shared`` they
are the server's; neurons then tend to keep their positions in local training, and there is little to match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.base.errors import UserError
from fedvisage.base.streams import seed_global_rng
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Member, Method, Prediction, Upload
from fedvisage.federation.protections.combine import Mean
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site, TrainingFailed
from fedvisage.federation.wire.message import Message, state_of, under
from fedvisage.methods.algorithms import fedavg
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.matching import Prior, match_neurons, reorder_inputs, rows_of, weights_of
from fedvisage.nn.vgg import LAYERS, VGG, apply_layers, vgg
from fedvisage.recipe import Recipe, Section

OWN = "network"
"""Key of a site's own layers, stored between the exchanges of a round."""

CLASSES = Upload("classes", "statistic", shape=(2,), dtype="int64", guarantee="numbers of attack and bona fide images")


class Growth(Section):
    """The number of spare neurons per layer, and the model that decides when to open one."""

    spare: int = Field(8, ge=1, le=64)
    """Number of neurons per layer that matching may open."""
    sigma: float = Field(1.0, gt=0)
    """Standard deviation of a site's neuron around the joint one, in the matching model."""
    sigma0: float = Field(1.0, gt=0)
    """Standard deviation of joint neurons around zero, the prior."""
    gamma: float = Field(7.0, gt=0)
    """Concentration γ of the matching model; larger values open neurons more readily."""


class Matching(Section):
    """The initial weights of a run, and the growth of layers; without growth the network keeps its width."""

    initial: Literal["own", "shared"] = "own"
    """Initial weights: ``own``, drawn by each site, or ``shared``."""
    growth: Growth | None = None
    """Settings for opening neurons; none keeps the network's width."""


class Options(fedavg.AveragingOptions):
    """FedMA's options; ``matching: none`` is FedAvg."""

    network: VGG = VGG()
    matching: Matching | None = Matching()
    """Matching of layers; ``none`` is FedAvg on the same network."""

    @field_validator("matching", mode="before")
    @classmethod
    def _none_is_a_word(cls, value: object) -> object:
        return None if value == "none" else value


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the network with one part per layer."""
    options = recipe.options(Options)
    matching = options.matching
    if matching is not None and matching.initial == "own" and recipe.training.start is not None:
        problem = (
            "would be ignored, because each site initialises its own weights; set method.matching.initial to shared"
        )
        raise UserError("recipe.training.start", problem)
    spare = matching.growth.spare if matching is not None and matching.growth is not None else 0
    return vgg(options.network, CHANNELS[recipe.input.colour], spare)


def loss(site: Site, batch: Batch, fixed: int = 0) -> Tensor:
    """Return the binary cross-entropy, with the first ``fixed`` layers frozen."""
    with torch.no_grad():
        values = apply_layers(site.net, batch.images, LAYERS[:fixed])
    logits = apply_layers(site.net, values, LAYERS[fixed:]).float().squeeze(1)
    return binary_cross_entropy_with_logits(logits, batch.labels)


def retraining(layer: str) -> Callable[[Site, Message], Message]:
    """Return a site's local work for a layer: train it and the later layers; earlier ones are matched (Algorithm 1).

    The trained network stays at the site until the end of the round; only this layer goes to the server.
    """
    number = LAYERS.index(layer)

    def train(site: Site, message: Message) -> Message:
        site.load(_continue_network(site, message, layer) if number else _initial_network(site, message))
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


def _initial_network(site: Site, message: Message) -> Message:
    """Return the network with which a site begins a round."""
    matching = site.recipe.options(Options).matching
    if site.round > 1 or matching is None or matching.initial == "shared":
        return message
    with seed_global_rng(site.recipe.runtime.seed, site.name, "initial weights"):
        return state_of(network(site.recipe), *LAYERS)


def _continue_network(site: Site, message: Message, layer: str) -> Message:
    """Return the site's network with the matched layer, and with the next layer's inputs reordered to fit it."""
    if OWN not in site.scratch:
        raise TrainingFailed("has lost its training of this round")
    layers: Message = site.scratch[OWN] | {name: value for name, value in message.items() if name != "order"}
    weight = f"{layer}.0.weight"
    return layers | {weight: reorder_inputs(layers[weight], message["order"])}


def _batches(site: Site, exchange: int) -> range:
    """Return the numbers of an exchange's batches; no two exchanges of a run share a batch."""
    count = site.batches_per_round
    first = ((site.round - 1) * len(LAYERS) + exchange) * count
    return range(first, first + count)


def _classes(site: Site) -> Tensor:
    return torch.bincount(torch.from_numpy(site.data.labels.astype("int64")), minlength=2)


def server(s: Server) -> Iterator[None]:
    """Run one pass over all layers per round; a site that fails takes no further part in the pass."""
    if s.recipe.options(Options).matching is None:
        yield from fedavg.server(s)
        return
    for _ in s.rounds():
        with s.quorum():
            s.load(one_pass(s))
        yield


def one_pass(s: Server) -> Message:
    """Run Algorithm 1: request a layer, match and average it, send it back with each site's order, then repeat."""
    weights: Message = {}
    orders: dict[str, Message] = {}
    down, names = s.lent(), s.present
    for layer in LAYERS:
        replies = s.ask(layer, down, each=orders, to=names)
        names = tuple(replies)
        if layer == LAYERS[-1]:
            down = average_by_class(_consistent_replies(s, replies), layer)
        else:
            down, orders = match_layer(replies, layer, s.recipe.options(Options))
        weights |= down
    return weights


def _consistent_replies(s: Server, replies: Mapping[str, Message]) -> dict[str, Message]:
    """Reject sites with inconsistent class counts: each class needs at least one image, and the sum must match."""
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


def match_layer(replies: Mapping[str, Message], layer: str, options: Options) -> tuple[Message, dict[str, Message]]:
    """Match and average a layer; return it with the order of each site's neurons."""
    weight, bias = f"{layer}.0.weight", f"{layer}.0.bias"
    growth = options.matching.growth if options.matching is not None else None
    prior = Prior(growth.sigma, growth.sigma0, growth.gamma) if growth else None
    counts = [float(reply["examples"]) if options.weight == "examples" else 1.0 for reply in replies.values()]
    shares = [len(counts) * count / sum(counts) for count in counts]
    result = match_neurons([rows_of(reply[weight], reply[bias]) for reply in replies.values()], shares, prior)
    like = next(iter(replies.values()))[weight]
    mean = dict(zip((weight, bias), weights_of(result.mean, like), strict=True))
    orders = {name: {"order": torch.from_numpy(order)} for name, order in zip(replies, result.orders, strict=True)}
    return mean, orders


def average_by_class(replies: Mapping[str, Message], layer: str) -> Message:
    """Average the last layer; a site's weight is its share of the images of a class, averaged over the classes."""
    totals = torch.stack([reply[CLASSES.name] for reply in replies.values()]).sum(dim=0).double()
    mean = Mean()
    for reply in replies.values():
        shares = reply[CLASSES.name].double() / totals
        mean.add({f"{layer}.{name}": value for name, value in under(f"{layer}.", reply).items()}, float(shares.mean()))
    return mean.result()


def predict(member: Member) -> Tensor:
    """Return the live logit."""
    return apply_layers(member.net, member.images, LAYERS).squeeze(1)


def features(member: Member) -> Tensor:
    """Return the input of the last layer."""
    return apply_layers(member.net, member.images, LAYERS[:-1])


ORDER = Upload("order", "statistic", shape=(-1,), dtype="int64")
"""Field of an order: the position that the server assigned to each of the site's neurons in the previous layer."""


def _call(layer: str) -> Call:
    uploads = (Upload("weights", "weights", parts=(layer,)), EXAMPLES, LOSS)
    declared = (*uploads, CLASSES) if layer == LAYERS[-1] else uploads
    return Call(retraining(layer), declared, takes=lambda _: (ORDER,))


METHOD = Method(
    name="fedma",
    title="FedMA",
    paper="Wang et al., Federated Learning with Matched Averaging, 2020",
    advice="To study matching of neurons before averaging; layer by layer, on a VGG without BatchNorm.",
    task="pad",
    options=Options,
    network=network,
    home=dict.fromkeys(LAYERS, Home.LENT),
    calls={**{layer: _call(layer) for layer in LAYERS}, "train": fedavg.training_call(loss, *LAYERS)},
    server=server,
    prediction=Prediction(predict, features=features),
)
