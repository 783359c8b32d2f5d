"""Studies on two nodes of a Ray cluster: the table of local runs, lost tasks, and failing cells."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from tests.ray.clusters import Cluster as TwoNodes
from tests.ray.clusters import die_at_first
from tests.refusals import check_keywords, refused
from tests.toy import Sets, deterministic_files, discard, tree, write_study

from fedvisage.base.errors import RunFailed
from fedvisage.base.progress import Reporter
from fedvisage.runs.cluster import Cluster
from fedvisage.studies.conduct import run_study


@pytest.fixture
def grid(sets: Sets) -> dict[str, Any]:
    recipe = {key: value for key, value in tree(sets, training__rounds=1).items() if key != "data"}
    return {
        "title": "Toy",
        "recipe": recipe,
        "sets": {name: str(path) for name, path in sets.items()},
        "targets": ["U"],
        "rows": {
            "Single": {"set": ["method.name=single"]},
            "Fused": {"set": ["method.name=fused"], "trained_by": "Single"},
            "FedPAD": {},
        },
        "seeds": [0],
    }


def test_study_on_ray_gives_the_table_and_the_bytes_of_this_machine(
    grid: dict[str, Any], two_nodes: TwoNodes, tmp_path: Path
) -> None:
    """A cell whose directory cannot be made fails at first; the others finish, and the same command continues."""
    path, cache, lines = write_study(grid, tmp_path), tmp_path / "cache", list[str]()
    table = run_study(path, tmp_path / "here", cache, discard)
    out, cluster = tmp_path / "on-ray", Cluster(two_nodes.address)
    (out / "cells" / "fedpad-U-seed0").mkdir(parents=True)
    (out / "cells" / "fedpad-U-seed0" / "foreign").touch()
    with refused("fedpad-U-seed0", "1 of 3 cells", "FedPAD target U seed 0"):
        run_study(path, out, cache, lines.append, cluster=cluster)
    assert any("2 finished" in line and "2 nodes" in line for line in lines)
    finished = out / "cells" / "single-U-seed0" / "metrics.json"
    before = finished.stat().st_mtime_ns
    (out / "cells" / "fedpad-U-seed0" / "foreign").unlink()
    assert run_study(path, out, cache, lines.append, cluster=cluster) == table
    assert finished.stat().st_mtime_ns == before
    for cell in ("single-U-seed0", "fused-U-seed0", "fedpad-U-seed0"):
        names = ("model.safetensors", "model.json", "scores.csv", "recipe.yaml")
        here, there = tmp_path / "here" / "cells" / cell, out / "cells" / cell
        assert deterministic_files(there, names=names) == deterministic_files(here, names=names)
        assert "127.0.0.1" in (there / "node.json").read_text()
        assert (there / "checkpoints").exists() == (cell == "single-U-seed0"), "another cell uses its model"


def test_interrupted_study_keeps_finished_cells_and_continues(
    grid: dict[str, Any], two_nodes: TwoNodes, tmp_path: Path
) -> None:
    many = {**grid, "rows": {"FedPAD": {}}, "seeds": list(range(8))}
    path, out = write_study(many, tmp_path), tmp_path / "study"
    command = [sys.executable, "-m", "fedvisage", "study", str(path), "--out", str(out)]
    command += ["--on", "ray", "--address", two_nodes.address]
    with subprocess.Popen(
        command, env=two_nodes.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert any("1 finished" in line for line in running.stdout)
        running.send_signal(signal.SIGINT)
        _, message = running.communicate(timeout=60)
    assert running.returncode == 130
    check_keywords(message, ("interrupted", "continues"))
    assert len(message.splitlines()) == 1
    finished = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.json")}
    assert 1 <= len(finished) < 8
    assert psutil.wait_procs([*two_nodes.workers(), *tasks_of(two_nodes)], timeout=60)[1] == []
    run_study(path, out, tmp_path / "cache", discard, cluster=Cluster(two_nodes.address))
    assert len(list(out.rglob("metrics.json"))) == 8
    assert {path: path.stat().st_mtime_ns for path in finished} == finished


def tasks_of(nodes: TwoNodes) -> list[psutil.Process]:
    """Return the processes that run cells of a study."""
    processes = [process for node in nodes.nodes for process in node.processes()]
    return [process for process in processes if any("run_chain" in word for word in process.cmdline())]


def test_terminal_shows_one_table_that_changes(two_nodes: TwoNodes) -> None:
    from fedvisage.studies.on_ray import Overview, show_overview

    output = StringIO()
    console = Console(file=output, force_terminal=True, width=100)
    with show_overview(Overview(5, 2, nodes=2), Reporter(console)) as overview:
        assert list(overview.columns().values()) == ["0", "2", "3", "", "", "2"]
        overview.finish(2, 1)
        assert list(overview.columns().values())[:3] == ["1", "2", "2"]
        console.print("a message")
    assert all(word in output.getvalue() for word in ("finished", "waiting", "nodes", "a message"))
    lines = list[str]()
    with show_overview(Overview(2, 2, nodes=1), lines.append) as overview:
        overview.finish(2, 1)
        overview.finish(2, 1)
    assert [line.split(",")[0] for line in lines] == ["tasks: 1 finished", "tasks: 2 finished"]


def test_lost_task_starts_anew_twice_at_most(two_nodes: TwoNodes, tmp_path: Path) -> None:
    from fedvisage.runs.cluster import prepare_ray

    prepare_ray()
    from fedvisage.runs.ray_engine import RayEngine, Tasks

    lost = list[str]()
    with closing(RayEngine(Cluster(two_nodes.address), "run", discard)) as engine:
        tasks = Tasks[str](engine)
        for name, kills in (("once", 1), ("always", 9)):
            tasks.add(name, 1, "cpu", die_at_first, tmp_path / name, kills)
        results = dict(tasks.results(2, lambda name, reason: lost.append(name)))
    assert results["once"] == "finished"
    assert isinstance(results["always"], RunFailed)
    assert sorted(lost) == ["always", "always", "once"]
