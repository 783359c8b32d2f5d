"""The flat metrics of a run: names, parts, and files of a version that wrote nested mappings."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refused

from fedvisage.metrics.recorded import Metrics, read_metrics

NESTED: dict[str, Any] = {
    "method": "fedfr",
    "task": "recognition",
    "sites": ["A", "B"],
    "user": "U",
    "attendance": {"rounds": {"A": 2, "B": 1}, "missed": {"B": [2]}, "lost": []},
    "threshold": None,
    "threshold_source": None,
    "generic": {
        "tar_at_far": {"1e-3": 0.5, "2.5e-3": 0.6},
        "tpir_at_fpir": {"1e-2": None},
        "accuracy_on_ten_folds": 0.8,
        "groups": {"g.1": {"tar_at_far": {"1e-1": 1.0}, "accuracy_on_ten_folds": None}},
        "tar_by_impostors": {"within groups": {"1e-1": 0.7}},
        "decision": {"fmr": 0.1},
    },
    "personalised": {"tar_at_far": {"1e-3": 0.9}, "models": {"own": {"tar_at_far": {"1e-3": 0.9}}}},
    "benchmarks": {"ijb": {"readings": {"published": {"rank": {"1": 0.4}}}}},
    "intervals": {"frame": {"hter": [0.1, 0.2]}},
    "by_round": [{"round": 1, "generic": {"tar_at_far": {"1e-3": 0.4}}}],
    "sealed": True,
}
FLAT: dict[str, Any] = {
    "method": "fedfr",
    "task": "recognition",
    "sites": ["A", "B"],
    "target": "U",
    "attendance": {"rounds": {"A": 2, "B": 1}, "missed": {"B": [2]}, "lost": []},
    "threshold": None,
    "generic.tar@1e-3": 0.5,
    "generic.tar@2.5e-3": 0.6,
    "generic.tpir@1e-2": None,
    "generic.accuracy": 0.8,
    "generic.groups.g_1.tar@1e-1": 1.0,
    "generic.groups.g_1.accuracy": None,
    "generic.impostors.within.tar@1e-1": 0.7,
    "generic.decision.fmr": 0.1,
    "personal.tar@1e-3": 0.9,
    "personal.models.own.tar@1e-3": 0.9,
    "benchmarks.ijb.readings.published.rank@1": 0.4,
    "intervals.frame.hter": [0.1, 0.2],
    "by_round": [{"round": 1, "generic.tar@1e-3": 0.4}],
    "sealed": True,
}


def test_nested_file_of_an_earlier_version_gives_the_present_names(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps(NESTED))
    assert read_metrics(tmp_path / "metrics.json") == FLAT


@pytest.mark.parametrize(("content", "keyword"), [({"format": 3}, "newer"), ({"format": 2, "video": {}}, "video")])
def test_file_of_another_format_is_refused(content: dict[str, Any], keyword: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps(content))
    with refused(tmp_path / "metrics.json", keyword):
        read_metrics(tmp_path / "metrics.json")


def test_parts_are_found_by_their_prefix() -> None:
    metrics = Metrics.of(
        {"hter": 0.3, "members": {"A": {"apcer": {"print v1.2": 0.1}, "hter": 0.2}, "B": {"hter": 0.4}}}
    )
    assert metrics["members.A.apcer.print v1.2"] == 0.1
    assert metrics.part("members.A") == {"apcer.print v1.2": 0.1, "hter": 0.2}
    assert [(name, part["hter"]) for name, part in metrics.parts("members").items()] == [("A", 0.2), ("B", 0.4)]
    assert metrics.part("video") == {}
    assert Metrics({"tar@1e-3": 0.5, "tpir@1e-3": None}).rates("tar") == {"1e-3": 0.5}


def test_missing_figure_is_none() -> None:
    metrics = Metrics({"hter": 0.3, "eer": None, "level": "frame"})
    assert [metrics.number(name) for name in ("hter", "eer", "auc")] == [0.3, None, None]
    with pytest.raises(TypeError, match="level must be a number"):
        metrics.number("level")
