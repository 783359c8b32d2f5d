"""Sites of a run on two nodes of a Ray cluster: the bytes of one process, faults, and refusals."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.ray.clusters import Cluster as RayNodes
from tests.ray.clusters import cluster
from tests.refusals import check_keywords, failed, refused
from tests.toy import (
    Sets,
    deterministic_files,
    files_below,
    quiet_reporter,
    recipe_of,
    run_toy,
    tree,
)

from fedvisage.base.errors import RunFailed
from fedvisage.base.progress import Reporter, discard
from fedvisage.runs.cluster import Cluster, prepare_ray
from fedvisage.runs.request import Request
from fedvisage.runs.run import run

if TYPE_CHECKING:
    from fedvisage.runs.ray_engine import RayEngine

KEPT: dict[str, Any] = {"training__optimizer__state": "kept", "training__rounds": 2}
THREE: dict[str, Any] = {**KEPT, "training__rounds": 3}


def connect(cluster: RayNodes, **options: Any) -> RayEngine:
    prepare_ray()
    from fedvisage.runs.ray_engine import RayEngine

    return RayEngine(Cluster(cluster.address), "run", discard, **options)


def train(content: Mapping[str, Any], out: Path, engine: RayEngine, reporter: Reporter | None = None) -> None:
    """Run a recipe on the cluster, or continue the run in the directory."""
    with closing(engine):
        run(
            Request(recipe_of(content), out, out.parent / "cache", resume=True, engine=engine),
            reporter or quiet_reporter(),
        )


def take_name(other: Path, out: Path) -> None:
    """Give a run the random name of another one, so that files of private state have equal bytes."""
    out.mkdir()
    for name in ("recipe.yaml", "environment.json"):
        (out / name).write_bytes((other / name).read_bytes())


def check_equal(alone: Path, on_ray: Path) -> None:
    assert deterministic_files(on_ray) == deterministic_files(alone)
    assert files_below(on_ray / "sites") == files_below(alone / "sites")


class WatchingReporter(Reporter):
    """A reporter that notes the sites whose batches it sees, and calls a function after the first round."""

    def __init__(self, after_first_round: Callable[[], None] = lambda: None) -> None:
        super().__init__(quiet_reporter().console, quiet=True)
        self.sites, self._after = set[str](), after_first_round

    def batch(self, site: str, done: int, of: int) -> None:
        assert 0 <= done < of
        self.sites.add(site)

    def ended_round(self, row: Mapping[str, Any], total: int) -> None:
        if row["round"] == 1:
            self._after()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedpad", {}),
        ("fedgpad", {}),
        ("fedfr", {}),
        ("privacyface", {"privacy__noise": "derived"}),
        ("fedpad", {"federation__secure": {"entropy": "derived"}}),
        ("fedpad", {"federation__dp": {"clip": 1.0, "noise": 0.1, "delta": 1e-5, "entropy": "derived"}}),
    ],
    ids=["fedpad", "fedgpad", "fedfr", "privacyface", "secure", "dp"],
)
def test_run_on_two_nodes_has_the_bytes_of_one_process(
    name: str,
    changes: dict[str, Any],
    two_nodes: RayNodes,
    sets: Sets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No worker sees the run's directory, whose path is relative to the directory of this process."""
    monkeypatch.chdir(tmp_path)
    content, alone, on_ray = tree(sets, name, **KEPT, **changes), Path("alone"), Path("on-ray")
    run_toy(content, alone)
    take_name(alone, on_ray)
    workers = list[int]()
    train(
        content,
        on_ray,
        connect(two_nodes),
        WatchingReporter(lambda: workers.extend(len(node.workers()) for node in two_nodes.nodes)),
    )
    assert workers == [1, 1]
    check_equal(alone, on_ray)


def test_run_on_ray_reports_batches_and_memory_of_its_workers(two_nodes: RayNodes, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__rounds=1, training__local={"batches": 200}, evaluation__every=0)
    reporter = WatchingReporter()
    train(content, tmp_path / "run", connect(two_nodes), reporter)
    assert reporter.sites
    assert reporter.sites <= {"A", "B", "C"}
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert (environment["engine"], environment["workers"]) == ("ray", 2)
    own = psutil.Process().memory_info().rss / 2**20
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["peak_rss_mb"] > own + 200, "two with torch"


