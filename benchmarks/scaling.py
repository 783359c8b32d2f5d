"""What the machine itself gives to two programs at once: the most that two workers can gain on it."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO

from benchmarks.measurement import Measurement, in_turn, middle
from fedvisage.base.processes import cores

REPEATS, STEPS = 3, 12
PROGRAM = """
import sys
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
layers, width = [], 6
for wider in (64, 128, 256, 512):
    layers += [nn.Conv2d(width, wider, 3, stride=2, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
    layers += [nn.Conv2d(wider, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
    width = wider
net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1))
net = net.to(memory_format=torch.channels_last)
adam = torch.optim.Adam(net.parameters())
images = torch.rand(32, 6, 96, 96).to(memory_format=torch.channels_last)
for step in range(int(sys.argv[1]) + 2):
    if step == 2:
        print("ready", flush=True)
        sys.stdin.readline()
    adam.zero_grad()
    net(images).square().mean().backward()
    adam.step()
print("done", flush=True)
"""


def measure(cache: Path) -> Measurement:
    """Take steps in one process and in two, in turn."""
    del cache
    one, two = in_turn(REPEATS, partial(seconds_of, 1), partial(seconds_of, 2))
    return Measurement(
        "two bare programs of one thread at once against one after the other (speed): the most that two workers can "
        "gain on this machine (a network of eight convolutions, 96 px, batch 32)",
        "none: a figure to know",
        f"{2 * median(one) / median(two):.2f} (one {middle(one)}, two at once {middle(two)}; {cores()} cores)",
        None,
    )


def seconds_of(programs: int) -> float:
    """Return how long it takes until all of so many programs, begun together, have taken their steps."""
    with ExitStack() as stack:
        words = [sys.executable, "-c", PROGRAM, str(STEPS)]
        running = [
            stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(programs)
        ]
        pipes = [(program.stdin, program.stdout) for program in running]
        for _, said in pipes:
            _hear(said, "ready\n")
        began = time.perf_counter()
        for told, _ in pipes:
            assert told is not None
            told.write("\n")
            told.flush()
        for _, said in pipes:
            _hear(said, "done\n")
        return time.perf_counter() - began


def _hear(said: IO[str] | None, word: str) -> None:
    """Wait until a program says a word."""
    heard = said.readline() if said else ""
    if heard != word:
        raise RuntimeError(f"a program said {heard!r} instead of {word!r}")
