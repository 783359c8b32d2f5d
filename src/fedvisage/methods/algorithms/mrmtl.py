"""MR-MTL: a model per site, pulled towards the mean of all sites' models.

Z. Liu, S. Hu, Z. S. Wu, V. Smith, "On Privacy and Personalization in Cross-Silo Federated Learning", NeurIPS 2022,
mean-regularised multi-task learning. Each site k minimises, from its own model of the round before,

    h_k(w_k) = F_k(w_k) + λ/2 ‖w_k − w̄‖²,    w̄ = mean(w_k),

and uploads w_k; the server lends the mean. λ = 0 is training alone, and a large λ keeps a site at the mean. With
``training.privacy`` each site adds the noise of its own promise, and the pull towards the mean reduces it. A site keeps
what it last sent, so the promise covers it.

Deviations from the paper: sites need not all take part in every round, and count according to ``weight``. A target
outside the federation is evaluated by the mean. As in the authors' code, the pull is part of each person's loss and is
clipped with it. The reported loss includes the pull.
"""

from dataclasses import replace

from fedvisage.federation.method import PEOPLE, Method
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message, load_parts
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.algorithms.ditto import PersonalOptions, with_pull
from fedvisage.methods.models.model import GENERIC_AND_LOCAL, Model, keep_local, local_model

PAPER = "Liu et al., On Privacy and Personalization in Cross-Silo Federated Learning, 2022"


def train_own_model(model: Model) -> fedavg.Turn:
    """Return a site's local work: go on with its own model, near the lent mean, and upload it."""

    def train(site: Site, message: Message) -> Message:
        load_parts(site.net, local_model(site, message))
        site.lent = message
        model.fit(site, fedavg.with_proximal_term(with_pull(model.loss)))
        keep_local(site, *model.parts)
        return site.tensors(*model.parts) | site.statistics()

    return train


def mrmtl(model: Model) -> Method:
    """Return MR-MTL on a model."""
    method = fedavg.on_model(
        model,
        fedavg.options_on(model, PersonalOptions),
        name="mrmtl",
        title="MR-MTL",
        paper=PAPER,
        advice="A model per site, pulled towards the sites' mean: for few sites, with privacy of people.",
        wrap_turn=lambda _: train_own_model(model),
        supports=fedavg.EVERYTHING - {"server_optimizer"} | {PEOPLE},
    )
    return replace(method, prediction=replace(model.prediction, personal=GENERIC_AND_LOCAL))
