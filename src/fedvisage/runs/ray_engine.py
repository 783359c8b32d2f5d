"""Workers on the nodes of a Ray cluster, behind the interface of ``runs/engine.py``.

A worker is an actor, which executes one job at a time. The driver, which is the process of the run, alone reads and
writes the run's directory. docs/decisions/0047-ray.md gives the reasons.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from fedvisage.base.errors import RunFailed, UserError, plain_line
from fedvisage.base.processes import let_threads_sleep
from fedvisage.base.progress import Say, format_count
from fedvisage.data.prepared import SET, read_manifest
from fedvisage.federation.wire.message import Message, Reply
from fedvisage.recipe import Recipe
from fedvisage.runs.cluster import Cluster
from fedvisage.runs.engine import WorkerLost
from fedvisage.runs.ray_connection import connect
from fedvisage.runs.ray_data import NeededSet, find_sets, finish_copy, needed_sets, receive_chunk
from fedvisage.runs.ray_worker import PackedMessage, WorkerProcess, environment

Key = TypeVar("Key")
Result = TypeVar("Result")

PATIENCE = 60.0
"""Seconds to wait for free cores, and for a node that does not answer."""
IMPORTS = 600.0
"""Seconds to wait until a placed worker has loaded its modules, which a busy node does slowly."""
HEARTBEAT = 2.0
"""Seconds between two checks that the head node answers while a job runs."""
CHUNK = 1 << 26
"""Bytes of a set's file per message."""
CLOSING = 5.0
"""Seconds in which workers remove their files before they are killed."""


