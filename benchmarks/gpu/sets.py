"""Prepared sets of noise: their pixels mean nothing, but reading and training take the time of real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvisage.data.writer import Writer

FRAMES = 8


def attack_set(path: Path, images: int, size: int, seed: int = 0) -> Path:
    """Write a set for attack detection with about this many training images, and half as many held-out ones."""
    rng = np.random.default_rng(seed)
    subjects = max(2, -(-images // (2 * FRAMES)))
    with Writer(path, name=path.name, size=size, source="noise", depth=True) as out:
        for subject in range(subjects + max(2, subjects // 2)):
            for species in ("bonafide", "print"):
                out.add(
                    rng.integers(0, 256, (FRAMES, size, size, 3), np.uint8),
                    label=[int(species == "bonafide")] * FRAMES,
                    species=[species] * FRAMES,
                    subject=[f"{path.name} {subject}"] * FRAMES,
                    video=[f"{path.name} {subject} {species}"] * FRAMES,
                    frame=list(range(FRAMES)),
                    split=["train" if subject < subjects else "heldout"] * FRAMES,
                    item=[f"{path.name}/{subject}/{species}/{frame}.png" for frame in range(FRAMES)],
                    depth=rng.integers(0, 256, (FRAMES, 32, 32), np.uint8),
                )
    return path


def people_set(path: Path, people: int, images: int, size: int, seed: int = 0) -> Path:
    """Write an identity set with this many training images per person."""
    rng = np.random.default_rng(seed)
    with Writer(path, name=path.name, size=size, source="noise", identities=True) as out:
        for person in range(people):
            out.add(
                rng.integers(0, 256, (images, size, size, 3), np.uint8),
                label=[1] * images,
                species=["bonafide"] * images,
                subject=[f"{path.name} {person:05d}"] * images,
                video=[f"{path.name} {person} {image}" for image in range(images)],
                frame=[0] * images,
                split=["train"] * images,
                item=[f"{path.name}/{person}/{image}.png" for image in range(images)],
                group=["all"] * images,
            )
    return path
