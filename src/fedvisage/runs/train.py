"""Training at the server, over any transport, from the first order to the saved model."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base.errors import RunFailed, UserError, plain_line
from fedvisage.base.files import json_text, read_text, tensor_bytes, write_atomically
from fedvisage.base.progress import Reporter
from fedvisage.base.streams import seed_global_rng
from fedvisage.federation.exchange import LONGEST_REASON, Exchange
from fedvisage.federation.protections.dp import promise_of
from fedvisage.federation.record.attendance import attendance_of
from fedvisage.federation.record.ledger import CHANGED, LEDGER, ROUNDS, JsonLines, read_lines
from fedvisage.federation.record.releases import Releases
from fedvisage.federation.record.store import (
    CHECKPOINTS,
    Checkpoints,
    Progress,
    SiteStore,
    StateCache,
    generations_of,
    recipe_digest,
)
from fedvisage.federation.server import NoQuorum, Server
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message, Transport, load_parts, plain, under
from fedvisage.federation.wire.schema import Schema
from fedvisage.methods import find, read_method
from fedvisage.methods.models.model import constant_weights, load_constant
from fedvisage.metrics.recorded import read_metrics
from fedvisage.runs.directory import (
    METRICS,
    RECIPE,
    SITES,
    SNAPSHOTS,
    START,
    RunDirectory,
    close_settings,
    snapshot_path,
)
from fedvisage.runs.request import Training
from fedvisage.starts.start import read_start
from fedvisage.tasks import saved_model, scoring, shortcuts
from fedvisage.tasks.asking import collect_histograms, source_summary
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.heldout_counts import write_counts
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

BEST = "best/"
END = object()
"""Marks the end of a server program."""
STOPPED = "the sites' held-out EER had not improved for a while"
"""The reason of an early stop."""
LISTED_FAILURES = 4
"""The largest number of failures that an error message lists."""


@dataclass
class BestRound:
    """The best round so far by the sites' held-out EER, and the number of evaluated rounds since."""

    eer: float | None = None
    round: int = 0
    waited: int = 0


