"""Training with the others' clusters as negatives, shared by all methods of PrivacyFace's paper.

Q. Meng, F. Zhou, H. Ren, T. Feng, G. Liu, Y. Lin, "Improving federated learning face recognition via privacy-agnostic
clusters", ICLR 2022, Algorithm 2, line 7 (Eq. 5), and "Training": a margin loss on a site's own people, then on some
public ones. Deviations from the paper are listed in :mod:`fedvisage.methods.recognition.privacyface`.
"""

from __future__ import annotations

from functools import partial
from math import cos, pi, sin
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.base.errors import UserError
from fedvisage.data.batches import View
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Upload
from fedvisage.federation.privacy.clustering import crowding_warning
from fedvisage.federation.site import Batch, Site, TrainingFailed
from fedvisage.federation.wire.message import Message, under
from fedvisage.methods.models import face
from fedvisage.methods.models.face import classes_of, sample_classes
from fedvisage.nn import optimizers
from fedvisage.nn.losses.arcface import arcface_logits
from fedvisage.nn.losses.consensus import (
    cluster_logits,
    consensus_aware,
    exclude_enclosing,
    lower_clusters,
    separate_terms,
)
from fedvisage.nn.losses.cosface import cosface_logits
from fedvisage.nn.losses.cosines import cosines
from fedvisage.nn.partial import BatchClasses
from fedvisage.recipe import Recipe, Section

PAPER = "Meng et al., Improving Federated Learning Face Recognition via Privacy-Agnostic Clusters, 2022"
CLUSTERS = "clusters"
PUBLIC_CENTRES = "public W"
HAS_CLUSTERS = "clusters were told"


class ConsensusOptions(face.CosFaceOptions):
    """The options of all methods of the paper: the loss, the public fine-tuning, and a site's training algorithm.

    Scale and margin are ArcFace's; CosFace's paper has a margin of 0.35.
    """

    weight: Literal["uniform", "examples"] = "uniform"
    """Weights of sites in a mean: ``uniform``, or their number of images (``examples``)."""
    loss: Literal["arcface", "cosface"] = "arcface"
    """The margin loss."""
    scale: float = Field(64.0, gt=0)
    """Scale s of the loss."""
    margin: float = Field(0.5, ge=0, lt=1)
    """Margin m of the loss; cosface's own is 0.35."""
    public_epochs: int = Field(1, ge=0)
    """Epochs of fine-tuning on public people before a model is sent."""
    public_identities: int = Field(100, ge=2)
    """Number of public people for fine-tuning, the first of the set."""
    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    """One step per batch (``fedavg``), or one step per round down the mean gradient (``fedsgd``)."""

    @model_validator(mode="after")
    def _one_step_is_of_all_classes(self) -> ConsensusOptions:
        if self.algorithm == "fedsgd" and self.sampled_classes is not None:
            raise ValueError(
                "sampled_classes samples classes for each batch, but fedsgd takes one step per round over all classes"
            )
        return self


class Consensus(Section):
    """The role of clusters in the loss: as in Eq. 5, or in a form that preserves the share of an image's own class.

    ``lowered`` subtracts s(1 − cos ρ) from the clusters' logits; ``apart`` is two terms, the second λ times the own
    class against clusters; ``outside`` leaves out clusters with the image's own class centre in their caps.
    """

    form: Literal["printed", "lowered", "apart", "outside"] = "printed"
    """``printed`` as in Eq. 5; the other forms preserve the share of an image's own class."""
    rho: float | None = Field(None, gt=0, le=pi / 2)
    """Margin of the loss; by default that of the clustering."""
    weight: float = Field(0.1, gt=0)
    """Weight λ of ``apart``."""


class ClusterOptions(ConsensusOptions):
    """The clusters' margin ρ, their minimum size T, and the number of queries Q per site."""

    unset: ClassVar[frozenset[str]] = frozenset({"consensus"})

    rho: float = Field(1.3, gt=0, le=pi / 2)
    """Margin ρ."""
    minimum: int = Field(512, ge=1)
    """Minimum size T of a cluster; at most the number of a site's people."""
    queries: int = Field(1, ge=1)
    """Number Q of clusters."""
    consensus: Consensus | None = None
    """The role of clusters in the loss; by default as in Eq. 5."""


