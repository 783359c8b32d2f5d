"""What splitting a network costs: FedSIS against joint training of the same network, and by sampled block."""

from __future__ import annotations

import tempfile
import time
from itertools import chain, islice, pairwise
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch.nn.functional import cross_entropy

from benchmarks.measurement import Measurement, processor_seconds, rendered
from fedvisage import recipe as recipes
from fedvisage.base.progress import Reporter
from fedvisage.data.batches import View, epoch_batches
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.wire.precision import Form, fields
from fedvisage.methods import read_method
from fedvisage.methods.pad import fedsis
from fedvisage.methods.pad.vit_h_is import pseudo_class_token
from fedvisage.nn.compute import Compute, resolve_compute
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import Recipe
from fedvisage.runs.request import Request
from fedvisage.runs.run import run

BATCH, SIZE, BATCHES, DEPTH, WIDTH, DOMAINS = 16, 96, 4, 6, 192, ("O", "C", "I")


def measure(cache: Path, repeats: int = 3) -> Measurement:
    """Compare rounds of some batches on three sites, all blocks deep, with the same batches through one network.

    A run of two rounds less a run of one is what a round costs, with ledger, admission and the sites' private state,
    but between checkpoints: rounds as short as FedSIS's are not checkpointed one by one. The two sides are timed in
    turn, and the ratio is the median over pairs.
    """
    sets = {name: rendered(cache, name, 8, SIZE) for name in DOMAINS}
    batches = {name: _batches(path) for name, path in sets.items()}
    images = sum(len(chosen) for _, visit in batches.values() for chosen in visit)
    pairs = []
    for _ in range(repeats):
        joint = images / _joint_round(_recipe(sets, 1), list(batches.values()))
        split = images / (_run(_recipe(sets, 2), cache) - _run(_recipe(sets, 1), cache))
        pairs.append((split / joint, split, joint))
    ratio, split, joint = sorted(pairs)[len(pairs) // 2]
    size = f"width {WIDTH}, {DEPTH} blocks, {SIZE} px, batch {BATCH}, {BATCHES} batches a visit"
    return Measurement(
        "FedSIS, split between sites and server, against joint training (images a second of processor time)",
        "≥ 0.9",
        f"{ratio:.3f} ({split:.1f} / {joint:.1f}, {size})",
        ratio >= 0.9,
    )


def measure_depth(cache: Path, repeats: int = 5) -> Measurement:
    """Time the server's half of a step, forward and backward, for every block that can be drawn."""
    compute = resolve_compute("cpu", "auto")
    depths = range(1, DEPTH + 1)
    recipe = _recipe(dict.fromkeys(DOMAINS, cache), 1)  # only its network is used
    seconds = [min(_server_step(recipe, compute, depth) for _ in range(repeats)) for depth in depths]
    slope, start = np.polyfit(list(depths), seconds, 1)
    return Measurement(
        "The server's half of a FedSIS step, by sampled block ℓ (ms)",
        "grows with ℓ",
        f"{', '.join(f'{1000 * value:.0f}' for value in seconds)}; about {1000 * start:.0f} + {1000 * slope:.0f} ℓ",
        all(later > earlier for earlier, later in pairwise(seconds)),
    )


def measure_bytes(cache: Path) -> Measurement:
    """Count what a batch's images cost on the wire, both ways and in all forms, beside what cannot be avoided.

    The least is a token message and a pseudo-class token message with their gradients, in that form. What is beyond it
    is ``left``, eight bytes per batch.
    """
    sets = {name: rendered(cache, name, 8, SIZE) for name in DOMAINS}
    forms: tuple[Form, ...] = ("fp32", "bf16", "int8")
    counted = {form: _bytes(_recipe(sets, 1, form), cache) for form in forms}
    least = {
        form: 2 * _count_bytes((1, (SIZE // 16) ** 2, WIDTH), form) + 2 * _count_bytes((1, WIDTH), form)
        for form in forms
    }
    said = ", ".join(f"{form} {counted[form]:.0f} (least {least[form]:.0f})" for form in forms)
    ratio = counted["fp32"] / counted["int8"]
    return Measurement(
        "Bytes an image and step of FedSIS, up and down (width 192, 36 tokens)",
        "int8 ≥ 3.8× smaller than fp32",
        f"{said}; int8 {ratio:.2f}× smaller",
        ratio >= 3.8,
    )


def _count_bytes(shape: tuple[int, ...], form: Form) -> int:
    """Return the number of bytes of a value of this shape."""
    sizes = fields("value", shape, form).values()
    return sum(torch.Size(dimensions).numel() * dtype.itemsize for dimensions, dtype in sizes)


def _bytes(recipe: Recipe, cache: Path) -> float:
    """Return what one image of a run's batches cost on the wire, from the run's ledger."""
    with tempfile.TemporaryDirectory() as out:
        run(Request(recipe, Path(out) / "run", cache), Reporter(Console(), quiet=True))
        lines = read_lines(Path(out) / "run" / "ledger.jsonl")
    fields = ("tokens", "pseudo", "gradient", "left")
    sent = sum(int(line["bytes"]) for line in lines if line["field"] in fields)
    return sent / (BATCHES * BATCH * len(DOMAINS))


def _recipe(sets: dict[str, Path], rounds: int, wire: Form = "fp32") -> Recipe:
    network = {"width": WIDTH, "depth": DEPTH, "heads": 3, "stem": 32, "stages": [1, 2, 3]}
    tree = {
        "method": {"name": "fedsis", "network": network, "blocks": {"first": DEPTH}, "wire": wire},
        "data": {"sites": {name: str(path) for name, path in sets.items()}},
        "input": {"size": SIZE, "colour": "rgb"},
        "training": {
            "rounds": rounds,
            "local": {"batches": BATCHES},
            "batch": BATCH,
            "optimizer": {"lr": 1e-3, "state": "kept"},
        },
        "runtime": {"threads": torch.get_num_threads(), "checkpoint_every": 100},
    }
    return recipes.validate(tree, read_method)


def _batches(path: Path) -> tuple[View, list[np.ndarray]]:
    """Return a set's training images and as many batches as a visit has, epoch after epoch."""
    view = View.of(PreparedSet.open(path), "train")
    epochs = (
        epoch_batches(view, np.random.default_rng(epoch), size=BATCH, sampling="shuffled") for epoch in range(BATCHES)
    )
    return view, list(islice(chain.from_iterable(epochs), BATCHES))


def _run(recipe: Recipe, cache: Path) -> float:
    with tempfile.TemporaryDirectory() as out:
        return processor_seconds(
            lambda: run(Request(recipe, Path(out) / "run", cache), Reporter(Console(), quiet=True))
        )


def _joint_round(recipe: Recipe, sites: list[tuple[View, list[np.ndarray]]]) -> float:
    """Time the same work without sites, server and house: read, prepare, forward, backward, step as a round does."""
    compute, net = resolve_compute("cpu", "auto"), fedsis.METHOD.network(recipe)
    compute.place(net)
    encoder = torch.optim.Adam(net["blocks"].parameters(), lr=1e-3)
    others = [parameter for name in ("tokenizer", "adapter", "head") for parameter in net[name].parameters()]
    every_batch = torch.optim.Adam(others, lr=1e-3)
    began = time.process_time()
    for view, batches in sites:
        for chosen in batches:
            batch = view.batch(chosen)
            ready = prepare(batch.images, "rgb", compute.device)
            with compute.autocast():
                two = net["head"](pseudo_class_token(net, net["tokenizer"](ready), DEPTH))
            every_batch.zero_grad(set_to_none=True)
            cross_entropy(two.float(), batch.labels.long()).backward()
            every_batch.step()
    encoder.step()
    return time.process_time() - began


def _server_step(recipe: Recipe, compute: Compute, depth: int) -> float:
    net = fedsis.METHOD.network(recipe)
    compute.place(net)
    tokens = torch.randn(BATCH, (SIZE // 16) ** 2, WIDTH, requires_grad=True)
    seconds = []
    for _ in range(2):
        began = time.process_time()
        with compute.autocast():
            pseudo = pseudo_class_token(net, tokens, depth)
        pseudo.float().sum().backward()
        seconds.append(time.process_time() - began)
    return min(seconds)
