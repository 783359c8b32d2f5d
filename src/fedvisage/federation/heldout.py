"""The core call that every site answers: a histogram of its held-out scores, from which thresholds are found.

Scores never leave a site; counts in fixed bins do, as a declared statistic. The message is the finished model.
"""

from __future__ import annotations

import numpy as np
import torch

from fedvisage.federation.method import Call, Message, Upload
from fedvisage.federation.scoring import Scorer
from fedvisage.federation.site import Site, TrainingBroke
from fedvisage.metrics.threshold import BINS, histogram

NAME = "heldout"
HISTOGRAM = Upload(
    "histogram", "statistic", shape=(2, BINS), dtype="int64", guarantee="counts of held-out scores in fixed bins"
)


def call(scorer: Scorer) -> Call:
    """Return the call; the scorer is shared by the sites of a process."""

    def run(site: Site, finished: Message) -> Message:
        (logits,) = scorer.scores(finished, site.data).values()
        if not np.isfinite(logits).all():
            raise TrainingBroke("the model's held-out scores are not finite")
        return {"histogram": torch.from_numpy(histogram(logits, site.data.labels.astype("int64")))}

    return Call(run, (HISTOGRAM,))
