"""Sources of transformers' initial weights, and the image sizes that they need."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.refusals import refused
from tests.toy import NETWORK, Sets, recipe_of, run_toy, tree

from fedvisage.methods import METHODS
from fedvisage.nn.vit import HybridTransformer, transformer_parts

STILL = {"name": "sgd", "lr": 1e-12}
"""An optimizer that moves no weight by as much as a rounding."""


def content_of(sets: Sets, name: str, weights: Path) -> dict[str, Any]:
    content = tree(sets, name, input__colour="rgb", training__optimizer=STILL, training__rounds=1)
    content["method"]["network"]["weights"] = str(weights)
    return content


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file as timm would write it of the toys' hybrid network."""
    parts = transformer_parts(HybridTransformer.model_validate(NETWORK), "rgb", 32, class_token=True)
    state = parts["tokenizer"].state_dict()
    state |= {f"{part}.{key}": value for part in ("blocks", "norm") for key, value in parts[part].state_dict().items()}
    drawn = {key: torch.randn(value.shape, generator=torch.Generator().manual_seed(0)) for key, value in state.items()}
    save_file(drawn, tmp_path / "timm.safetensors")
    return tmp_path / "timm.safetensors"


@pytest.mark.parametrize("name", ["vit-h", "festa", "fedsis"])
def test_training_starts_from_the_named_weights_at_every_site(
    sets: Sets, tmp_path: Path, weights: Path, name: str
) -> None:
    """At this learning rate no weight moves, so the average is the start."""
    run_toy(content_of(sets, name, weights), tmp_path / "run")
    given, actual = load_file(weights), load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(actual["blocks.1.mlp.fc1.weight"], given["blocks.1.mlp.fc1.weight"])
    for key in ("patch_embed.proj.weight", "patch_embed.backbone.stem.conv.weight"):
        assert torch.equal(actual[f"tokenizer.{key}"], given[key])


@pytest.mark.long
def test_a_centrally_trained_model_is_a_start_for_split_training(sets: Sets, tmp_path: Path) -> None:
    """FedSIS pre-trains the whole network on an auxiliary set; its tokenizer and head reach the sites from there."""
    run_toy(tree(sets, "vit-h-is", training__rounds=1), tmp_path / "central")
    start = tmp_path / "central" / "model.safetensors"
    still = {"training__optimizer": STILL, "training__rounds": 1}
    run_toy(tree(sets, "fedsis", **still, training__start=str(start)), tmp_path / "split")
    given, actual = load_file(start), load_file(tmp_path / "split" / "model.safetensors")
    learned = [key for key in given if "running" not in key and "tracked" not in key]
    assert all(torch.allclose(given[key], actual[key], atol=1e-7) for key in learned)


def test_two_sources_of_initial_weights_are_refused(sets: Sets, tmp_path: Path, weights: Path) -> None:
    content = content_of(sets, "vit-h", weights)
    start = METHODS["vit-h"].network(recipe_of(content))
    save_file(
        {f"head.{key}": value for key, value in start["head"].state_dict().items()}, tmp_path / "start.safetensors"
    )
    content["training"]["start"] = str(tmp_path / "start.safetensors")
    with refused("recipe.method.network.weights", "training.start"):
        run_toy(content, tmp_path / "run")


@pytest.mark.parametrize("name", ["vit", "vit-h-is"])
def test_image_size_must_divide_into_tokens(sets: Sets, name: str) -> None:
    with refused("recipe.input.size", "16"):
        METHODS[name].check(recipe_of(tree(sets, name, input__size=40)))
