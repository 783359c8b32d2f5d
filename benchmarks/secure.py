"""What secure aggregation costs: its masks against the bare cipher, and against the training that they hide."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.measurement import Measurement, processor_seconds
from fedvisage.federation.secure.protocol import STRETCH, Secrets, encode_all, mask_numbers
from fedvisage.nn.resnet import ResNet18, resnet18

SITES, BATCH, SIZE = 10, 32, 96


def measure(cache: Path) -> Measurement:
    """Time one site's upload of a ResNet-18 among ten: encoding and ten masks, against ten streams of that length."""
    net = resnet18(ResNet18(), "rgb+hsv")
    weights = {name: value.detach() for name, value in net.state_dict().items()}
    secrets = [Secrets.draw(os.urandom) for _ in range(SITES)]
    roster, numbers = [one.public() for one in secrets], len(encode_all(weights, 1.0, torch.tensor(0.0)))

    def hide() -> None:
        mask_numbers(encode_all(weights, 1.0, torch.tensor(0.0)), secrets[0], roster, 0, range(SITES))

    hide()  # the first time, memory comes from the system
    ours, bare = processor_seconds(hide), processor_seconds(lambda: streams(numbers))
    step = processor_seconds(lambda: train(net))
    return Measurement(
        f"an upload's masks in secret among {SITES} sites against the bare cipher (time)",
        "≤ 2",
        f"{ours / bare:.2f} ({ours:.2f} / {bare:.2f} s of processor, {numbers:,} numbers; "
        f"as long as {ours / step:.1f} steps on {BATCH} images of {SIZE} px)",
        ours / bare <= 2,
    )


def streams(numbers: int) -> None:
    """Draw ten streams of whole numbers, and add nothing."""
    for _ in range(SITES):
        encryptor = Cipher(ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
        for start in range(0, numbers, STRETCH):
            np.frombuffer(encryptor.update(bytes(8 * min(STRETCH, numbers - start))), dtype=np.uint64)


def train(net: torch.nn.Module) -> None:
    """Take one training step."""
    loss = binary_cross_entropy_with_logits(net(torch.randn(BATCH, 6, SIZE, SIZE)).squeeze(1), torch.zeros(BATCH))
    loss.backward()  # type: ignore[no-untyped-call]