@dataclass
class TrainingLoop:
    """A training run that drives a method's server program from its latest checkpoint to the end.

    The program yields when its state is consistent. Between two yields the round is recorded, held-out scores are
    collected if the recipe asks for them, and a checkpoint is written.
    """

    server: Server
    checkpoints: Checkpoints
    ledger: JsonLines
    rounds: JsonLines
    reporter: Reporter
    digests: dict[str, str] = field(default_factory=dict)
    """The digests of the run's other files."""
    watch: BestRound = field(default_factory=BestRound)

    def train(self) -> Message:
        """Run the program and return the model of the last or of the best round, as the recipe says."""
        recipe, server = self.server.recipe, self.server
        self._resume()
        total = recipe.training.rounds
        shortcuts.ask_sites(server, self.reporter.say)
        with self.reporter.course(server.method.title, server.round, total):
            start_time = time.monotonic()
            if not server.round:
                server.method.begin(server)
            program = server.method.server(server)
            while True:
                # Run the program to its next yield. Libraries that draw from the global generator get the round's.
                before = server.round
                with seed_global_rng(
                    recipe.runtime.seed, "server", before, "library draws", device=server.compute.device
                ):
                    ended = next(program, END) is END
                is_complete = server.ended or server.stopped or server.round == total
                if server.round > before + (not ended) or (ended and not is_complete):
                    remedy = "yield in each round, and end early with s.end_before_this_round(reason)"
                    fault = f"server ran {server.round} of {total} rounds, and yielded in {before}"
                    raise UserError(f"method {server.method.name!r}", f"{fault}; {remedy}")
                if ended:
                    break
                counted = server.exchange.record.counted  # `_evaluate` sends further orders
                heldout = self._evaluate()
                seconds = time.monotonic() - start_time
                last = server.round == total or server.stopped
                is_checkpointed = last or server.round % recipe.runtime.checkpoint_every == 0
                # The sites commit first: the round's line has those that failed, and the checkpoint all generations.
                generations = server.exchange.transport.commit(server.round) if is_checkpointed else None
                self._record(
                    seconds, counted, heldout, server.exchange.transport.uncommitted if is_checkpointed else {}
                )
                self._save_snapshot()
                if generations is not None:
                    # The server's checkpoint names the sites' generations.
                    progress = Progress(
                        round=server.round,
                        generations=generations,
                        ledger=self.ledger.flush(),
                        rounds=self.rounds.flush(),
                        notes={
                            "watch": asdict(self.watch),
                            "stopped": server.stopped,
                            "without_quorum": server.without_quorum,
                        },
                        digests={**self.digests, LEDGER: self.ledger.digest, ROUNDS: self.rounds.digest},
                    )
                    self.checkpoints.write(server.state(), progress)
                start_time = time.monotonic()
        if reason := server.ended or (STOPPED if server.stopped and server.round < total else ""):
            self.reporter.say(f"ended after round {server.round} of {total}: {reason}")
        self._check_delivered()
        server.exchange.address_all_sites(server.round)
        if recipe.evaluation.keep == "best" and self.watch.eer is not None:
            self.reporter.say(f"keeping the model of round {self.watch.round}, which has the lowest held-out EER")
            return under(BEST, server.kept)
        return server.finished()

    def _check_delivered(self) -> None:
        """Raise an error if no round succeeded: the model would be the initial one."""
        self.rounds.flush()
        rows = read_lines(self.rounds.path)
        if attendance_of(rows).counted:
            return
        if not rows:
            raise RunFailed(f"nothing was trained: {self.server.ended}")
        failed = list(rows[-1]["failed"].items())
        last = "; ".join(f"{name}: {reason}" for name, reason in failed[:LISTED_FAILURES])
        last += "; …" if len(failed) > LISTED_FAILURES else ""
        # Sites may have refused all rounds only because their administrators had not approved the run yet.
        self.checkpoints.clear()
        raise RunFailed(
            f"nothing was trained: no round of {len(rows)} had a quorum of uploads. In the last one: {last}. "
            "Correct this and begin again with --resume; a changed recipe or method needs another --out"
        )

    def _resume(self) -> None:
        latest = self.checkpoints.latest()
        state, progress = latest if latest else ({}, Progress())
        generations = dict(progress.generations) or dict.fromkeys(self.server.names, 0)
        for name in self.server.names:
            if name not in generations:
                place = str(self.checkpoints.directory)
                raise UserError(place, f"has a checkpoint without site {name}; start again with another --out")
        self._check_files(progress)
        self.server.exchange.transport.restore(generations)
        self.ledger.mark_repeated(progress.ledger)
        self.rounds.cut(progress.rounds)
        if latest:
            self.server.restore(state, progress.round)
            self.watch = BestRound(**progress.notes["watch"])
            self.server.stopped = bool(progress.notes["stopped"])
            self.server.without_quorum = int(progress.notes["without_quorum"])
            self.reporter.say(f"continuing after round {progress.round}")

    def _check_files(self, progress: Progress) -> None:
        """Refuse files that are not those of the checkpoint, and keep the digests of the others for the next one."""
        out, recorded = self.checkpoints.directory.parent, dict(progress.digests)
        for lines, length in ((self.ledger, progress.ledger), (self.rounds, progress.rounds)):
            lines.check(length, recorded.pop(lines.path.name, "") if progress.round else None)
        self.digests = RunDirectory(out).digests()
        if not progress.round:  # training begins
            return
        for name in sorted(self.digests.keys() - recorded.keys()):
            if not name.startswith(SNAPSHOTS):
                raise UserError(str(out / name), "is not of this run: its checkpoint does not name it; remove it")
            (out / name).unlink()  # of a later round, which comes again
            del self.digests[name]
        for name, digest in recorded.items():
            if self.digests.get(name) != digest:
                fault = CHANGED if name in self.digests else "is missing; restore it to resume"
                raise UserError(str(out / name), fault)

    def _save_snapshot(self) -> None:
        """Save the model of the round if the recipe selects it.

        Papers plot metrics by round (PrivacyFace's Figure 5, FedPAD's curves) and start from models of earlier rounds.
        Each file equals the ``model.safetensors`` of a run that ends at that round, except for exact statistics, which
        the server collects only once. ``training.start`` accepts such a file. A round that is trained again overwrites
        its snapshot.
        """
        every, server = self.server.recipe.evaluation.snapshots, self.server
        if every is None or server.round % every:
            return
        out = self.checkpoints.directory.parent
        path, content = snapshot_path(out, server.round), tensor_bytes(with_constant_weights(server, server.finished()))
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, content)
        self.digests[str(path.relative_to(out))] = hashlib.sha256(content).hexdigest()

    def _evaluate(self) -> dict[str, float]:
        recipe, server = self.server.recipe, self.server
        every = recipe.evaluation.every
        if not every or (server.round % every and server.round != recipe.training.rounds):
            return {}
        finished = server.finished()
        try:
            summary = source_summary(collect_histograms(server, finished))
        except NoQuorum:
            return {}
        if summary and (self.watch.eer is None or summary["eer"] < self.watch.eer):
            self.watch = BestRound(summary["eer"], server.round)
            if recipe.evaluation.keep == "best":
                server.kept |= {f"{BEST}{key}": plain(value) for key, value in finished.items()}
        else:
            self.watch.waited += 1
        stop = recipe.training.early_stop
        server.stopped = stop is not None and self.watch.waited >= stop.patience
        return summary

    def _record(
        self, seconds: float, counted: list[str] | None, heldout: dict[str, float], uncommitted: Mapping[str, str]
    ) -> None:
        record = self.server.exchange.record
        row: dict[str, Any] = {
            "round": record.round,
            "seconds": round(seconds, 3),
            "loss": dict(sorted(record.loss.items())),
            "asked": list(record.asked),
            "replied": sorted(record.replied),
            "counted": counted,
            "failed": dict(sorted(record.failed.items())),
            "bytes_up": record.bytes_up,
            "bytes_down": record.bytes_down,
        }
        if record.steps:
            row["steps"] = dict(sorted(record.steps.items()))
        if heldout:
            row["heldout"] = heldout
        if uncommitted:
            row["uncommitted"] = {name: plain_line(uncommitted[name], LONGEST_REASON) for name in sorted(uncommitted)}
        self.rounds.append(row)
        self.reporter.ended_round(row, self.server.recipe.training.rounds)


