"""Pre-training of the first recognition model, Θ_g⁰ and Φ_g⁰: CosFace on the public set, at the server, before round 1.

FedFR ("Federated Learning") and all its baselines start from a model that was trained on a public dataset. The cache
stores the result under a digest of everything that affects it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from fedvisage import recipe as recipes
from fedvisage.base.errors import RunFailed
from fedvisage.base.files import json_key, read_tensors, write_tensors
from fedvisage.base.progress import Say
from fedvisage.base.streams import numpy_rng, seed_global_rng, torch_rng
from fedvisage.data.batches import Positions, View, epoch_batches
from fedvisage.federation.wire.message import Message, state_of
from fedvisage.methods.models.face import FaceOptions
from fedvisage.nn import optimizers
from fedvisage.nn.augment import augment, degrade
from fedvisage.nn.compute import Compute, prefetch
from fedvisage.nn.face_networks import ClassCentres, face_network
from fedvisage.nn.inputs import as_float
from fedvisage.nn.losses.cosface import cosface
from fedvisage.nn.partial import BatchClasses, Sampler
from fedvisage.recipe import Pretrain, Recipe

VERSION = 1
"""The version of the training code; it changes whenever the same settings give other weights."""


def pretrain(recipe: Recipe, public: View, digest: str, compute: Compute, cache: Path, say: Say) -> Message:
    """Return the pre-trained parts `model` and `centres`; ``digest`` is the digest of the public data."""
    settings = recipe.training.pretrain
    assert settings is not None
    path = cache / f"pretrained-{_digest(recipe, digest, compute)}.safetensors"
    if path.exists():
        return read_tensors(path)[0]
    with seed_global_rng(recipe.runtime.seed, "initial weights"):
        network = recipe.options(FaceOptions).network
        net = nn.ModuleDict({"model": face_network(network, recipe.input.size)})
        net["centres"] = ClassCentres(len(public.identities), network.embedding)
    compute.place(net)
    with seed_global_rng(recipe.runtime.seed, "pretraining", "library draws", device=compute.device):
        _train(net.train(), recipe, settings, public, compute, say)
    weights = state_of(net, "model", "centres")
    if not all(torch.isfinite(value).all() for value in weights.values()):
        raise RunFailed(
            "pre-training did not converge: its weights are not finite; lower training.pretrain.optimizer.lr"
        )
    cache.mkdir(parents=True, exist_ok=True)
    write_tensors(path, weights)
    return weights


def _train(net: nn.ModuleDict, recipe: Recipe, settings: Pretrain, public: View, compute: Compute, say: Say) -> None:
    classes = {str(name): number for number, name in enumerate(public.identities)}
    optimizer = optimizers.build(list(net.parameters()), settings.optimizer)
    centres = net["centres"].get_parameter("weight")
    sampler = _sampler(recipe, settings, optimizer, centres)
    for epoch in range(settings.stop or settings.epochs):
        rate = settings.optimizer.lr * optimizers.rate_factor(settings.schedule, epoch + 1, settings.epochs)
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses: list[Tensor] = []
        rng = numpy_rng(recipe.runtime.seed, "pretraining", "order", epoch)
        batches = enumerate(epoch_batches(public, rng, size=settings.batch, sampling="shuffled"))

        # Each batch has its own random stream, so that reading ahead does not change its augmentation.
        def read(key: tuple[int, Positions], epoch: int = epoch) -> tuple[Tensor, Tensor]:
            stream = torch_rng(recipe.runtime.seed, "pretraining", "augment", epoch, key[0])
            labels = torch.tensor([classes[str(name)] for name in public.subjects[key[1]]])
            return _augment_images(public.batch(key[1]).images, recipe, compute, stream), labels

        for images, labels in prefetch(batches, read, tuple, compute.prefetcher):
            with compute.autocast():
                features = net["model"](images)
            batch_classes = BatchClasses(centres, compute.bring(labels)) if sampler is None else sampler.of(labels)
            loss = cosface(
                features.float(),
                batch_classes.centres,
                batch_classes.labels,
                scale=settings.scale,
                margin=settings.margin,
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizers.step(optimizer, settings.optimizer.clip_norm)
            losses.append(loss.detach())
        if losses:
            say(f"pre-training: epoch {epoch + 1} of {settings.epochs}, loss {float(torch.stack(losses).mean()):.4f}")
    if sampler is not None:
        sampler.finish()


def _augment_images(stored: Tensor, recipe: Recipe, compute: Compute, stream: Generator) -> Tensor:
    """Augment stored images by the recipe and move them to the device; changes of capture run on the CPU."""
    options = recipe.training.augment
    images = as_float(stored if options.changes else compute.bring(stored))
    images = augment(images, None, options, stream)[0]
    if options.changes:
        people = torch.ones(len(images))  # all images are bona fide
        images = degrade(images, None, people, options.changes, stream).images
    return compute.bring(images).contiguous(memory_format=compute.layout)


def _sampler(recipe: Recipe, settings: Pretrain, optimizer: Optimizer, centres: nn.Parameter) -> Sampler | None:
    """Return the sampler of classes for each batch, or None if the recipe trains on all classes."""
    if settings.sampled_classes is None:
        return None
    rng = numpy_rng(recipe.runtime.seed, "pretraining", "classes")
    return Sampler(optimizer, [centres], settings.sampled_classes, rng)


def _digest(recipe: Recipe, data: str, compute: Compute) -> str:
    """Return a digest of everything that affects the weights."""
    tree = recipes.tree_of(recipe)
    if recipe.training.pretrain is not None and recipe.training.pretrain.sampled_classes is None:
        del tree["training"]["pretrain"]["sampled_classes"]  # keeps files valid that are older than the key
    decides = {
        "version": VERSION,
        "data": data,
        "input": tree["input"],
        "network": tree["method"]["network"],
        "pretrain": tree["training"]["pretrain"],
        "augment": tree["training"]["augment"],
        "runtime": {key: tree["runtime"][key] for key in ("seed", "precision", "threads")},
        "device": str(compute.device),
        "torch": torch.__version__,
    }
    if recipe.runtime.layout == "first":  # only then, so that files stay valid that are older than the key
        decides["layout"] = "first"
    return hashlib.sha256(json_key(decides).encode()).hexdigest()[:16]
