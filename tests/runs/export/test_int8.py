"""int8 graphs: smaller, with a threshold of their own by the run's rule, and refused where their error moves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from fedvisage.base.errors import RunFailed
from fedvisage.cli import app
from fedvisage.data.prepared import PreparedSet
from fedvisage.device import Exported, Fused
from fedvisage.metrics.threshold import Threshold, histogram, threshold_from_histograms
from fedvisage.runs.export.fuse import fuse
from fedvisage.runs.export.quantised import OperatingError, QuantisationEffect


@pytest.fixture(scope="module")
def both(pad_run: Path, sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8") / "model"
    words = ["export", str(pad_run), str(out), "--int8", "--calibrate", str(sets["A"]), "--quiet"]
    result = CliRunner().invoke(app, words)
    assert result.exception is None, result.exception
    return out


@pytest.mark.slow
def test_the_int8_graph_is_smaller_and_says_nearly_the_same(both: Path, sets: Mapping[str, Path]) -> None:
    sizes = [(both / "onnx" / name).stat().st_size for name in ("model.onnx", "model_int8.onnx")]
    assert sizes[1] < 0.6 * sizes[0]
    shown = PreparedSet.open(sets["B"]).images[:8]
    plain, small = (Exported.open(both, int8=int8).run(shown) for int8 in (False, True))
    assert small == pytest.approx(plain, abs=0.3)
    assert not np.array_equal(small, plain)
    kinds = {node.op_type for node in onnx.load(both / "onnx/model_int8.onnx").graph.node}
    assert "DequantizeLinear" in kinds


@pytest.mark.slow
def test_its_threshold_is_where_its_own_errors_are_equal(both: Path, sets: Mapping[str, Path]) -> None:
    model, source = Exported.open(both, int8=True), PreparedSet.open(sets["A"])
    held = source.select("heldout")
    scores, live = model.run(source.images[held]), source.rows.label[held] == 1
    assert model.threshold is not None
    assert model.threshold.rule == "source-eer"
    far, frr = (scores[~live] >= model.threshold.value).mean(), (scores[live] < model.threshold.value).mean()
    assert (far, frr) == pytest.approx((model.threshold.far, model.threshold.frr), abs=1 / live.sum())
    said = json.loads((both / "parity.json").read_text())["int8"]
    assert said["int8"]["threshold"] == model.threshold.value
    assert said["crops"] == len(held)


def test_an_int8_graph_whose_error_moves_is_refused() -> None:
    def of(error: float) -> OperatingError:
        return OperatingError(Threshold(0.0, "source-eer", error, error), error)

    QuantisationEffect("A", 100, of(0.100), of(0.105)).require("pad")
    for after in (0.106, 0.094):
        with pytest.raises(RunFailed, match="HTER"):
            QuantisationEffect("A", 100, of(0.100), of(after)).require("pad")
    with pytest.raises(RunFailed, match="TAR"):
        QuantisationEffect("A", 100, of(0.1), of(0.2)).require("recognition")


def test_on_a_small_set_an_int8_graph_may_decide_one_image_otherwise() -> None:
    def of(error: float) -> OperatingError:
        return OperatingError(Threshold(0.0, "source-eer", error, error), error, step=0.5 / 8)

    QuantisationEffect("A", 16, of(0.125), of(0.1875)).require("pad")
    with pytest.raises(RunFailed, match=r"12\.50 points, more than 6\.25"):
        QuantisationEffect("A", 16, of(0.125), of(0.25)).require("pad")


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("--int8",), "--calibrate"),
        (("--calibrate", "A"), "--int8"),
        (("--int8", "--calibrate", "nowhere"), "nowhere"),
        (("--int8", "--calibrate", "people-A"), "split"),
    ],
)
def test_wrong_calls_are_told_and_leave_nothing(
    pad_run: Path, sets: Mapping[str, Path], tmp_path: Path, words: tuple[str, ...], word: str
) -> None:
    places = [str(sets["A"].with_name(one)) if one[0] in "Ap" else one for one in words]
    result = CliRunner().invoke(app, ["export", str(pad_run), str(tmp_path / "out"), *places])
    assert type(result.exception).__name__ == "UserError"
    assert word in str(result.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_recognition_model_keeps_its_rate(recognition_run: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    words = ["export", str(recognition_run), str(tmp_path / "out"), "--int8", "--calibrate"]
    result = CliRunner().invoke(app, [*words, str(sets["A"].with_name("people-A"))])
    if isinstance(result.exception, RunFailed):  # six faces have few pairs: one that moves is more than half a point
        assert "TAR" in str(result.exception)
        return
    assert result.exception is None, result.exception
    model = Exported.open(tmp_path / "out", int8=True)
    assert model.threshold is not None
    assert model.threshold.rule.startswith("source-fmr")


@pytest.mark.slow
def test_a_fusion_of_int8_exports_sums_their_int8_graphs_at_a_threshold_of_its_own(
    both: Path, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    fuse([both, both], tmp_path / "out", weights=[1.0, 0.5], on=str(sets["A"]), cache=tmp_path)
    fused, source = Fused.open(tmp_path / "out", int8=True), PreparedSet.open(sets["A"])
    heldout = source.select("heldout")
    images = np.array(source.images[heldout])
    logits = Exported.open(both, int8=True).run(images).astype(np.float64)
    expected = sum(member.weight * logits / member.scale for member in fused.config.members)
    np.testing.assert_allclose(fused.score([images]), expected)
    counts = histogram(expected, source.rows.label[heldout].astype(np.int64))
    assert fused.threshold is not None
    assert fused.threshold.value == threshold_from_histograms([counts], "source-eer").value