def with_constant_weights(server: Server, finished: Message) -> Message:
    """Add the constant weights, which are never sent, to a finished model, so that it needs no other file."""
    return {**finished, **{name: plain(value) for name, value in constant_weights(server.net).items()}}


EVALUATION_KEYS = (
    "threshold",
    "level",
    "batch",
    "resamples",
    "features",
    "adapt",
    "recognition",
    "snapshots",
    "shortcuts",
)


def train_over_transport(
    setup: Setup,
    out: Path,
    transport: Transport,
    schemas: Mapping[str, Schema],
    reporter: Reporter,
    *,
    adopted: Path | None = None,
    first: Message | None = None,
) -> TrainingResult:
    """Train over a transport from the latest checkpoint, choose thresholds at the sites, and save the model.

    ``adopted`` names a finished run whose members are adopted instead of trained again. ``first`` holds pre-trained
    parts to start from.
    """
    recipe, method, directory = setup.recipe, setup.method, RunDirectory(out)
    with ExitStack() as stack:
        ledger, rounds = (stack.enter_context(closing(JsonLines(out / name))) for name in (LEDGER, ROUNDS))
        exchange = Exchange(recipe, transport, schemas, ledger, promise_of(recipe, method))
        # The server's network, with the pre-trained parts and the constant weights.
        net = method.initial_network(recipe)
        load_parts(net, {name: value for name, value in (first or {}).items() if name.split(".")[0] in net})
        setup.compute.place(net)
        load_constant(net, recipe, setup.files)
        releases = Releases(out / "released", directory.owner())
        server = Server(method, recipe, net, exchange, setup.compute, releases, setup.files)
        _load_start_weights(server, directory, reporter)
        if adopted is None:
            digest = recipe_digest(read_text(directory / RECIPE))
            checkpoints = Checkpoints(out / CHECKPOINTS, digest)
            finished = TrainingLoop(server, checkpoints, ledger, rounds, reporter).train()
        else:
            finished = _adopt(adopted, setup, server, reporter)
        # The sites' last calls are about the finished model: its statistics come before its thresholds.
        try:
            if scoring.wants_exact_statistics(recipe):
                finished = scoring.with_exact_statistics(server, setup.scorer(), finished)
            trained = setup.task.choose_thresholds(server, finished)
        except NoQuorum as error:
            over = f"all rounds are over, but too few sites answered about the finished model: {error}"
            raise RunFailed(f"{over}; --resume asks them again") from error
        saved = replace(trained.saved, finished=with_constant_weights(server, trained.saved.finished))
        ended = {}  # the reason for fewer rounds than the recipe asks for, as `metrics.json` records it
        if server.ended:
            ended = {"cause": "budget", "reason": server.ended}
        elif server.stopped and server.round < recipe.training.rounds:
            ended = {"cause": "early-stop", "reason": STOPPED}
        write_counts(out, trained.counts)
        saved_model.save(out, saved)
        ledger.flush()
        rounds.flush()
    return replace(trained, saved=saved, ended=ended, shortcuts=shortcuts.figures_of(server))


