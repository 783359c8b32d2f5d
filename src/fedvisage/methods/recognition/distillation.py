"""Distillation: personal recognition models in two stages, the second of Table 2's baselines in FedFR.

As ``fine-tune`` (T. Yu et al., "Salvaging Federated Learning by Local Adaptation", 2020, as FedFR, Liu et al., AAAI
2022, re-implements it), but in stage two the logits of the generic model teach the local one: beside CosFace the site
minimises the Kullback-Leibler divergence of the classes' probabilities.

Deviations from the paper: weight and temperature of the divergence are not printed in FedFR; both are 1 here. The
teacher's class centres are those with which stage two begins.
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
    """Its temperature."""


def loss(site: Site, batch: Batch) -> Tensor:
    """CosFace, and the divergence from the teacher's probabilities."""
    options = site.recipe.options(Options)
    features = face.features_of(site, batch.images)
    teacher = site.held["global"]
    with site.autocast():
        wanted = teacher["model"](batch.images).float()
    classes = classes_of(site, batch, face.class_centres(site, public=True))
    teachers = torch.cat([site.held["centres"], teacher["centres"].get_parameter("weight")])
    taught = cosines(features, classes.centres)
    teaching = cosines(wanted, teachers if classes.chosen is None else teachers[site.compute.bring(classes.chosen)])
    divergence = divergence_of(taught, teaching, options.scale, options.temperature)
    return fedfr.balanced_cosface(site, batch, features) + options.distillation * divergence


def divergence_of(taught: Tensor, teaching: Tensor, scale: float, temperature: float) -> Tensor:
    """Return KL(teacher ‖ student) of the classes' probabilities at a temperature, times its square."""
    student, teacher = (log_softmax(scale * cosine / temperature, dim=1) for cosine in (taught, teaching))
    return kl_div(student, teacher, log_target=True, reduction="batchmean") * temperature**2


METHOD = replace(
    fine_tune.METHOD, name="distillation", title="Distillation", options=Options, calls=fine_tune.calls(loss)
)
