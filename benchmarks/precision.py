"""What bf16 is worth: one ResNet-18 step in ``precision: auto`` against fp32, where the processor has AMX or CUDA."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.measurement import Measurement
from fedvisage.nn.compute import LAYOUT, Compute, resolve_compute
from fedvisage.nn.fedgpad import Encoder
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.resnet import ResNet18, resnet18

COLOUR = "rgb+hsv"


def measure(cache: Path, repeats: int = 5) -> Measurement:
    """Time a forward and backward pass of 16 images of 256×256×6 in both formats."""
    del cache
    chosen = resolve_compute("auto", "auto")
    device = chosen.device
    single = min(_step(Compute(device, half=False)) for _ in range(repeats))
    half = min(_step(Compute(device, half=True)) for _ in range(repeats))
    known = chosen.half
    ratio = single / half
    note = "" if known else "; this processor has no AMX, so precision: auto stays with fp32"
    return Measurement(
        "bf16 against fp32, ResNet-18, 256 px, batch 16 (speed)",
        "≥ 2 with AMX",
        f"{ratio:.2f}{note}",
        ratio >= 2 if known else None,
    )


def measure_layout(cache: Path, repeats: int = 5) -> Measurement:
    """Time steps of both PAD networks in fp32 with the channels last in memory, as the house has them, and first."""
    del cache
    ratios = []
    for name, make in (("ResNet-18", _resnet), ("FedGPAD's encoder at width 8", lambda: Encoder(CHANNELS[COLOUR], 8))):
        first, last = (float("inf"),) * 2
        for _ in range(repeats):
            first = min(first, _plain_step(make(), torch.contiguous_format))
            last = min(last, _plain_step(make(), LAYOUT))
        ratios.append((name, first / last))
    return Measurement(
        "channels last against channels first, fp32, 96 px, batch 16 (speed)",
        "≥ 1",
        ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios),
        min(ratio for _, ratio in ratios) >= 1,
    )


def _resnet() -> nn.Module:
    return resnet18(ResNet18(), COLOUR)


def _plain_step(net: nn.Module, layout: torch.memory_format) -> float:
    """Time an fp32 step of a network in a layout."""
    net.to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.rand(16, CHANNELS[COLOUR], 96, 96).contiguous(memory_format=layout)
    return _seconds(net, images, Compute(torch.device("cpu"), half=False))


def _step(compute: Compute) -> float:
    """Time a step of the house's ResNet-18 at paper size."""
    net = _resnet()
    compute.place(net)
    return _seconds(net, torch.rand(16, 6, 256, 256, device=compute.device).contiguous(memory_format=LAYOUT), compute)


def _seconds(net: nn.Module, images: Tensor, compute: Compute) -> float:
    """Time the second of two forward and backward passes."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        with compute.autocast():
            output = net(images)
        loss = (output[0] if isinstance(output, tuple) else output).float().square().mean()
        loss.backward()
        float(loss.detach())
        seconds.append(time.perf_counter() - began)
    return seconds[-1]
