"""The course of a training: what happens around a method's server program, written once for all methods.

The program yields when its state is consistent. Between two yields the round is recorded, held-out scores are asked
for when the recipe wants them, and a checkpoint is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from fedvisage.errors import RunFailed
from fedvisage.federation.method import Message, Method
from fedvisage.federation.record.attendance import attendance_of
from fedvisage.federation.record.checkpoint import Checkpoints, Progress
from fedvisage.federation.record.ledger import JsonLines, read_lines
from fedvisage.federation.server import NoQuorum, Server
from fedvisage.federation.wire.message import under
from fedvisage.progress import Reporter
from fedvisage.streams import scoped
from fedvisage.tasks.asking import collect_histograms, source_summary

BEST = "best/"
SAID = 4
"""Failures of a round that an error names."""


@dataclass
class Watch:
    """The best round so far by the sites' held-out EER, and how many evaluated rounds ago that was."""

    eer: float | None = None
    round: int = 0
    waited: int = 0


@dataclass
class Course:
    """Drives a server program from where its checkpoints stand to the end."""

    method: Method
    server: Server
    checkpoints: Checkpoints
    ledger: JsonLines
    rounds: JsonLines
    reporter: Reporter
    keep: Callable[[Server], None]
    """Keeps a round's model beside the checkpoints, where the recipe wants that."""
    watch: Watch = field(default_factory=Watch)

    def train(self) -> Message:
        """Run the program and return the finished model that the recipe wants kept."""
        recipe, server = self.server.recipe, self.server
        self._resume()
        total = recipe.training.rounds
        with self.reporter.course(server.method.title, server.round, total):
            began = time.monotonic()
            if not server.round:
                self.method.begin(server)
            program = self.method.server(server)
            while self._advance(program):
                counted = server.exchange.record.counted  # before more is asked, about what came of the round
                heldout = self._evaluate()
                self._record(time.monotonic() - began, counted, heldout)
                self.keep(server)
                last = server.round == total or server.stopped
                if last or server.round % recipe.runtime.checkpoint_every == 0:
                    self._checkpoint()
                began = time.monotonic()
        if server.ended:
            self.reporter.say(f"ended after round {server.round} of {total}: {server.ended}")
        self._check_delivered()
        server.exchange.close_training(server.round)
        if recipe.evaluation.keep == "best" and self.watch.eer is not None:
            return under(BEST, server.kept)
        return server.finished()

    def _check_delivered(self) -> None:
        """End a run in which no round came to anything: its model would be the one that it began with."""
        self.rounds.flush()
        rows = read_lines(self.rounds.path)
        if attendance_of(rows).counted:
            return
        if not rows:
            raise RunFailed(f"nothing was trained: {self.server.ended}")
        failed = list(rows[-1]["failed"].items())
        last = "; ".join(f"{name}: {reason}" for name, reason in failed[:SAID]) + ("; …" if len(failed) > SAID else "")
        raise RunFailed(
            f"nothing was trained: no round of {len(rows)} had a quorum of uploads. In the last one: {last}. "
            "Mend that and start anew, with another --out"
        )

    def _advance(self, program: Iterator[None]) -> bool:
        """Run the program to its next yield; what it draws from the global generator comes from the round's stream."""
        with scoped(self.server.recipe.runtime.seed, "server", self.server.round, "library draws"):
            return next(program, self) is None

    def _resume(self) -> None:
        latest = self.checkpoints.latest()
        state, progress = latest if latest else ({}, Progress())
        generations = dict(progress.generations) or dict.fromkeys(self.server.names, 0)
        self.server.exchange.transport.restore(generations)
        self.ledger.mark_repeated(progress.ledger)
        self.rounds.cut(progress.rounds)
        if latest:
            self.server.restore(state, progress.round)
            self.watch = Watch(**progress.notes["watch"])
            self.server.stopped = bool(progress.notes["stopped"])
            self.server.without_quorum = int(progress.notes["without_quorum"])
            self.reporter.say(f"continuing after round {progress.round}")

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
            self.watch = Watch(summary["eer"], server.round)
            if recipe.evaluation.keep == "best":
                server.kept |= {f"{BEST}{key}": value for key, value in finished.items()}
        else:
            self.watch.waited += 1
        stop = recipe.training.early_stop
        server.stopped = stop is not None and self.watch.waited >= stop.patience
        return summary

    def _record(self, seconds: float, counted: list[str] | None, heldout: dict[str, float]) -> None:
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
        self.rounds.append(row)
        self.reporter.ended_round(row, self.server.recipe.training.rounds)

    def _checkpoint(self) -> None:
        """Commit the sites first, then write the server's checkpoint that names their generations."""
        number = self.server.round
        generations = self.server.exchange.transport.commit(number)
        progress = Progress(
            round=number,
            generations=generations,
            ledger=self.ledger.flush(),
            rounds=self.rounds.flush(),
            notes={
                "watch": asdict(self.watch),
                "stopped": self.server.stopped,
                "without_quorum": self.server.without_quorum,
            },
        )
        self.checkpoints.write(self.server.state(), progress)
