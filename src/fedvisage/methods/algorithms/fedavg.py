"""FedAvg: every site trains the model that the server lends, and the server averages the results.

In round t the server lends its weights w_t to the sites. Site k starts from them, minimises its own loss over its
batches, and uploads the result w_k. The server takes the weighted mean over the sites that replied:

    w_{t+1} = Σ_k p_k w_k,    p_k = 1 / K (``weight: uniform``) or n_k / Σ_j n_j (``weight: examples``)

where K is the number of these sites and n_k the number of images of site k. With ``training.server_optimizer`` the
server does not adopt this mean w̄; it takes an optimizer's step with the gradient w_t − w̄.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Algorithm 1. On ViT-H it is the baseline of FedSIS (§3.2, Eq. 2–3). On a face
backbone it is the baseline of C.-T. Liu et al., "FedFR", AAAI 2022 ("Federated Learning", steps 1 to 4): CosFace on the
site's own classes, whose centres W stay at the site. That baseline rejects a site with one identity, because a softmax
over one class has no gradient.

The file has the server's loop, a site's local work, the server's step, the pull towards the start (L2-SP), and the
parts from which other algorithms are built; most of these only replace the local loss or the server's step.

Deviations from the papers: all sites do the recipe's local work. The default of ``weight`` is that of the model's
paper: on FedPAD's network ``uniform``, where McMahan et al. weigh by examples. FedFR does not specify the initial W;
here W starts as the mean features of each identity under the model of the site's first round, as in its authors'
released code (``centres: random`` is the alternative).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import create_model
from torch import Tensor, nn

from fedvisage.federation.method import EXAMPLES, LOSS, PEOPLE, Call, Capability, Home, Method, Upload, accept_any
from fedvisage.federation.privacy.accountant import BudgetSpent
from fedvisage.federation.protections.dpsgd import adds_noise, trains_on_people
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message, under
from fedvisage.methods.models.model import AveragingOptions as AveragingOptions
from fedvisage.methods.models.model import Loss, Model, train_batches
from fedvisage.nn.losses.proximal import proximal
from fedvisage.nn.optimizers import server_step
from fedvisage.recipe import MethodOptions, Recipe, ServerOptimizer

PAPER = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017"

Turn = Callable[[Site, Message], Message]
"""A site's local work for one call: it receives the server's message and returns the reply."""

STARTED = "start/"
"""Prefix of the starting weights in messages to the sites."""

MOMENTS = "server optimizer/"
"""Prefix of the server optimizer's moments in the server's private state."""

EVERYTHING: frozenset[Capability] = frozenset({"one_mean", "l2sp", "micro_batch", "server_optimizer"})
"""The options of recipes that averaging supports with this file's local work and server program."""

WITHOUT_STATE: frozenset[Capability] = EVERYTHING | {PEOPLE}
"""The same for algorithms whose sites keep nothing from visit to visit, so that privacy of people applies, too."""


# The server's loop.


def server(s: Server, *lent: str, default_optimizer: ServerOptimizer | None = None) -> Iterator[None]:
    """Run federated averaging: each round, lend parts to the sites, by default all, and average the uploads.

    The server adopts the mean, or steps towards it with the recipe's ``training.server_optimizer``, or with the
    ``default_optimizer`` if the recipe has none.
    """
    lent = lent or s.method.parts_at(Home.LENT)
    settings = s.recipe.training.server_optimizer or default_optimizer
    start = started_from(s)
    for _ in s.rounds():
        try:
            with s.quorum():
                mean = s.reduce("train", s.tensors(*lent) | start, weight=weight_of(s.recipe)).value
                s.load(mean if settings is None else apply_server_step(s, mean, settings))
        except BudgetSpent as spent:  # too few sites may release another round to people's cost
            if s.round == 1:
                raise
            s.end_before_this_round(str(spent))
            return
        yield


def weight_of(recipe: Recipe) -> str:
    """Return the weighting of sites in a mean."""
    return recipe.method.weight if isinstance(recipe.method, AveragingOptions) else "uniform"


# A site's local work, and the call with which the server requests it.


def local_training(loss: Loss, *parts: str, fit: Callable[[Site, Loss], None] = train_batches) -> Turn:
    """Return a site's local work: load the lent weights, minimise a loss over the local batches, upload parts."""

    def train(site: Site, message: Message) -> Message:
        site.load(message)
        fit(site, loss)
        return site.tensors(*parts) | site.statistics()

    return train


def training_call(loss: Loss, *parts: str) -> Call:
    """Return the call of an averaging method with its uploads."""
    return Call(local_training(with_proximal_term(loss), *parts), uploads_of(*parts), takes=start_of(*parts))


def uploads_of(*parts: str) -> tuple[Upload, ...]:
    """Return the uploads of an averaging method: weights, their number of images, and the mean loss.

    With privacy of people the weights are a release with noise, and the other two stay at the site.
    """
    counts = (replace(upload, left_out=trains_on_people) for upload in (EXAMPLES, LOSS))
    return Upload("weights", "weights", parts=parts, noised=adds_noise), *counts


# The server's step towards the mean, with ``training.server_optimizer``.


