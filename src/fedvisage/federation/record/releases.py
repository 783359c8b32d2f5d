"""The log of a site's differentially private releases: their costs and their values.

A release is charged durably, then its noise is drawn, then its value is stored durably, and only then is it sent. A
repeated request for the same name, after an interruption or because the server returned to an older checkpoint, gets
the stored value: a second draw of noise on the same data would reveal more than the site has paid for.

The log is outside the site's generations and only grows, because private state can go back but a release cannot be
undone. Each release reads the log again under a lock, so a process that outlived its run cannot spend the budget in
parallel.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import json_line, parse_json, sync_directory, write_atomically
from fedvisage.federation.privacy.accountant import (
    BudgetSpent,
    Charge,
    Count,
    Relation,
    costs_from_table,
    joint_cost,
    new_charges,
    table_of,
    tight_epsilon,
)
from fedvisage.federation.privacy.mechanisms import Budget, Draws
from fedvisage.federation.record import store
from fedvisage.federation.wire.message import Message, plain
from fedvisage.federation.wire.schema import COST as COST
from fedvisage.federation.wire.schema import RefusedMessage

CHARGES = "charges.jsonl"
NAME = re.compile(r"[a-z0-9][a-z0-9 ,-]{0,99}")
DAMAGED = "restore it; without it the privacy budget already spent is unknown, and a new run needs a budget for both"


@dataclass(frozen=True)
class StatedCost:
    """The cost of a release as its reply states it: text and figures for the ledger."""

    guarantee: str
    figures: Mapping[str, Any]


def stated_cost(message: Message, noise: str) -> StatedCost | None:
    """Return the cost in a site's reply, or None; raise an error for an invalid table of costs."""
    if COST.name not in message:
        return None
    try:
        charges, total = costs_from_table(message[COST.name].tolist())
    except ValueError as error:
        raise RefusedMessage(COST.name, str(error)) from error
    so_far = f"so far ε {total.epsilon:.4g}, δ {total.delta:.3g} by their sum, ε {total.tight_epsilon:.4g} tightly"
    simulated = ["noise from the run's seed, which protects nobody"] if noise == "derived" else []
    text = "; ".join([*(charge.guarantee() for charge in charges), so_far, *simulated])
    return StatedCost(text, {"releases": [charge.row() for charge in charges], "total": asdict(total), "noise": noise})


@dataclass(frozen=True)
class Allowance:
    """The total budget of a site's releases, and the figure that must stay within it."""

    total: Budget
    count: Count


@dataclass(frozen=True)
class SiteAccount:
    """The account of a site over all runs between organisations; simulations have one per run.

    Releases in the logs of the site's runs count together, whatever data they used. Under the site's own limit, the
    costs of releases about different units add up, each unit's at an equal share of δ. This is conservative: it is the
    basic composition for an image or person that all these units contain. Without a limit, the same unit alone counts.
    """

    runs: Path
    """The directory of the site's runs."""
    limit: float | None = None
    """The ε over all runs that the site's administrator allows; None: that of the present run, for releases about
    people."""
    delta: float = 1e-5
    """The δ at which this limit holds, whatever the recipes state."""

    @contextmanager
    def open(self, own: Path) -> Iterator[list[Charge]]:
        """Return the charges of the other runs, and keep these from charging until the end of the context."""
        with (self.runs / ".people.lock").open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            charges = []
            for path in sorted(self.runs.glob(f"*/{own.name}/{CHARGES}")):
                if path.parent != own:
                    run = path.parent.parent.name
                    rows = _parse(path.read_bytes().rpartition(b"\n")[0], path)
                    charges += [replace(charge, release=f"{run}, {charge.release}") for charge in rows]
            yield charges


