"""The other rows of FedFR's Tables 1 and 2: fine-tune, distillation, pre-trained only, and centralised.

C.-T. Liu et al., "FedFR", AAAI 2022. Fine-tune and distillation train personal models in two stages: the first is
FedFR without its personal part; in the second each site trains the finished model for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fedvisage.base.errors import UserError
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Method, Prediction
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedbabu
from fedvisage.methods.models import face
from fedvisage.methods.models.model import Loss
from fedvisage.methods.recognition import fedfr
from fedvisage.nn.losses.cosines import cosines


class FineTuneOptions(fedfr.Options):
    """FedFR's options without customisation."""

    customisation: fedfr.Customisation = fedfr.Customisation(weight=0)


def fine_tune_loss(site: Site, batch: Batch) -> Tensor:
    """Return the loss of the second stage: Eq. 3 alone."""
    return fedfr.balanced_cosface(site, batch, face.features_of(site, batch.images))


def two_stages(own_loss: Loss) -> dict[str, Call]:
    """Return the calls of both stages; the second trains the finished model for the site and keeps the result there."""

    def personalise(site: Site, message: Message) -> Message:
        site.load(message)
        names = fedfr.own_parameters(site)
        site.held["global"] = site.frozen(message, *site.net)
        site.held["centres"] = face.own_centres(site).detach().clone()
        face.train_local_model(site, own_loss, fedfr.with_hard_negatives(site), tuple(site.net), names)
        return site.statistics()

    return {"train": fedfr.TRAIN, "personalise": Call(personalise, (EXAMPLES, LOSS))}


FINE_TUNE = replace(
    fedfr.METHOD,
    name="fine-tune",
    title="Fine-tune",
    advice="Personal models in two stages: fedfr without its personal part, then training at each site.",
    options=FineTuneOptions,
    calls=two_stages(fine_tune_loss),
    server=fedbabu.server,
    prediction=face.WITH_LOCAL,
    supports=frozenset({"micro_batch"}),
)
"""Fine-tune: personal recognition models in two stages, the first of Table 2's baselines in FedFR.

The second stage is that of T. Yu, E. Bagdasaryan, V. Shmatikov, "Salvaging Federated Learning by Local Adaptation",
2020, as FedFR (Liu et al., AAAI 2022, "Comparison with Personalized FL Methods") re-implements it. Stage one trains a
generic model with hard negatives and the contrast, without customisation. In stage two each site optimises the finished
model for itself with CosFace on its local and sampled public images, and keeps the result.

Deviations from the paper: it does not specify the length of stage two; here it is one round's local work, at the
recipe's rate.
"""


class DistillationOptions(FineTuneOptions):
    """The weight and the temperature of the divergence."""

    distillation: float = Field(1.0, ge=0)
    """Weight of the divergence in the second stage."""
    temperature: float = Field(1.0, gt=0)
    """Temperature of the divergence."""


def distillation_loss(site: Site, batch: Batch) -> Tensor:
    """Return CosFace plus the divergence from the teacher's probabilities."""
    options = site.recipe.options(DistillationOptions)
    features = face.features_of(site, batch.images)
    teacher = site.held["global"]
    with site.autocast():
        teacher_features = teacher["model"](batch.images).float()
    classes = face.classes_of(site, batch, face.class_centres(site, public=True))
    teachers = torch.cat([site.held["centres"], teacher["centres"].get_parameter("weight")])
    taught = cosines(features, classes.centres)
    # With sampled classes, the teacher uses the centres of the same classes.
    teaching = cosines(
        teacher_features, teachers if classes.chosen is None else teachers[site.compute.bring(classes.chosen)]
    )
    divergence = divergence_of(taught, teaching, options.scale, options.temperature)
    return fedfr.balanced_cosface(site, batch, features) + options.distillation * divergence


def divergence_of(taught: Tensor, teaching: Tensor, scale: float, temperature: float) -> Tensor:
    """Return KL(teacher ‖ student) of the class probabilities at a temperature, multiplied by its square."""
    student, teacher = (log_softmax(scale * cosine / temperature, dim=1) for cosine in (taught, teaching))
    return kl_div(student, teacher, log_target=True, reduction="batchmean") * temperature**2


DISTILLATION = replace(
    FINE_TUNE,
    name="distillation",
    title="Distillation",
    advice="As fine-tune, with the common model as a teacher so that a site forgets less.",
    options=DistillationOptions,
    calls=two_stages(distillation_loss),
)
"""Distillation: personal recognition models in two stages, the second of Table 2's baselines in FedFR.

As ``fine-tune`` (T. Yu et al., "Salvaging Federated Learning by Local Adaptation", 2020, as re-implemented by FedFR,
Liu et al., AAAI 2022), but in stage two the logits of the generic model teach the local one: in addition to CosFace the
site minimises the Kullback-Leibler divergence of the class probabilities.

Deviations from the paper: FedFR does not print the weight and the temperature of the divergence; both are 1 here. The
teacher's class centres are the initial ones of stage two.
"""


def no_training(s: Server) -> Iterator[None]:
    """Run the rounds without training; the model stays unchanged."""
    if s.recipe.training.pretrain is None and s.recipe.training.start is None:
        raise UserError(
            "recipe.training.pretrain", "is required by this method; set its epochs, or give training.start"
        )
    for _ in s.rounds():
        yield


PRETRAINED = Method(
    name="pretrained",
    title="Pre-trained",
    paper=face.PAPER,
    task="recognition",
    advice="No training at the sites: the model of the public set, as it is.",
    options=face.FaceOptions,
    network=face.network,
    home={"model": Home.LENT},
    calls={},
    server=no_training,
    prediction=Prediction(face.predict, features=face.predict),
    check=face.check,
    begin=face.begin,
    server_sees="figures of the sites' own people",
)
"""Pre-trained only: the model of the public set without any training at sites (first row of FedFR's Table 1).

The baseline for the benefit of a federation; sites only evaluate the model.

Deviations from the paper: none known.
"""


class CentralisedOptions(fedfr.Options):
    """FedFR's options with all public images and without the parts that need a federation."""

    hard_negatives: float | None = Field(-1.0, ge=-1, lt=1)
    contrast: fedfr.ContrastSettings = fedfr.ContrastSettings(weight=0)
    customisation: fedfr.Customisation = fedfr.Customisation(weight=0)


CENTRALISED = replace(
    fedfr.METHOD,
    name="centralised",
    title="Centralised",
    advice="Simulation only: public and site images in one place: what federating costs.",
    options=CentralisedOptions,
    prediction=face.GENERIC_ONLY,
    members="pooled",
)
"""Centralised: one model trained on all images, the public ones and the sites' (last row of FedFR's Table 1).

Merging the data defeats the purpose of a federation; this method measures the cost of federating. The sites' data
become one pseudo-site, which also trains on all public images, by CosFace over all classes. It is a simulation only,
and is refused between organisations.

Deviations from the paper: it starts from the pre-trained model if the recipe has one, and uses the recipe's rounds and
local epochs; the paper does not specify how long it was trained.
"""
