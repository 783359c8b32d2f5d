"""Published models in the cache: graphs with the log-odds of their networks, cards, terms and refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checkpoints import SIZE, entry_of, log_odds, random_minifasnet, save_checkpoint, save_pair
from tests.refusals import refused
from tests.starts import theirs
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.cli import app
from fedvisage.device import Exported, Fused
from fedvisage.device.fused import open_export
from fedvisage.runs.export.published import START, get_model
from fedvisage.starts.convert import convert, make_pictures
from fedvisage.starts.published import CATALOGUE, DetectorPart, PublishedModel, find_model, locate_detector


def pictures() -> tuple[torch.Tensor, np.ndarray]:
    """Return pictures as N×3×80×80 and as N×80×80×3."""
    images = (255 * make_pictures(SIZE)).round().byte()
    return images, images.permute(0, 2, 3, 1).contiguous().numpy()


def single(path: Path, variant: str, *, archive: bool = False) -> PublishedModel:
    file = save_checkpoint(random_minifasnet(variant), path, archive=archive)
    return replace(CATALOGUE["minifasnet-v2"], files=(file,), parts=(DetectorPart(2.7),))


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("variant", ["v1", "v1se", "v2", "v2se"])
def test_graph_has_the_logits_of_the_converted_network(variant: str, archive: bool, tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    model = single(path, variant, archive=archive)
    exported = open_export(get_model(model, tmp_path / "cache", given=[path]))
    images, crops = pictures()
    convert(path, f"minifasnet-{variant}", tmp_path / "start.safetensors", margin=2.7)
    scores = exported.score(crops)
    np.testing.assert_allclose(scores, fv.open(tmp_path / "start.safetensors").score(images), atol=2e-5, rtol=0)
    np.testing.assert_allclose(scores, log_odds(random_minifasnet(variant), images), atol=2e-5, rtol=0)
    assert scores.std() > 0.1, "the scores tell pictures apart"


def test_pair_sums_the_scaled_log_odds_of_both_crops(tmp_path: Path) -> None:
    model, nets = save_pair(tmp_path)
    pair = open_export(get_model(model, tmp_path / "cache", given=[tmp_path]))
    assert isinstance(pair, Fused)
    assert [shape.margin for shape in pair.shapes] == [2.7, 4.0]
    images, crops = pictures()
    others = np.ascontiguousarray(crops[::-1])
    expected = log_odds(nets["v2"], images) / 2.30 + log_odds(nets["v1se"], images.flip(0)) / 3.79
    np.testing.assert_allclose(pair.score([crops, others]), expected, atol=2e-5, rtol=0)
    assert pair.is_live([crops, others]).tolist() == (expected >= 0).tolist()
    with refused("crops", "2.7", "4"):
        pair.score(crops)


def test_card_names_origin_licences_and_training_data(tmp_path: Path) -> None:
    model, _ = save_pair(tmp_path)
    directory = get_model(model, tmp_path / "cache", given=[tmp_path])
    cards = sorted(directory.rglob("README.md"))
    assert len(cards) == 3
    for card in cards:
        text = card.read_text()
        assert "Licence of the weights: Apache-2.0" in text
        assert "Training data: not published" in text
    assert all(file.sha256 in cards[0].read_text() for file in model.files)


def test_stored_model_is_not_read_again(tmp_path: Path) -> None:
    model, _ = save_pair(tmp_path)
    directory = get_model(model, tmp_path / "cache", given=[tmp_path])
    before = (directory / "config.json").stat().st_mtime_ns
    assert get_model(model, tmp_path / "cache", given=[tmp_path / "absent"]) == directory
    assert (directory / "config.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("fault", ["lacks", "has", "NaN"])
def test_another_network_is_refused_and_leaves_nothing(tmp_path: Path, fault: str) -> None:
    state = random_minifasnet("v2").state_dict()
    if fault == "lacks":
        del state["conv_34.conv.bn.bias"]
    elif fault == "has":
        state["extra.weight"] = torch.zeros(3)
    else:
        state["prob.weight"][0, 0] = torch.nan
    torch.save(state, tmp_path / "net.pth", _use_new_zipfile_serialization=False)
    model = replace(CATALOGUE["minifasnet-v2"], files=(entry_of(tmp_path / "net.pth"),))
    with refused("net.pth", fault):
        get_model(model, tmp_path / "cache", given=[tmp_path])
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_recognition_network_becomes_a_start_and_a_graph_is_stored_unchanged(tmp_path: Path) -> None:
    net = theirs.shaken(theirs.Foamliu(16, 32, 32))
    torch.save(net.state_dict(), tmp_path / "face.pt", _use_new_zipfile_serialization=False)
    model = replace(CATALOGUE["mobilefacenet"], files=(entry_of(tmp_path / "face.pt"),))
    directory = get_model(model, tmp_path / "cache", given=[tmp_path])
    assert {path.name for path in directory.iterdir()} == {START, "README.md"}
    (tmp_path / "graph.onnx").write_bytes(b"graph")
    detector = replace(CATALOGUE["yunet"], files=(entry_of(tmp_path / "graph.onnx"),))
    stored = get_model(detector, tmp_path / "cache", given=[tmp_path])
    assert (stored / "graph.onnx").read_bytes() == b"graph"
    assert "WIDER FACE" in (stored / "README.md").read_text()


def test_catalogue_pins_every_file_to_a_commit_and_a_digest() -> None:
    for model in CATALOGUE.values():
        assert all((model.training_data, model.code_licence, model.weights_licence))
        assert len(model.parts) == (len(model.files) if model.task == "pad" else 0)
        for file in model.files:
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
            assert re.search(r"^https://.*/[0-9a-f]{40}/", file.address)
            assert file.address.endswith(f"/{file.name}")


def test_unclear_terms_need_consent_before_anything_is_downloaded(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["model", "get", "yunet"])
    assert result.exit_code != 0
    assert "--accept-licence" in str(result.exception)
    assert "CC BY-NC-ND" in result.stderr


def test_models_are_listed_with_their_terms() -> None:
    answer = json.loads(CliRunner().invoke(app, ["model", "list", "--json"]).stdout)
    assert [model["name"] for model in answer] == list(CATALOGUE)
    text = CliRunner().invoke(app, ["model", "list"]).stdout
    assert re.search(r"sface .*\n.*terms to accept", text)


def test_names_are_found_unless_a_path_has_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("NAME", "minifasnet"):
        find_model("minifasnett")
    with refused("minifasnet", "fedvisage model get minifasnet"):
        locate_detector("minifasnet", tmp_path)
    with refused("yunet", "face detection"):
        locate_detector("yunet", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minifasnet").mkdir()
    assert locate_detector("minifasnet", tmp_path) == Path("minifasnet")


def test_export_and_run_answer_alike(pad: Path, pad_run: Path) -> None:
    crops = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), np.uint8)
    exported, run = fv.open(pad), fv.open(pad_run)
    assert isinstance(exported, Exported)
    np.testing.assert_allclose(exported.score(crops), run.score(crops), atol=1e-3)
    assert exported.is_live(crops).tolist() == run.is_live(crops).tolist()
    assert exported.threshold is not None
    assert exported.threshold.value == run.threshold.value
