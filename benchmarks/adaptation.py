"""What test-time adaptation costs: time against plain inference, memory against one training step of the same batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.measurement import Measurement, processor_seconds, rendered
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.methods import METHODS, read_method
from fedvisage.nn.batchnorm import collect_statistics
from fedvisage.nn.compute import resolve_compute
from fedvisage.recipe import ADAPTATIONS, Adapt, validate
from fedvisage.runs.directory import peak_rss_mb
from fedvisage.tasks.pad.adaptation import AdaptationOutcome, AdaptationSource, adapt_to_view
from fedvisage.tasks.scoring import Scorer

SIZE, BATCH, IMAGES, RUINOUS = 128, 64, 256, 50.0


def measure_time(cache: Path, repeats: int = 3) -> Measurement:
    """Score the same images plainly and by adaptation, in turn; the least time of each counts.

    The gated form is dearest when an adaptation is taken back, for then the source model is asked about all images.
    """
    scorer, view = _ready(rendered(cache, "O", 16, SIZE))
    forms = {name: Adapt.model_validate({**ADAPTATIONS[name], "batch": BATCH}) for name in ("gated", "paper")}
    forms["taken back"] = forms["gated"].model_copy(update={"lr": RUINOUS})
    plain, least = float("inf"), dict.fromkeys(forms, float("inf"))
    for _ in range(repeats):
        plain = min(plain, processor_seconds(lambda: scorer.logits(view)))
        for name, settings in forms.items():
            least[name] = min(least[name], _adapting(scorer, view, settings, stands=name != "taken back"))
    ratios = ", ".join(f"{name} {seconds / plain:.2f}" for name, seconds in least.items())
    return Measurement(
        "test-time adaptation against plain inference (processor time)",
        "≤ 4",
        f"{ratios} (ResNet-18, {IMAGES} images of {SIZE} px)",
        max(least.values()) / plain <= 4,
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
        _adapting(scorer, view, Adapt(batch=BATCH), stands=True)
    print(peak_rss_mb())


def _peak(what: str, path: Path) -> float:
    code = "import sys; from pathlib import Path; from benchmarks.adaptation import print_peak; "
    command = [sys.executable, "-c", code + "print_peak(sys.argv[1], Path(sys.argv[2]))", what, str(path)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _adapting(scorer: Scorer, view: View, settings: Adapt, *, stands: bool) -> float:
    """Time an adaptation that the gate lets through: both classes are there, and any distance counts."""
    source = AdaptationSource(threshold=float(np.median(scorer.logits(view))), scatter=-1.0)
    outcomes: list[AdaptationOutcome] = []
    seconds = processor_seconds(lambda: outcomes.append(adapt_to_view(scorer, view, settings, source)[1]))
    if outcomes[0].adapted != len(view) * stands:
        raise RuntimeError(f"not the case that was to be measured: {outcomes[0].as_json()}")
    return seconds


def _ready(path: Path) -> tuple[Scorer, View]:
    """Return FedPAD's network at paper width with BatchNorm statistics of the images that it is to score.

    So a small step changes little, and an adaptation stands.
    """
    tree = {
        "method": "fedpad",
        "data": {"sites": {"O": str(path)}},
        "input": {"size": SIZE},
        "training": {"rounds": 1},
        "evaluation": {"batch": BATCH},
    }
    scorer = Scorer(METHODS["fedpad"], validate(tree, read_method), resolve_compute("cpu", "auto"))
    view = View.of(PreparedSet.open(path)).subset(np.arange(IMAGES))
    with torch.no_grad(), collect_statistics(scorer.net, keep=0.0):
        for start in range(0, IMAGES, BATCH):
            scorer.live(view, np.arange(start, start + BATCH))
    return scorer, view
