"""FLIP's classifier of texts against plain loops in float64: values, and gradients of scale and embeddings."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.parity.gradients import Array, gradient_by_differences
from torch.nn.functional import cross_entropy

from fedvisage.nn.text_head import TEXTS, TextHead, load_directions
from fedvisage.starts.texts import read_directions

BATCH, WIDTH, SCALE = 5, 6, 12.5
LABELS = [0, 1, 1, 0, 1]
DRAW = np.random.default_rng(3)
EMBEDDINGS = DRAW.normal(size=(BATCH, WIDTH)).astype(np.float32)
PROMPTS = {name: DRAW.normal(size=(count, WIDTH)).astype(np.float32) for name, count in (("attack", 3), ("live", 2))}


def cosine(one: Array, other: Array) -> float:
    products = [a * b for a, b in zip(one, other, strict=True)]
    return float(sum(products) / (sum(a * a for a in one) ** 0.5 * sum(b * b for b in other) ** 0.5))


def loss_by_loops(embeddings: Array, log_scale: Array) -> float:
    """Return the mean cross-entropy of scaled cosines with the means of the prompts, attack first."""
    means = [sum(row.astype(float) for row in PROMPTS[name]) / len(PROMPTS[name]) for name in ("attack", "live")]
    total = 0.0
    for embedding, label in zip(embeddings, LABELS, strict=True):
        logits = [np.exp(log_scale[0]) * cosine(embedding, mean) for mean in means]
        total += np.log(sum(np.exp(logit) for logit in logits)) - logits[label]
    return float(total / len(LABELS))


@pytest.fixture
def head(tmp_path: Path) -> TextHead:
    save_file({name: torch.from_numpy(rows) for name, rows in PROMPTS.items()}, tmp_path / "prompts.safetensors")
    save_file({TEXTS: read_directions(tmp_path / "prompts.safetensors")}, tmp_path / "tower.safetensors")
    head = TextHead(WIDTH, SCALE, learned=True)
    load_directions(head.frozen, tmp_path / "tower.safetensors")  # type: ignore[arg-type]
    return head


def test_loss_and_gradients_are_those_of_plain_loops(head: TextHead) -> None:
    embeddings = torch.from_numpy(EMBEDDINGS).requires_grad_()
    loss = cross_entropy(head(embeddings), torch.tensor(LABELS))
    loss.backward()
    point, log_scale = EMBEDDINGS.astype(float), np.log([SCALE])
    assert loss.item() == pytest.approx(loss_by_loops(point, log_scale), rel=1e-5)
    assert embeddings.grad is not None
    assert head.log_scale.grad is not None
    of_embeddings = gradient_by_differences(lambda rows: loss_by_loops(rows, log_scale), point)
    of_scale = gradient_by_differences(lambda scale: loss_by_loops(point, scale), log_scale)
    np.testing.assert_allclose(embeddings.grad.numpy(), of_embeddings, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(head.log_scale.grad.numpy(), of_scale, rtol=1e-4)


def test_length_of_an_embedding_does_not_matter(head: TextHead) -> None:
    embeddings = torch.from_numpy(EMBEDDINGS)
    torch.testing.assert_close(head(7 * embeddings), head(embeddings))


def test_texts_are_frozen_and_no_part_of_the_state(head: TextHead) -> None:
    assert list(head.state_dict()) == ["log_scale"]
    assert not any(value.requires_grad for value in head.frozen.parameters())
    assert not TextHead(WIDTH, SCALE, learned=False).state_dict()


def test_folded_classifier_computes_the_same_logits(head: TextHead) -> None:
    embeddings = torch.from_numpy(EMBEDDINGS)
    with torch.no_grad():
        torch.testing.assert_close(head.fold_adapters()(embeddings), head(embeddings))


def test_logits_keep_their_precision_in_half_precision(head: TextHead) -> None:
    embeddings = torch.from_numpy(EMBEDDINGS)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        actual = head(embeddings)
    with torch.no_grad():
        torch.testing.assert_close(actual, head(embeddings))
