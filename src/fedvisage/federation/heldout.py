"""The core call that every site answers: what its held-out subjects say of a finished model, the message.

Scores never leave a site; their counts in fixed bins do, as a declared statistic, and thresholds are found from them.
So does one number, how far the model's activations lie from its BatchNorm statistics: a user that adapts the model
takes that for usual.
"""

from __future__ import annotations

import numpy as np
import torch

from fedvisage.federation.method import Call, Message, Upload
from fedvisage.federation.scoring import Scorer
from fedvisage.federation.site import Site, TrainingBroke
from fedvisage.metrics.threshold import BINS, histogram
from fedvisage.nn.batchnorm import ShiftMeter

NAME = "heldout"
HISTOGRAM = Upload(
    "histogram", "statistic", shape=(2, BINS), dtype="int64", guarantee="counts of held-out scores in fixed bins"
)

SHIFT = Upload("shift", "statistic", dtype="float64", guarantee="mean distance from the BatchNorm statistics")
UPLOADS = (HISTOGRAM, SHIFT)


def call(scorer: Scorer) -> Call:
    """Return the call; the scorer is shared by the sites of a process."""

    def run(site: Site, finished: Message) -> Message:
        with ShiftMeter(scorer.net) as meter:
            (logits,) = scorer.scores(finished, site.data).values()
        if not np.isfinite(logits).all():
            raise TrainingBroke("the model's held-out scores are not finite")
        counts = histogram(logits, site.data.labels.astype("int64"))
        shift = float(np.mean(meter.shifts)) if meter.shifts else 0.0
        return {"histogram": torch.from_numpy(counts), "shift": torch.tensor(shift, dtype=torch.float64)}

    return Call(run, UPLOADS)
