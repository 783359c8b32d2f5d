"""Weights of timm's networks go into the parts where they belong, or the file is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.refusals import refused
from torch import Tensor, nn

from fedvisage.nn.vit import HybridTransformer, Transformer, load_pretrained, transformer_parts

SMALL = Transformer(width=24, depth=3, heads=3)


def timms_file(path: Path, size: int = 64, **changes: Tensor) -> dict[str, Tensor]:
    """Write the weights of a narrow network as timm would, with its thousand-class head."""
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=size, num_classes=1000, embed_dim=24, depth=3, num_heads=3)
    state = {**{key: value.contiguous() for key, value in model.state_dict().items()}, **changes}
    save_file(state, path)
    return state


def test_all_weights_except_the_head_come_from_the_file(tmp_path: Path) -> None:
    state = timms_file(tmp_path / "timm.safetensors")
    parts = transformer_parts(SMALL, "rgb", 64, class_token=True)
    head = parts["head"].weight.clone()
    load_pretrained(parts, tmp_path / "timm.safetensors")
    loaded = {**parts["tokenizer"].state_dict(), **nn.ModuleDict({"blocks": parts["blocks"]}).state_dict()}
    loaded |= {f"norm.{key}": value for key, value in parts["norm"].state_dict().items()}
    assert set(loaded) == {key for key in state if not key.startswith("head")}
    assert all(torch.equal(value, state[key]) for key, value in loaded.items())
    assert torch.equal(parts["head"].weight, head)


def test_other_weights_come_from_the_file_without_class_token_and_last_blocks(tmp_path: Path) -> None:
    state = timms_file(tmp_path / "timm.safetensors")
    parts = transformer_parts(SMALL, "rgb", 64, class_token=False, depth=2)
    del parts["norm"]
    load_pretrained(parts, tmp_path / "timm.safetensors")
    assert torch.equal(parts["tokenizer"].pos_embed, state["pos_embed"][:, 1:])
    assert torch.equal(parts["blocks"][1].mlp.fc2.weight, state["blocks.1.mlp.fc2.weight"])


@pytest.mark.parametrize("with_class", [True, False])
def test_positions_for_another_size_are_interpolated(tmp_path: Path, with_class: bool) -> None:
    """A field that rises evenly from left to right still does after interpolation, away from the borders."""
    ramp = torch.arange(8.0).repeat(8, 1).reshape(1, 64, 1).expand(1, 64, 24)
    timms_file(
        tmp_path / "timm.safetensors", 128, pos_embed=torch.cat([torch.full((1, 1, 24), 9.0), ramp], 1).contiguous()
    )
    parts = transformer_parts(SMALL, "rgb", 64, class_token=with_class)
    load_pretrained(parts, tmp_path / "timm.safetensors")
    positions = parts["tokenizer"].pos_embed.detach()
    if with_class:
        assert (positions[:, 0] == 9).all()
    actual = positions[0, int(with_class) :, 0].reshape(4, 4)
    assert torch.allclose(actual, actual[:1].expand(4, 4), atol=1e-5)
    assert actual[0, 2] - actual[0, 1] == pytest.approx(2.0, abs=0.15)  # cubic interpolation of a ramp that ends


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    timms_file(tmp_path / "timm.safetensors")
    hybrid = HybridTransformer(width=24, depth=3, heads=3, stem=8, stages=(1, 1, 1))
    with refused("recipe.method.network.weights", "patch_embed.backbone.stem.conv.weight"):
        load_pretrained(transformer_parts(hybrid, "rgb", 64, class_token=True), tmp_path / "timm.safetensors")
    with refused("recipe.method.network.weights", "blocks.3.norm1.weight"):
        load_pretrained(
            transformer_parts(Transformer(width=24, depth=4, heads=3), "rgb", 64, class_token=True),
            tmp_path / "timm.safetensors",
        )
    with refused("recipe.method.network.weights", "blocks.0.norm1.weight", "(24,)", "(48,)"):
        load_pretrained(
            transformer_parts(Transformer(width=48, depth=3, heads=3), "rgb", 64, class_token=True),
            tmp_path / "timm.safetensors",
        )
    with refused("recipe.method.network.weights", "patch_embed.proj.weight"):
        load_pretrained(transformer_parts(SMALL, "rgb+hsv", 64, class_token=True), tmp_path / "timm.safetensors")


def test_missing_file_and_other_architecture_are_refused(tmp_path: Path) -> None:
    parts = transformer_parts(SMALL, "rgb", 64, class_token=True)
    with refused("recipe.method.network.weights", "absent.safetensors", "exist"):
        load_pretrained(parts, tmp_path / "absent.safetensors")
    save_file({"weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with refused("recipe.method.network.weights", "pos_embed"):
        load_pretrained(parts, tmp_path / "other.safetensors")
