"""Published models in the cache and as starts: log-odds of their networks, cards, terms and refusals."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tests.checkpoints import SIZE, entry, log_odds, random_minifasnet, save_checkpoint, save_pair
from tests.commands import output_of, refusal_of
from tests.refusals import check_output, refused
from tests.starts import published_networks

import fedvisage as fv
from fedvisage.device import Exported, Fused
from fedvisage.device.fused import open_export
from fedvisage.nn.minifasnet import INNER, MiniFASNet, minifasnet
from fedvisage.runs.export.published import START, get_model
from fedvisage.starts.convert import convert, make_pictures
from fedvisage.starts.published import locate_detector, read_catalogue


def pictures() -> tuple[torch.Tensor, np.ndarray]:
    """Return pictures as N×3×80×80 and as N×80×80×3."""
    images = (255 * make_pictures(SIZE)).round().byte()
    return images, images.permute(0, 2, 3, 1).contiguous().numpy()


@pytest.mark.long
@pytest.mark.parametrize("variant", ["v1", "v1se", "v2", "v2se"])
def test_graph_has_the_logits_of_the_converted_network(variant: str, tmp_path: Path) -> None:
    net = random_minifasnet(variant)
    model = entry("minifasnet-v2", save_checkpoint(net, tmp_path / "net.pth"))
    exported = open_export(get_model(model, tmp_path / "cache", given=[tmp_path]))
    images, crops = pictures()
    scores = exported.score(crops)
    np.testing.assert_allclose(scores, log_odds(net, images), atol=2e-5, rtol=0)
    save_file(dict(net.state_dict()), tmp_path / "net.safetensors")
    convert(tmp_path / "net.safetensors", f"minifasnet-{variant}", tmp_path / "start.safetensors", margin=2.7)
    np.testing.assert_allclose(scores, fv.open(tmp_path / "start.safetensors").score(images), atol=2e-5, rtol=0)
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
    with refused("crops", "one array per shape", "2"):
        pair.score(crops)


def test_card_names_origin_licences_and_training_data(tmp_path: Path) -> None:
    model, _ = save_pair(tmp_path)
    directory = get_model(model, tmp_path / "cache", given=[tmp_path])
    cards = sorted(directory.rglob("README.md"))
    assert len(cards) == 3
    for card in cards:
        text = card.read_text()
        assert "licence of the weights: Apache-2.0" in text
        assert "training data: not published" in text
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
    model = entry("minifasnet-v2", tmp_path / "net.pth")
    with refused("net.pth", fault):
        get_model(model, tmp_path / "cache", given=[tmp_path])
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.mark.long
def test_recognition_network_becomes_a_start_and_a_graph_is_stored_unchanged(tmp_path: Path) -> None:
    net = published_networks.randomise(published_networks.Foamliu(16, 32, 32))
    torch.save(net.state_dict(), tmp_path / "face.pt", _use_new_zipfile_serialization=False)
    model = entry("mobilefacenet", tmp_path / "face.pt")
    directory = get_model(model, tmp_path / "cache", given=[tmp_path])
    assert {path.name for path in directory.iterdir()} == {START, "README.md"}
    (tmp_path / "graph.onnx").write_bytes(b"graph")
    detector = entry("yunet", tmp_path / "graph.onnx")
    stored = get_model(detector, tmp_path / "cache", given=[tmp_path])
    assert (stored / "graph.onnx").read_bytes() == b"graph"
    assert "WIDER FACE" in (stored / "README.md").read_text()


def test_catalogue_pins_every_file_to_a_commit_and_a_digest() -> None:
    for model in read_catalogue().values():
        assert all((model.training_data, model.code_licence, model.weights_licence))
        assert len(model.margins) == (len(model.files) if model.task == "attack detection" else 0)
        for file in model.files:
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
            assert re.search(r"^https://.*/[0-9a-f]{40}/", file.address)


def test_unclear_terms_need_consent_before_anything_is_downloaded(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"other")
    words = [sys.executable, "-m", "fedvisage", "model", "get", "yunet", "--from", "other.onnx"]
    environment = {**os.environ, "FEDVISAGE_CACHE": str(tmp_path / "cache")}

    def run(*more: str) -> tuple[str, str]:
        done = subprocess.run(
            [*words, *more], env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 2
        terms, _, refusal = done.stderr.rstrip().rpartition("\n")
        return terms, refusal

    terms, refusal = run()
    assert "CC BY-NC-ND" in terms
    check_output(refusal, "yunet", "--accept-licence")
    digest = read_catalogue()["yunet"].files[0].sha256
    check_output(run("--accept-licence")[1], "--from", "other.onnx", "5 bytes", digest)
    assert not (tmp_path / "cache" / "models").exists()


def test_models_are_listed_with_their_terms() -> None:
    answer = json.loads(output_of("model", "list", "--json"))
    assert [model["name"] for model in answer] == list(read_catalogue())
    assert re.search(r"sface .*\n.*terms to accept", output_of("model", "list"))


def test_names_are_found_unless_a_path_has_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean minifasnet" in refusal_of("model", "get", "minifasnett").message
    with refused("minifasnet", "fedvisage model get minifasnet"):
        locate_detector("minifasnet", tmp_path)
    with refused("yunet", "face detection"):
        locate_detector("yunet", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minifasnet").mkdir()
    assert locate_detector("minifasnet", tmp_path) == Path("minifasnet")


def test_misspelt_detector_suggests_the_nearest(tmp_path: Path) -> None:
    with refused("--pad", "did you mean minifasnet"):
        output_of("predict", "photo.png", "--pad", "minifasnt")
    with refused("minifasnt", "did you mean minifasnet"):
        output_of("calibrate", "minifasnt", "--live", tmp_path, "--out", tmp_path / "door")
    with refused("--pad", "choose one of minifasnet"):  # no model for recognition or face detection
        output_of("predict", "photo.png", "--pad", "sfac")
    with refused(tmp_path, "fedvisage export"):
        output_of("calibrate", tmp_path, "--live", tmp_path, "--out", tmp_path / "door")


def test_export_and_run_answer_alike(pad: Path, pad_run: Path) -> None:
    crops = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), np.uint8)
    exported, run = fv.open(pad), fv.open(pad_run)
    assert isinstance(exported, Exported)
    np.testing.assert_allclose(exported.score(crops), run.score(crops), atol=1e-3)
    assert exported.is_live(crops).tolist() == run.is_live(crops).tolist()
    assert exported.threshold is not None
    assert exported.threshold.value == run.threshold.value


def write_published(variant: str, path: Path) -> published_networks.MiniFASNet:
    """Write a file of random weights as the authors write theirs, and return the network."""
    net = random_minifasnet(variant)
    save_file({f"module.{name}": value.clone() for name, value in net.state_dict().items()}, path)
    return net


@pytest.fixture
def start(tmp_path: Path) -> Path:
    write_published("v2", tmp_path / "published.safetensors")
    convert(tmp_path / "published.safetensors", "minifasnet-v2", tmp_path / "start.safetensors", licence="Apache-2.0")
    return tmp_path / "start.safetensors"


@pytest.mark.parametrize(("variant", "parameters"), [("v1", 414_354), ("v2", 434_560)])
def test_minifasnets_have_the_published_numbers_of_parameters(variant: str, parameters: int) -> None:
    """The authors give 0.414 and 0.435 million."""
    assert set(INNER) == {"v1", "v2"}
    net = minifasnet(MiniFASNet(variant=variant), "rgb")
    assert sum(value.numel() for value in net.parameters()) == parameters


@pytest.mark.long
def test_start_is_exported_without_training_and_its_card_states_licence_and_source(start: Path, tmp_path: Path) -> None:
    output_of("export", start, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Licence of the weights: Apache-2.0" in card
    assert "published.safetensors" in card
    assert "Trained by" not in card
    exported = Exported.open(tmp_path / "out")
    images, crops = pictures()
    scores = exported.run(crops)
    torch.testing.assert_close(
        torch.from_numpy(scores).double(), torch.from_numpy(fv.open(start).score(images)), atol=1e-3, rtol=1e-3
    )


@pytest.mark.long
def test_published_file_is_converted_and_predicts_by_two_commands(tmp_path: Path) -> None:
    write_published("v2", tmp_path / "a.safetensors")
    Image.fromarray(pictures()[1][0]).save(tmp_path / "crop.png")
    start = tmp_path / "b.safetensors"
    output_of("model", "convert", tmp_path / "a.safetensors", start, "--as", "minifasnet-v2")
    answer = json.loads(output_of("predict", start, tmp_path / "crop.png", "--crop", "none", "--json"))
    assert answer["threshold"]["rule"] == "fixed"
    assert answer["images"][0]["decision"] in ("live", "attack")


def test_margin_is_required_for_unpublished_variants_and_refused_for_others(tmp_path: Path) -> None:
    write_published("v1", tmp_path / "a.safetensors")
    with refused("--margin", "v1"):
        convert(tmp_path / "a.safetensors", "minifasnet-v1", tmp_path / "b.safetensors")
    with refused("--margin", "iresnet18"):
        convert(tmp_path / "a.safetensors", "iresnet18", tmp_path / "b.safetensors", margin=2.7)


def test_incomplete_network_is_refused(tmp_path: Path) -> None:
    save_file({"model.w": torch.zeros(2)}, tmp_path / "a.safetensors")
    with refused("a.safetensors", "model convert"):
        fv.open(tmp_path / "a.safetensors")
