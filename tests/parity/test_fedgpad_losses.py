"""FedGPAD's Eq. 8 against Eq. 4 to 7 written out, values and the gradients of all five networks.

The networks compute in float64; the logits and the inputs of the losses are rounded to float32, as in training.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.toy import recipe_of, tree
from torch import Tensor, nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.federation.site import Batch
from fedvisage.methods.pad import fedgpad

DRAWS = np.random.default_rng(0)
IMAGES = torch.from_numpy(DRAWS.uniform(size=(5, 6, 32, 32)))
DEPTH = torch.from_numpy(DRAWS.uniform(size=(5, 32, 32)))
LABELS = torch.tensor([1.0, 0, 0, 1, 0], dtype=torch.float64)
BATCH = Batch(IMAGES, LABELS, DEPTH, np.array(["bonafide", "print", "replay", "bonafide", "print"]))


def printed_loss(net: nn.ModuleDict, weights: tuple[float, float, float]) -> Tensor:
    """The sums of Eq. 4 (with its minus sign) to Eq. 7."""
    shared, estimated, specific, rebuilt, live = outputs(net)
    cross_entropy = -(LABELS * live.log() + (1 - LABELS) * (1 - live).log()).sum()
    depth, reconstruction = ((estimated - DEPTH) ** 2).sum(), ((IMAGES - rebuilt) ** 2).sum()
    product = torch.einsum("bi,bj->ij", shared, specific)
    return total(cross_entropy, weights, depth, reconstruction, (product**2).sum())


def printed_loss_per_image(net: nn.ModuleDict, weights: tuple[float, float, float]) -> Tensor:
    """The sums of Eq. 4 to 6, and Eq. 7 as printed: the squared product of each image's two features."""
    shared, _, specific, *_ = outputs(net)
    product = torch.einsum("bi,bi->b", shared, specific)
    return printed_loss(net, (*weights[:2], 0)) + weights[2] * (product**2).sum()


def mean(net: nn.ModuleDict, weights: tuple[float, float, float]) -> Tensor:
    """The means of the released code; Eq. 7 looks at directions, and lengths are constants."""
    shared, estimated, specific, rebuilt, live = outputs(net)
    cross_entropy = -(LABELS * live.log() + (1 - LABELS) * (1 - live).log()).sum() / 5
    depth = ((estimated - DEPTH) ** 2).sum() / DEPTH.numel()
    reconstruction = ((IMAGES - rebuilt) ** 2).sum() / IMAGES.numel()
    one, other = (z / ((z.detach() ** 2).sum(1, keepdim=True).sqrt() + 1e-6) for z in (shared, specific))
    product = torch.einsum("bi,bj->ij", one, other)
    return total(cross_entropy, weights, depth, reconstruction, (product**2).sum() / product.numel())


def outputs(net: nn.ModuleDict) -> tuple[Tensor, ...]:
    shared, pooled = net["encoder"](IMAGES)
    specific, _ = net["specific"](IMAGES)
    live = torch.sigmoid(net["classifier"](shared)[:, 0])
    return shared, net["depth"](pooled), specific, net["decoder"](shared + specific), live


def total(cross_entropy: Tensor, weights: tuple[float, float, float], *terms: Tensor) -> Tensor:
    return cross_entropy + sum(weight * term for weight, term in zip(weights, terms, strict=True))


def value_and_gradients(loss: Tensor, net: nn.ModuleDict) -> tuple[float, dict[str, Tensor]]:
    net.zero_grad()
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("method", "equations", "weights"),
    [
        ({}, mean, (10, 0.1, 1)),
        ({"losses": "printed"}, printed_loss, (1, 1, 1)),
        ({"losses": "printed", "difference": "image"}, printed_loss_per_image, (1, 1, 1)),
        ({"losses": "printed", "difference": "batch"}, printed_loss, (1, 1, 1)),
        ({"weights": {"depth": 3, "reconstruction": 5, "difference": 70}}, mean, (3, 5, 70)),
        ({"losses": "printed", "weights": {"depth": 0.5, "difference": 7}}, printed_loss, (0.5, 1, 7)),
        ({"weights": {"reconstruction": 0, "difference": 0}}, mean, (10, 0, 0)),
    ],
)
def test_equation_8_and_its_gradients(method: dict[str, Any], equations: Any, weights: tuple[float, ...]) -> None:
    content = tree(dict.fromkeys("ABCU", "") | {"U": "other"}, "fedgpad")  # type: ignore[arg-type]
    content["method"] |= method
    recipe = recipe_of(content)
    with seed_global_rng(0, "initial weights"):
        net = fedgpad.network(recipe).double()
    site = SimpleNamespace(name="A", recipe=recipe, net=net)
    value, gradients = value_and_gradients(fedgpad.loss(site, BATCH), net)  # type: ignore[arg-type]
    expected, slopes = value_and_gradients(equations(net, weights), net)
    assert value == pytest.approx(expected, rel=1e-6)
    for name, slope in slopes.items():
        actual = gradients.get(name, torch.zeros_like(slope))  # a term of weight zero is not computed
        np.testing.assert_allclose(actual, slope, rtol=1e-4, atol=1e-5 * float(slope.abs().max()), err_msg=name)
