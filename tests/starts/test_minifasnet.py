"""Published networks for attack detection score, export and predict without training."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints import SIZE, log_odds, random_minifasnet
from tests.refusals import refused
from tests.starts import published_networks
from torch import Tensor
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.cli import app
from fedvisage.device import Exported
from fedvisage.nn.minifasnet import INNER, MiniFASNet, minifasnet
from fedvisage.starts.convert import convert, make_pictures

MARGINS = {"v1": 2.0, "v1se": None, "v2": None, "v2se": 3.0}


def write_published(variant: str, path: Path) -> published_networks.MiniFASNet:
    """Write a file of random weights as the authors write theirs, and return the network."""
    net = random_minifasnet(variant)
    save_file({f"module.{name}": value.clone() for name, value in net.state_dict().items()}, path)
    return net


def pictures() -> Tensor:
    return (255 * make_pictures(SIZE)).round().byte()


@pytest.fixture
def start(tmp_path: Path) -> Path:
    write_published("v2", tmp_path / "published.safetensors")
    convert(tmp_path / "published.safetensors", "minifasnet-v2", tmp_path / "start.safetensors", licence="Apache-2.0")
    return tmp_path / "start.safetensors"


@pytest.mark.parametrize("variant", MARGINS)
def test_converted_minifasnet_gives_the_log_odds_of_its_source(variant: str, tmp_path: Path) -> None:
    net = write_published(variant, tmp_path / "a.safetensors")
    convert(tmp_path / "a.safetensors", f"minifasnet-{variant}", tmp_path / "b.safetensors", margin=MARGINS[variant])
    images = pictures()
    expected = log_odds(net, images)
    assert expected.std() > 0.1, "the scores differ between pictures"
    torch.testing.assert_close(
        torch.from_numpy(fv.open(tmp_path / "b.safetensors").score(images)), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(("variant", "parameters"), [("v1", 414_354), ("v2", 434_560)])
def test_minifasnets_have_the_published_numbers_of_parameters(variant: str, parameters: int) -> None:
    """The authors give 0.414 and 0.435 million."""
    assert set(INNER) == {"v1", "v2"}
    net = minifasnet(MiniFASNet(variant=variant), "rgb")
    assert sum(value.numel() for value in net.parameters()) == parameters


def test_start_is_exported_without_training_and_its_card_states_licence_and_source(start: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(start), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Licence of the weights: Apache-2.0" in card
    assert "published.safetensors" in card
    assert "Trained by" not in card
    exported = Exported.open(tmp_path / "out")
    images = pictures()
    scores = exported.run(images.permute(0, 2, 3, 1).contiguous().numpy())
    torch.testing.assert_close(
        torch.from_numpy(scores).double(), torch.from_numpy(fv.open(start).score(images)), atol=1e-3, rtol=1e-3
    )


def test_published_file_is_converted_and_predicts_by_two_commands(tmp_path: Path) -> None:
    from PIL import Image

    write_published("v2", tmp_path / "a.safetensors")
    Image.fromarray(pictures()[0].permute(1, 2, 0).numpy()).save(tmp_path / "crop.png")
    for words in (
        ["model", "convert", str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"), "--as", "minifasnet-v2"],
        ["predict", str(tmp_path / "b.safetensors"), str(tmp_path / "crop.png"), "--crop", "none", "--json"],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
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
