"""Parallel simulation of sites in workers, with byte-identical results for any number of workers.

A site's state stays at one worker; a site that keeps nothing goes to the first free worker in each round. Only this
process reads and writes the run directory. docs/decisions/0037-worker-engine.md gives the reasons.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import RLock
from typing import Any, Literal

from fedvisage import recipe as recipes
from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.processes import cores
from fedvisage.base.progress import Say, format_count
from fedvisage.federation.batch import round_length
from fedvisage.federation.method import Method
from fedvisage.federation.record.store import SiteStore, StateCache
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message, Order, Reply, Transport, plain
from fedvisage.methods import find, reader_of
from fedvisage.recipe import Recipe
from fedvisage.runs.directory import peak_kb
from fedvisage.runs.engine import Engine, Worker, WorkerLost, report_progress
from fedvisage.tasks.catalogue import set_up

# The jobs of a worker. They keep the sites of the worker's process in memory, and their files in its scratch space.


class _Process:
    """The sites of this worker process."""

    sites: LocalTransport


def open_sites(setup: bytes, data: bytes) -> None:
    """Open the pickled views of all sites, which are paths and positions, and build the network that they share."""
    recipe, method = unpack_setup(setup)
    workspace, cache, scratch = set_up(recipe, method).workspace(), StateCache(), Path(tempfile.mkdtemp())
    workspace.on_batch = lambda site, finished, total: report_progress(finished, total)
    sites = []
    for name, owner, train, held_out, views in pickle.loads(data):
        store = SiteStore(scratch / name, cache, owner, stored_elsewhere=True)
        sites.append(SiteWorker(name, train, held_out, store, workspace, **views))
    _Process.sites = LocalTransport(sites)


def execute_order(site: str, order: Order, names: Sequence[str], *parts: Message) -> Reply:
    """Execute an order whose message comes in parts."""
    tensors = {name: value for part in parts for name, value in part.items()}
    (reply,) = _Process.sites.call({site: replace(order, message={name: tensors[name] for name in names})})
    return reply


def end_visits() -> set[str]:
    """End all visits after a round, and return the sites that keep state here."""
    sites = _Process.sites.site_workers.values()
    for site in sites:
        site.end_visit()
    return {site.name for site in sites if site.keeps_state}


def commit_site(site: str, generation: int, known: int) -> tuple[int, bytes]:
    """Commit a site's private state; return its generation, and the content of its file if the caller knows another."""
    worker = _Process.sites.site_workers[site]
    reached = worker.commit(generation)
    return reached, worker.store.committed_content() if reached != known else b""


def restore_site(site: str, generation: int, content: bytes, releases: Mapping[str, bytes | None]) -> None:
    """Give a site the private state of a generation, and its log of releases."""
    worker = _Process.sites.site_workers[site]
    if generation:
        worker.store.receive(generation, content)
    worker.releases.receive(releases)
    worker.restore(generation)


def release_files(site: str, known_names: frozenset[str]) -> dict[str, bytes | None]:
    """Return the files of a site's log of releases, without the values that the caller knows."""
    return _Process.sites.site_workers[site].releases.files(known_names)


# Methods and recipes as the setup of another process.


def pack_setup(recipe: Recipe, method: Method) -> bytes:
    """Pickle the setup of another process; a method from the catalogue is sent by name.

    The recipe is sent as plain values, because no process can import the generated options class of an algorithm on a
    model.
    """
    return pickle.dumps((recipes.tree_of(recipe), None if is_in_catalogue(method, recipe) else method))


def unpack_setup(sent: bytes) -> tuple[Recipe, Method]:
    """Return the arguments of :func:`pack_setup`, in another process."""
    tree, method = pickle.loads(sent)
    recipe = recipes.validate(tree, reader_of(method))
    return recipe, method or find(recipe.method)


def is_in_catalogue(method: Method, recipe: Recipe) -> bool:
    """Return whether every process finds this method by the recipe's section ``method``."""
    try:
        return find(recipe.method) is method
    except UserError:  # the catalogue may not contain a method that was passed in
        return False


