"""What PrivacyFace costs beside plain federated averaging (conventional): time a round, and what crosses the wire."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.measurement import Measurement, processor_seconds
from fedvisage import recipe as recipes
from fedvisage.base.progress import Reporter
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import resolve
from fedvisage.federation.record.ledger import LEDGER, read_lines
from fedvisage.federation.record.releases import Releases
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import state_of
from fedvisage.methods import METHODS, read_method
from fedvisage.methods.models import face
from fedvisage.methods.models.face import classes_of
from fedvisage.methods.recognition import privacyface_loss
from fedvisage.methods.recognition.privacyface import cluster
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import prepare
from fedvisage.nn.losses.arcface import arcface_logits
from fedvisage.nn.losses.consensus import cluster_logits, consensus_aware
from fedvisage.nn.losses.cosines import cosines
from fedvisage.recipe import Recipe
from fedvisage.runs.request import Request
from fedvisage.runs.run import run

PEOPLE, IMAGES, PUBLIC, SITES = 7_000, 300_000, 100, 4
"""Of a site, of a site, of the public set, of the federation: the paper's."""
SIZE, BATCH, REPEATS = 112, 16, 3
RHO, EPSILON, DELTA = 1.3, 1.0, 5.9e-5
DIMENSION, FLOAT = 512, 4
FEW = 3
"""People of a site in the tiny runs."""
TOLD = ("clusters", "centres")


def measure_time(cache: Path) -> Measurement:
    """Time what PrivacyFace adds to a round at the paper's shape: the release of clusters, and a larger loss.

    A round of 300,000 images takes a processor hours, so a step stands for all of them. What the loss adds is timed by
    itself, many times: it would be lost in the scatter of whole steps. Public fine-tuning, which both methods have, is
    left out of the round, so that the share comes out too large rather than too small.
    """
    site = _site(cache)
    centres = site.own(face.OWN_CENTRES, lambda: normalize(torch.randn(PEOPLE, DIMENSION)))
    batch = _batch(site)
    optimizer = site.optimizer("model", own=(face.OWN_CENTRES,))
    others = normalize(torch.randn(SITES - 1, DIMENSION))

    def step() -> None:
        site.step(optimizer, privacyface_loss.loss(site, batch, classes_of(site, batch, [centres]), None))

    steps, releases, plain, larger = [], [], [], []
    for number in range(1, REPEATS + 1):
        steps.append(processor_seconds(step))
        releases.append(processor_seconds(lambda number=number: _release(site, number)))  # type: ignore[misc]
        for _ in range(10):
            plain.append(processor_seconds(lambda: _loss(centres, batch, others[:0])))
            larger.append(processor_seconds(lambda: _loss(centres, batch, others)))
    a_round = statistics.median(steps) * IMAGES / BATCH
    # What the loss adds is smaller than the noise of one call: of the paired differences, the upper quartile counts.
    differences = [more - less for more, less in zip(larger, plain, strict=True)]
    added = max(0.0, statistics.quantiles(differences, n=4)[2]) * IMAGES / BATCH
    told = statistics.median(releases)
    share = (told + added) / a_round
    return Measurement(
        "what PrivacyFace adds to a round of conventional federated averaging (processor time), one thread",
        "< 2 %",
        f"{100 * share:.2f} % ({told:.1f} s for clusters of {PEOPLE:,} people and at most {added:.1f} s for the loss, "
        f"on {a_round:,.0f} s: {IMAGES:,} images of {SIZE} px a site on IResNet-18; steps of {BATCH} were timed)",
        share < 0.02,
    )


def measure_bytes(cache: Path) -> Measurement:
    """Count the vectors that a site sends and gets in a round beyond the model, in the ledgers of tiny runs."""
    ours, theirs = (_vectors(cache, name) for name in ("privacyface", "fedface"))
    up, down = (number / FEW for number in theirs)
    return Measurement(
        f"vectors of {DIMENSION} numbers that a site sends and gets in a round beyond the model, {SITES} sites, Q = 1",
        f"{1 + SITES} (Table 6)",
        f"{ours[0]:g} and {ours[1]:g}, together {sum(ours) * DIMENSION * FLOAT / 1e3:.1f} kB; FedFace {up:g} and "
        f"{down:g} a person, with {PEOPLE:,} people {PEOPLE * (up + down) / sum(ours):,.0f} times as many",
        sum(ours) == 1 + SITES,
    )


