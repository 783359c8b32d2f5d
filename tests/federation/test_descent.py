"""A batch in parts has the gradient of the whole batch; without enough memory the error names a size that fits."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.refusals import refused
from tests.toy import recipe_of
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.data.batches import View
from fedvisage.federation.site import Batch, Site
from fedvisage.nn.compute import resolve_compute

COUNT = 7


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(COUNT, 3, 8, 8, generator=generator).contiguous(memory_format=torch.channels_last)
    labels, people = torch.arange(COUNT).remainder(2).float(), torch.arange(COUNT)
    species = np.array([f"kind {number}" for number in range(COUNT)])
    return Batch(images, labels, None, species, people, np.arange(COUNT), None, people)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))


def site(**training: object) -> Site:
    """Return a site without images, whose batches the test makes."""
    content = {"method": "fedpad", "data": {"sites": {"A": "nowhere"}}, "training": {"rounds": 1, **training}}
    return Site("A", recipe_of(content), 1, View(()), nn.ModuleDict(), resolve_compute("cpu", "fp32"), {}, {})


def loss_of(net: nn.Module) -> Callable[[Batch], Tensor]:
    return lambda part: binary_cross_entropy_with_logits(net(part.images).squeeze(1), part.labels)


def train_step(micro_batch: int | None) -> tuple[list[Tensor], Tensor]:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    trained = site(micro_batch=micro_batch, optimizer={"clip_norm": 0.01})
    trained.learn(optimizer, loss_of(net), batch())
    return [parameter.detach() for parameter in net.parameters()], trained.losses[-1]


@pytest.mark.parametrize("micro_batch", [2, 3, 6])
def test_parts_step_like_the_whole_batch(micro_batch: int) -> None:
    (whole, one), (parts, other) = train_step(None), train_step(micro_batch)
    assert torch.allclose(one, other)
    for expected, actual in zip(whole, parts, strict=True):
        assert torch.allclose(expected, actual, atol=1e-7)


def test_micro_batch_limit_above_the_batch_changes_no_byte() -> None:
    assert all(torch.equal(one, other) for one, other in zip(train_step(None)[0], train_step(COUNT)[0], strict=True))


def test_parts_are_of_similar_size_and_keep_all_fields() -> None:
    whole, parts = batch(), batch().parts(3)
    assert [len(part.labels) for part in parts] == [3, 2, 2]
    assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
    assert all(part.images.is_contiguous(memory_format=torch.channels_last) for part in parts)
    assert [one for part in parts for one in part.species.tolist()] == whole.species.tolist()
    assert torch.cat([part.class_numbers for part in parts]).tolist() == list(range(COUNT))


def narrow(net: nn.Module, most: int) -> Callable[[Batch], Tensor]:
    """Return a loss that runs out of memory beyond ``most`` images, with a device's message."""
    inner = loss_of(net)

    def loss(part: Batch) -> Tensor:
        if len(part.labels) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")
        return inner(part)

    return loss


@pytest.mark.long
@pytest.mark.parametrize(
    ("most", "keyword"), [(3, "training.batch to 3"), (6, "training.batch to 3"), (1, "not even 2")]
)
def test_batch_too_large_for_memory_names_a_size_that_fits(most: int, keyword: str) -> None:
    net = network()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with refused("recipe.training.batch", keyword, "CUDA out of memory"):
        site().learn(optimizer, narrow(net, most), batch())
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True)), "no step"


def test_parts_that_fit_are_enough() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    trained = site(micro_batch=3)
    trained.learn(optimizer, narrow(net, 3), batch())
    assert torch.isfinite(trained.losses[-1])


def test_other_errors_of_a_step_are_not_changed() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with pytest.raises(RuntimeError, match="must match"):
        site().learn(optimizer, lambda part: (net(part.images) + torch.zeros(3, 5)).sum(), batch())
