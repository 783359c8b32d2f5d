"""Rendering and reading: whether data keeps up with training."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from kornia.color import rgb_to_hsv
from kornia.enhance import adjust_hue
from torch import Generator, Tensor

from benchmarks.measurement import Measurement, in_turn, processor_seconds, rendered
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.nn.augment import augment
from fedvisage.nn.compute import LAYOUT, resolve_compute
from fedvisage.nn.inputs import as_float, network_input
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.recipe import Augment
from fedvisage.render.sets import parse_synthesis, synthesise


def measure_rendering(cache: Path) -> Measurement:
    """Render O, C, I and M at 128 px with two processes, counted from the first subject on, without their start."""
    del cache
    timed = [_render(domain) for domain in ("O", "C", "I", "M")]
    images, seconds = sum(count for count, _ in timed), sum(spent for _, spent in timed)
    rate = images / seconds
    return Measurement(
        "rendering at 128 px on two cores", "≥ 150 images/s", f"{rate:.0f} images/s ({images} images)", rate >= 150
    )


def _render(domain: str) -> tuple[int, float]:
    marks: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as out:
        synthesise(
            parse_synthesis(f"{domain} subjects=40 size=128"),
            Path(out) / "set",
            workers=2,
            progress=lambda done, _: marks.append((time.perf_counter(), done)),
        )
    return marks[-1][1] - marks[0][1], marks[-1][0] - marks[0][0]


def measure_reading(cache: Path) -> Measurement:
    """Read random batches of a prepared set and do to them what training does, against what a ResNet-18 step consumes.

    That is all but the network: floats, every augmentation of the demo's recipes, six channels.
    """
    view = View.of(PreparedSet.open(rendered(cache, "O", 24, 128)), "train")
    rng, count = np.random.default_rng(0), 32
    options, generator = Augment(flip=0.5, shift=0.05, brightness=0.1, contrast=0.1), torch.Generator().manual_seed(0)

    def read() -> Tensor:
        return view.batch(rng.choice(len(view), count, replace=False)).images

    def prepared() -> None:
        changed, _ = augment(as_float(read()), None, options, generator)
        network_input(changed, "rgb+hsv", LAYOUT)

    bare, whole = in_turn(20, lambda: processor_seconds(read), lambda: processor_seconds(prepared))
    reading, path = (count / median(seconds) for seconds in (bare, whole))
    compute = resolve_compute("cpu", "auto")
    net = resnet18(ResNet18(), "rgb+hsv")
    compute.place(net)
    images = torch.rand(32, 6, 128, 128).contiguous(memory_format=LAYOUT)

    def step() -> None:
        with compute.autocast():
            loss = net(images).float().square().mean()
        loss.backward()

    step()
    (seconds,) = in_turn(5, lambda: processor_seconds(step))
    training = len(images) / median(seconds)
    return Measurement(
        "reading a prepared set, with all that training does to an image, against training on it (images/s, 128 px)",
        "≥ 10",
        f"{path / training:.0f} ({path:.0f} / {training:.0f} images/s; reading alone {reading:.0f}; medians)",
        path >= 10 * training,
    )


EVERYTHING = Augment(flip=0.5, shift=0.05, brightness=0.1, contrast=0.1, saturation=0.1, hue=0.05)


def measure_path(cache: Path) -> Measurement:
    """From stored images to a network's six channels with every change of colour and place, beside kornia's colours."""
    view = View.of(PreparedSet.open(rendered(cache, "O", 8, 256)), "train")
    rng, count = np.random.default_rng(0), 32

    def read() -> Tensor:
        return as_float(view.batch(rng.choice(len(view), count, replace=False)).images)

    def ours_of(images: Tensor) -> Tensor:
        return network_input(augment(images, None, EVERYTHING, Generator().manual_seed(0))[0], "rgb+hsv", LAYOUT)

    def theirs_of(images: Tensor) -> Tensor:
        return _with_kornia(images, EVERYTHING, Generator().manual_seed(0))

    def ours() -> Tensor:
        return ours_of(read())

    def theirs() -> Tensor:
        return theirs_of(read())

    torch.testing.assert_close(ours_of(images := read()), theirs_of(images), rtol=0, atol=1e-5)
    house, plain = in_turn(9, lambda: processor_seconds(ours), lambda: processor_seconds(theirs))
    rates = [count / median(seconds) for seconds in (house, plain)]
    return Measurement(
        "stored images to a network's input, six channels and all changes of place and colour, against the same with "
        "kornia's colours (speed; 256 px, batch 32, one core)",
        "≥ 2",
        f"{rates[0] / rates[1]:.2f} ({rates[0]:.0f} / {rates[1]:.0f} images/s)",
        rates[0] >= 2 * rates[1],
    )


def _with_kornia(images: Tensor, options: Augment, generator: Generator) -> Tensor:
    """Change whole batches in as many steps as there are changes, as one writes it with a library of colours."""
    count, _, _, size = images.shape
    mirrored = torch.rand(count, generator=generator) < options.flip
    images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    most = max(1, round(options.shift * size))
    offsets = torch.randint(0, 2 * most + 1, (count, 2), generator=generator)
    padded = torch.nn.functional.pad(images, (most, most, most, most), mode="reflect")
    images = torch.stack([one[:, y : y + size, x : x + size] for one, (y, x) in zip(padded, offsets, strict=True)])
    factors = 1 + 0.1 * (2 * torch.rand(3, count, 1, 1, 1, generator=generator) - 1)
    grey = torch.tensor([0.299, 0.587, 0.114])
    images = images * factors[0]
    mean = torch.einsum("bchw,c->bhw", images, grey).mean(dim=(1, 2))[:, None, None, None]
    images = mean + (images - mean) * factors[1]
    luma = torch.einsum("bchw,c->bhw", images, grey)[:, None]
    images = (luma + (images - luma) * factors[2]).clamp(0, 1)
    images = adjust_hue(images, (2 * torch.rand(count, generator=generator) - 1) * options.hue * 2 * torch.pi)
    hsv = rgb_to_hsv(images)
    hsv[:, 0] /= 2 * torch.pi
    return torch.cat([images, hsv], dim=1).contiguous(memory_format=LAYOUT)
