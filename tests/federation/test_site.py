"""The images of a site's batches are a function of seed, site and round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.toy import Sets, open_run_data, recipe_of, tree
from torch import Tensor, nn

from fedvisage.federation.site import Batch, Site
from fedvisage.nn.compute import resolve_compute

Make = Callable[..., Site]


@pytest.fixture
def site(sets: Sets, tmp_path: Path) -> Make:
    def make(number: int = 1, name: str = "A", **changes: Any) -> Site:
        content = tree(sets, **{"training__augment": {}, **changes})
        data = open_run_data(content, tmp_path).sites[name].train
        return Site(name, recipe_of(content), number, data, nn.ModuleDict(), resolve_compute("cpu", "fp32"), {}, {})

    return make


def join_images(batches: list[Batch]) -> Tensor:
    return torch.cat([batch.images for batch in batches])


def test_epochs_of_a_round_show_every_image_equally_often(site: Make) -> None:
    seen = join_images(list(site(training__local={"epochs": 2}).batches()))
    distinct, counts = np.unique(seen.flatten(1).numpy(), axis=0, return_counts=True)
    assert len(distinct) == 24
    assert set(counts.tolist()) == {2}


@pytest.mark.long
def test_fixed_number_of_batches_continues_from_the_last_round(site: Make) -> None:
    rounds = [list(site(number).batches()) for number in (1, 2, 3)]
    assert [len(batches) for batches in rounds] == [2, 2, 2]
    first_epoch = join_images([batch for batches in rounds for batch in batches][:3])
    assert len(np.unique(first_epoch.flatten(1).numpy(), axis=0)) == 24


def test_single_batches_are_those_of_the_round(site: Make) -> None:
    whole, single = site(2), site(2)
    for batch in whole.batches():
        assert torch.equal(batch.images, single.next_batch().images)


def test_plain_batches_are_the_stored_images_in_order_without_augmentation(site: Make) -> None:
    augmented = site(2, training__augment={"flip": 1.0, "brightness": 0.5}, evaluation__batch=10, input__colour="rgb")
    batches = list(augmented.plain_batches(augmented.data))
    stored = augmented.data.batch(np.arange(24))
    assert [len(batch.labels) for batch in batches] == [10, 10, 4]
    torch.testing.assert_close(join_images(batches), stored.images.float() / 255)
    assert torch.equal(torch.cat([batch.labels for batch in batches]), stored.labels)


@pytest.mark.parametrize("local", [{"epochs": 1}, {"batches": 2}])
def test_a_single_image_gives_no_batch(site: Make, local: dict[str, int]) -> None:
    alone = site(1, training__local=local)
    assert list(alone.batches_of(alone.data.subset(np.array([0])))) == []


def test_shuffling_differs_by_site_epoch_and_seed(site: Make) -> None:
    epoch = {"training__local": {"epochs": 1}}
    sites = [site(1, **epoch), site(2, **epoch), site(1, runtime__seed=1, **epoch)]
    orders = {tuple(join_images(list(one.batches())).sum(dim=(1, 2, 3)).tolist()) for one in sites}
    assert len(orders) == 3


def test_a_site_has_its_own_batch_size(site: Make) -> None:
    changes = {"training__batch": {"default": 8, "per_site": {"B": 5}}, "training__local": {"epochs": 1}}
    assert [len(batch.labels) for batch in site(1, "A", **changes).batches()] == [8, 8, 8]
    assert [len(batch.labels) for batch in site(1, "B", **changes).batches()] == [5, 5, 5, 5, 4]


def test_balanced_batches_have_equal_classes(site: Make) -> None:
    for batch in site(1, training__sampling="balanced", training__local={"epochs": 2}).batches():
        assert batch.labels.sum() == 4
