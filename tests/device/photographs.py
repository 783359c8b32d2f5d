"""Photographs of a rendered face."""

import cv2
import numpy as np

from fedvisage.render.identities import Identities, photograph_person, photographs_of


def draw_face() -> np.ndarray:
    """Return a face of 112 pixels."""
    picture: np.ndarray = photograph_person(photographs_of(Identities(images=1, size=112), 0), 112)[0][0]
    return picture


def draw_photographs(face: np.ndarray) -> dict[str, np.ndarray]:
    """Return pictures of one face, two faces, a face upside down, blurred, small and grey, and of a wall."""
    wall = np.full((240, 480, 3), (120, 110, 90), np.uint8)
    single, two, small = wall.copy(), wall.copy(), wall.copy()
    for picture in (single, two):
        picture[20:220, 20:220] = cv2.resize(face, (200, 200))
    two[80:220, 300:440] = cv2.resize(face, (140, 140))
    small[90:150, 90:150] = cv2.resize(face, (60, 60), interpolation=cv2.INTER_AREA)
    return {
        "one": single,
        "two": two,
        "turned": np.ascontiguousarray(single[::-1, ::-1]),
        "blurred": cv2.GaussianBlur(single, (0, 0), 4),
        "small": small,
        "grey": np.repeat(cv2.cvtColor(single, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2),
        "wall": wall,
    }