def apply_server_step(s: Server, mean: Message, settings: ServerOptimizer) -> Message:
    """Return the weights after a server optimizer's step from the present weights towards a mean.

    Values without a gradient, such as BatchNorm's running statistics, are taken from the mean.
    """
    present, weights = s.tensors(*s.net), dict(mean)
    for name in trained_tensors(s.net):
        if name in mean:
            moments = {
                key: s.kept[f"{MOMENTS}{key}/{name}"]
                for key in ("first", "second")
                if f"{MOMENTS}{key}/{name}" in s.kept
            }
            weights[name], moments = server_step(settings, present[name], mean[name], moments)
            s.kept |= {f"{MOMENTS}{key}/{name}": value for key, value in moments.items()}
    return weights


def trained_tensors(net: nn.ModuleDict) -> list[str]:
    """Return the names of a network's tensors that are trained by gradients."""
    return [name for name, _ in net.named_parameters()]


# L2-SP, with ``training.l2sp``: the server sends the starting weights, and the sites stay near them.


def started_from(s: Server) -> Message:
    """Return the starting weights to send to the sites, if the recipe pulls sites towards them."""
    if s.recipe.training.l2sp is None:
        return {}
    trained = set(trained_tensors(s.net))
    return {f"{STARTED}{name}": value for name, value in s.start.items() if name in trained}


def start_of(*parts: str) -> Callable[[Recipe], tuple[Upload, ...]]:
    """Return the extra content of orders: the starting weights, if the recipe pulls sites towards them."""
    start = (Upload("start", "weights", parts=parts, prefix=STARTED, trained=True),)
    return lambda recipe: start if recipe.training.l2sp is not None else ()


def with_proximal_term(own: Loss) -> Loss:
    """Return a loss with L2-SP if the recipe sets it: strength / 2 · ‖w − w₀‖² over the weights of the start.

    X. Li, Y. Grandvalet, F. Davoine, "Explicit Inductive Bias for Transfer Learning with Convolutional Networks", ICML
    2018, Eq. 3. Weights that the start did not provide, such as a new last layer, are free.
    """

    def loss(site: Site, batch: Batch) -> Tensor:
        total, strength = own(site, batch), site.recipe.training.l2sp
        if strength is None or not (start := under(STARTED, site.lent)):
            return total
        weights = dict(site.net.named_parameters())
        return total + strength * proximal((weights[name] for name in start), start.values())

    return loss


# The options, and the method as a function of a model.


class OnModel(MethodOptions):
    """The model that an algorithm trains, if it is not the one that its name implies."""

    unset: ClassVar[frozenset[str]] = frozenset({"model"})
    model: str | None = None
    """The network and task that an algorithm trains, as a name (``vit-h``) or a section, ``{name: timm, arch:
    mobilenetv3_small_100}``; by default the algorithm's own."""


def options_on(
    model: Model, own: type[MethodOptions] = MethodOptions, *, weighs: bool = True, last: bool = False
) -> type[MethodOptions]:
    """Return the options of an algorithm on a model: the model's, the algorithm's own, and the weights of sites.

    With ``last``, a resolved recipe lists the algorithm's own keys after the model's.
    """
    first = model.averaged if weighs else model.options
    kinds = (own, first, OnModel) if last else (first, own, OnModel)
    bases = tuple(kind for kind in kinds if kind is not MethodOptions)
    return create_model("Options", __base__=bases, __module__=__name__, __doc__=f"{own.__doc__} On {model.title}.")


def titled(title: str, model: Model) -> str:
    """Return an algorithm's title, followed by the model's unless that is FedPAD's, the usual one in papers."""
    return title if model.name == "resnet18" else f"{title} ({model.title})"


def on_model(
    model: Model,
    options: type[MethodOptions],
    *,
    name: str,
    title: str,
    paper: str,
    advice: str = "",
    loss: Loss | None = None,
    wrap_turn: Callable[[Turn], Turn] = lambda turn: turn,
    more: tuple[Upload, ...] = (),
    server: Callable[[Server], Iterator[None]] = server,
    supports: frozenset[Capability] = EVERYTHING,
    check: Callable[[Recipe], str | None] = accept_any,
) -> Method:
    """Return federated averaging of a model, with an algorithm's changes.

    An algorithm may replace the ``loss``, wrap a site's local work with ``wrap_turn``, declare ``more`` uploads in
    addition to weights, run another ``server`` program, and ``check`` the rest of the recipe. It must state what it
    ``supports`` if that is not everything.
    """

    def check_both(recipe: Recipe) -> str | None:
        model.check(recipe)
        return check(recipe)

    # The term is added in every variant, and is zero unless the recipe sets training.l2sp.
    turn = wrap_turn(local_training(with_proximal_term(loss or model.loss), *model.parts, fit=model.fit))
    return Method(
        name=name,
        title=titled(title, model),
        paper=paper,
        advice=advice,
        task=model.task,
        options=options,
        network=model.network,
        home=dict.fromkeys(model.parts, Home.LENT),
        calls={"train": Call(turn, (*uploads_of(*model.parts), *more), takes=start_of(*model.parts))},
        prediction=model.prediction,
        server=server,
        begin=model.begin,
        supports=supports if model.fit is train_batches else supports - {PEOPLE},
        check=check_both,
        least_identities=model.least_identities,
    )


def fedavg(model: Model) -> Method:
    """Return federated averaging of a model."""
    return on_model(
        model,
        options_on(model),
        name="fedavg",
        title="FedAvg",
        paper=PAPER,
        advice="Plain averaging of locally trained weights: the first choice, and the baseline of the others.",
        supports=WITHOUT_STATE,
    )
