"""What bf16 is worth: one ResNet-18 step in ``precision: auto`` against fp32, where the processor has AMX or CUDA."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks.measurement import Measurement
from fedvisage.nn.precision import LAYOUT, Compute, choose
from fedvisage.nn.resnet import ResNet18, resnet18


def measure(cache: Path, repeats: int = 5) -> Measurement:
    """Time a forward and backward pass of 16 images of 256×256×6 in both formats."""
    del cache
    chosen = choose("auto", "auto")
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


def _step(compute: Compute) -> float:
    net = resnet18(ResNet18(), "rgb+hsv")
    compute.place(net)
    images = torch.rand(16, 6, 256, 256, device=compute.device).contiguous(memory_format=LAYOUT)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        with compute.autocast():
            loss = net(images).float().square().mean()
        loss.backward()
        float(loss.detach())
        seconds.append(time.perf_counter() - began)
    return seconds[-1]