def _load_start_weights(server: Server, directory: RunDirectory, reporter: Reporter) -> None:
    """Load the weights that the recipe starts from into the network, and report the parts that fit."""
    start = server.recipe.training.starts_from
    if start is None:
        return
    start_weights = read_start(server.file(start.file), start, server.tensors(*server.net))
    server.load(start_weights.weights)
    server.start = {name: start_weights.weights[name] for name in start_weights.taken}
    if not (directory / START).exists():
        for line in start_weights.lines():
            reporter.say(line)
    directory.write_once(START, json_text(start_weights.as_json()))


def _adopt(trained: Path, setup: Setup, server: Server, reporter: Reporter) -> Message:
    """Adopt the members of a finished run whose recipe differs only in its evaluation."""
    saved = saved_model.load(trained)
    their_recipe = recipes.validate(saved.recipe, read_method)  # newer keys have their defaults
    their_recipe = close_settings(their_recipe, RunDirectory(trained).settings)
    exact = scoring.wants_exact_statistics(setup.recipe)
    theirs, ours = (training_of(recipes.tree_of(recipe), exact) for recipe in (their_recipe, setup.recipe))
    if theirs != ours or find(their_recipe.method).server is not setup.method.server:
        raise UserError(str(trained), f"was trained with other settings than {setup.method.name} has here")
    server.exchange.ledger.mark_repeated(0)  # a killed attempt may have left lines
    shortcuts.ask_sites(server, reporter.say)
    server.round = int(read_metrics(trained / METRICS)["rounds"])
    server.exchange.address_all_sites(server.round)
    return saved.finished


def training_of(recipe: dict[str, Any], exact: bool) -> dict[str, Any]:
    """Return the part of a recipe that decides the trained weights: all except names, target and evaluation.

    With ``exact``, BatchNorm statistics are computed after training, so ``training.statistics`` does not count.
    """
    tree = copy.deepcopy(recipe)
    tree.pop("title")
    for key in ("report", "tracking"):
        tree.pop(key, None)
    tree["method"].pop("name")
    for key in ("target", "target_name", "target_split"):
        tree["data"].pop(key, None)
    if tree["training"].get("statistics") in (("averaged", "exact") if exact else ("averaged",)):
        tree["training"].pop("statistics")
    for key in EVALUATION_KEYS:
        tree["evaluation"].pop(key, None)
    return tree


# The sites of a run on this machine.


def open_site_workers(
    setup: Setup, out: Path, data: RunData, reporter: Reporter
) -> tuple[list[SiteWorker], Mapping[str, Schema]]:
    """Return the worker of each site, with its data and its private state, and the schemas of their uploads."""
    workspace, state_cache, owner = setup.workspace(), StateCache(), RunDirectory(out).owner()
    workspace.on_batch = reporter.batch
    public = data.people.public if data.people else None
    strangers = data.people.strangers if data.people else {}
    site_workers = [
        SiteWorker(
            name,
            site.train,
            site.heldout,
            SiteStore(out / SITES / name, state_cache, replace(owner, site=name)),
            workspace,
            public=public,
            strangers=strangers.get(name),
            unseen=site.unseen,
        )
        for name, site in data.sites.items()
    ]
    return site_workers, workspace.schemas


def adoption(trained: Path) -> Training:
    """Return a training that adopts the members of a finished run, and its sites' own models, without new rounds."""

    def adopt(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        site_workers, schemas = open_site_workers(setup, out, data, reporter)
        generations = generations_of(trained) if data.people is not None else {}
        owner = RunDirectory(trained).owner()
        for worker in site_workers:
            name, own = worker.name, replace(owner, site=worker.name)
            worker.store.take_over(trained / SITES / name, own, generations.get(name, 0))
        return train_over_transport(setup, out, LocalTransport(site_workers), schemas, reporter, adopted=trained)

    return adopt
