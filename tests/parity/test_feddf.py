"""FedDF's divergence against NumPy, the rendered faces, and what distillation does to the student."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.parity.gradients import Array, gradient_by_differences, value_and_gradients
from tests.refusals import refused
from tests.toy import FEW_FACES, Sets, recipe_of, shortest_recipe, tree
from torch import nn

from fedvisage.base.streams import torch_rng
from fedvisage.federation.wire.message import Message
from fedvisage.methods.models import resnet18
from fedvisage.methods.pad import feddf
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import prepare

TEACHER, STUDENT = np.random.default_rng(0).normal(0, 2, (2, 9))


def divergence(student: Array) -> float:
    p, q = (1 / (1 + np.exp(-logits)) for logits in (TEACHER, student))
    return float((p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean())


def test_divergence_of_the_ensemble_from_the_student_and_its_gradient() -> None:
    student = torch.tensor(STUDENT, requires_grad=True)
    value, (gradient,) = value_and_gradients(feddf.divergence(torch.tensor(TEACHER), student), student)
    assert value == pytest.approx(divergence(STUDENT), rel=1e-10)
    np.testing.assert_allclose(gradient, gradient_by_differences(divergence, STUDENT), rtol=1e-5, atol=1e-9)


def student_of(**options: Any) -> Any:
    recipe = shortest_recipe("feddf", network={"width": 8}, **options)
    torch.manual_seed(0)
    compute = SimpleNamespace(autocast=torch.enable_grad)
    return SimpleNamespace(
        recipe=recipe,
        net=resnet18.network(recipe),
        autocast=compute.autocast,
        rng=lambda *purpose: torch_rng(0, "server", 1, *purpose),
    )


def test_distillation_is_adam_with_a_cosine_rate_down_the_divergence() -> None:
    """Recompute all steps with Adam's update written out (Kingma and Ba, 2015, Algorithm 1)."""
    s, twin = (student_of(epochs=3, rate=0.01) for _ in range(2))
    size = s.recipe.training.batch.default
    images = torch.rand(size + 3, 6, 32, 32, generator=torch.Generator().manual_seed(1))
    teacher = torch.linspace(-3, 3, len(images))
    feddf.distil(s, images, teacher)
    net = twin.net.eval()
    weights = [*net.parameters()]
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    steps = [
        rows
        for epoch in range(3)
        for rows in torch.randperm(len(images), generator=torch_rng(0, "server", 1, "distillation", epoch)).split(size)
    ]
    assert len(steps) == 6
    for number, rows in enumerate(steps):
        target, logits = teacher[rows].sigmoid(), feddf.logits_of(net, images[rows])
        loss = -(target * logits.sigmoid().log() + (1 - target) * (1 - logits.sigmoid()).log()).mean()
        rate = 0.01 * (1 + np.cos(np.pi * number / len(steps))) / 2
        for place, gradient in enumerate(torch.autograd.grad(loss, weights)):
            first[place] = 0.9 * first[place] + 0.1 * gradient
            second[place] = 0.999 * second[place] + 0.001 * gradient**2
            mean, square = first[place] / (1 - 0.9 ** (number + 1)), second[place] / (1 - 0.999 ** (number + 1))
            weights[place].data -= rate * mean / (square.sqrt() + 1e-8)
    for (name, weight), expected in zip(s.net.named_parameters(), weights, strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.long
def test_student_approaches_the_ensemble_and_keeps_its_statistics() -> None:
    s = student_of(epochs=30, rate=0.01)
    images = torch.rand(8, 6, 32, 32, generator=torch.Generator().manual_seed(1))
    teacher = torch.linspace(-3, 3, 8)
    buffers = {name: value.clone() for name, value in s.net.named_buffers()}
    distances = []
    for _ in range(2):
        with torch.no_grad():
            distances.append(float(feddf.divergence(teacher, feddf.logits_of(s.net.eval(), images))))
        feddf.distil(s, images, teacher)
    assert distances[1] < distances[0] / 2
    assert all(torch.equal(value, buffers[name]) for name, value in s.net.named_buffers())


def test_site_sends_the_logits_of_its_trained_network_in_evaluation_mode() -> None:
    """A turn that moves weights and statistics; the reply has the logits by the moved network's own statistics."""
    method = {"name": "feddf", "network": {"width": 8}, **FEW_FACES}
    content = {"method": method, "input": {"size": 32}, "training": {"rounds": 1}}
    recipe, compute = recipe_of(content | {"data": {"sites": {"A": "nowhere"}}}), resolve_compute("cpu", "fp32")
    site = SimpleNamespace(recipe=recipe, net=resnet18.network(recipe), compute=compute, autocast=compute.autocast)
    net = copy.deepcopy(site.net)

    def move(net: nn.Module) -> None:
        with torch.no_grad():
            for value in net.state_dict().values():
                value.copy_(1.1 * value + 0.1)

    def turn(site: Any, message: Message) -> Message:
        move(site.net)
        return {"loss": torch.tensor(1.0)}

    reply = feddf.with_logits(turn)(site, {})  # type: ignore[arg-type]
    assert float(reply["loss"]) == 1.0
    move(net)
    faces = torch.from_numpy(feddf.render(FEW_FACES["faces"], 32)).permute(0, 3, 1, 2)
    with torch.no_grad():
        images = prepare(faces, recipe.input.colour, torch.device("cpu"))
        expected = torch.cat([net.eval()["model"](image[None])[0] for image in images])
    torch.testing.assert_close(reply["logits"], expected, rtol=1e-4, atol=1e-5)


def test_declared_number_of_logits_is_that_of_the_rendered_faces(sets: Sets) -> None:
    recipe = recipe_of(tree(sets, "feddf"))
    faces = feddf.render(FEW_FACES["faces"], 32)
    assert faces.shape == (*feddf.shape_of_logits(recipe), 32, 32, 3)
    assert len(np.unique(faces.reshape(len(faces), -1), axis=0)) == len(faces)


@pytest.mark.parametrize("faces", ["", "nowhere", "M subjects=none", "M size=64", "A generation=2 subjects=2"])
def test_text_that_describes_no_faces_is_refused(faces: str, sets: Sets) -> None:
    with refused("recipe.method.faces"):
        feddf.check(recipe_of(tree(sets, "feddf", method__faces=faces)))
