"""Reconstruction of images from tokens, with and without noise, and the audit's figures and picture."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.metrics import structural_similarity
from tests.toy import Sets, discard, open_run_data, run_toy, tree
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from fedvisage.audit import label_inference, token_inversion
from fedvisage.audit.audit import audit_run
from fedvisage.audit.finding import AuditedRun
from fedvisage.audit.token_inversion import quality, train_decoder
from fedvisage.tasks.finished_model import open_model


def pictures(count: int, seed: int) -> Tensor:
    """Draw smooth images of 32 pixels."""
    coarse = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return interpolate(coarse, scale_factor=8, mode="bilinear")


def means(images: Tensor) -> Tensor:
    """Return the mean colours of the four quarters of each 16-pixel patch, as that patch's token."""
    quarters = avg_pool2d(images, 8).unfold(2, 2, 2).unfold(3, 2, 2)
    return quarters.permute(0, 2, 3, 1, 4, 5).reshape(len(images), 4, 12)


@pytest.mark.long
def test_decoder_reconstructs_tokens_and_noise_prevents_it() -> None:
    public, secret = pictures(200, 0), pictures(30, 1)
    blind = quality(public.mean(0, keepdim=True).expand_as(secret), secret)
    draws = torch.Generator().manual_seed(2)
    qualities = {}
    for noise in (0.0, 10.0):
        tokens, secret_tokens = (
            means(images) + noise * torch.randn(len(images), 4, 12, generator=draws) for images in (public, secret)
        )
        qualities[noise] = quality(train_decoder(tokens, public, 0, 150)(secret_tokens).detach(), secret)
    assert qualities[0.0].psnr > blind.psnr + 6
    assert qualities[0.0].ssim > blind.ssim + 0.2
    assert qualities[10.0].psnr < blind.psnr + 1


def test_quality_equals_an_independent_implementation() -> None:
    image = interpolate(pictures(3, 3), scale_factor=5, mode="bilinear")  # large: borders are treated differently
    other = (image + 0.1 * torch.randn(image.shape, generator=torch.Generator().manual_seed(4))).clamp(0, 1)
    measured = quality(other, image)
    errors = ((other - image) ** 2).mean(dim=(1, 2, 3)).numpy()
    similar = [
        structural_similarity(
            a.permute(1, 2, 0).numpy(),
            b.permute(1, 2, 0).numpy(),
            channel_axis=2,
            data_range=1.0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        for a, b in zip(image, other, strict=True)
    ]
    assert measured.psnr == pytest.approx(float(np.mean(10 * np.log10(1 / errors))), abs=1e-3)
    assert measured.ssim == pytest.approx(float(np.mean(similar)), abs=0.03)
    assert quality(image, image).ssim == pytest.approx(1.0, abs=1e-4)


@pytest.mark.long
def test_audit_tries_every_form_and_the_noise_of_the_run(
    sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SUBJECTS", 6), ("IMAGES", 16), ("STEPS", 10), ("EPSILONS", (1000.0,))):
        monkeypatch.setattr(token_inversion, name, value)
    privacy = {"epsilon": 50.0, "delta": 1e-3, "count": "tight", "noise": "derived"}
    content = tree(sets, "festa", training__rounds=1, evaluation__every=0, privacy=privacy)
    content["method"]["leakage"] = {"tokens": 1.0, "gradient": 0.1}
    run_toy(content, tmp_path / "run")
    records = audit_run(tmp_path / "run", None, tmp_path / "cache", discard)
    (record,) = (row for row in records if row["name"] == "token-inversion")
    tried = [row["tokens"] for row in record["rows"]]
    assert tried == [
        "no tokens (mean image)",
        "fp32",
        "bf16",
        "int8",
        "noise, ε 1000 a release",
        "as in this run",
    ]
    assert all(np.isfinite([row["PSNR (dB)"], row["SSIM"]]).all() for row in record["rows"])
    (picture,) = record["pictures"]
    with Image.open(tmp_path / "run" / "audit" / picture["file"]) as image:
        assert image.size == (32 * token_inversion.SHOWN, 32 * (1 + len(tried)))
    assert "data:image/png;base64," in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.long
def test_noise_on_gradients_prevents_label_inference(sets: Sets, tmp_path: Path) -> None:
    """Without noise, the same attack on the same run infers all labels."""
    privacy = {"epsilon": 1.0, "delta": 1e-3, "count": "tight", "noise": "derived"}
    content = tree(sets, "fedsis", training__rounds=1, evaluation__every=0, privacy=privacy)
    content["method"]["leakage"] = {"tokens": 1.0, "gradient": 0.1}
    run_toy(content, tmp_path / "run")
    model, cache = open_model(tmp_path / "run"), tmp_path / "cache"
    subject = AuditedRun(model.setup, model.saved, open_run_data(content, cache), cache)
    assert label_inference.AUDIT.attack(subject).numbers["labels_right"] == pytest.approx(0.5, abs=0.15)
