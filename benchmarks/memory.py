"""Memory does not grow with the number of sites, nor with activations that are written twice.

Each figure is the peak RSS of a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from benchmarks.measurement import Measurement, rendered
from fedvisage.methods import read_method
from fedvisage.methods.pad import fedgpad
from fedvisage.nn.compute import Compute
from fedvisage.recipe import validate
from fedvisage.runs.directory import peak_rss_mb

CHILD = """
import sys
from pathlib import Path
from rich.console import Console
from fedvisage import recipe as recipes
from fedvisage.runs.directory import peak_rss_mb
from fedvisage.methods import read_method
from fedvisage.base.progress import Reporter
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.checks import Checks
count, path, out = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
tree = {
    "method": {"name": "fedpad"},
    "data": {"sites": {f"site{i:03d}": path for i in range(count)}},
    "input": {"size": 64},
    "training": {"rounds": 1, "local": {"batches": 1}, "batch": 8, "optimizer": {"state": "kept"}},
}
request = Request(recipes.validate(tree, read_method), out, out.parent / "cache", checks=Checks(allow_overlap=True))
run(request, Reporter(Console(), quiet=True))
print(peak_rss_mb())
"""

STEP = "import sys; from benchmarks.memory import peak_of_a_step; print(peak_of_a_step(sys.argv[1] == 'True'))"
SIZE, BATCH = 256, 4


def measure(cache: Path) -> Measurement:
    """Run one round of FedPAD with a kept optimizer, so that every site has private state to put away."""
    few, many = (_peak(count, rendered(cache, "I", 4, 64)) for count in (3, 200))
    return Measurement(
        "peak memory of 200 sites against 3 sites",
        "≤ 1.5",
        f"{many / few:.2f} ({many:.0f} / {few:.0f} MiB)",
        many / few <= 1.5,
    )


def _peak(count: int, path: Path) -> float:
    with tempfile.TemporaryDirectory() as out:
        return _printed(CHILD, str(count), str(path), out + "/run")


def measure_activations(cache: Path) -> Measurement:
    """Pass a batch through FedGPAD's five networks at paper size, forward and back, activations in place and not."""
    within, beside = (_printed(STEP, str(in_place)) for in_place in (True, False))
    return Measurement(
        "peak memory of a step with activations in place against activations beside their inputs",
        "≤ 1",
        f"{within / beside:.2f} ({within:.0f} / {beside:.0f} MiB; FedGPAD's Table II, {SIZE} px, batch {BATCH})",
        within <= beside,
    )


def peak_of_a_step(in_place: bool) -> float:
    """Take a step in this process, and return the most memory that it has used."""
    tree = {"method": {"name": "fedgpad"}, "data": {"sites": {"A": "at hand"}}, "training": {"rounds": 1}}
    recipe = validate({**tree, "input": {"size": SIZE}, "runtime": {"layout": "first"}}, read_method)
    net = fedgpad.network(recipe)
    for module in net.modules():
        if isinstance(module, nn.ReLU | nn.LeakyReLU):
            module.inplace = in_place
    compute = Compute(torch.device("cpu"), half=False, layout=torch.contiguous_format)
    compute.place(net)
    images = torch.rand(BATCH, 6, SIZE, SIZE)
    invariant, pooled = net["encoder"](images)
    specific, _ = net["specific"](images)
    outputs = (net["classifier"](invariant), net["depth"](pooled), net["decoder"](invariant + specific))
    torch.stack([output.float().square().mean() for output in outputs]).sum().backward()
    return peak_rss_mb()


def _printed(code: str, *words: str) -> float:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
