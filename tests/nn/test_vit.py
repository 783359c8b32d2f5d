"""Transformers: their parts compose to timm's networks, which provide weights, and have the sizes of the papers."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from tests.nn.images import random_images
from tests.refusals import refused
from torch import Tensor, nn

from fedvisage.nn.vit import (
    Adapter,
    HybridTransformer,
    Transformer,
    class_token,
    live_logit,
    load_pretrained,
    token_count,
    transformer_parts,
)

NARROW = HybridTransformer(width=24, depth=3, heads=3, stem=8, stages=(1, 1, 2))
SMALL = Transformer(width=24, depth=3, heads=3)


def timm_reference(name: str, parts: nn.ModuleDict) -> nn.Module:
    """Return timm's own network of the same sizes, with the weights of the parts."""
    from timm.models import create_model

    model: nn.Module = create_model(name, num_classes=2)
    state = {**parts["tokenizer"].state_dict(), **nn.ModuleDict({"blocks": parts["blocks"]}).state_dict()}
    state |= {f"{part}.{key}": value for part in ("norm", "head") for key, value in parts[part].state_dict().items()}
    model.load_state_dict(state)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("vit_base_patch16_224", Transformer()), ("vit_base_r50_s16_224", HybridTransformer())],
)
def test_parts_composed_are_timms_forward_bit_for_bit(name: str, options: Transformer) -> None:
    parts = transformer_parts(options, "rgb", 224, class_token=True).eval()
    pixels = random_images(size=224)
    with torch.inference_mode():
        tokens = parts["tokenizer"](pixels)
        assert tokens.shape == (2, 1 + 196, 768)
        assert torch.equal(parts["head"](class_token(parts, tokens)), timm_reference(name, parts)(pixels * 2 - 1))


def test_narrow_parts_composed_are_timms_forward_bit_for_bit() -> None:
    from timm.models.vision_transformer import VisionTransformer

    parts = transformer_parts(SMALL, "rgb", 64, class_token=True).eval()
    whole = VisionTransformer(img_size=64, num_classes=2, embed_dim=24, depth=3, num_heads=3).eval()
    whole.patch_embed, whole.blocks = parts["tokenizer"].patch_embed, parts["blocks"]
    whole.pos_embed, whole.cls_token = parts["tokenizer"].pos_embed, parts["tokenizer"].cls_token
    whole.norm, whole.head = parts["norm"], parts["head"]
    pixels = random_images(size=64)
    with torch.inference_mode():
        actual = parts["head"](class_token(parts, parts["tokenizer"](pixels)))
        assert torch.equal(actual, whole(pixels * 2 - 1))


@pytest.mark.slow
def test_the_hybrids_numbers_are_those_of_timm() -> None:
    """timm's hybrid has 97,891,650 parameters with two classes, 12,682,048 of them before the positions."""
    parts = transformer_parts(HybridTransformer(), "rgb", 224, class_token=True)
    assert sum(p.numel() for p in parts.parameters()) == 97_891_650
    assert sum(p.numel() for p in parts["tokenizer"].get_submodule("patch_embed").parameters()) == 12_682_048


