"""A killed run draws the noise of a round once: releases before and after a kill are equal."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.faults.machine import KILLED, Machine
from tests.toy import ROUNDS, Sets, tree

from fedvisage.base.streams import numpy_rng

pytestmark = pytest.mark.long

KILLS, MAX_KILLS = 5, 40
"""The test ends after this many kills, if one of them fell between a release and a checkpoint."""
KILLS_PER_RUN = 6
NOISE = {"clip": 1.0, "noise": 0.05, "delta": 1e-3}
"""From the operating system: a second draw could not be the same."""


def read_releases(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "released").glob("round *.safetensors")}


def test_killed_run_never_releases_a_round_twice(machine: Machine, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, federation__dp=NOISE, runtime__checkpoint_every=2)
    draws, kills, repeated_reads, runs = numpy_rng(0, "releases"), 0, 0, 0
    while kills < KILLS or (not repeated_reads and kills < MAX_KILLS):
        out, runs, kills_left = tmp_path / str(runs), runs + 1, KILLS_PER_RUN
        seen: dict[str, bytes] = {}
        while True:
            kill_at = int(draws.integers(1, 30)) if kills_left else None
            if machine.run(content, out, kill_at=kill_at, counted=("released", "checkpoints")).how != KILLED:
                break
            kills, kills_left = kills + 1, kills_left - 1
            now = read_releases(out)
            assert all(now[name] == before for name, before in seen.items() if name in now)
            repeated_reads, seen = repeated_reads + len(now.keys() & seen.keys()), seen | now
        model, last = (load_file(out / name) for name in ("model.safetensors", f"released/round {ROUNDS}.safetensors"))
        assert all(torch.equal(value, last[name]) for name, value in model.items())
        charges = (out / "released" / "charges.jsonl").read_text().splitlines()
        assert [json.loads(line)["release"] for line in charges] == [f"round {n}" for n in range(1, ROUNDS + 1)]
    assert repeated_reads, "no kill fell between a release and the next checkpoint"
