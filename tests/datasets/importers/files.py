"""Small folders of images and videos for the tests of importers."""

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image


def picture(seed: int, height: int = 24, width: int = 24) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path: Path, image: npt.NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def make_folder(root: Path, subjects: int = 4, images: int = 3) -> Path:
    """Make `images` bona fide images and as many prints of each subject, all different."""
    for subject in range(subjects):
        for number in range(images):
            seed = 2 * (subject * images + number)
            save(root / "real" / f"s{subject}" / f"{number}.png", picture(seed))
            save(root / "attack" / "print" / f"s{subject}" / f"{number}.png", picture(seed + 1))
    return root


def save_video(path: Path, length: int, side: int = 32) -> Path:
    """Write a video whose frame number n is uniformly coloured: red 10·n, green 0, blue 255."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (side, side))
    for number in range(length):
        writer.write(np.full((side, side, 3), (255, 0, 10 * number), np.uint8))
    writer.release()
    return path
