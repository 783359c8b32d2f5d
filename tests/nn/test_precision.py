"""Number formats of a processor, and convolutions whose weight gradient crashes in oneDNN with the channels last."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from fedvisage.nn.adapters import LowRankConvolution
from fedvisage.nn.compute import Compute, has_gradient_overrun, resolve_compute

CPU = torch.device("cpu")
PASSES = """
import sys
import torch
from tests.nn.test_precision import worst_error
print(max(worst_error(*map(int, shape.split(","))) for shape in sys.argv[1:]))
"""


def worst_error(inputs: int, outputs: int, side: int, adapted: int) -> float:
    """Return how far gradients of a placed network are from the definition of a strided 1×1 convolution in float64."""
    torch.manual_seed(0)
    layer = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
    images = torch.rand(16, inputs, side, side)
    exact = layer.weight.detach().double()[:, :, 0, 0].requires_grad_()
    trained: Tensor = layer.weight
    compute = Compute(torch.device("cpu"), half=False)
    if adapted:
        piece = LowRankConvolution(layer, outputs, 1.0)
        with torch.no_grad():
            piece.a.copy_(layer.weight)
            piece.b.copy_(outputs * torch.eye(outputs))
        nn.init.zeros_(layer.weight).requires_grad_(False)
        layer.register_forward_hook(piece.add_to_output)
        compute.place(piece)
        trained = piece.a
    compute.place(layer)
    for _ in range(3):
        trained.grad = None
        layer(images.contiguous(memory_format=compute.layout)).square().mean().backward()
    assert trained.grad is not None
    loss = torch.einsum("oi,bihw->bohw", exact, images.double()[:, :, ::2, ::2]).square().mean()
    (expected,) = torch.autograd.grad(loss, exact)
    return float((trained.grad[:, :, 0, 0].double() - expected).abs().max() / expected.abs().max())


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["DEFAULT", "AVX2"])
@pytest.mark.parametrize("adapted", [0, 1])
def test_narrow_strided_convolutions_have_their_gradient_on_every_processor(kernels: str, adapted: int) -> None:
    """In a child process: without the rule it dies of a segmentation fault."""
    shapes = [f"{inputs},8,{side},{adapted}" for inputs in (3, 4, 8, 15, 16) for side in (24, 48, 96)]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": kernels, "OMP_NUM_THREADS": "1"}
    child = subprocess.run(
        [sys.executable, "-c", PASSES, *shapes], capture_output=True, text=True, env=environment, check=False
    )
    assert child.returncode == 0, child.stderr
    assert float(child.stdout) < 1e-5


def test_only_layers_that_would_crash_are_laid_out_differently() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 16, 1, stride=2), nn.Conv2d(16, 8, 1, stride=2))
    compute = Compute(torch.device("cpu"), half=False)
    for _ in range(2):  # placing a network again changes nothing
        compute.place(net)
    convolutions = [layer for layer in net if isinstance(layer, nn.Conv2d)]
    assert [has_gradient_overrun(layer.weight, layer.stride) for layer in convolutions] == [False, True, False]
    assert [len(layer._forward_pre_hooks) for layer in net] == [0, 1, 0]
    for placed in (net, copy.deepcopy(net)):
        images = torch.rand(2, 3, 64, 64).contiguous(memory_format=compute.layout)
        within = placed[0](images)
        assert within.is_contiguous(memory_format=torch.channels_last)
        assert placed[1](within).is_contiguous()


def test_auto_is_bf16_on_a_processor_with_amx_but_not_with_avx512_bf16_alone() -> None:
    assert resolve_compute("cpu", "auto").half == torch.cpu._is_amx_tile_supported()


@pytest.mark.parametrize(("precision", "half"), [("bf16", True), ("fp32", False)])
def test_a_recipe_may_choose_either_format_on_every_processor(precision: str, half: bool) -> None:
    compute = resolve_compute("cpu", precision)
    assert (compute.half, compute.precision) == (half, precision)


def test_running_statistics_accumulate_in_float32_in_bf16_training() -> None:
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(4, momentum=1.0).train()
    images = (100 + torch.rand(16, 4, 32, 32)).to(torch.bfloat16)  # sums of these in bf16 would be far off
    with Compute(CPU, half=True).autocast():
        layer(images)
    assert layer.running_mean is not None
    assert layer.running_mean.dtype == torch.float32
    torch.testing.assert_close(layer.running_mean.double(), images.double().mean((0, 2, 3)), rtol=1e-5, atol=0)