def test_killed_worker_ends_the_run_and_resume_gives_the_same_bytes(
    two_nodes: RayNodes, sets: Sets, tmp_path: Path
) -> None:
    content, alone, on_ray = tree(sets, "fedpad", **THREE), tmp_path / "alone", tmp_path / "run"
    run_toy(content, alone)
    take_name(alone, on_ray)

    def kill_a_worker() -> None:
        for scratch in two_nodes.scratch():
            assert scratch.name.startswith("run-")
            assert stat.S_IMODE(scratch.stat().st_mode) == stat.S_IMODE(scratch.parent.stat().st_mode) == 0o700
        worker = two_nodes.nodes[1].workers()[0]
        worker.kill()
        worker.wait(60)

    with failed(RunFailed, "worker", "127.0.0.1", "check that node", "runtime.workers", "--resume"):
        train(content, on_ray, connect(two_nodes), WatchingReporter(kill_a_worker))
    assert two_nodes.workers() == []
    (left,) = two_nodes.scratch()
    train(content, on_ray, connect(two_nodes))
    assert not left.exists()
    check_equal(alone, on_ray)


def test_killed_node_ends_the_run_which_continues_with_local_workers(
    sets: Sets, tmp_path: Path, two_nodes: RayNodes
) -> None:
    content, alone, on_ray = tree(sets, "fedpad", **THREE), tmp_path / "alone", tmp_path / "run"
    run_toy(content, alone)
    take_name(alone, on_ray)
    third = two_nodes.add_node()
    with failed(RunFailed, "worker", "--resume"):
        train(
            {**content, "runtime": {**content["runtime"], "workers": 3}},
            on_ray,
            connect(two_nodes),
            WatchingReporter(third.kill),
        )
    assert two_nodes.workers() == []
    run_toy(content, on_ray, resume=True)
    check_equal(alone, on_ray)


def test_wait_for_cores_ends_with_the_missing_ones(two_nodes: RayNodes, sets: Sets, tmp_path: Path) -> None:
    from ray.util.placement_group import placement_group

    engine = connect(two_nodes, patience=1.0)
    with closing(engine):
        assert placement_group([{"CPU": 1}]).wait(60), "a core of other work"
        with failed(RunFailed, "2 cores", "1 of them", "1 core missing", "--resume"):
            train(tree(sets, runtime__workers=2), tmp_path / "run", engine)


