"""The mean of uploads: right also for counts, exact for a single site, and the same bytes for the same order."""

import numpy as np
import torch

from fedvisage.federation.protections.combine import Mean
from fedvisage.federation.wire.message import Message


def mean_of(*uploads: tuple[Message, float]) -> Message:
    """Return the mean of uploads with their weights."""
    mean = Mean()
    for upload, weight in uploads:
        mean.add(upload, weight)
    return mean.result()


def test_counts_are_rounded_and_keep_their_type() -> None:
    uploads = ({"seen": torch.tensor(n), "weights": torch.tensor([float(n)])} for n in (3, 4, 4))
    result = mean_of(*((upload, 1.0) for upload in uploads))
    assert result["seen"].dtype == torch.int64
    assert int(result["seen"]) == 4
    assert result["weights"].dtype == torch.float32


def test_mean_of_one_site_is_its_upload() -> None:
    draws = np.random.default_rng(0)
    upload = {"w": torch.from_numpy(draws.normal(size=1000).astype(np.float32)), "n": torch.tensor(2**40 + 1)}
    for weight in (1.0, 37.0, 12_345.0):
        result = mean_of((upload, weight))
        assert all(torch.equal(result[name], value) for name, value in upload.items())


def test_sites_count_by_their_weights() -> None:
    """(1·2 + 3·5 + 6·7) / 10."""
    result = mean_of(
        *(({"w": torch.tensor([value])}, weight) for weight, value in ((1.0, 2.0), (3.0, 5.0), (6.0, 7.0)))
    )
    assert result["w"].item() == np.float32(5.9)


def test_adding_does_not_change_the_uploads() -> None:
    first, second = torch.ones(3, dtype=torch.float64), torch.full((3,), 3.0, dtype=torch.float64)
    result = mean_of(({"w": first}, 1.0), ({"w": second}, 1.0))
    assert first.tolist() == [1.0] * 3
    assert second.tolist() == [3.0] * 3
    assert result["w"].tolist() == [2.0] * 3


def test_bfloat16_is_summed_in_full_precision() -> None:
    upload = {"w": torch.tensor([1.0 + 2**-7], dtype=torch.bfloat16)}
    assert mean_of(*[(upload, 1.0)] * 1000)["w"].item() == 1.0 + 2**-7
