"""FedDF: the server distils the ensemble of the sites' networks into their mean, on rendered faces.

T. Lin, L. Kong, S. U. Stich, M. Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS
2020, Algorithm 1. After a round of FedAvg the mean of the sites' networks is the student. Its teacher is the ensemble:
x̄, the mean of the sites' logits on unlabelled images. With Adam and a cosine schedule, the student minimises

    KL(sigmoid(x̄) ‖ sigmoid(student)).

Deviations from the paper: no machine shares an image. Sites and server render the same faces from the recipe, live ones
and attacks, and ignore their labels. The sites send the logits of their networks on these, and the server averages
them with the sites' ``weight``; in the paper it computes them from each site's network, and all count alike. The
student's BatchNorm keeps the sites' mean statistics, because those of rendered faces differ. The paper stops by
validation data; here the number of epochs is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.lr_scheduler import CosineAnnealingLR

from fedvisage.base.errors import UserError
from fedvisage.federation.method import Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import resnet18
from fedvisage.nn.compute import Compute
from fedvisage.nn.inputs import prepare
from fedvisage.nn.optimizers import Adam
from fedvisage.recipe import Recipe


class Options(resnet18.Options):
    """FedPAD's options, the rendered faces, and the student's training."""

    faces: str = "A subjects=20 videos=1 frames=1"
    """The rendered faces that the networks are compared on: an entry ``synth: …`` without its size."""
    epochs: int = Field(5, ge=0)
    """Passes of the student over the rendered faces in a round; 0 is FedPAD."""
    rate: float = Field(0.001, gt=0)
    """Adam's learning rate at the start of a distillation."""


@cache
def render(faces: str, size: int) -> NDArray[np.uint8]:
    """Return rendered faces, N×S×S×3; once per process."""
    from fedvisage.render.domains import find_domain  # imported late, as it loads the renderer
    from fedvisage.render.sets import film_subject, parse_synthesis, plan_videos

    spec = parse_synthesis(f"{faces} size={size}")
    return np.concatenate([film_subject(videos, find_domain(spec.domain), size).images for videos in plan_videos(spec)])


def shape_of_logits(recipe: Recipe) -> tuple[int]:
    """Return the number of rendered faces."""
    from fedvisage.render.sets import parse_synthesis, plan_videos

    spec = parse_synthesis(f"{recipe.options(Options).faces} size={recipe.input.size}")
    return (sum(video.frames for videos in plan_videos(spec) for video in videos),)


LOGITS = Upload("logits", "activation", shape=shape_of_logits, guarantee="live logits of the site's network on faces")


def check(recipe: Recipe) -> None:
    """Refuse a text that describes no faces, and what FedPAD's network refuses."""
    resnet18.check(recipe)
    faces = recipe.options(Options).faces
    if "generation=" in faces:
        raise UserError("recipe.method.faces", "are of the first generation of rendered people; leave generation out")
    try:
        shape_of_logits(recipe)
    except UserError as error:
        raise UserError("recipe.method.faces", f"{error.message} ({error.place})") from error


def inputs_of(recipe: Recipe, compute: Compute) -> Tensor:
    """Return the rendered faces as inputs of the network, on the run's device."""
    images = torch.from_numpy(render(recipe.options(Options).faces, recipe.input.size)).permute(0, 3, 1, 2)
    return prepare(images, recipe.input.colour, compute.device, compute.layout)


def logits_of(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the live logits of images."""
    return resnet18.head(net, resnet18.represent(net, images)).float().squeeze(1)


def with_logits(turn: fedavg.Turn) -> fedavg.Turn:
    """Return local work whose reply includes the trained network's logits on the rendered faces."""

    def train(site: Site, message: Message) -> Message:
        reply = turn(site, message)
        site.net.eval()
        with torch.no_grad(), site.autocast():
            parts = torch.split(inputs_of(site.recipe, site.compute), site.recipe.evaluation.batch)
            return reply | {LOGITS.name: torch.cat([logits_of(site.net, part) for part in parts])}

    return train


def server(s: Server) -> Iterator[None]:
    """Average networks and logits, and distil."""
    start = fedavg.started_from(s)
    for _ in s.rounds():
        with s.quorum():
            mean = s.reduce("train", s.lent() | start, weight=fedavg.weight_of(s.recipe)).value
            teacher = mean.pop(LOGITS.name)
            s.load(mean)
            if s.recipe.options(Options).epochs:
                distil(s, inputs_of(s.recipe, s.compute), teacher.to(s.compute.device))
        yield


def distil(s: Server, images: Tensor, teacher: Tensor) -> None:
    """Train the student, the server's network, on the teacher's logits; its statistics stay."""
    options = s.recipe.options(Options)
    s.net.eval()
    orders = [torch.randperm(len(images), generator=s.rng("distillation", epoch)) for epoch in range(options.epochs)]
    size = s.recipe.training.batch.default
    steps = [rows for order in orders for rows in torch.split(order.to(images.device), size)]
    optimizer = Adam(s.net.parameters(), lr=options.rate)
    schedule = CosineAnnealingLR(optimizer, len(steps))
    for rows in steps:
        optimizer.zero_grad(set_to_none=True)
        with s.autocast():
            student = logits_of(s.net, images[rows])
        divergence(teacher[rows], student).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    s.net.zero_grad(set_to_none=True)


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean KL(sigmoid(teacher) ‖ sigmoid(student)) of live logits."""
    probabilities = teacher.sigmoid()
    entropy = binary_cross_entropy_with_logits(teacher, probabilities)
    return binary_cross_entropy_with_logits(student, probabilities) - entropy


METHOD = fedavg.on_model(
    resnet18.MODEL,
    Options,
    name="feddf",
    title="FedDF",
    paper="Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, 2020",
    advice="Distils the sites' logits on rendered faces into one network.",
    wrap_turn=with_logits,
    more=(LOGITS,),
    server=server,
    supports=frozenset({"l2sp", "micro_batch"}),
    check=check,
)
