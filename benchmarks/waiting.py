"""Threads that wait for each other: soon asleep, as the command line has them, against spinning, as OpenMP has them.

A step of FedPAD's network in two threads, on a machine that has nothing else to do and beside a program on every core.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measurement import Measurement, in_turn, middle
from fedvisage.base.processes import cores, let_threads_sleep

REPEATS, ALONE, BUSY = 4, 0.95, 1.2
STEPS = """
import sys, time
import torch
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.base.processes import use_threads

use_threads(2)
net = resnet18(ResNet18(), 'rgb+hsv').train()
adam = torch.optim.Adam(net.parameters())
images = torch.rand(32, 6, 96, 96)
for step in range(int(sys.argv[1]) + 2):
    if step == 2:
        began = time.perf_counter()
    adam.zero_grad()
    net(images).square().mean().backward()
    adam.step()
print(time.perf_counter() - began)
"""
SPIN = "while True: pass"


def measure(cache: Path) -> Measurement:
    """Take steps in new processes, in turn."""
    del cache
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    asleep = dict(usual)
    let_threads_sleep(asleep)
    said, ratios = [], []
    for programs in (0, cores()):
        with beside(programs):
            ours, theirs = in_turn(REPEATS, partial(seconds_of_a_step, asleep), partial(seconds_of_a_step, usual))
        ratios.append(median(theirs) / median(ours))
        said.append(f"{ratios[-1]:.2f} ({middle(ours)} / {middle(theirs)})")
    return Measurement(
        "a step in two threads that soon sleep while they wait against two that spin (speed): alone, and "
        "beside a program on every core (ResNet-18, 96 px, batch 32)",
        f"≥ {ALONE:g} alone, ≥ {BUSY:g} beside others",
        "; ".join(said),
        (ratios[0] >= ALONE and ratios[1] >= BUSY) if cores() > 1 else None,
    )


def seconds_of_a_step(environment: dict[str, str], steps: int = 5) -> float:
    """Return what a step takes in a process of its own."""
    words = [sys.executable, "-c", STEPS, str(steps)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout) / steps


@contextmanager
def beside(programs: int) -> Iterator[None]:
    """Have so many programs compute as long as this lasts."""
    with ExitStack() as running:
        for _ in range(programs):
            program = running.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
            running.callback(program.kill)
        yield
