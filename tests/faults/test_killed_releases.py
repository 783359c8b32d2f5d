"""Noise is drawn once for a round, wherever the run is killed: what was released before a kill is released after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.faults.machine import KILLED, Machine
from tests.toy import ROUNDS, tree

from fedvisage.base.streams import numpy_rng

KILLS, MOST, PATIENCE = 5, 40, 6
"""At least and at most so many, until one fell between a release and a checkpoint; so many a run."""
NOISE = {"clip": 1.0, "noise": 0.05, "delta": 1e-3}
"""From the operating system: a second draw could not be the same."""


def released(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "released").glob("round *.safetensors")}


def test_a_killed_run_never_releases_a_round_twice(machine: Machine, sets: Mapping[str, Path], tmp_path: Path) -> None:
    content = tree(sets, federation__dp=NOISE, runtime__checkpoint_every=2)
    draws, kills, kept, runs = numpy_rng(0, "releases"), 0, 0, 0
    while kills < KILLS or (not kept and kills < MOST):
        out, runs, patience = tmp_path / str(runs), runs + 1, PATIENCE
        seen: dict[str, bytes] = {}
        while machine.run(content, out, kill_at=int(draws.integers(20, 60)) if patience else None).how == KILLED:
            kills, patience = kills + 1, patience - 1
            found = released(out)
            assert all(found[name] == before for name, before in seen.items() if name in found)
            kept, seen = kept + len(found.keys() & seen.keys()), seen | found
        model, last = (load_file(out / name) for name in ("model.safetensors", f"released/round {ROUNDS}.safetensors"))
        assert all(torch.equal(value, last[name]) for name, value in model.items())
        charges = (out / "released" / "charges.jsonl").read_text().splitlines()
        assert [json.loads(line)["release"] for line in charges] == [f"round {n}" for n in range(1, ROUNDS + 1)]
    assert kept, "no kill fell between a release and the next checkpoint"
