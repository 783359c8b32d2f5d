"""Int8 graphs: size, own threshold by the run's rule, and refusal of a changed error rate."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.toy import Sets
from typer.testing import CliRunner

from fedvisage.base.errors import RunFailed
from fedvisage.cli import app
from fedvisage.data.prepared import PreparedSet
from fedvisage.device import Exported, Fused
from fedvisage.metrics.threshold import Threshold, histogram, threshold_from_histograms
from fedvisage.runs.export.fuse import fuse
from fedvisage.runs.export.quantised import OperatingError, QuantisationEffect


@pytest.fixture(scope="module")
def int8_export(pad_run: Path, sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8") / "model"
    words = ["export", str(pad_run), str(out), "--int8", "--calibrate", str(sets["A"]), "--quiet"]
    result = CliRunner().invoke(app, words)
    assert result.exception is None, result.exception
    return out


@pytest.mark.slow
def test_int8_graph_is_smaller_with_nearly_equal_scores(int8_export: Path, sets: Sets) -> None:
    sizes = [(int8_export / "onnx" / name).stat().st_size for name in ("model.onnx", "model_int8.onnx")]
    assert sizes[1] < 0.6 * sizes[0]
    images = PreparedSet.open(sets["B"]).images[:8]
    plain, small = (Exported.open(int8_export, int8=int8).run(images) for int8 in (False, True))
    assert small == pytest.approx(plain, abs=0.3)
    assert not np.array_equal(small, plain)
    kinds = {node.op_type for node in onnx.load(int8_export / "onnx/model_int8.onnx").graph.node}
    assert "DequantizeLinear" in kinds


@pytest.mark.slow
def test_int8_threshold_is_at_its_own_equal_error_rate(int8_export: Path, sets: Sets) -> None:
    model, source = Exported.open(int8_export, int8=True), PreparedSet.open(sets["A"])
    held = source.select("heldout")
    scores, live = model.run(source.images[held]), source.rows.label[held] == 1
    assert model.threshold is not None
    assert model.threshold.rule == "source-eer"
    far, frr = (scores[~live] >= model.threshold.value).mean(), (scores[live] < model.threshold.value).mean()
    assert (far, frr) == pytest.approx((model.threshold.far, model.threshold.frr), abs=1 / live.sum())
    stored = json.loads((int8_export / "parity.json").read_text())["int8"]
    assert stored["int8"]["threshold"] == model.threshold.value
    assert stored["crops"] == len(held)


def test_int8_graph_with_a_changed_error_rate_is_refused() -> None:
    def operating_error(error: float) -> OperatingError:
        return OperatingError(Threshold(0.0, "source-eer", error, error), error)

    QuantisationEffect("A", 100, operating_error(0.100), operating_error(0.105)).require("pad")
    for after in (0.106, 0.094):
        with pytest.raises(RunFailed, match="HTER"):
            QuantisationEffect("A", 100, operating_error(0.100), operating_error(after)).require("pad")
    with pytest.raises(RunFailed, match="TAR"):
        QuantisationEffect("A", 100, operating_error(0.1), operating_error(0.2)).require("recognition")


def test_int8_graph_may_change_one_decision_on_a_small_set() -> None:
    def operating_error(error: float) -> OperatingError:
        return OperatingError(Threshold(0.0, "source-eer", error, error), error, step=0.5 / 8)

    QuantisationEffect("A", 16, operating_error(0.125), operating_error(0.1875)).require("pad")
    with pytest.raises(RunFailed, match=r"12\.50 points, more than 6\.25"):
        QuantisationEffect("A", 16, operating_error(0.125), operating_error(0.25)).require("pad")


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (("--int8",), "--calibrate"),
        (("--calibrate", "A"), "--int8"),
        (("--int8", "--calibrate", "U"), "target"),
        (("--int8", "--calibrate", "nowhere"), "nowhere"),
        (("--int8", "--calibrate", "people-A"), "split"),
    ],
)
def test_wrong_int8_calls_name_the_option_and_write_nothing(
    pad_run: Path, sets: Sets, tmp_path: Path, words: tuple[str, ...], keyword: str
) -> None:
    places = [str(sets["A"].with_name(word)) if word[0] in "AUp" else word for word in words]
    result = CliRunner().invoke(app, ["export", str(pad_run), str(tmp_path / "out"), *places])
    assert type(result.exception).__name__ == "UserError"
    assert keyword in str(result.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_int8_recognition_model_keeps_its_rate(recognition_run: Path, sets: Sets, tmp_path: Path) -> None:
    words = ["export", str(recognition_run), str(tmp_path / "out"), "--int8", "--calibrate"]
    result = CliRunner().invoke(app, [*words, str(sets["A"].with_name("people-A"))])
    if isinstance(result.exception, RunFailed):  # six faces have few pairs
        assert "TAR" in str(result.exception)
        return
    assert result.exception is None, result.exception
    model = Exported.open(tmp_path / "out", int8=True)
    assert model.threshold is not None
    assert model.threshold.rule.startswith("source-fmr")


@pytest.mark.slow
def test_fusion_of_int8_exports_has_its_own_threshold(int8_export: Path, sets: Sets, tmp_path: Path) -> None:
    members, on = [int8_export, int8_export], [str(sets["A"])]
    fuse(members, tmp_path / "out", weights=[1.0, 0.5], scales=[0.5, 0.25], on=on, cache=tmp_path)
    fused, source = Fused.open(tmp_path / "out", int8=True), PreparedSet.open(sets["A"])
    heldout = source.select("heldout")
    images = np.array(source.images[heldout])
    logits = Exported.open(int8_export, int8=True).run(images).astype(np.float64)
    expected = np.sum([member.weight * logits / member.scale for member in fused.config.members], axis=0)
    np.testing.assert_allclose(fused.score([images]), expected)
    counts = histogram(expected, source.rows.label[heldout].astype(np.int64))
    assert fused.threshold is not None
    assert fused.threshold.value == threshold_from_histograms([counts], "source-eer").value