def centres_at_start(site: Site, message: Message) -> Tensor:
    """Load the model of a round, store it until training, and return class centres at unit length."""
    site.load(message)
    site.scratch["model"] = {name: value.cpu() for name, value in message.items()}
    return normalize(face.own_centres(site).detach().cpu())


def pad_rows(rows: Tensor, number: int) -> Tensor:
    """Return this number of rows, padded with zeros."""
    return torch.cat([rows, rows.new_zeros(number - len(rows), rows.shape[1])])


def public_people(site: Site) -> View:
    """Return the images of the first public identities."""
    if site.public is None:
        raise UserError("recipe.data.public", f"{site.recipe.method.name} needs public people; name a set of them")
    number = site.recipe.options(ConsensusOptions).public_identities
    return site.public.of_people(site.public.identities[:number])


def train(site: Site, message: Message) -> Message:
    """Run lines 7 and 8 with the others' clusters, on the model from the start of the round."""
    if "model" not in site.scratch:
        raise TrainingFailed("took no part in this round's clusters")
    others = [value for name, value in sorted(under(f"{CLUSTERS}/", message).items()) if name != site.name]
    return train_model(site, site.scratch["model"], torch.cat(others) if others else None)


def train_model(site: Site, model: Message, clusters: Tensor | None) -> Message:
    """Train a model with clusters as negatives, fine-tune it on public people, and return it."""
    options = site.recipe.options(ConsensusOptions)
    site.load({name: value.to(site.compute.device) for name, value in model.items()})
    face.own_centres(site)
    (_one_step if options.algorithm == "fedsgd" else _many_steps)(site, clusters)
    statistics = site.statistics()
    if options.public_epochs:
        fine_tune(site, public_people(site), options.public_epochs)
    face.keep_local_backbone(site)
    return site.tensors("model") | statistics


def _many_steps(site: Site, clusters: Tensor | None) -> None:
    """Run FedAvg: one step per batch."""
    optimizer = site.optimizer("model", own=(face.OWN_CENTRES,))
    centres = face.class_centres(site, public=False)
    with sample_classes(site, optimizer, site.recipe.options(ConsensusOptions).sampled_classes, centres):
        for batch in site.batches_of(site.data):
            classes = classes_of(site, batch, centres)
            site.learn(optimizer, partial(loss, site, classes=classes, clusters=clusters), batch)


def _one_step(site: Site, clusters: Tensor | None) -> None:
    """Run FedSGD (A.2.1): accumulate gradients on an unchanged model, then step down their mean over images."""
    optimizer, first, total = site.optimizer("model", own=(face.OWN_CENTRES,)), 0, 0.0
    optimizer.zero_grad(set_to_none=True)
    for batch in site.batches_of(site.data):
        value = loss(site, batch, classes_of(site, batch, [face.own_centres(site)]), clusters)
        # The last batch of an epoch may be smaller; relative to the first batch, equal batches have the weight 1.
        first = first or len(batch.labels)
        share = len(batch.labels) / first
        (value * share).backward()  # type: ignore[no-untyped-call]
        site.losses.append(value.detach())
        total += share
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if parameter.grad is not None:  # a scale fixed at 1, such as the last one of an IResNet, has none
            parameter.grad.div_(total)
    optimizers.step(optimizer, site.recipe.training.optimizer.clip_norm)


def fine_tune(site: Site, view: View, epochs: int) -> None:
    """Fine-tune the model on public people, with their class centres, which stay at the site."""
    centres = site.own(PUBLIC_CENTRES, lambda: face.means_of(normalize(site.embed(site.net["model"], view)), view))
    optimizer = site.optimizer("model", own=(PUBLIC_CENTRES,))
    for batch in site.batches_of(view, epochs=epochs, purpose="public"):
        assert batch.identities is not None
        labels = batch.identities - len(site.data.identities)
        site.learn(optimizer, partial(loss, site, classes=BatchClasses(centres, labels), clusters=None), batch)


