"""Weights of timm's vision transformers from a local safetensors file.

The files are timm's own ``model.safetensors`` of ``vit_base_patch16_224`` and ``vit_base_r50_s16_224``; nothing is ever
downloaded. Their heads, which are for other classes, are not loaded, nor are blocks beyond the network's depth.
Position embeddings for another image size are interpolated, and a network without class token skips that token and its
position.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_tensors
from fedvisage.nn.vit import Tokenizer

PLACE = "recipe.method.network.weights"
LEFT_OUT = ("head", "pre_logits", "fc_norm")


def load_pretrained(net: nn.ModuleDict, path: Path) -> None:
    """Load a file's weights into tokenizer, blocks and norm; adapter and head keep their weights."""
    if not path.is_file():
        raise UserError(PLACE, f"{path} does not exist; give a safetensors file from timm, or none")
    weights, _ = read_tensors(path)
    tokenizer = net["tokenizer"]
    assert isinstance(tokenizer, Tokenizer)
    weights = fit_positions(weights, tokenizer)
    for part in ("blocks", "norm"):
        if part in net:
            _load(
                net[part],
                {key: value for key, value in weights.items() if key.startswith(f"{part}.")},
                f"{part}.",
                path,
            )
    rest = {key: value for key, value in weights.items() if key.split(".")[0] not in ("blocks", "norm", *LEFT_OUT)}
    _load(tokenizer, rest, "", path)


def fit_positions(weights: dict[str, Tensor], tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return the weights with one position embedding per token of the tokenizer."""
    from timm.layers import resample_abs_pos_embed

    if "pos_embed" not in weights or weights["pos_embed"].dim() != 3:
        raise UserError(PLACE, "the file has no position embeddings (pos_embed); it is not from a vision transformer")
    positions, fitted_weights = weights["pos_embed"], dict(weights)
    if tokenizer.cls_token is None:
        fitted_weights.pop("cls_token", None)
        positions = positions[:, 1:]
    prefix_tokens = int(tokenizer.cls_token is not None)
    token_count = tokenizer.pos_embed.shape[1]
    if positions.shape[1] != token_count:
        side = round((token_count - prefix_tokens) ** 0.5)
        positions = resample_abs_pos_embed(positions, new_size=[side, side], num_prefix_tokens=prefix_tokens)
    return {**fitted_weights, "pos_embed": positions}


def _load(part: nn.Module, weights: dict[str, Tensor], prefix: str, path: Path) -> None:
    """Load all tensors of a part; errors name a tensor that is missing or has another shape."""
    state = part.state_dict()
    tensors = {key.removeprefix(prefix): value for key, value in weights.items()}
    for key, value in state.items():
        if key not in tensors:
            raise UserError(PLACE, f"{path} has no {prefix}{key}; it belongs to a different network")
        if tensors[key].shape != value.shape:
            shapes = f"{tuple(tensors[key].shape)}, but the network expects {tuple(value.shape)}"
            raise UserError(PLACE, f"{path}: {prefix}{key} has shape {shapes}")
    part.load_state_dict({key: tensors[key] for key in state})
