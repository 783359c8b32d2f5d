"""Aligned crops of rendered people, encoded as files are: for small copies of datasets whose pictures lie in one."""

import io
from functools import cache

import numpy as np
from PIL import Image

from fedvisage.datasets.pretend import looks
from fedvisage.faces.align import SIDE, align


@cache
def encoded(person: int, turn: int) -> bytes:
    """Return a JPEG with the aligned face of a rendered person; they have three."""
    images, points = looks(person, "bonafide")
    crop, _ = align(images[turn], points[turn].astype(np.float64), SIDE)
    file = io.BytesIO()
    Image.fromarray(crop).save(file, "JPEG", quality=92)
    return file.getvalue()