def test_sets_that_took_long_to_open_do_not_count_as_waiting(
    two_nodes: RayNodes, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is an hour ahead when the run has opened its sets, as if it had rendered them."""
    engine, clock = connect(two_nodes), time.monotonic
    with closing(engine):
        engine.start(2, 1, "cpu")
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600)
        assert engine.wait(recipe_of(tree(sets)), tmp_path / "cache") == {"engine": "ray"}


@pytest.mark.parametrize(
    ("name", "threads", "place", "keywords"),
    [
        ("fedsis", 1, "--on", ("one after another",)),
        ("fedpad", 2, "recipe.runtime.workers", ("2 workers of 2 threads", "0 of them")),
    ],
)
def test_run_that_the_cluster_cannot_train_is_refused(
    name: str, threads: int, place: str, keywords: tuple[str, ...], two_nodes: RayNodes, sets: Sets, tmp_path: Path
) -> None:
    """Each node has one core; Ray may still count a third one, which an earlier test killed."""
    content = tree(sets, name, runtime__workers=2, runtime__threads=threads)
    with refused(place, *keywords):
        train(content, tmp_path / "run", connect(two_nodes))
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_sets_that_a_node_lacks_are_named_or_copied_or_rendered(
    two_nodes: RayNodes, sets: Sets, tmp_path: Path
) -> None:
    """The driver states paths of two sets that no node has; the third set is a rendered one."""
    from fedvisage.runs.ray_data import needed_sets
    from fedvisage.runs.ray_engine import provide_sets

    rendered = "synth: O subjects=4 videos=1 frames=1 heldout=0.5 size=32 species=print"
    content = tree(sets, training__rounds=1, evaluation__every=0, training__batch=4)
    content["data"]["sites"] = {"A": str(sets["A"]), "B": str(sets["B"]), "R": rendered}
    needed = needed_sets(content["data"]["sites"].values(), tmp_path / "cache")
    assert [entry.line for entry in needed] == ["", "", rendered]
    moved = [replace(entry, absolute=Path("/nowhere") / entry.path.name) for entry in needed]
    engine = connect(two_nodes)
    with closing(engine):
        engine.start(2, 1, "cpu")
        engine.wait(recipe_of(content), tmp_path / "cache")
        groups = [[worker] for worker in engine.workers]
        with refused(f"node {engine.workers[0].node}", "/nowhere/A", "--copy-data"):
            provide_sets(groups, moved, False, discard)
        lines = list[str]()
        provide_sets(groups, moved, True, lines.append)
        assert [line.split()[1] for line in lines] == ["/nowhere/A", "/nowhere/B"] * 2
        again = list[str]()
        provide_sets(groups, moved, False, again.append)
        assert again == []
    for node in ("node-0", "node-1"):
        home = two_nodes.folder / node
        for entry in needed[:2]:
            copied = home / ".cache" / "fedvisage" / "sets" / entry.digest
            assert {path.name: path.read_bytes() for path in copied.iterdir()} == files_below(entry.path)
        assert (home / ".cache" / "fedvisage" / needed[2].path.name / "set.json").exists()


def test_card_of_one_machine_is_refused(two_nodes: RayNodes) -> None:
    with closing(connect(two_nodes)) as engine:
        with refused("recipe.runtime.device", "cuda:1", "cuda"):
            engine.gpus("cuda:1")
        with refused("recipe.runtime.device", "cuda", "no node"):
            engine.gpus("cuda")
        assert engine.gpus("cpu") == 0


@pytest.mark.usefixtures("two_nodes")
def test_two_workers_share_an_emulated_card() -> None:
    """Ray counts the cards that a node states, and tells each worker which one to see."""
    with cluster(nodes=0) as emulated:
        emulated.add_node(cores=4, gpus=2)
        program = [sys.executable, "-c", SHARE_CARDS, emulated.address]
        ended = subprocess.run(program, env=emulated.environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"capacity": 4, "device": "cuda", "cards": ["0", "0", "1", "1"]}


SHARE_CARDS = """
import json, os, sys
from contextlib import closing
from fedvisage.runs.cluster import Cluster, prepare_ray
prepare_ray()
from fedvisage.runs.ray_engine import RayEngine

with closing(RayEngine(Cluster(sys.argv[1], gpus_per_worker=0.5), "run", lambda line: None)) as engine:
    capacity = engine.gpus("cuda")
    jobs = [worker.submit(os.getenv, "CUDA_VISIBLE_DEVICES") for worker in engine.start(capacity, 1, "cuda")]
    cards = sorted(job.result() for job in jobs)
    print(json.dumps({"capacity": capacity, "device": engine.device_of("cuda", 3), "cards": cards}))
"""


@pytest.mark.usefixtures("two_nodes")  # skips the test without Ray
def test_node_with_another_processor_is_refused_by_name_or_recorded(sets: Sets, tmp_path: Path) -> None:
    with cluster(nodes=0) as other:
        other.add_node(cores=1)
        other.add_node(cores=1, ATEN_CPU_CAPABILITY="default")
        content = tree(sets, training__rounds=1, evaluation__every=0, runtime__workers=2)
        for allowed in (False, True):
            command = ray_command(content, tmp_path, other, *(["--allow-different-machines"] if allowed else []))
            ended = subprocess.run(command, env=other.environment(), capture_output=True, text=True, check=False)
            assert (ended.returncode == 0) == allowed, ended.stderr
            if not allowed:
                assert "127.0.0.1" in ended.stderr
                assert "cpu_capability" in ended.stderr
                assert "--allow-different-machines" in ended.stderr
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    ((_, different),) = environment["different_machines"].items()
    assert different == {"cpu_capability": "DEFAULT"}


def ray_command(content: Mapping[str, Any], folder: Path, cluster: RayNodes, *options: str) -> list[str]:
    """Return the command of a run on a cluster."""
    (folder / "recipe.yaml").write_text(json.dumps(content))
    command = [sys.executable, "-m", "fedvisage", "run", str(folder / "recipe.yaml"), "--out", str(folder / "run")]
    return [*command, "--on", "ray", "--address", cluster.address, *options]


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("killed", ["driver", "head"])
def test_killed_driver_or_head_leaves_no_worker_and_the_run_continues(killed: str, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, **{**KEPT, "training__rounds": 12}, training__local={"batches": 8}, evaluation__every=0)
    run_toy(content, tmp_path / "alone")
    take_name(tmp_path / "alone", tmp_path / "run")
    with cluster() as own:
        running = subprocess.Popen(
            ray_command(content, tmp_path, own, "--resume"),
            env=own.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert running.stdout is not None
            assert any(line.startswith("round 1/") for line in running.stdout)
            workers = own.workers()
            assert len(workers) == 2
            if killed == "driver":
                running.kill()
                running.wait(60)
            else:
                own.nodes[0].kill()
                _, line = running.communicate(timeout=60)
                assert running.returncode == 1
                check_keywords(line, ("head node", own.address, "does not answer", "check", "--resume"))
                assert len(line.splitlines()) == 1
            assert psutil.wait_procs(workers, timeout=90)[1] == []
        finally:
            running.kill()
    assert not (tmp_path / "run" / "metrics.json").exists()
    run_toy(content, tmp_path / "run", resume=True)
    check_equal(tmp_path / "alone", tmp_path / "run")
