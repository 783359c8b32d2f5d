"""Feature inversion: rebuild faces from the tokens of split learning, as a curious server could.

A. Mahendran and A. Vedaldi, "Understanding deep image representations by inverting them", CVPR 2015, in the form of A.
Dosovitskiy and T. Brox, "Inverting visual representations with convolutional networks", CVPR 2016: the server knows the
average of the sites' tokenizers and has public images, here rendered ones of a domain that no site has. It trains a
decoder from tokens to images on them, and decodes the tokens that the sites send. The attack is repeated for each wire
format of the tokens, for several amounts of noise (each a guarantee for one release of an image's tokens, clipped to
the median length of public tokens), and for the run's own setting. The baseline is one image for all tokens; only the
improvement over it comes from the tokens.

Tokens form a square, one per patch of 16 pixels. The decoder doubles the side of the square four times to reach pixels:
three times by interpolation before a convolution, and the last time by a pixel shuffle. SSIM is that of Z. Wang et al.,
"Image quality assessment: from error visibility to structural similarity", 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import conv2d, pad

from fedvisage.audit.finding import Audit, AuditedRun, Finding, Picture
from fedvisage.audit.wire_recorder import record_rounds, rounds_for
from fedvisage.base.streams import seed_global_rng, torch_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import resolve
from fedvisage.federation.privacy.mechanisms import Budget, standard_deviation
from fedvisage.federation.wire.message import load_parts
from fedvisage.federation.wire.precision import Form, pack, unpack
from fedvisage.methods.pad import leakage, split
from fedvisage.nn.inputs import as_float, colour_channels
from fedvisage.nn.optimizers import Adam
from fedvisage.recipe import Privacy

CHANNELS = (48, 32, 24, 16)
STEPS, BATCH, RATE = 250, 16, 3e-3
WINDOW = 11


class Decoder(nn.Module):
    """A decoder from tokens (images × tokens × width) to RGB images in [0, 1]."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, tokens: Tensor) -> None:
        """Build a decoder that normalises tokens by the mean and deviation of these."""
        super().__init__()
        self.register_buffer("mean", tokens.mean(dim=0, keepdim=True))
        self.register_buffer("deviation", tokens.std(dim=(0, 1), keepdim=True) + 1e-6)
        layers: list[nn.Module] = [nn.Conv2d(tokens.shape[2], CHANNELS[0], 1)]
        for before, after in pairwise(CHANNELS):
            layers += [nn.GELU(), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(before, after, 3, padding=1)]
        self.layers = nn.Sequential(*layers, nn.GELU(), nn.Conv2d(CHANNELS[-1], 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, tokens: Tensor) -> Tensor:
        """Arrange the tokens in the square that they were cut from, and decode it."""
        scaled = (tokens - self.mean) / self.deviation
        side = round(scaled.shape[1] ** 0.5)
        square = scaled.transpose(1, 2).reshape(len(scaled), -1, side, side)
        return torch.sigmoid(self.layers(square))


@dataclass(frozen=True)
class ReconstructionQuality:
    """Means over images: peak signal-to-noise ratio in decibels, and structural similarity."""

    psnr: float
    ssim: float


def train_decoder(tokens: Tensor, images: Tensor, seed: int, steps: int) -> Decoder:
    """Train a decoder on pairs of tokens and images."""
    with seed_global_rng(seed, "decoder"):
        decoder = Decoder(tokens)
    draws = torch_rng(seed, "decoder batches")
    optimizer = Adam(decoder.parameters(), lr=RATE)
    for _ in range(steps):
        chosen = torch.randint(len(tokens), (BATCH,), generator=draws)
        loss = (decoder(tokens[chosen]) - images[chosen]).abs().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return decoder.eval()


def structural_similarity(images: Tensor, others: Tensor) -> Tensor:
    """Return the SSIM of each pixel of images in [0, 1] (Wang et al., "Image quality assessment", 2004, Eq. 13).

    The window is Gaussian with a standard deviation of 1.5 pixels; edges are reflected.
    """
    channels, half = images.shape[1], WINDOW // 2
    taps = torch.exp(-((torch.arange(WINDOW) - half) ** 2) / (2 * 1.5**2))
    taps = taps / taps.sum()
    window = (taps[:, None] * taps).expand(channels, 1, WINDOW, WINDOW)

    def local_mean(values: Tensor) -> Tensor:
        return conv2d(pad(values, (half,) * 4, mode="reflect"), window, groups=channels)

    mean, other_mean = local_mean(images), local_mean(others)
    variance = local_mean(images**2) - mean**2
    other_variance = local_mean(others**2) - other_mean**2
    covariance = local_mean(images * others) - mean * other_mean
    similar = (2 * mean * other_mean + 0.01**2) * (2 * covariance + 0.03**2)
    return similar / ((mean**2 + other_mean**2 + 0.01**2) * (variance + other_variance + 0.03**2))


def quality(decoded: Tensor, images: Tensor) -> ReconstructionQuality:
    """Compare decoded images with the originals, both in [0, 1]."""
    errors = (decoded - images).square().mean(dim=(1, 2, 3)).clamp_min(1e-12)
    similarity = structural_similarity(decoded, images).mean()
    return ReconstructionQuality(float((-10 * errors.log10()).mean()), float(similarity))


PUBLIC = ("A", "S", "W", "E", "O")
"""Domains to render public images from; the attack takes the first that is neither a site's nor the target's."""

SUBJECTS, IMAGES, SHOWN = 60, 96, 8
FORMS: tuple[Form, ...] = ("fp32", "bf16", "int8")
EPSILONS = (100_000.0, 10_000.0, 1_000.0)
DELTA = 1e-5

Change = Callable[[Tensor, Generator], Tensor]
"""A transformation of tokens on the wire."""


@dataclass(frozen=True)
class Pairs:
    """Tokens and the RGB images that they come from."""

    tokens: Tensor
    images: Tensor


def obstacle(subject: AuditedRun) -> str:
    """Report that the attack needs a method that sends tokens."""
    return "" if issubclass(subject.method.options, split.Options) else "no tokens cross the wire"


def attack(subject: AuditedRun) -> Finding:
    """Train decoders on public images, and apply them to the sites' tokens."""
    public, sites = _public_pairs(subject), _recorded_pairs(subject)
    seed = subject.recipe.runtime.seed
    # The baseline, which uses no tokens: only the improvement over it comes from the tokens.
    mean_image = public.images.mean(dim=0, keepdim=True).expand_as(sites.images)
    redrawn: dict[str, tuple[ReconstructionQuality, Tensor]] = {
        "no tokens (mean image)": (quality(mean_image, sites.images), mean_image)
    }
    for name, change in conditions(subject, public.tokens).items():
        decoder = train_decoder(change(public.tokens, torch_rng(seed, "public", name)), public.images, seed, STEPS)
        with torch.inference_mode():
            drawn = decoder(change(sites.tokens, torch_rng(seed, "heard", name)))
        redrawn[name] = quality(drawn, sites.images), drawn
    rows: list[dict[str, str | float]] = [
        {"tokens": name, "PSNR (dB)": q.psnr, "SSIM": q.ssim} for name, (q, _) in redrawn.items()
    ]
    plain, none = redrawn["fp32"][0], redrawn["no tokens (mean image)"][0]
    says = (
        f"From tokens in fp32 a decoder redraws {len(sites.images)} images of the sites with SSIM {plain.ssim:.2f} and "
        f"PSNR {plain.psnr:.1f} dB; without tokens the mean public image has {none.ssim:.2f} and {none.psnr:.1f} dB."
    )
    numbers = {"ssim_fp32": plain.ssim, "ssim_without_tokens": none.ssim, "images": float(len(sites.images))}
    drawings = {"original": sites.images, **{name: drawn for name, (_, drawn) in redrawn.items()}}
    caption = (
        "Images of the sites, and the images that decoders rebuild from their tokens; from the top: "
        f"{', '.join(drawings)}."
    )
    return Finding(says, numbers, rows, {"images": (caption, sheet(drawings))})


def conditions(subject: AuditedRun, tokens: Tensor) -> Mapping[str, Change]:
    """Return the changes of tokens to compare: each format, each amount of noise, and the run's own least noise."""
    changes: dict[str, Change] = {form: _change_format(form) for form in FORMS}
    length = float(tokens.flatten(1).norm(dim=1).median())
    for epsilon in EPSILONS:
        # The name is part of a random stream and of recorded audits, so its words stay.
        sigma = standard_deviation(Budget(epsilon, DELTA), 2 * length)
        changes[f"noise, ε {epsilon:g} a release"] = _noise(length, sigma)
    recipe = subject.recipe
    limits = recipe.options(leakage.Options).leakage
    if limits is not None and recipe.privacy.epsilon is not None and recipe.privacy.delta is not None:
        budget = Budget(recipe.privacy.epsilon, recipe.privacy.delta)
        # The fewest passes of any site give the least noise, which is the attacker's best case.
        passes = min(leakage.passes_of(recipe, name, len(data.train)) for name, data in subject.data.sites.items())
        guard = leakage.release_noise_of(limits, "tokens", budget, passes, recipe.privacy.count)
        noised, formed = _noise(guard.length, guard.sigma), _change_format(split.form_of(recipe))
        changes["as in this run"] = lambda tokens, rng: formed(noised(tokens, rng), rng)
    return changes


def sheet(drawings: Mapping[str, Tensor]) -> Picture:
    """Arrange the first images of each kind in rows."""
    rows = [torch.cat(list(images[:SHOWN]), dim=2) for images in drawings.values()]
    grid = torch.cat(rows, dim=1).clamp(0, 1).permute(1, 2, 0)
    return np.asarray((grid * 255).round().to(torch.uint8).numpy())


def _change_format(form: Form) -> Change:
    return lambda tokens, _: unpack("tokens", pack("tokens", tokens, form))


def _noise(length: float, sigma: float) -> Change:
    def change(tokens: Tensor, generator: Generator) -> Tensor:
        drawn = torch.randn(tokens.shape, generator=generator, dtype=torch.float64)
        return (leakage.clip_rows(tokens, length) + sigma * drawn).float()

    return change


def _public_pairs(subject: AuditedRun) -> Pairs:
    """Render public images and pass them through the averaged tokenizer, which the server knows."""
    recipe = subject.recipe
    taken = {part.set.name for site in subject.data.sites.values() for part in site.train.slices}
    taken |= {part.set.name for part in subject.data.target.slices} if subject.data.target is not None else set()
    domain = next((name for name in PUBLIC if name not in taken), PUBLIC[-1])
    line = f"synth: {domain} subjects={SUBJECTS} videos=1 frames=1 size={recipe.input.size}"
    view = View.of(PreparedSet.open(resolve(line, subject.cache, workers=recipe.runtime.threads)), None)
    images = as_float(view.batch(np.arange(len(view))).images)
    net = nn.ModuleDict({"tokenizer": subject.method.network(recipe)["tokenizer"]}).eval()
    load_parts(net, {key: value for key, value in subject.saved.finished.items() if key.startswith("tokenizer.")})
    with torch.inference_mode():
        tokens = net["tokenizer"](colour_channels(images, recipe.input.colour)).float()
    return Pairs(_of_patches(tokens).clone(), images)


def _recorded_pairs(subject: AuditedRun) -> Pairs:
    """Return the tokens that sites would send in fp32 without noise, with their images."""
    recipe = subject.recipe
    plain = recipe.options(split.Options).model_copy(update={"wire": "fp32", "leakage": None})
    unprotected = recipe.model_copy(update={"method": plain, "privacy": Privacy()})
    recording = record_rounds(
        replace(subject, setup=replace(subject.setup, recipe=unprotected)), rounds_for(subject, IMAGES)
    )
    answers = recording.of("tokens")
    tokens = torch.cat([_of_patches(answer.message["tokens"]) for answer in answers])
    images = torch.cat([recording.truth(answer).images[:, :3].cpu() for answer in answers])
    return Pairs(tokens[:IMAGES], images[:IMAGES].contiguous())


def _of_patches(tokens: Tensor) -> Tensor:
    """Drop the leading class token, if there is one."""
    side = round((tokens.shape[1] - 0.5) ** 0.5)
    return tokens[:, tokens.shape[1] - side * side :]


AUDIT = Audit("token-inversion", "Images from tokens", obstacle, attack)
