"""BatchNorm layers: their statistics, and networks with separated layers."""

import copy
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from tests.nn.images import random_images
from torch import Tensor, nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.batchnorm import (
    StatisticsMeter,
    batch_statistics,
    batchnorms,
    call_counts,
    collect_statistics,
    extract_norms,
    input_statistics,
    moments,
    pool_statistics,
)
from fedvisage.nn.resnet import ResNet18, resnet18


@pytest.fixture
def net() -> nn.Sequential:
    """Two layers of BatchNorm with statistics of their own."""
    layers = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 16, 4), nn.BatchNorm1d(4)).double()
    generator = torch.Generator().manual_seed(0)
    for layer in batchnorms(layers):
        layer.get_buffer("running_mean").normal_(generator=generator)
        layer.get_buffer("running_var").uniform_(0.5, 2, generator=generator)
    return layers.eval()


@pytest.fixture
def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 3, 4, 4, generator=generator).double() * 2 + 1 for _ in range(3)]


def mean_bound(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return how far a mean of n float32 values may be off by rounding: n times 2^-24 of the mean absolute value.

    Two more roundings are those of the values themselves and of the division.
    """
    return np.asarray((values.shape[axis] + 2) * 2.0**-24 * np.abs(values).mean(axis))


def variance_bound(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return how far a variance may be off: it is a mean of squares, and each square has twice the value's error."""
    return 3 * mean_bound(np.square(values), axis)


def buffers(net: nn.Module) -> list[list[float]]:
    return [buffer.flatten().tolist() for buffer in net.buffers()]


def inputs(net: nn.Sequential, batch: Tensor) -> Iterator[Tensor]:
    """Yield what each BatchNorm layer gets in evaluation mode."""
    yield batch
    with torch.no_grad():
        yield net[2](net[1](net[0](batch)))


def test_batch_statistics_equal_those_of_training_and_keep_the_stored_ones(
    net: nn.Sequential, batches: list[Tensor]
) -> None:
    before = buffers(net)
    with torch.no_grad(), batch_statistics(net):
        actual = net(batches[0])
    assert buffers(net) == before
    assert not any(module.training for module in net.modules())
    with torch.no_grad():
        assert torch.equal(net.train()(batches[0]), actual)


def gaussians(net: nn.Sequential, batch: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return mean and standard deviation by channel of what each BatchNorm layer gets."""
    flat = [np.moveaxis(values.numpy(), 1, 0).reshape(values.shape[1], -1) for values in inputs(net, batch)]
    return [(channels.mean(1), channels.std(1)) for channels in flat]


def test_shift_and_scatter_are_distances_of_gaussians_in_units_of_the_stored_variance(
    net: nn.Sequential, batches: list[Tensor]
) -> None:
    with torch.no_grad(), StatisticsMeter(net) as meter:
        for batch in batches:
            net(batch)
    seen = [gaussians(net, batch) for batch in batches]
    shifts, scatters = [], []
    for number, layer in enumerate(batchnorms(net)):
        means, deviations = (np.stack([passes[number][which] for passes in seen]) for which in (0, 1))
        stored, variance = layer.get_buffer("running_mean").numpy(), layer.get_buffer("running_var").numpy()
        unit = variance + layer.eps
        shifts.append(np.mean(((means - stored) ** 2 + (deviations - np.sqrt(variance)) ** 2) / unit))
        middle = np.sqrt(np.mean(deviations**2, axis=0))
        scatters.append(np.mean(((means - means.mean(0)) ** 2 + (deviations - middle) ** 2) / unit))
    assert meter.shift == pytest.approx(np.mean(shifts), rel=1e-5)
    assert meter.scatter == pytest.approx(np.mean(scatters), rel=1e-4)


def test_closed_meter_measures_nothing_and_a_net_without_batchnorm_has_no_distances(
    net: nn.Sequential, batches: list[Tensor]
) -> None:
    with torch.no_grad(), StatisticsMeter(net) as meter:
        net(batches[0])
    before = meter.shift
    net(batches[1])
    assert meter.shift == before
    assert meter.scatter == 0
    with StatisticsMeter(nn.Linear(2, 2)) as meter:
        pass
    assert meter.shift is None
    assert meter.scatter is None


def test_collected_statistics_mix_the_mean_over_batches_with_the_stored_ones(
    net: nn.Sequential, batches: list[Tensor]
) -> None:
    first = batchnorms(net)[0]
    stored = [first.get_buffer(name) for name in ("running_mean", "running_var")]
    mean, variance = (values.numpy().copy() for values in stored)
    with torch.no_grad(), collect_statistics(net, keep=0.25):
        for batch in batches:
            net(batch)
    channels = [np.moveaxis(batch.numpy(), 1, 0).reshape(3, -1) for batch in batches]
    means = np.mean([one.mean(1) for one in channels], axis=0)
    variances = np.mean([one.var(1, ddof=1) for one in channels], axis=0)
    np.testing.assert_allclose(stored[0].numpy(), 0.25 * mean + 0.75 * means, rtol=1e-12)
    np.testing.assert_allclose(stored[1].numpy(), 0.25 * variance + 0.75 * variances, rtol=1e-12)
    assert first.momentum == 0.1
    assert not first.training


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6, 7), (1, 3), (1, 3, 2, 2)])
def test_moments_are_those_of_a_population_however_channels_lie_in_memory(shape: tuple[int, ...]) -> None:
    values = 3 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(2))
    channels = np.moveaxis(values.double().numpy(), 1, 0).reshape(shape[1], -1)
    layouts = [values] if len(shape) < 4 else [values, values.contiguous(memory_format=torch.channels_last)]
    for given in layouts:
        mean, variance = moments(given)
        assert (abs(mean.numpy() - channels.mean(1)) <= mean_bound(channels, 1)).all()
        assert (abs(variance.numpy() - channels.var(1)) <= variance_bound(channels, 1)).all()


def test_layers_are_listed_in_order_of_execution_with_repeats() -> None:
    net = nn.ModuleDict({"last": nn.BatchNorm1d(2), "twice": nn.BatchNorm1d(2), "unused": nn.BatchNorm1d(2)}).eval()
    net["stateless"] = nn.BatchNorm1d(2, track_running_stats=False)
    images = torch.rand(3, 2)
    layers = call_counts(net, lambda: net["last"](net["twice"](net["twice"](net["stateless"](images)))))
    assert list(layers.items()) == [("twice", 2), ("last", 1)]
    assert all(not module._forward_pre_hooks for module in net.modules())


def test_layer_inputs_are_counted_over_all_batches_and_later_layers_are_skipped(
    net: nn.Sequential, batches: list[Tensor]
) -> None:
    batches = [batches[0], batches[1][:3], 2 * batches[2][:1]]
    reached: list[int] = []
    net[2].register_forward_hook(lambda *_: reached.append(2))
    net[3].register_forward_hook(lambda *_: reached.append(3))
    with torch.no_grad():
        seen = net[2](net[1](net[0](torch.cat(batches)))).numpy()
        reached.clear()
        actual = input_statistics(net[3], 1, [partial(net, one) for one in batches])
    assert reached == [2, 2, 2]
    assert (abs(actual.mean.numpy() - seen.mean(0)) <= mean_bound(seen)).all()
    assert (abs(actual.variance.numpy() - seen.var(0)) <= variance_bound(seen)).all()
    assert actual.weight == 12


def test_partial_statistics_combine_to_those_of_all_values() -> None:
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(size, 4, generator=generator).double() * size + size for size in (2, 5, 9)]
    nets = [nn.BatchNorm1d(4).eval() for _ in values]
    actual = pool_statistics(
        input_statistics(net, 1, [partial(net, one.float())]) for net, one in zip(nets, values, strict=True)
    )
    whole = torch.cat(values).float().double().numpy()
    assert (abs(actual.mean.numpy() - whole.mean(0)) <= mean_bound(whole)).all()
    assert (abs(actual.variance.numpy() - whole.var(0)) <= variance_bound(whole)).all()


# Networks with separated BatchNorm layers.


def resnet() -> nn.Module:
    with seed_global_rng(0, "initial weights"):
        return resnet18(ResNet18(width=8), "rgb")


def split_network() -> nn.ModuleDict:
    body, norms = extract_norms(resnet())
    return nn.ModuleDict({"body": body, "norms": norms})


def take_steps(net: nn.Module, forward: nn.Module) -> nn.Module:
    """Take two steps, so that weights and running statistics move, and switch to evaluation."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for seed in range(2):
        optimizer.zero_grad()
        forward(random_images(4, seed=seed)).square().mean().backward()
        optimizer.step()
    return net.eval()


def test_parts_train_and_evaluate_like_the_whole_network() -> None:
    whole, parts = resnet(), split_network()
    take_steps(whole, whole)
    take_steps(parts, parts["body"])
    assert torch.equal(parts["body"](random_images(4, seed=2)), whole(random_images(4, seed=2)))


def test_each_tensor_of_the_network_is_in_one_of_the_parts() -> None:
    whole, parts = resnet(), split_network()
    names = [name for name, module in whole.named_modules() if isinstance(module, nn.BatchNorm2d)]
    homes = {f"{name}.": f"norms.{number}." for number, name in enumerate(names)}
    expected = {}
    for key, value in whole.state_dict().items():
        layer, dot, tensor = key.rpartition(".")
        expected[homes.get(layer + dot, f"body.{layer}{dot}") + tensor] = value
    actual = parts.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_copy_of_both_parts_is_independent() -> None:
    parts = split_network()
    before = {name: value.clone() for name, value in parts.state_dict().items()}
    twin = copy.deepcopy(parts)
    take_steps(twin, twin["body"])
    assert all(torch.equal(value, before[name]) for name, value in parts.state_dict().items())
    assert not torch.equal(twin["body"](random_images(4, seed=2)), parts.eval()["body"](random_images(4, seed=2)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_both_parts_are_moved_together(dtype: torch.dtype) -> None:
    parts = split_network().to(dtype).eval()
    assert parts["body"](random_images(4, seed=0).to(dtype)).dtype == dtype


def test_evaluation_mode_reaches_the_separated_layers() -> None:
    parts = split_network().eval()
    before = {name: value.clone() for name, value in parts["norms"].state_dict().items()}
    parts["body"](random_images(4, seed=0))
    assert all(torch.equal(value, before[name]) for name, value in parts["norms"].state_dict().items())
