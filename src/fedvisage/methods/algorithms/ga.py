"""GA: generalisation adjustment, which moves the weights of sites towards equal generalisation gaps.

R. Zhang, Q. Xu, J. Yao, Y. Zhang, Q. Tian, Y. Wang, "Federated Domain Generalization with Generalization Adjustment",
CVPR 2023. The gap of site i is what it loses by averaging, the loss of the common model minus that of its own model
before the averaging. Sites with larger gaps gain weight in the mean of the next round:

    G_i = L_i(θ) − L_i(θ_i),    a_i ← a_i + d/K · (1 − r/R) · (G_i − Ḡ) / max_j |G_j − Ḡ|,

clipped to [0, 1] and normalised, for K sites in round r of R, counted from 0. With a step d of 0 this is FedAvg.

Deviations: the authors' code, which we read in place of the printed equation, does not subtract the mean Ḡ and has 1/3
for its three domains in place of 1/K; others who implement the paper subtract it. Losses are those of the training
images, in evaluation mode and without augmentation (the authors' code: of a validation split, or its accuracy). A site
computes the common model's loss when it receives the model, so there is no further exchange; in its first round its gap
counts as 0. A site that does not reply keeps its weight; when it returns, its own model is that of its last round. The
server trusts the reported gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from pydantic import Field

from fedvisage.federation.method import Method, Upload
from fedvisage.federation.protections.combine import Mean
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.algorithms.afl import relative_weights, store_weights, stored_weights
from fedvisage.methods.models.model import Loss, Model
from fedvisage.recipe import MethodOptions

OWN_LOSS = "own loss"
"""Key of the loss of a site's own model in its private state."""
WEIGHTS = "weights of sites"
"""Key of the weights in the server's private state, in the order of the sites' names."""
GAP = Upload("gap", "statistic", dtype="float64", guarantee="the common model's loss minus that of the site's own")


class AdjustmentOptions(MethodOptions):
    """The step size of the sites' weights."""

    step: float = Field(0.2, ge=0)
    """Step size d of the weights, relative to equal weights; it falls to 0 over the rounds. 0 is FedAvg."""


def mean_loss(site: Site, loss: Loss) -> float:
    """Return the mean loss over the site's training images, in evaluation mode."""
    training = [module for module in site.net.modules() if module.training]
    site.net.eval()
    with torch.no_grad():
        total = sum(float(loss(site, batch)) * len(batch.labels) for batch in site.plain_batches(site.data))
    for module in training:
        module.training = True
    return total / len(site.data)


def with_gap(loss: Loss) -> Callable[[fedavg.Turn], fedavg.Turn]:
    """Return a wrapper of local work that adds the gap of the last averaging to the reply."""

    def wrap(turn: fedavg.Turn) -> fedavg.Turn:
        def train(site: Site, message: Message) -> Message:
            gap, adjusts = 0.0, site.recipe.options(AdjustmentOptions).step > 0
            if OWN_LOSS in site.kept:
                site.load(message)
                gap = mean_loss(site, loss) - float(site.kept[OWN_LOSS])
            reply = turn(site, message)
            if adjusts:
                site.kept[OWN_LOSS] = torch.tensor(mean_loss(site, loss), dtype=torch.float64)
            return reply | {GAP.name: torch.tensor(gap, dtype=torch.float64)}

        return train

    return wrap


def server(s: Server) -> Iterator[None]:
    """Adjust the weights by the gaps of the last averaging, then average with them."""
    step, lent = s.recipe.options(AdjustmentOptions).step, s.lent().keys()
    for _ in s.rounds():
        with s.quorum():
            replies = s.ask("train", s.lent())
            gaps = {name: float(reply[GAP.name]) for name, reply in replies.items()}
            pace = step / len(s.names) * (1 - (s.round - 1) / s.recipe.training.rounds)
            weights = adjust(stored_weights(s, WEIGHTS), gaps, pace)
            mean, relative = Mean(), relative_weights(weights)
            for name, reply in sorted(replies.items()):
                mean.add({key: reply[key] for key in lent}, relative[name])
            s.load(mean.result())
            store_weights(s, WEIGHTS, weights)
        yield


def adjust(weights: Mapping[str, float], gaps: Mapping[str, float], step: float) -> dict[str, float]:
    """Return weights moved along the gaps of the sites that replied; the sum over these sites stays the same."""
    names = sorted(gaps)
    present, given = (np.array([values[name] for name in names]) for values in (weights, gaps))
    deviations = given - given.mean()
    largest = np.abs(deviations).max()
    if not step or not largest:
        return dict(weights)
    moved = np.clip(present + step * deviations / largest, 0, 1)
    return {**weights, **dict(zip(names, (moved * present.sum() / moved.sum()).tolist(), strict=True))}


def ga(model: Model) -> Method:
    """Return GA on a model."""
    return fedavg.on_model(
        model,
        fedavg.options_on(model, AdjustmentOptions, weighs=False, last=True),
        name="ga",
        title="GA",
        paper="Zhang et al., Federated Domain Generalization with Generalization Adjustment, 2023",
        advice="Sites that lose most by averaging gain weight.",
        wrap_turn=with_gap(model.loss),
        more=(GAP,),
        server=server,
        supports=frozenset({"micro_batch"}),
    )
