"""Distillation: personal recognition models in two stages, the second of Table 2's baselines in FedFR.

As ``fine-tune`` (T. Yu et al., "Salvaging Federated Learning by Local Adaptation", 2020, as re-implemented by FedFR,
Liu et al., AAAI 2022), but in stage two the logits of the generic model teach the local one: in addition to CosFace the
site minimises the Kullback-Leibler divergence of the class probabilities.

Deviations from the paper: FedFR does not print the weight and the temperature of the divergence; both are 1 here. The
teacher's class centres are the initial ones of stage two.
"""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fedvisage.federation.site import Batch, Site
from fedvisage.methods.models import face
from fedvisage.methods.models.face import classes_of
from fedvisage.methods.recognition import fedfr, fine_tune
from fedvisage.nn.losses.cosines import cosines


class Options(fine_tune.Options):
    """The weight and the temperature of the divergence."""

    distillation: float = Field(1.0, ge=0)
    """Weight of the divergence in the second stage."""
    temperature: float = Field(1.0, gt=0)
    """Temperature of the divergence."""


def loss(site: Site, batch: Batch) -> Tensor:
    """Return CosFace plus the divergence from the teacher's probabilities."""
    options = site.recipe.options(Options)
    features = face.features_of(site, batch.images)
    teacher = site.held["global"]
    with site.autocast():
        teacher_features = teacher["model"](batch.images).float()
    classes = classes_of(site, batch, face.class_centres(site, public=True))
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


METHOD = replace(
    fine_tune.METHOD, name="distillation", title="Distillation", options=Options, calls=fine_tune.calls(loss)
)
