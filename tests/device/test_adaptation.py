"""Adaptation of exports without torch gives the statistics of torch, and gated models are exported."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.commands import refusal_of
from tests.device.exports import copy_export
from tests.refusals import refused
from tests.toy import SIZE

from fedvisage.base.errors import BadFile, RunFailed
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.device import Exported, Pipeline
from fedvisage.device.adaptation import BATCH, KEPT, adapt
from fedvisage.device.exported import RateEstimate, read_config, write_export
from fedvisage.federation.wire.message import digest_of
from fedvisage.metrics import gate
from fedvisage.metrics.threshold import OF_PICTURES
from fedvisage.nn.batchnorm import collect_statistics
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import Adapt
from fedvisage.runs.export.export import adapt_and_export
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.pad.adaptation import adapt_and_score, adapt_weights
from fedvisage.tasks.pad.evaluation import sources_of

pytestmark = pytest.mark.long


def crops(count: int = 80) -> np.ndarray:
    """Return noise of two kinds, darker than the sites' images."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (count, SIZE, SIZE, 3)) // np.where(np.arange(count) % 2, 2, 4)[:, None, None, None]
    return noise.astype(np.uint8)


@pytest.fixture
def open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gate accept every adaptation, because a model of one round is too weak for it."""
    for name in ("RAREST_CLASS", "LOST_CLASS"):
        monkeypatch.setattr(gate, name, 0.0)
    monkeypatch.setattr(gate, "LEAST_AGREEMENT", -1.0)


@pytest.fixture
def adapted_export(pad: Path, tmp_path: Path, open_gate: None) -> Path:
    adapt(Exported.open(pad), crops(), tmp_path / "adapted")
    return tmp_path / "adapted"


def test_statistics_without_torch_equal_those_of_torch(pad_run: Path, adapted_export: Path) -> None:
    model, shown = open_model(pad_run), torch.from_numpy(crops()).permute(0, 3, 1, 2)
    net, method = model.scorer.net, model.setup.method
    model.scorer.load(model.saved.finished)

    def predict(images: torch.Tensor) -> torch.Tensor:
        from fedvisage.federation.method import Member

        ready = prepare(images, model.recipe.input.colour, torch.device("cpu"))
        return method.prediction.predict(Member(net, ready, torch.Generator(), model.recipe)).float()

    order = np.random.default_rng(0).permutation(len(shown))
    with torch.no_grad():
        with collect_statistics(net, KEPT):
            for batch in np.array_split(order, -(-len(shown) // BATCH)):
                predict(shown[batch])
        expected = predict(shown).numpy()
    assert Exported.open(adapted_export).run(crops()) == pytest.approx(expected, abs=2e-3)
    weights, wanted = load_file(adapted_export / "model.safetensors"), net.state_dict()
    for name, value in wanted.items():
        if name.endswith(("running_mean", "running_var")):
            assert torch.allclose(weights[name], value, rtol=1e-3, atol=1e-4), name
    assert np.abs(Exported.open(adapted_export).run(crops()) - model.score(shown)).max() > 0.01


def test_directory_states_the_origin_of_the_adaptation(pad: Path, adapted_export: Path) -> None:
    description = Exported.open(adapted_export).description
    assert description.adapted is not None
    assert (description.adapted.from_sha256, description.adapted.how, description.adapted.images) == (
        Exported.open(pad).digest,
        "statistics",
        80,
    )
    assert description.model_sha256 == digest_of(load_file(adapted_export / "model.safetensors"))
    before = Exported.open(pad).description.threshold
    assert before is not None
    assert before.frr is not None
    # The rates at the sites are those of the weights before.
    assert description.threshold == before.model_copy(update={"far": None, "frr": None})
    entries = {entry.key for entry in onnx.load(adapted_export / "onnx/model.onnx").metadata_props}
    assert "fedvisage.adapted" in entries
    assert "fedvisage.adapted" not in {entry.key for entry in onnx.load(pad / "onnx/model.onnx").metadata_props}
    assert json.loads((adapted_export / "adaptation.json").read_text())["images"] == 80
    with refused("adapted", "adapted"):
        adapt(Exported.open(adapted_export), crops(), adapted_export.with_name("again"))


def test_calibrated_export_is_not_adapted(pad: Path, tmp_path: Path) -> None:
    point = read_config(pad).float32.description.threshold
    assert point is not None
    measured = {OF_PICTURES: RateEstimate(rate=0.1, low=0.0, high=0.4)}
    copy_export(pad, tmp_path / "door", threshold=point.model_copy(update={"estimates": measured}))
    with refused(str(tmp_path / "door"), "calibrated", "made from"):
        adapt(Exported.open(tmp_path / "door"), crops(), tmp_path / "out")


def test_every_batch_norm_layer_is_recognised(pad_run: Path, pad: Path) -> None:
    norms, weights = Exported.open(pad).description.batch_norms, load_file(pad / "model.safetensors")
    stored = {name.removesuffix(".running_mean") for name in weights if name.endswith("running_mean")}
    assert norms is not None
    assert sorted(layer.layer for layer in norms) == sorted(stored)


def test_export_without_list_of_layers_must_be_exported_again(pad: Path, tmp_path: Path, open_gate: None) -> None:
    old = Exported.open(copy_export(pad, tmp_path / "old", batch_norms=None))
    with refused("old", "export the model again"):
        adapt(old, crops(), tmp_path / "out")


@pytest.mark.parametrize(("count", "word"), [(8, "too small"), (40, "one class")])
def test_rejected_adaptation_writes_nothing(pad: Path, tmp_path: Path, count: int, word: str) -> None:
    same = np.repeat(crops(1), count, axis=0)
    with pytest.raises(RunFailed, match=word):
        adapt(Exported.open(pad), same, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_weights_of_another_model_are_refused(pad: Path, recognition: Path, tmp_path: Path, open_gate: None) -> None:
    shutil.copytree(pad, tmp_path / "mixed")
    shutil.copy(recognition / "model.safetensors", tmp_path / "mixed" / "model.safetensors")
    write_export(tmp_path / "mixed", read_config(pad).float32.description)  # records the files that lie there
    with refused("mixed/model.safetensors", "does not fit the graph"):
        adapt(Exported.open(tmp_path / "mixed"), crops(), tmp_path / "out")
    with refused("recognition", "threshold"):
        adapt(Exported.open(recognition), crops(), tmp_path / "out")


def test_pipeline_adapts_to_pictures_with_a_face(
    pad: Path, photographs: dict[str, np.ndarray], tmp_path: Path, open_gate: None
) -> None:
    rng = np.random.default_rng(0)
    pictures = [np.clip(photographs["one"] * rng.uniform(0.5, 1.2), 0, 255).astype(np.uint8) for _ in range(18)]
    outcome = Pipeline(pad).adapt([*pictures, photographs["wall"], BadFile("an empty file")], tmp_path / "out")
    assert (outcome.images, outcome.passed_over) == (18, 2)
    assert Pipeline(tmp_path / "out").check(pictures[0]).faces[0].pad is not None


def test_command_adapts_an_export_without_torch(pad: Path, photographs: dict[str, np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(4):
        Image.fromarray(photographs["one"]).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "list.txt").write_text("0.png\n")
    code = (
        "import sys; sys.modules['torch'] = None; from fedvisage.cli import main; sys.argv = ['fedvisage', 'adapt',"
        f" {str(pad)!r}, '--data', {str(tmp_path / 'photos')!r}, '--out', {str(tmp_path / 'out')!r}]; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert "--data: has 4 usable faces; 16 are needed" in result.stderr
    assert "1 file skipped by its ending" in result.stderr


def test_adapted_weights_give_the_adapted_scores(sets: Mapping[str, Path], pad_run: Path, open_gate: None) -> None:
    model, view = open_model(pad_run), View.of(PreparedSet.open(sets["A"]))
    before, sources = model.saved.finished, sources_of(model.setup.method, model.saved)
    scores, _ = adapt_and_score(model.scorer, before, view, Adapt(), sources)
    weights, outcomes = adapt_weights(model.scorer, before, view, Adapt(), sources)
    assert outcomes[""].adapted == len(view)
    adapted = {name for name, value in weights.items() if not torch.equal(value, before[name])}
    assert any(name.endswith("running_mean") for name in adapted)
    assert any(name.endswith("weight") for name in adapted)
    assert model.scorer.scores(weights, view)[""] == pytest.approx(scores[""], abs=1e-5)
    with refused("evaluation.adapt.loop", "online", "settled"):
        adapt_weights(model.scorer, before, view, Adapt(loop="online", gate=False), sources)


@pytest.mark.slow
def test_gated_model_is_exported_with_its_adapted_weights(
    sets: Mapping[str, Path], pad_run: Path, tmp_path: Path, open_gate: None
) -> None:
    out = tmp_path / "out"
    outcome = adapt_and_export(open_model(pad_run), out, str(sets["A"]), cache=tmp_path / "cache")
    description = Exported.open(out).description
    assert description.adapted is not None
    images = len(PreparedSet.open(sets["A"]))
    assert (description.adapted.how, description.adapted.images) == ("gated", images)
    assert description.threshold is not None
    assert (description.threshold.far, description.threshold.frr) == (None, None)
    assert outcome.lines()[0] == f"adapted to {images} images, without labels"
    before, after = load_file(pad_run / "model.safetensors"), load_file(out / "model.safetensors")
    assert any(not torch.equal(value, before[name]) for name, value in after.items())
    assert "adapted" in (out / "README.md").read_text()


def test_rejected_adaptation_is_not_exported(sets: Mapping[str, Path], pad_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="gate"):
        adapt_and_export(open_model(pad_run), tmp_path / "out", f"{sets['A']} only: subjects=0-1", cache=tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("PAD", "--data", "nowhere", "--out", "OUT"), "nowhere"),
        (("PAD", "--data", "nowhere", "--out", "OUT", "--member", "A"), "--member"),
        (("RUN", "--data", "nowhere", "--out", "OUT"), "nowhere"),
        (("RUN", "--data", "nowhere", "--out", "OUT", "--enlarge"), "--enlarge"),
        (("PEOPLE", "--data", "nowhere", "--out", "OUT"), "people"),
    ],
)
def test_wrong_calls_of_adapt_name_the_place(
    pad: Path, pad_run: Path, recognition_run: Path, tmp_path: Path, words: tuple[str, ...], place: str
) -> None:
    paths = {"PAD": pad, "RUN": pad_run, "PEOPLE": recognition_run, "OUT": tmp_path / "out"}
    assert place in str(refusal_of("adapt", *(paths.get(word, word) for word in words)))