def _release(site: Site, number: int) -> None:
    """Have the site release a round's clusters; the public directions are worked out in each round."""
    site.common.clear()
    now = replace(site, round=number, scratch={})
    cluster(now, state_of(site.net, "model"))


def _loss(centres: Tensor, batch: Batch, others: Tensor) -> None:
    """The part of a step that depends on clusters: logits, cross-entropy, and gradients down to the features."""
    assert batch.identities is not None
    features = torch.randn(BATCH, DIMENSION, generator=torch.Generator().manual_seed(0), requires_grad=True)
    own = arcface_logits(cosines(features, centres), batch.identities, 64.0, 0.5)
    logits = cluster_logits(features, others, RHO, 64.0)
    consensus_aware(own, batch.identities, logits).backward()  # type: ignore[no-untyped-call]
    centres.grad = None


def _site(cache: Path) -> Site:
    """Return a site of the paper's shape without its images, which no timed part reads."""
    own = {"minimum": 512, "epsilon": EPSILON, "delta": DELTA}
    recipe = _recipe("privacyface", own, sites=1, size=SIZE)
    people = resolve(f"synth: people identities={PUBLIC} images=4 size={SIZE}", cache, workers=2)
    public = View.of(PreparedSet.open(people))
    net, compute = METHODS["privacyface"].network(recipe), resolve_compute("cpu", "fp32")
    compute.place(net)
    releases = Releases(Path(tempfile.mkdtemp(dir=cache)))
    return Site("site1", recipe, 1, public, net, compute, {}, {}, releases, public=public)


def _batch(site: Site) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    ready = prepare(images, "rgb", site.compute.device)
    classes = torch.randint(PEOPLE, (BATCH,), generator=generator)
    return Batch(ready, torch.ones(BATCH), None, np.array(["bonafide"] * BATCH), classes)


def _vectors(cache: Path, method: str) -> tuple[float, float]:
    """Return how many vectors a site sent and got beyond the model in one round of a tiny run."""
    own = {"minimum": 1, "epsilon": EPSILON, "delta": DELTA} if method == "privacyface" else {}
    recipe = _recipe(method, own | {"network": {"name": "iresnet18", "width": 8}}, sites=SITES, size=32)
    out = Path(tempfile.mkdtemp(dir=cache)) / "run"
    run(Request(recipe, out, cache), Reporter(Console(quiet=True), quiet=True))
    lines = [line for line in read_lines(out / LEDGER) if line["field"].split("/")[0] in TOLD]
    up, down = (sum(line["bytes"] for line in lines if line["direction"] == way) for way in ("up", "down"))
    return up / (SITES * DIMENSION * FLOAT), down / (SITES * DIMENSION * FLOAT)


def _recipe(method: str, own: Mapping[str, Any], *, sites: int, size: int) -> Recipe:
    """Return a recipe of one round with one batch per site, of rendered people."""
    people = f"synth: people images=4 size={size}"
    tree: dict[str, Any] = {
        "method": {"name": method, **own},
        "data": {
            "sites": {f"site[1-{sites}]": f"{people} identities={FEW * sites} part=*/{sites}"},
            "public": f"{people} identities=8 first=100000 test=0 heldout=0.25",
        },
        "input": {"size": size, "colour": "rgb"},
        "training": {"rounds": 1, "local": {"batches": 1}, "batch": BATCH, "optimizer": {"name": "sgd", "lr": 0.001}},
        "runtime": {"threads": 1, "precision": "fp32"},
    }
    if METHODS[method].releases:
        tree["privacy"] = {"epsilon": 100 * EPSILON, "delta": 100 * DELTA, "noise": "derived"}
    return recipes.validate(tree, read_method)
