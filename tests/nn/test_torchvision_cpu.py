"""torchvision and timm import beside a CPU build of torch, in any order."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from fedvisage.nn import torchvision_cpu

ORDERS = [
    "import torchvision",
    "import timm",
    "import torch, torchvision",
    "import fedvisage, torchvision",
    "import fedvisage, timm",
    "import torchvision, timm, fedvisage",
    "import timm, fedvisage.nn.resnet",
    "import fedvisage.nn.vit, torchvision.ops",
    "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import fedvisage, timm, torchvision",
]
"""Statements; the last one imports without torch's call of the entry point."""


@pytest.mark.long
@pytest.mark.parametrize("imports", ORDERS)
def test_torchvision_and_timm_import_in_any_order(imports: str) -> None:
    ended = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_torch_installs_the_hook_and_every_operator_is_declared_once() -> None:
    assert entry_points(group="torch.backends", name="fedvisage"), "run `make setup` again"
    torchvision_cpu.install()
    assert sum(isinstance(finder, torchvision_cpu.SchemaHook) for finder in sys.meta_path) == 1
    import torchvision  # type: ignore[import-untyped]  # noqa: F401

    assert torchvision_cpu.declare_missing_operators() == []