class RayWorker:
    """A worker on a node. A thread of the driver sends its jobs, because Ray does not keep their order."""

    def __init__(self, actor: Any, engine: RayEngine) -> None:
        self._actor, self._engine = actor, engine
        self._sender = ThreadPoolExecutor(1, "ray-worker")
        self._sent, self._progress, self._question = 0, (0, 0, 0), cast(Any, None)
        self.node = "its node"

    def submit(self, job: Callable[..., Result], /, *args: Any) -> Future[Result]:
        """Submit a job."""
        return cast("Future[Result]", self._sender.submit(self._execute, job, args))

    def _execute(self, job: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._sent += 1
        try:
            answer = self._actor.execute.remote(job, *args)
            while not ray.wait([answer], timeout=HEARTBEAT)[0]:
                self._engine.check_head()
            result, error = ray.get(answer)
        except RayError as fault:
            self._engine.check_head()
            remedy = "check that node, or use fewer workers (runtime.workers) if its memory ran out"
            raise WorkerLost(f"a worker on {self.node} ended unexpectedly ({_reason(fault)}); {remedy}") from None
        if error is not None:
            raise error
        if isinstance(result, Reply) and result.message is not None:
            result = replace(result, message=cast(PackedMessage, result.message).read())
        return result

    def progress(self) -> tuple[int, int]:
        """Return the numbers of the last answer, if it is about the current job, and ask again without waiting."""
        if self._question is None:
            self._question = self._actor.progress.remote()
        elif ray.wait([self._question], timeout=0)[0]:
            with suppress(RayError):  # the job's future reports a lost worker
                self._progress = ray.get(self._question)
            self._question = None
        jobs, finished, total = self._progress
        return (finished, total) if jobs == self._sent else (0, 0)

    def ask(self, question: str) -> Any:
        """Ask the actor a question, and return the reference of the answer."""
        return getattr(self._actor, question).remote()

    def close(self) -> None:
        """Kill the actor."""
        self._sender.shutdown(wait=False, cancel_futures=True)
        with suppress(RayError):
            ray.kill(self._actor)


def _reason(fault: RayError) -> str:
    """Return the part of Ray's message that states a cause, in one line."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()] or [type(fault).__name__]
    causes = [line for line in lines if line.startswith(("The actor is dead because", "The actor died because"))]
    return plain_line([*causes, *lines][0], 300)


@dataclass
class RayEngine:
    """Actors of a cluster to which this process connects as the driver; Ray never restarts them."""

    cluster: Cluster
    run: str
    """The name of the run, for the files of its workers."""
    say: Say
    patience: float = PATIENCE
    """Seconds to wait for free cores."""
    workers: list[RayWorker] = field(default_factory=list)

    shared = False

    def __post_init__(self) -> None:
        """Connect to the cluster."""
        self.head = connect(self.cluster.address, self.say)
        self._group: Any = None
        self._started, self._threads, self._closed = 0.0, 1, False

    def nodes(self) -> dict[str, dict[str, float]]:
        """Return the resources of the nodes by their numbers."""
        return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}

    def capacity(self, threads: int) -> int:
        """Count the workers that the cores of each node serve."""
        return sum(int(node.get("CPU", 0)) // threads for node in self.nodes().values())

    def gpus(self, device: str) -> int:
        """Count the workers that the GPUs of each node serve; a recipe must leave the choice of a card to Ray."""
        if device.startswith("cuda:"):
            fault = f"{device} is a card of one machine; Ray gives each worker its card: use cuda"
            raise UserError("recipe.runtime.device", fault)
        if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
            return 0
        count = sum(int(node.get("GPU", 0) / self.cluster.gpus_per_worker) for node in self.nodes().values())
        if not count and device == "cuda":
            raise UserError("recipe.runtime.device", "cuda was requested, but no node has a GPU; use cpu")
        return count

    def device_of(self, device: str, number: int) -> str:
        """Return the card that Ray gives to the worker, or the CPU."""
        return "cuda" if self.gpus(device) else "cpu"

    def start(self, count: int, threads: int, device: str) -> Sequence[RayWorker]:
        """Reserve cores, and start the actors there."""
        share = self.cluster.gpus_per_worker if self.gpus(device) else 0
        self._threads = threads
        self._group = placement_group([{"CPU": threads, **({"GPU": share} if share else {})}] * count)
        quick = dict[str, str]()
        let_threads_sleep(quick)
        for number in range(count):
            place = PlacementGroupSchedulingStrategy(self._group, number)
            self._add_worker(place, num_cpus=threads, num_gpus=share, runtime_env={"env_vars": quick})
        return self.workers

    def _add_worker(self, place: Any, **options: Any) -> None:
        actors = ray.remote(concurrency_groups={"questions": 1})(WorkerProcess)
        actor = actors.options(max_restarts=0, scheduling_strategy=place, **options).remote(self.run, self._threads)
        self.workers.append(RayWorker(actor, self))

    def wait(self, recipe: Recipe, cache: Path) -> Mapping[str, Any]:
        """Wait for free cores, for the actors and for their sets; return the nodes that may give other bytes."""
        self._started = time.monotonic()  # since the workers' start, the run may have rendered its sets for minutes
        if not self._group.wait(self.patience):
            needed = len(self.workers) * self._threads
            free = int(ray.available_resources().get("CPU", 0))
            raise RunFailed(
                f"waited {self.patience:g} s for {format_count(needed, 'core')}, and {free} of them are free: "
                f"{format_count(max(needed - free, 1), 'core')} missing; end other work on the cluster, add a node, or "
                "set a lower runtime.workers; --resume continues the run"
            )
        entries = [*recipe.data.sites.values(), *([recipe.data.public] if recipe.data.public else [])]
        differing = self._check_workers(needed_sets(entries, cache))
        return {"engine": "ray", **({"different_machines": differing} if differing else {})}

    def check_nodes(self, needed: Sequence[NeededSet]) -> None:
        """Check every node of the cluster by a worker that only answers, and let it find sets."""
        for number in self.nodes():
            self._add_worker(NodeAffinitySchedulingStrategy(number, soft=False), num_cpus=0)
        self._started = time.monotonic()
        self._check_workers(needed)
        self._end_workers()

    def _check_workers(self, needed: Sequence[NeededSet]) -> dict[str, dict[str, Any]]:
        """Refuse nodes that may give other bytes, or return them, and let the workers find sets."""
        questions = [worker.ask("describe") for worker in self.workers]
        while len(ray.wait(questions, num_returns=len(questions), timeout=HEARTBEAT)[0]) < len(questions):
            self.check_head()
            if time.monotonic() > self._started + IMPORTS:
                raise RunFailed("the workers did not load their modules; --resume continues the run")
        differing, nodes = dict[str, dict[str, Any]](), dict[str, list[RayWorker]]()
        for worker, answer in zip(self.workers, questions, strict=True):
            try:
                described = ray.get(answer)
            except RayError as fault:
                raise RunFailed(f"a worker did not start ({_reason(fault)}); --resume continues the run") from None
            number, worker.node = described.pop("node")
            nodes.setdefault(number, []).append(worker)
            if different := self._compare(worker.node, described):
                differing[worker.node] = different
        try:
            provide_sets([*nodes.values()], needed, self.cluster.copy_data, self.say)
        except WorkerLost as error:
            raise RunFailed(f"{error}; --resume continues the run") from None
        return differing

    def _compare(self, node: str, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return what differs from this process on a node; refuse it unless that is allowed."""
        expected = environment() | {"threads": self._threads}
        different = {name: value for name, value in described.items() if value != expected[name]}
        if different and not self.cluster.allow_different_machines:
            name, value = next(iter(different.items()))
            here = expected[name]
            if isinstance(value, list):  # state only the instruction sets of one of the machines
                value, here = (" ".join(sorted({*a} - {*b})) or "none" for a, b in ((value, here), (here, value)))
            raise UserError(
                f"node {node}",
                f"has {name} {value}, here it is {here}, so that results may differ; make them equal, or "
                "give --allow-different-machines, which the run records",
            )
        return different

    def put(self, message: Message) -> Any:
        """Store a message in this node's shared memory; other nodes fetch it once."""
        return ray.put(PackedMessage.pack(message))

    def check_head(self) -> None:
        """Raise an exception if the head node does not answer, or if the engine was closed."""
        if self._closed:
            raise WorkerLost("the run has ended")
        try:
            socket.create_connection(self.head, PATIENCE / 4).close()
        except OSError:
            raise WorkerLost(f"the head node at {':'.join(map(str, self.head))} does not answer; check it") from None

    def close(self) -> None:
        """End all actors after they have removed their files, and disconnect."""
        if self._closed:
            return
        with suppress(WorkerLost):
            self.check_head()
            self._closed = True
            self._end_workers()
            if self._group is not None:
                remove_placement_group(self._group)
        self._closed = True
        ray.shutdown()

    def _end_workers(self) -> None:
        removing = [worker.ask("remove_scratch") for worker in self.workers]
        if removing:
            ray.wait(removing, num_returns=len(removing), timeout=CLOSING)
        for worker in self.workers:
            worker.close()
        self.workers.clear()


class Tasks(Generic[Key]):
    """Tasks of a cluster, which start anew if their node is lost."""

    def __init__(self, engine: RayEngine) -> None:
        self._engine = engine
        self._begin = dict[Key, Callable[[], Any]]()

    def add(self, key: Key, threads: int, device: str, job: Callable[..., Any], *args: Any) -> None:
        """Add a task that needs cores for its threads, and a share of a GPU if its device is one."""
        share = self._engine.cluster.gpus_per_worker if self._engine.gpus(device) else 0
        task = ray.remote(job).options(num_cpus=threads, num_gpus=share, max_retries=0)
        self._begin[key] = partial(task.remote, *args)

    def results(self, repeats: int, report: Callable[[Key, str], None]) -> Iterator[tuple[Key, Any]]:
        """Yield results or exceptions as they arrive; report and restart lost tasks, ``repeats`` times at most."""
        running, attempts = {begin(): key for key, begin in self._begin.items()}, dict[Key, int]()
        try:
            while running:
                done, _ = ray.wait([*running], timeout=HEARTBEAT)
                self._engine.check_head()
                for reference in done:
                    key = running.pop(reference)
                    try:
                        outcome = ray.get(reference)
                    except RayTaskError as error:
                        outcome = error.cause
                    except RayError as fault:
                        attempts[key] = attempts.get(key, 0) + 1
                        if attempts[key] <= repeats:
                            report(key, _reason(fault))
                            running[self._begin[key]()] = key
                            continue
                        outcome = RunFailed(f"was lost {attempts[key]} times ({_reason(fault)})")
                    yield key, outcome
        except WorkerLost as error:
            raise RunFailed(f"{error}; the same command continues the study") from None
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def provide_sets(nodes: Sequence[Sequence[RayWorker]], needed: Sequence[NeededSet], copy: bool, say: Say) -> None:
    """Let the workers of each node find sets; send each missing set once per node, or refuse the node."""
    looking = [(workers[0], workers[0].submit(find_sets, needed)) for workers in nodes]
    for worker, future in looking:
        for missing in future.result():
            if not copy:
                remedy = "copy it to this path there, or give --copy-data, which sends it to the node's cache"
                raise UserError(f"node {worker.node}", f"does not have the set {missing.absolute}; {remedy}")
            say(f"copying {missing.absolute} to node {worker.node}")
            for name in (SET, *read_manifest(missing.path).files):
                with (missing.path / name).open("rb") as file:
                    while chunk := file.read(CHUNK):
                        position = file.tell() - len(chunk)
                        worker.submit(receive_chunk, missing.digest, name, chunk, position).result()
            worker.submit(finish_copy, missing.digest).result()
    for future in [worker.submit(find_sets, needed) for workers in nodes for worker in workers]:
        if left := future.result():
            raise UserError(str(left[0].absolute), "changed on a node while the run started; start again")
