"""The measurements behind the rule of ``runtime.layout: auto``: steps of networks in each layout and number format.

    OMP_NUM_THREADS=1 python -m benchmarks.layouts [--repeats 5]

prints a table. A step is a forward and a backward pass of one network, in one thread. Each instruction set has a
process of its own; AVX2 is emulated by the environment variables of the libraries, and AVX-512 is left out on a
processor without it. The settings are measured in turn, so that other programs disturb all of them alike. A figure is
the median of the ratios of processor times: above 1, the second setting in the name of its column is faster. The last
column says what the rule chooses.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.measurement import in_turn, processor_seconds
from fedvisage.nn.compute import LAYOUTS, Compute, Layout
from fedvisage.nn.face_networks import IResNet, MobileFaceNet, Sphere, iresnet, mobilefacenet, sphere
from fedvisage.nn.fedgpad import Encoder
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.nn.vit import truncated_resnet
from fedvisage.recipe import Input
from fedvisage.runs.layout import choose_layout, describe_network

CPU = torch.device("cpu")
PROCESSORS = {
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "AVX512": {},
}
"""The environment of a process by instruction set, under PyTorch's names."""
RATIOS = {
    "first / last, fp32": (("first", False), ("last", False)),
    "first / last, bf16": (("first", True), ("last", True)),
    "fp32 / bf16, last": (("last", False), ("last", True)),
}


def _transformer_block() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return cast(nn.Module, VisionTransformer(img_size=224, embed_dim=768, depth=1, num_heads=12, num_classes=0))


def _resnet(width: int) -> nn.Module:
    return resnet18(ResNet18(width=width), "rgb+hsv")


Shape = tuple[int, int, int]
NETWORKS: tuple[tuple[str, Callable[[], nn.Module], Shape], ...] = (
    ("ResNet-18, width 8", partial(_resnet, 8), (16, 6, 96)),
    ("ResNet-18, width 32", partial(_resnet, 32), (8, 6, 96)),
    ("ResNet-18, width 64", partial(_resnet, 64), (2, 6, 256)),
    ("FedGPAD's encoder, width 8", partial(Encoder, 6, 8), (8, 6, 96)),
    ("FedGPAD's encoder, width 8", partial(Encoder, 6, 8), (1, 6, 256)),
    ("FedGPAD's encoder, width 16", partial(Encoder, 6, 16), (4, 6, 96)),
    ("FedGPAD's encoder, width 16", partial(Encoder, 6, 16), (1, 6, 160)),
    ("FedGPAD's encoder, width 16", partial(Encoder, 6, 16), (1, 6, 256)),
    ("FedGPAD's encoder, width 24", partial(Encoder, 6, 24), (2, 6, 96)),
    ("FedGPAD's encoder, width 32", partial(Encoder, 6, 32), (2, 6, 96)),
    ("FedGPAD's encoder, width 64", partial(Encoder, 6, 64), (1, 6, 96)),
    ("FedGPAD's encoder, width 64", partial(Encoder, 6, 64), (1, 6, 256)),
    ("Sphere20, width 16", lambda: sphere(Sphere(depth=20, width=16, embedding=128), 48), (16, 3, 48)),
    ("Sphere20, width 64", lambda: sphere(Sphere(depth=20), 112), (4, 3, 112)),
    ("iResNet-18, width 16", lambda: iresnet(IResNet(depth=18, width=16, embedding=128), 48), (16, 3, 48)),
    ("iResNet-18, width 64", lambda: iresnet(IResNet(depth=18), 112), (2, 3, 112)),
    ("MobileFaceNet, width 64", lambda: mobilefacenet(MobileFaceNet(), 112), (4, 3, 112)),
    ("R50 tokenizer, stem 16", partial(truncated_resnet, 16, (1, 1, 2), 3), (8, 3, 96)),
    ("R50 tokenizer, stem 64", partial(truncated_resnet, 64, (3, 4, 9), 3), (1, 3, 224)),
    ("ViT-B/16, one block", _transformer_block, (4, 3, 224)),
)


def main() -> None:
    """Measure in a process per instruction set, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layouts")
    parser.add_argument("--repeats", type=int, default=5, help="measurements per network and setting")
    parser.add_argument("--here", action="store_true", help="measure in this process and print lines of JSON")
    options = parser.parse_args()
    if options.here:
        measure_networks(options.repeats)
        return

    columns = ("network", "batch × side", *RATIOS, "rule")
    for instructions, limits in PROCESSORS.items():
        if instructions != "AVX2" and torch.backends.cpu.get_cpu_capability() != instructions:
            continue
        words = [sys.executable, "-m", "benchmarks.layouts", "--here", "--repeats", str(options.repeats)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **limits}
        child = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        print(f"\n{instructions}\n\n| {' | '.join(columns)} |\n|---|---|---:|---:|---:|---|")
        for line in child.stdout.splitlines():
            row = json.loads(line)
            print(f"| {' | '.join(row.get(column, '–') for column in columns)} |")


def measure_networks(repeats: int) -> None:
    """Print one line of JSON per network with this process's instruction set."""
    torch.set_num_threads(1)
    for name, build, shape in NETWORKS:
        torch.manual_seed(0)
        row = {"network": name, "batch × side": f"{shape[0]} × {shape[2]}"}
        print(json.dumps(row | _measure(build().train(), shape, repeats), ensure_ascii=False), flush=True)


def _measure(net: nn.Module, shape: Shape, repeats: int) -> dict[str, str]:
    """Return the ratios of a network, and the rule's choice in each number format."""
    instructions = torch.backends.cpu.get_cpu_capability()
    has_bf16 = instructions != "AVX2" and torch.cpu._is_avx512_bf16_supported()
    formats = (False, True) if has_bf16 else (False,)
    settings = [(layout, half) for half in formats for layout in LAYOUTS]
    steps = [_step(net, shape, layout, half) for layout, half in settings]
    for step in steps:
        step()  # the first step prepares kernels
    seconds = dict(zip(settings, in_turn(repeats, *steps), strict=True))
    ratios = {
        name: f"{median(a / b for a, b in zip(seconds[over], seconds[under], strict=True)):.2f}"  # type: ignore[index]
        for name, (over, under) in RATIOS.items()
        if over in seconds and under in seconds
    }
    image = Input(size=shape[2], colour="rgb" if shape[1] == 3 else "rgb+hsv")
    traits = describe_network(nn.ModuleDict({"net": net}), image)
    chosen = {
        compute.precision: choose_layout(compute, instructions, lambda: traits)
        for compute in (Compute(CPU, half) for half in formats)
    }
    return ratios | {"rule": ", ".join(f"{layout} in {number_format}" for number_format, layout in chosen.items())}


def _step(net: nn.Module, shape: Shape, layout: Layout, half: bool) -> Callable[[], float]:
    """Return a function that takes a step in a setting and returns its processor time."""
    compute = Compute(CPU, half, LAYOUTS[layout])
    count, channels, side = shape
    images = torch.rand(count, channels, side, side).contiguous(memory_format=compute.layout)

    def step() -> None:
        with compute.autocast():
            output = net(images)
        loss: Tensor = (output[0] if isinstance(output, tuple) else output).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]

    def timed() -> float:
        net.zero_grad(set_to_none=True)
        compute.place(net)
        return processor_seconds(step)

    return timed


if __name__ == "__main__":
    main()