def loss(site: Site, batch: Batch, classes: BatchClasses, clusters: Tensor | None) -> Tensor:
    """Return Eq. 5, with CosFace's or ArcFace's margin; without clusters it is the margin loss itself."""
    options = site.recipe.options(ConsensusOptions)
    features = face.features_of(site, batch.images)
    logits = arcface_logits if options.loss == "arcface" else cosface_logits
    own_logits = logits(cosines(features, classes.centres), classes.labels, options.scale, options.margin)
    if clusters is None:
        # Eq. 5 without negatives from other sites.
        return consensus_aware(own_logits, classes.labels, features.new_empty(len(features), 0))
    rho, form = _consensus(site.recipe.options(ClusterOptions))
    others = cluster_logits(features, clusters, rho, options.scale)
    if form.form == "lowered":
        others = lower_clusters(others, rho, options.scale)
    elif form.form == "outside":
        others = exclude_enclosing(others, classes.labels, classes.centres, clusters, rho)
    elif form.form == "apart" and _has_clusters(site, clusters):
        return separate_terms(own_logits, classes.labels, others, form.weight)
    return consensus_aware(own_logits, classes.labels, others)


def _has_clusters(site: Site, clusters: Tensor) -> bool:
    """Return True if there is any cluster; the answer is cached per visit to avoid device synchronisation."""
    if HAS_CLUSTERS not in site.held:
        site.held[HAS_CLUSTERS] = bool(clusters.any())
    has_clusters: bool = site.held[HAS_CLUSTERS]
    return has_clusters


def _consensus(options: ClusterOptions) -> tuple[float, Consensus]:
    """Return the margin and the form of the loss."""
    form = options.consensus or Consensus()
    return form.rho or options.rho, form


def cluster_shape(recipe: Recipe) -> tuple[int, ...]:
    """Return the shape of a site's released clusters, which does not depend on the clusters it finds."""
    options = recipe.options(ClusterOptions)
    return options.queries, options.network.embedding


def warn_of_crowding(recipe: Recipe) -> str | None:
    """Apply Theorem 1: warn if clusters could fill the sphere, or if they would dominate the softmax."""
    options = recipe.options(ClusterOptions)
    warning = crowding_warning(options.rho, options.network.embedding, options.queries * len(recipe.data.sites))
    return warning or _cluster_dominance_warning(options)


def _cluster_dominance_warning(options: ClusterOptions) -> str | None:
    """Warn if s sin ρ, a cluster's logit for an orthogonal feature, exceeds the own class's best logit, at θ = 0."""
    rho, form = _consensus(options)
    best = cos(options.margin) if options.loss == "arcface" else 1 - options.margin
    if form.form in ("lowered", "apart") or sin(rho) <= best:
        return None
    return (
        f"in the loss a cluster at a right angle to a feature has the logit {options.scale * sin(rho):.3g}, a feature "
        f"that fits its own class no more than {options.scale * best:.3g}; clusters will dominate the "
        "softmax (method.consensus has other forms)"
    )


def least_identities(recipe: Recipe) -> int:
    """Return the number of people that a site needs: as many as its smallest cluster."""
    return max(2, recipe.options(ClusterOptions).minimum)


def clusters_of_all(recipe: Recipe) -> tuple[Upload, ...]:
    """Return the fields of a training order besides the weights: the clusters of every site."""
    shape = -1, recipe.options(ClusterOptions).network.embedding
    return tuple(Upload(f"{CLUSTERS}/{name}", "statistic", shape=shape) for name in recipe.data.sites)


WEIGHTS = Upload("weights", "weights", parts=("model",))

TRAIN = Call(train, (WEIGHTS, EXAMPLES, LOSS), takes=clusters_of_all)
