"""Compare converted MiniFASNet weights with the authors' own code, on the same pictures.

    python -m benchmarks.real.parity CHECKOUT

CHECKOUT is a checkout of minivision-ai/Silent-Face-Anti-Spoofing (Apache-2.0). Its network module is imported from
there, and none of it is part of this package. The program prints the largest differences between the probabilities and
between the live logits, and fails above 1e-4.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from fedvisage.base.streams import torch_rng
from fedvisage.starts.convert import convert
from fedvisage.tasks.finished_model import open_model

WEIGHTS = "resources/anti_spoof_models"
NETWORKS = "src/model_lib/MiniFASNet.py"
FILES = {"2.7_80x80_MiniFASNetV2.pth": "v2", "4_0_0_80x80_MiniFASNetV1SE.pth": "v1se"}
PICTURES, SIZE, KERNEL = 256, 80, (5, 5)
MOST = 1e-4


def compare(checkout: Path, file: str, variant: str) -> tuple[float, float]:
    """Return the largest difference in probability and in the live logit on random pictures, smooth and noisy."""
    path = checkout / WEIGHTS / file
    build = getattr(_import(checkout / NETWORKS), f"MiniFASNet{variant.upper()}")
    theirs = build(conv6_kernel=KERNEL).eval()
    state = torch.load(path, map_location="cpu", weights_only=True)
    theirs.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    pictures = _pictures()
    with torch.inference_mode():
        their_logits = theirs(pictures.flip(1).float()).double()
    expected = their_logits[:, 1] - their_logits[:, ::2].logsumexp(1)
    with tempfile.TemporaryDirectory() as folder:
        convert(path, f"minifasnet-{variant}", Path(folder) / "start.safetensors")
        ours = torch.from_numpy(open_model(Path(folder) / "start.safetensors").score(pictures))
    return float((ours.sigmoid() - expected.sigmoid()).abs().max()), float((ours - expected).abs().max())


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("authors_minifasnet", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pictures() -> torch.Tensor:
    draw = torch_rng(0, "pictures of a comparison")
    coarse = torch.rand(PICTURES, 3, 5, 5, generator=draw)
    smooth = torch.nn.functional.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic")
    grain = torch.rand(PICTURES, 3, SIZE, SIZE, generator=draw) - 0.5
    amount = torch.rand(PICTURES, 1, 1, 1, generator=draw)
    return (255 * (smooth + amount * grain)).clamp(0, 255).to(torch.uint8)


def main() -> int:
    """Compare both published files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout
    if not (checkout / NETWORKS).is_file():
        print(f"skipped: {checkout} has no {NETWORKS}")
        return 0
    differences = {file: compare(checkout, file, variant) for file, variant in FILES.items()}
    for file, (probability, logit) in differences.items():
        print(f"{file}: {PICTURES} pictures, largest difference {probability:.1e} in probability, {logit:.1e} in logit")
    return int(any(not max(pair) <= MOST for pair in differences.values()))


if __name__ == "__main__":
    sys.exit(main())