class Releases:
    """The log of one site, in its own directory."""

    def __init__(self, directory: Path, owner: store.Owner | None = None, account: SiteAccount | None = None) -> None:
        """Take the log's directory, which the first release creates, and the owner that its values name."""
        self.directory, self._owner, self._account = directory, owner or store.Owner(), account

    def release(
        self,
        name: str,
        mechanism: Callable[[Draws], Message],
        cost: Sequence[Charge],
        allowance: Allowance,
        draws: Draws,
        forget: str | None = None,
    ) -> Message:
        """Return the stored value of a name, or charge, draw and store a new one.

        The field ``cost`` of the value has its cost and the site's total so far. A new value replaces that of the name
        ``forget``, which no checkpoint can request again; its charge stays.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a release")
        with self._lock_charges() as file:
            charges = self._read(file)
            if self._path(name).exists():
                return self._read_value(name, charges)
            fresh = new_charges(charges, cost, allowance.total, allowance.count)
            # All charges exist but the value is missing: another draw would release a second value for one charge.
            if cost and not fresh and charges[-1] != cost[-1]:
                raise RunFailed(f"{self._path(name)}: was released before but is missing; start a new run")
            with self._within_limit(charges, fresh, allowance):
                # Durable before the draw.
                file.seek(0, os.SEEK_END)
                file.write("".join(json_line(charge.row()) for charge in fresh).encode())
                file.flush()
                os.fsync(file.fileno())
                sync_directory(self.directory)
                sync_directory(self.directory.parent)
            total = joint_cost([*charges, *fresh], allowance.total.delta)
            value = {key: plain(tensor) for key, tensor in mechanism(draws).items()}
            value |= {COST.name: torch.tensor(table_of(cost, total), dtype=torch.float64)}
            details = {"release": name, "charges": [charge.release for charge in cost], **self._owner.names()}
            store.write_sealed(self._path(name), value, details)
            # The last charge keeps its value: without one it would look charged and not drawn, and a server that orders
            # earlier rounds again would receive a second draw.
            if fresh and forget is not None:
                self._path(forget).unlink(missing_ok=True)
            return value

    def find(self, name: str) -> Message | None:
        """Return the stored value of a name, or None."""
        if not self._path(name).exists():
            return None
        with self._lock_charges() as file:
            return self._read_value(name, self._read(file))

    @property
    def value_files(self) -> frozenset[str]:
        """Return the names of the files of stored values."""
        return frozenset(path.name for path in self.directory.glob("*.safetensors"))

    def files(self, known_names: Collection[str] = ()) -> dict[str, bytes | None]:
        """Return the log's files for another process; None for values that it knows, because a value never changes."""
        paths = sorted(self.directory.iterdir()) if self.directory.exists() else []
        return {path.name: None if path.name in known_names else path.read_bytes() for path in paths}

    def receive(self, files: Mapping[str, bytes | None]) -> None:
        """Store the log of another process durably, each charge before the value that it pays for."""
        if not files:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in sorted(files, key=lambda name: name != CHARGES):
            if (content := files[name]) is not None:
                write_atomically(self.directory / name, content)
        sync_directory(self.directory.parent)
        for name in self.value_files - files.keys():
            (self.directory / name).unlink()

    @contextmanager
    def _within_limit(self, own: Sequence[Charge], fresh: Sequence[Charge], allowance: Allowance) -> Iterator[None]:
        """Refuse charges that exceed the limit of all runs; keep other runs from charging until the end."""
        account = self._account
        if account is None or not fresh or not (account.limit or fresh[0].rate):
            yield
            return
        limit, delta = allowance.total.epsilon, allowance.total.delta
        if account.limit:
            limit, delta = account.limit, account.delta
        with account.open(self.directory) as others:
            by_relation = defaultdict[Relation, list[Charge]](list)
            for charge in (*others, *own, *fresh):
                if account.limit or charge.relation == fresh[0].relation:
                    by_relation[charge.relation].append(charge)
            share = delta / len(by_relation)
            epsilon = math.fsum(tight_epsilon(charges, share) for charges in by_relation.values())
            if epsilon > limit * (1 + 1e-9):
                raise BudgetSpent(
                    f"{fresh[0].release}: would raise the cost of all runs of this site to ε {epsilon:.4g} at δ "
                    f"{delta:g}, and the limit is {limit:g}; nothing was released; its administrator can allow more by "
                    "the rule epsilon"
                )
            yield

    @contextmanager
    def _lock_charges(self) -> Iterator[BinaryIO]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / CHARGES).open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self, file: BinaryIO) -> list[Charge]:
        """Return the charges, and remove a torn last line, whose release was not drawn yet."""
        file.seek(0)
        lines, end, rest = file.read().rpartition(b"\n")
        if rest:
            file.truncate(len(lines) + len(end))
        return _parse(lines, self.directory / CHARGES)

    def _read_value(self, name: str, written: Sequence[Charge]) -> Message:
        value, details = store.read_sealed(self._path(name), "its releases cannot be sent again: start a new run")
        self._owner.check(self._path(name), details)
        missing = set(details["charges"]) - {charge.release for charge in written}
        if missing:
            raise RunFailed(f"{self.directory / CHARGES}: lacks the charge for {min(missing)}; {DAMAGED}")
        return value

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"


def _parse(lines: bytes, path: Path) -> list[Charge]:
    """Return the charges in the complete lines of a log."""
    try:
        return [Charge(**parse_json(line)) for line in lines.splitlines()]
    except (ValueError, TypeError) as error:
        raise RunFailed(f"{path}: is damaged; {DAMAGED}") from error