@pytest.mark.parametrize("size", [32, 96, 128])
@pytest.mark.parametrize("options", [SMALL, NARROW])
def test_each_token_covers_sixteen_pixels_per_side(options: Transformer, size: int) -> None:
    for with_class in (True, False):
        parts = transformer_parts(options, "rgb", size, class_token=with_class)
        expected = (2, (size // 16) ** 2 + with_class, 24)
        assert parts["tokenizer"](random_images(size=size)).shape == expected
        assert token_count(size, class_token=with_class) == expected[1]


def test_smaller_depth_omits_the_last_blocks() -> None:
    assert len([*transformer_parts(NARROW, "rgb", 32, class_token=False, depth=2)["blocks"].children()]) == 2


def test_adapter_keeps_the_position_of_tokens() -> None:
    """Written out with loops: two 3 × 3 windows, each normalised, then the average over positions."""
    adapter = Adapter(2).double()
    tokens = torch.randn(3, 16, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    square = tokens.reshape(3, 4, 4, 2)
    for weight in (adapter.get_parameter(f"layers.{number}.weight") for number in (0, 3)):
        actual = torch.zeros_like(square)
        for row in range(4):
            for column in range(4):
                for down in (-1, 0, 1):
                    for right in (-1, 0, 1):
                        if 0 <= row + down < 4 and 0 <= column + right < 4:
                            actual[:, row, column] += (
                                square[:, row + down, column + right] @ weight[:, :, down + 1, right + 1].T
                            )
        mean, variance = actual.mean(dim=(0, 1, 2)), actual.var(dim=(0, 1, 2), correction=0)
        square = ((actual - mean) / (variance + 1e-5).sqrt()).clamp(min=0)
    torch.testing.assert_close(adapter(tokens), square.mean(dim=(1, 2)), rtol=1e-12, atol=1e-12)


def test_live_logit_equals_the_softmax() -> None:
    two = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(torch.sigmoid(live_logit(two)), torch.softmax(two, dim=1)[:, 1])


def test_width_must_be_divisible_by_heads() -> None:
    with pytest.raises(ValidationError, match="heads"):
        Transformer(width=64, heads=3)


# Weights of timm's files.


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
    head = parts["head"].get_parameter("weight").clone()
    load_pretrained(parts, tmp_path / "timm.safetensors")
    loaded = {**parts["tokenizer"].state_dict(), **nn.ModuleDict({"blocks": parts["blocks"]}).state_dict()}
    loaded |= {f"norm.{key}": value for key, value in parts["norm"].state_dict().items()}
    assert set(loaded) == {key for key in state if not key.startswith("head")}
    assert all(torch.equal(value, state[key]) for key, value in loaded.items())
    assert torch.equal(parts["head"].get_parameter("weight"), head)


def test_other_weights_come_from_the_file_without_class_token_and_last_blocks(tmp_path: Path) -> None:
    state = timms_file(tmp_path / "timm.safetensors")
    parts = transformer_parts(SMALL, "rgb", 64, class_token=False, depth=2)
    del parts["norm"]
    load_pretrained(parts, tmp_path / "timm.safetensors")
    assert torch.equal(parts["tokenizer"].get_parameter("pos_embed"), state["pos_embed"][:, 1:])
    assert torch.equal(parts["blocks"].get_parameter("1.mlp.fc2.weight"), state["blocks.1.mlp.fc2.weight"])


@pytest.mark.parametrize("with_class", [True, False])
def test_positions_for_another_size_are_interpolated(tmp_path: Path, with_class: bool) -> None:
    """A field that rises evenly from left to right still does after interpolation, away from the borders."""
    ramp = torch.arange(8.0).repeat(8, 1).reshape(1, 64, 1).expand(1, 64, 24)
    timms_file(
        tmp_path / "timm.safetensors", 128, pos_embed=torch.cat([torch.full((1, 1, 24), 9.0), ramp], 1).contiguous()
    )
    parts = transformer_parts(SMALL, "rgb", 64, class_token=with_class)
    load_pretrained(parts, tmp_path / "timm.safetensors")
    positions = parts["tokenizer"].get_parameter("pos_embed").detach()
    if with_class:
        assert (positions[:, 0] == 9).all()
    actual = positions[0, int(with_class) :, 0].reshape(4, 4)
    assert torch.allclose(actual, actual[:1].expand(4, 4), atol=1e-5)
    assert actual[0, 2] - actual[0, 1] == pytest.approx(2.0, abs=0.15)  # cubic interpolation of a ramp that ends


def test_missing_file_and_files_of_other_networks_are_refused(tmp_path: Path) -> None:
    timms_file(tmp_path / "timm.safetensors")
    save_file({"weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    for options, colour, name, keywords in (
        (NARROW, "rgb", "timm", ["patch_embed.backbone.stem.conv.weight"]),
        (Transformer(width=24, depth=4, heads=3), "rgb", "timm", ["blocks.3.norm1.weight"]),
        (Transformer(width=48, depth=3, heads=3), "rgb", "timm", ["blocks.0.norm1.weight", "(24,)", "(48,)"]),
        (SMALL, "rgb+hsv", "timm", ["patch_embed.proj.weight"]),
        (SMALL, "rgb", "absent", ["absent.safetensors", "exist"]),
        (SMALL, "rgb", "other", ["pos_embed"]),
    ):
        parts = transformer_parts(options, colour, 64, class_token=True)
        with refused("recipe.method.network.weights", *keywords):
            load_pretrained(parts, tmp_path / f"{name}.safetensors")
