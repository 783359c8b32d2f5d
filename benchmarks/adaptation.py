"""What test-time adaptation costs: time against plain inference, memory against one training step of the same batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.measurement import Measurement, processor_seconds, rendered
from fedvisage.adapt.user import Source, adapted_logits
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.environment import peak_rss_mb
from fedvisage.federation.scoring import Scorer
from fedvisage.methods import METHODS, options
from fedvisage.nn.precision import choose
from fedvisage.recipe import validate
from fedvisage.settings import ADAPTATIONS, Adapt

SIZE, BATCH, IMAGES = 128, 64, 256


def measure_time(cache: Path, repeats: int = 3) -> Measurement:
    """Score the same images plainly, by the gated and by the paper's adaptation; the least time of each, in turn."""
    scorer, view = _ready(rendered(cache, "O", 16, SIZE))
    rounds = [
        (
            processor_seconds(lambda: scorer.logits(view)),
            _adapting(scorer, view, "gated"),
            _adapting(scorer, view, "paper"),
        )
        for _ in range(repeats)
    ]
    plain, gated, paper = (min(times) for times in zip(*rounds, strict=True))
    return Measurement(
        "test-time adaptation against plain inference (processor time)",
        "≤ 4",
        f"gated {gated / plain:.2f}, paper {paper / plain:.2f} (ResNet-18, {IMAGES} images of {SIZE} px)",
        max(gated, paper) / plain <= 4,
    )


def measure_memory(cache: Path) -> Measurement:
    """Compare peak RSS of gated adaptation and of one training step, each in a process of its own."""
    path = rendered(cache, "O", 16, SIZE)
    step, adapt = (_peak(what, path) for what in ("step", "adapt"))
    return Measurement(
        "peak memory of test-time adaptation against one training step",
        "≤ 1",
        f"{adapt / step:.2f} ({adapt:.0f} / {step:.0f} MiB, batch {BATCH})",
        adapt <= step,
    )


def print_peak(what: str, path: Path) -> None:
    """Take one training step, or adapt, and print this process's peak RSS."""
    scorer, view = _ready(path)
    if what == "step":
        adam = torch.optim.Adam(scorer.net.train().parameters())
        scorer.live(view, np.arange(BATCH)).square().mean().backward()  # type: ignore[no-untyped-call]
        adam.step()
    else:
        _adapting(scorer, view, "gated")
    print(peak_rss_mb())


def _peak(what: str, path: Path) -> float:
    code = "import sys; from pathlib import Path; from benchmarks.adaptation import print_peak; "
    command = [sys.executable, "-c", code + "print_peak(sys.argv[1], Path(sys.argv[2]))", what, str(path)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _adapting(scorer: Scorer, view: View, form: str) -> float:
    """Time an adaptation that the gate lets through: both classes are there, and any distance counts."""
    source = Source(threshold=float(np.median(scorer.logits(view))), scatter=-1.0)
    settings = Adapt.model_validate({**ADAPTATIONS[form], "batch": BATCH})
    return processor_seconds(lambda: adapted_logits(scorer, view, settings, source))


def _ready(path: Path) -> tuple[Scorer, View]:
    """Return FedPAD's network at paper width, and images for it."""
    tree = {
        "method": "fedpad",
        "data": {"sites": {"O": str(path)}},
        "input": {"size": SIZE},
        "training": {"rounds": 1},
        "evaluation": {"batch": BATCH},
    }
    scorer = Scorer(METHODS["fedpad"], validate(tree, options()), choose("cpu", "auto"))
    return scorer, View.of(PreparedSet.open(path)).subset(np.arange(IMAGES))