def is_picklable(method: Method, recipe: Recipe) -> bool:
    """Return whether a method can be pickled for another process of this machine."""
    if is_in_catalogue(method, recipe):
        return True
    try:
        sent = pickle.dumps(method)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return b"__main__" not in sent  # no other process can import from the program's main file


# The workers of a run.

SCRATCH = ".workers"
"""The folder in a run's directory for the files of its local workers."""
POLL_SECONDS = 0.1
"""The time in seconds between two reports of the sites' progress."""
SITES_PER_WORKER = 2
"""The sites per worker that are between the start of their order and the use of their reply. More replies would wait in
memory for their turn in sorted order."""

Wire = Callable[[Sequence[SiteWorker]], Transport]
"""A function that makes a transport from the sites of this process."""

Job = Callable[[Worker], Future[Reply]]
"""Begins the order of a site at a worker."""


def recipe_of_worker(recipe: Recipe, engine: Engine, number: int) -> Recipe:
    """Return a recipe with the device of one worker."""
    device = {"device": engine.device_of(recipe.runtime.device, number)}
    return recipe.model_copy(update={"runtime": recipe.runtime.model_copy(update=device)})


class WorkerPool:
    """The workers of a run; none before :meth:`start`."""

    def __init__(self, requested: Literal["auto"] | int | None, engine: Engine) -> None:
        """Store the number of workers that the recipe asks for, and the engine that starts them."""
        self._requested, self.engine = requested, engine
        self.workers: Sequence[Worker] = ()
        self.peaks_kb: list[int] = []
        """The peak memory of each worker, after training."""

    def start(self, recipe: Recipe, method: Method, ours: bool, say: Say) -> None:
        """Start the useful number of workers; they load their modules while the run opens its data.

        If the sites cannot train in parallel on this machine, report the reason in one line and start none; the sites
        then train one after another, as without the key. Another engine refuses such a run. ``ours`` is false if the
        caller passed in another transport.
        """
        engine, requested, threads, device = self.engine, self._requested, recipe.runtime.threads, recipe.runtime.device
        sites = 1 if method.pooled else len(recipe.data.sites)
        if engine.shared and (requested in (None, 1) or sites == 1):
            return
        gpus, capacity = engine.gpus(device), engine.capacity(threads)
        # With "auto", each GPU serves as many processes as the engine says. On this machine's CPU, if the sites do not
        # divide evenly, the operating system shares the cores among one more process.
        slots = min(capacity, gpus or sites)
        best = slots + (engine.shared and not gpus and slots > 1 and sites % slots > 0)
        count = min(sites, requested if isinstance(requested, int) else best)
        reason = None
        if engine.shared and count == 1:
            reason = f"one process uses {'the GPU' if gpus == 1 else 'all cores with its threads'}"
        elif not ours:
            reason = "the transport that was passed in decides where its sites are"
        elif method.pooled:
            reason = f"{method.name} merges all sites into one"
        elif method.in_turn:
            reason = f"{method.name} visits its sites one after another"
        elif not is_picklable(method, recipe):
            reason = (
                f"{method.name} was passed in and cannot be sent to another process, because not all of its functions "
                "can be imported by name"
            )
        if reason is not None and engine.shared:
            say(f"note: {reason}; runtime.workers changes nothing")
            return
        if reason is not None:
            raise UserError("--on", f"{reason}; leave the option out to train in this process")
        if not engine.shared and (count > slots or not slots):
            what = f"{format_count(max(count, 1), 'worker')} of {format_count(threads, 'thread')}"
            limit = f"{capacity} of them at the same time" if count > capacity or not gpus else f"{gpus} on its GPUs"
            advice = f"but the cluster has room for {limit}; ask for fewer, or add nodes"
            raise UserError("recipe.runtime.workers", f"asks for {what}, {advice}")
        if threads > 1 and engine.shared and count * threads > cores():
            say(f"note: {count} processes of {threads} threads are slow on {cores()} cores; set runtime.threads=1")
        self.workers = engine.start(count, threads, device)

    def wait(self, recipe: Recipe, cache: Path) -> dict[str, Any]:
        """Wait until the workers can take jobs, and return their part of the record of the run's environment."""
        return {"workers": len(self.workers), **self.engine.wait(recipe, cache)} if self.workers else {}

    @contextmanager
    def wire(self, otherwise: Wire) -> Iterator[Wire]:
        """Yield a function that makes a transport from a run's sites: to the workers, if there are any.

        The workers end with the context.
        """
        if not self.workers:
            yield otherwise
            return
        try:
            yield partial(WorkerTransport, engine=self.engine, workers=self.workers)
            self.peaks_kb = [worker.submit(peak_kb).result() or 0 for worker in self.workers]
        except WorkerLost as error:
            raise RunFailed(f"{error}; --resume continues the run") from None
        finally:
            self.engine.close()


