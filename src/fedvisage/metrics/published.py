"""Figures of attack detection by the rules that papers used, to stand beside what they printed.

They are for comparison alone; a run's own figures go by rules that see no label of the user. Two rules differ:

- **The threshold.** FedSIS and FLIP print the HTER at the threshold where the errors on the *user's* images are
  closest to each other (`hter_target_eer`, the highest such threshold); FedGPAD and its test-time adaptation take it
  where those on the scores of training are equal (`hter_train_eer`).
- **The positive class.** FedSIS and FLIP print the share of bona fide images that are accepted where at most 1 % of the
  attacks are (`tpr_bona_fide_1pct`): bona fide is their positive class. FedSIS's text has it the other way round, which
  is `tpr_at_fpr_1pct`.
"""

import numpy as np

from fedvisage.metrics.pad import bpcer_at_apcer, error_curve, hter
from fedvisage.metrics.scores import Scores
from fedvisage.metrics.threshold import ROUNDING, Threshold

RATE = 0.01

RATES = {
    "hter_target_eer": "HTER at the threshold of equal errors on the user's own images",
    "hter_train_eer": "HTER at the threshold of equal errors on the scores of training",
    "tpr_bona_fide_1pct": "bona fide accepted where 1 % of the attacks are",
}
"""What each rate is, in words."""


def published(scores: Scores, trained: Threshold | None) -> dict[str, float]:
    """Return the figures of a user with both classes; ``trained`` is the threshold from the scores of training."""
    if not (len(scores.bona_fide) and len(scores.attack)):
        return {}
    own = closest(scores)
    figures = {
        "hter_target_eer": hter(scores, own),
        "threshold_target_eer": own,
        "tpr_bona_fide_1pct": 1 - bpcer_at_apcer(scores, RATE, "pooled"),
    }
    if trained is not None:
        figures |= {"hter_train_eer": hter(scores, trained.value), "threshold_train_eer": trained.value}
    return figures


def closest(scores: Scores) -> float:
    """Return the threshold at which the two errors are closest, which need not be where one passes the other."""
    curve = error_curve(scores.live, scores.label)
    gaps = np.abs(curve.far - curve.frr)
    point = int(np.flatnonzero(gaps <= gaps.min() + ROUNDING)[-1])
    above: float = np.nextafter(curve.level[-1], np.inf)
    return float(curve.level[point]) if point < len(curve.level) else above
