"""Embeddings of prompts become the directions of two classes, and join the weights of an image tower of CLIP."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.commands import output_of
from tests.refusals import refused
from tests.starts.test_conversion import clip_tower, timm_state
from torch import Tensor

from fedvisage.starts.convert import convert
from fedvisage.starts.texts import LARGEST, read_directions

WIDTH = 5
DRAW = torch.Generator().manual_seed(1)
ATTACK, LIVE = torch.randn(6, WIDTH, generator=DRAW), torch.randn(4, WIDTH, generator=DRAW)
ARCH = "vit_base_patch32_clip_224"


def write_prompts(path: Path, attack: Tensor = ATTACK, live: Tensor = LIVE) -> Path:
    save_file({"attack": attack, "live": live}, path)
    return path


def test_direction_of_a_class_is_the_mean_of_its_prompts_at_unit_length(tmp_path: Path) -> None:
    actual = read_directions(write_prompts(tmp_path / "prompts.safetensors"))
    for row, prompts in zip(actual.tolist(), (ATTACK.tolist(), LIVE.tolist()), strict=True):
        sums = [sum(values) for values in zip(*prompts, strict=True)]
        length = sum(value * value for value in sums) ** 0.5
        assert row == pytest.approx([value / length for value in sums], rel=1e-6)


def test_prompts_in_half_precision_are_accepted(tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "prompts.safetensors", ATTACK.half(), LIVE.half())
    torch.testing.assert_close(
        read_directions(path), read_directions(write_prompts(path, ATTACK.half().float(), LIVE.half().float()))
    )


UNFINISHED = torch.full((2, WIDTH), float("nan"))
BAD: dict[str, tuple[dict[str, Tensor], list[str]]] = {
    "another class": ({"attack": ATTACK, "real": LIVE}, ["live", "real"]),
    "a third class": ({"attack": ATTACK, "live": LIVE, "mask": LIVE.clone()}, ["mask"]),
    "no prompt": ({"attack": ATTACK, "live": LIVE[:0]}, ["live", "prompt"]),
    "one vector without rows": ({"attack": ATTACK[0], "live": LIVE}, ["attack", "prompt"]),
    "not finite": ({"attack": ATTACK, "live": UNFINISHED}, ["live", "finite"]),
    "whole numbers": ({"attack": ATTACK.long(), "live": LIVE}, ["attack", "finite"]),
    "two widths": ({"attack": ATTACK, "live": torch.randn(2, 7, generator=DRAW)}, ["5", "7"]),
    "no direction": ({"attack": ATTACK, "live": torch.stack([LIVE[0], -LIVE[0]])}, ["zero"]),
    "the same prompts": ({"attack": ATTACK, "live": 2 * ATTACK}, ["same"]),
}


@pytest.mark.parametrize("name", BAD)
def test_unusable_embeddings_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    tensors, keywords = BAD[name]
    save_file(tensors, tmp_path / "prompts.safetensors")
    with refused("--texts", "prompts.safetensors", *keywords):
        read_directions(tmp_path / "prompts.safetensors")


def test_missing_or_foreign_file_is_refused(tmp_path: Path) -> None:
    with refused("--texts", "nowhere.safetensors"):
        read_directions(tmp_path / "nowhere.safetensors")
    (tmp_path / "prompts.safetensors").write_text("This is a real face")
    with refused("prompts.safetensors", "safetensors"):
        read_directions(tmp_path / "prompts.safetensors")


def test_file_of_a_whole_model_is_refused_by_its_size_before_it_is_read(tmp_path: Path) -> None:
    path = write_prompts(tmp_path / "prompts.safetensors")
    os.truncate(path, LARGEST + 1)
    with refused("--texts", "prompts.safetensors", "bytes"):
        read_directions(path)


@pytest.fixture
def tower(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The weights of a small image tower under CLIP's names, with its projection; timm builds it as small."""
    import timm

    small = {"embed_dim": 32, "depth": 2, "num_heads": 2}
    create: Callable[..., torch.nn.Module] = timm.create_model
    net, _ = timm_state(ARCH, **small)
    monkeypatch.setattr(timm, "create_model", lambda *args, **more: create(*args, **more, **small))
    return clip_tower(net) | {"visual.proj": torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(2))}


def test_converted_tower_has_projection_and_directions(tower: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(tower, tmp_path / "clip.safetensors")
    prompts = write_prompts(tmp_path / "prompts.safetensors")
    words = (tmp_path / "clip.safetensors", tmp_path / "start.safetensors", "--as", ARCH)
    printed = output_of("model", "convert", *words, "--texts", prompts)
    assert f"text-anchored, embedding: {WIDTH}, arch: {ARCH}" in printed
    actual = load_file(tmp_path / "start.safetensors")
    assert torch.equal(actual["head.weight"], tower["visual.proj"].T)
    assert not actual["head.bias"].any()
    assert torch.equal(actual["texts"], read_directions(prompts))
    convert(tmp_path / "clip.safetensors", ARCH, tmp_path / "alone.safetensors")
    alone = load_file(tmp_path / "alone.safetensors")
    assert actual.keys() - alone.keys() == {"head.weight", "head.bias", "texts"}
    assert all(torch.equal(actual[name], value) for name, value in alone.items())


def test_texts_of_another_width_or_without_a_projection_are_refused(tower: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(tower, tmp_path / "clip.safetensors")
    wide = write_prompts(tmp_path / "wide.safetensors", torch.rand(2, 9), torch.rand(2, 9))
    with refused("--texts", "clip.safetensors", str(WIDTH), "9"):
        convert(tmp_path / "clip.safetensors", ARCH, tmp_path / "start.safetensors", texts=wide)
    del tower["visual.proj"]
    save_file(tower, tmp_path / "clip.safetensors")
    prompts = write_prompts(tmp_path / "prompts.safetensors")
    with refused("--texts", "clip.safetensors", "projection"):
        convert(tmp_path / "clip.safetensors", ARCH, tmp_path / "start.safetensors", texts=prompts)
    with refused("--texts", "iresnet50"):
        convert(tmp_path / "clip.safetensors", "iresnet50", tmp_path / "start.safetensors", texts=prompts)
    assert not (tmp_path / "start.safetensors").exists()