class WorkerTransport:
    """The transport to sites at workers.

    Each site has a home, the worker that executes its orders. After a round, a site that keeps no state has none.
    """

    uncommitted: Mapping[str, str] = LocalTransport.uncommitted
    in_turn = True

    def __init__(self, sites: Sequence[SiteWorker], engine: Engine, workers: Sequence[Worker]) -> None:
        """Take the sites and the workers; :meth:`restore` opens the sites there."""
        self.names = tuple(sorted(site.name for site in sites))
        self._sites, self._workspace = {site.name: site for site in sites}, sites[0].workspace
        self._engine, self._workers = engine, workers
        recipe = self._workspace.recipe
        # The number of images that each site trains on in a round.
        self._images = {
            site.name: round_length(recipe, site.name, len(site.train)) * recipe.training.batch.of(site.name)
            for site in sites
        }
        self._homes: dict[str, Worker] = {}
        self._visited: set[str] = set()
        self._round = 0
        self._running = dict.fromkeys(workers, "")
        self._reported: dict[Worker, tuple[str, int, int]] = {}

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Execute the orders in parallel, or in turn if the call releases values under a budget.

        A site with a spent budget ends the round, and the sites after it must not be charged for that round.
        """
        number = max((order.round for order in orders.values()), default=self._round)
        if number != self._round:
            # End the visits of the last round, and release its sites that keep nothing from their workers.
            stays = self._sites_with_state() | (self._homes.keys() - self._visited)
            self._homes = {name: worker for name, worker in self._homes.items() if name in stays}
            self._round = number
        self._visited |= orders.keys()
        jobs = self._jobs_of(orders)
        if not any(self._workspace.schemas[order.call].releases for order in orders.values()):
            yield from self._execute(jobs)
            return
        for name in sorted(jobs):
            for reply in self._execute({name: jobs.pop(name)}):
                # Write the site's releases to disk before using its reply, so that a crash cannot lose them.
                log = self._sites[name].releases
                log.receive(self._homes[name].submit(release_files, name, log.value_files).result())
                yield reply

    def commit(self, generation: int) -> dict[str, int]:
        """Commit every site at its worker, and store its generation in the run's directory."""
        with_state = sorted(self._sites_with_state())
        # One site per worker at a time, because this process holds the content of all their files.
        for names in zip_longest(*([n for n in with_state if self._homes[n] is worker] for worker in self._workers)):
            stores = {name: self._sites[name].store for name in names if name is not None}
            commits = {
                name: self._homes[name].submit(commit_site, name, generation, store.generation)
                for name, store in stores.items()
            }
            for name, store in stores.items():
                reached, content = commits.pop(name).result()
                if reached != store.generation:
                    store.receive(reached, content)
        return {name: self._sites[name].store.generation for name in self.names}

    def restore(self, generations: Mapping[str, int]) -> None:
        """Open the sites anew at all workers, and give each site its state and a home for its first round."""
        # Pickled in one piece, so that sites that share a set also share it at a worker.
        data = pickle.dumps(
            [
                (
                    site.name,
                    site.store.owner,
                    site.train,
                    site.held_out,
                    {"public": site.public, "strangers": site.strangers, "unseen": site.unseen},
                )
                for site in self._sites.values()
            ]
        )
        recipe, method = self._workspace.recipe, self._workspace.method
        setups = [
            pack_setup(recipe_of_worker(recipe, self._engine, number), method) for number in range(len(self._workers))
        ]
        opening = [worker.submit(open_sites, setup, data) for worker, setup in zip(self._workers, setups, strict=True)]
        for future in opening:
            future.result()
        self._round, self._visited = 0, set()
        for worker, names in zip(self._workers, assign_sites(self._images, len(self._workers)), strict=True):
            for name in names:
                site, self._homes[name] = self._sites[name], worker
                site.store.restore(generations[name])
                if site.keeps_state:
                    content = site.store.committed_content() if site.store.generation else b""
                    worker.submit(restore_site, name, site.store.generation, content, site.releases.files()).result()

    def _jobs_of(self, orders: Mapping[str, Order]) -> dict[str, Job]:
        """Return the job of each site; tensors that all sites are sent are stored once, others when a job begins."""
        messages = [order.message for order in orders.values()]
        first = messages[0] if messages else {}
        common = {key: value for key, value in first.items() if all(message.get(key) is value for message in messages)}
        shared = [self._engine.put(common)] if common else []

        def begin(name: str, order: Order, worker: Worker) -> Future[Reply]:
            separate = {key: value for key, value in order.message.items() if key not in common}
            parts = [*shared, self._engine.put(separate)] if separate else shared
            return worker.submit(execute_order, name, replace(order, message={}), tuple(order.message), *parts)

        return {name: partial(begin, name, order) for name, order in orders.items()}

    def _execute(self, jobs: dict[str, Job]) -> Iterator[Reply]:
        """Execute and remove jobs of several sites at the same time, and yield the replies in sorted order of sites.

        Sites begin in this order, too, and only the next few after the last used reply.
        """
        names, replies = sorted(jobs), dict[str, Reply]()
        waiting, idle, used, lock = list(names), set(self._workers), 0, RLock()
        window = SITES_PER_WORKER * len(self._workers)
        finished: SimpleQueue[tuple[str, Future[Reply]]] = SimpleQueue()

        def begin_jobs() -> None:
            """Give each idle worker its next site in the window, or one that any worker may take."""
            with lock:
                for worker in self._workers:
                    coming = [name for name in waiting if name in names[used : used + window]]
                    of_worker = [name for name in coming if self._homes.get(name) is worker]
                    candidates = of_worker or [name for name in coming if name not in self._homes]
                    if worker in idle and candidates:
                        name = candidates[0]
                        waiting.remove(name)
                        idle.remove(worker)
                        self._homes[name], self._running[worker] = worker, name
                        jobs.pop(name)(worker).add_done_callback(partial(finish, worker, name))

        def finish(worker: Worker, name: str, future: Future[Reply]) -> None:
            # In a thread of the engine, so that no worker waits while this process admits a reply.
            finished.put((name, future))
            if future.exception() is None:
                idle.add(worker)
                begin_jobs()

        begin_jobs()
        for name in names:
            while name not in replies:
                with suppress(Empty):
                    site, future = finished.get(timeout=POLL_SECONDS)
                    replies[site] = future.result()
                # Report the progress of the sites that has changed.
                for worker, running in self._running.items():
                    progress = (running, *worker.progress())
                    if progress[2] and self._reported.get(worker) != progress:
                        self._reported[worker] = progress
                        self._workspace.on_batch(*progress)
            reply = replies.pop(name)
            message = reply.message and {key: plain(value) for key, value in reply.message.items()}
            used += 1
            begin_jobs()
            yield replace(reply, message=message)

    def _sites_with_state(self) -> set[str]:
        """End the visits at all workers at the same time, and return the sites that keep state."""
        ends = [worker.submit(end_visits) for worker in self._workers]
        return set().union(*(end.result() for end in ends))


def assign_sites(images: Mapping[str, int], count: int) -> list[list[str]]:
    """Assign sites to workers, largest first, each to the worker with the fewest images so far."""
    assigned: list[list[str]] = [[] for _ in range(count)]
    totals = [0] * count
    for name in sorted(images, key=lambda name: (-images[name], name)):
        worker = totals.index(min(totals))
        assigned[worker].append(name)
        totals[worker] += images[name]
    return assigned
