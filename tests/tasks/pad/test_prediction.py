"""Lines about pictures: one unbroken line per picture, with consistent decision, score and threshold."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.device.predict import (
    ATTACK,
    GREY,
    LIVE,
    SEVERAL,
    UPSIDE_DOWN,
    Prediction,
    Predictions,
    probability,
    score_line,
)
from fedvisage.metrics.threshold import Threshold

HALF = Threshold(rule="source-eer", value=0.0, far=0.021, frr=0.034)


def prediction(logit: float, **fields: Any) -> Prediction:
    return Prediction("face.png", probability(logit), logit, LIVE if logit >= HALF.value else ATTACK, **fields)


@pytest.mark.parametrize("logit", [-800.0, -40.0, -1.5, 0.0, 0.3, 12.0, 800.0])
def test_score_is_the_probability_of_the_logit(logit: float) -> None:
    expected = 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
    assert probability(logit) == pytest.approx(expected, rel=1e-12)


@given(st.floats(-45, 45), st.floats(-45, 45))
def test_printed_score_and_threshold_agree_with_the_decision(logit: float, threshold: float) -> None:
    *_, score, sign, _, limit = score_line(logit, threshold).split()
    assert sign == (">=" if logit >= threshold else "<")
    assert (float(score) >= float(limit)) == (logit >= threshold)


def test_line_has_decision_score_and_threshold_on_one_scale() -> None:
    values = Predictions(HALF, [prediction(0.331), prediction(-1.1)])
    head, live, attack = values.lines()
    assert head.startswith("threshold: score 0.5000")
    assert "2.10%" in head
    assert "3.40%" in head
    assert live.split() == ["live", "score", "0.5820", ">=", "threshold", "0.5000", "face.png"]
    assert attack.split() == ["attack", "score", "0.2497", "<", "threshold", "0.5000", "face.png"]


def test_notes_follow_the_name_and_are_in_the_values() -> None:
    entry = prediction(0.331, notes=(SEVERAL, UPSIDE_DOWN, GREY), faces=3, boxes=[[1, 2, 3, 4]] * 3)
    line = Predictions(HALF, [entry]).lines()[-1]
    assert "face.png  (3 faces" in line
    assert "upside down" in line
    assert "infrared" in line
    (values,) = Predictions(HALF, [entry]).as_values()["images"]
    assert tuple(values["notes"]) == ("several faces", "upside down", "grey")
    assert (values["faces"], len(values["boxes"])) == (3, 3)


def test_rejected_picture_has_a_reason_and_no_score() -> None:
    values = Predictions(HALF, [Prediction("face.png", reason="no face found", faces=0, boxes=[])])
    assert values.lines()[-1].split("  ")[0].split() == ["rejected", "no", "face", "found"]
    assert values.as_values()["images"][0]["probability"] is None


@pytest.mark.parametrize(
    "name", ["a\nlive   score 0.99.png", "a\x1b[2Jb.png", "a\r.png", "\u202egnp.exe", "a\u2028b.png"]
)
def test_no_name_can_break_its_line(name: str) -> None:
    line = Predictions(HALF, [Prediction(name, reason="no face found")]).lines()[-1]
    assert line.isprintable()
    assert line.startswith("rejected")


def test_values_have_the_threshold_on_both_scales_and_skipped_files() -> None:
    values = Predictions(HALF, [prediction(0.331)], Counter({".mov": 2})).as_values()
    assert values["threshold"] == {"rule": "source-eer", "probability": 0.5, "logit": 0.0, "far": 0.021, "frr": 0.034}
    assert values["passed_over"] == {".mov": 2}
    assert values["images"][0]["logit"] == 0.331


def test_exit_code_follows_from_the_decisions() -> None:
    rejected = Prediction("wall.png", reason="no face found")
    assert Predictions(HALF, [prediction(1.0)]).exit_code == 0
    assert Predictions(HALF, [prediction(1.0), prediction(-1.0), rejected]).exit_code == 1
    assert Predictions(HALF, [prediction(1.0), rejected]).exit_code == 3
