"""What a site has released under differential privacy: what it cost, and the very values that were sent.

A release is charged durably, then its noise is drawn, then the value is stored durably, and only then may it be sent.
Asked for again under the same name, after an interruption or because the server went back to an older checkpoint, the
stored value is sent again: a second draw of noise on the same data would tell more than was paid for.

The log lies outside of a site's generations and only ever grows: private state can go back, what has been told cannot
be taken back. Each release reads it anew under a lock, so a process that outlived its run cannot spend beside another.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import json_line, parse_json, sync_directory
from fedvisage.federation.privacy.accountant import Charge, Count, due, from_table, spent, table_of
from fedvisage.federation.privacy.mechanisms import Budget, Draws
from fedvisage.federation.record import store
from fedvisage.federation.wire.message import Message, plain
from fedvisage.federation.wire.schema import COST as COST
from fedvisage.federation.wire.schema import Refused

CHARGES = "charges.jsonl"
NAME = re.compile(r"[a-z0-9][a-z0-9 ,-]{0,99}")
DAMAGED = "put it back; without it nobody knows what this site has told, and a new run needs a budget for both"


@dataclass(frozen=True)
class Told:
    """What a reply says that its release cost, as a sentence and as figures, for the ledger."""

    guarantee: str
    figures: Mapping[str, Any]


def told(message: Message, noise: str) -> Told | None:
    """Read the cost in a site's reply; what is no table of costs is refused."""
    if COST.name not in message:
        return None
    try:
        charges, total = from_table(message[COST.name].tolist())
    except ValueError as error:
        raise Refused(COST.name, str(error)) from error
    so_far = f"so far ε {total.epsilon:.4g}, δ {total.delta:.3g} by their sum, ε {total.tight_epsilon:.4g} tightly"
    simulated = ["noise from the run's seed, which protects nobody"] if noise == "derived" else []
    text = "; ".join([*(charge.guarantee() for charge in charges), so_far, *simulated])
    return Told(text, {"releases": [charge.as_json() for charge in charges], "total": asdict(total), "noise": noise})


@dataclass(frozen=True)
class Allowance:
    """What all releases of a site may cost together, and by which figure that is counted."""

    total: Budget
    count: Count


class Releases:
    """The log of one site, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        """Remember where; nothing is created before there is something to release."""
        self.directory = directory

    def release(
        self,
        name: str,
        mechanism: Callable[[Draws], Message],
        cost: Sequence[Charge],
        allowance: Allowance,
        draws: Draws,
    ) -> Message:
        """Return what was released under this name, or charge for it, draw it and store it.

        The field ``cost`` beside it says what it cost and what the site has spent by then.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a release")
        with self._locked() as file:
            written = self._read(file)
            if self._path(name).exists():
                return self._stored(name, written)
            fresh = due(written, cost, allowance.total, allowance.count)
            if cost and not fresh and written[-1] != cost[-1]:
                raise RunFailed(f"{self._path(name)}: was released before, and is gone; start anew")
            self._append(file, fresh)
            total = spent([*written, *fresh], allowance.total.delta)
            value = {key: plain(tensor) for key, tensor in mechanism(draws).items()}
            value |= {COST.name: torch.tensor(table_of(cost, total), dtype=torch.float64)}
            store.write(self._path(name), value, {"release": name, "charges": [one.release for one in cost]})
            return value

    def drop(self, name: str) -> None:
        """Forget a value that nobody can ask for again; its charge stays."""
        self._path(name).unlink(missing_ok=True)

    def stored(self, name: str) -> Message | None:
        """Return what was released under a name, if anything was."""
        if not self._path(name).exists():
            return None
        with self._locked() as file:
            return self._stored(name, self._read(file))

    def charges(self) -> tuple[Charge, ...]:
        """Return all that has been charged."""
        if not (self.directory / CHARGES).exists():
            return ()
        with self._locked() as file:
            return tuple(self._read(file))

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / CHARGES).open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self, file: BinaryIO) -> list[Charge]:
        """Read the charges. A last line without an end was cut off before anything was drawn for it, and is dropped."""
        file.seek(0)
        whole, end, rest = file.read().rpartition(b"\n")
        if rest:
            file.truncate(len(whole) + len(end))
        try:
            return [Charge.from_json(parse_json(line)) for line in whole.splitlines()]
        except (ValueError, TypeError) as error:
            raise RunFailed(f"{self.directory / CHARGES}: is damaged; {DAMAGED}") from error

    def _append(self, file: BinaryIO, charges: Sequence[Charge]) -> None:
        """Make charges durable."""
        file.seek(0, os.SEEK_END)
        file.write("".join(json_line(one.as_json()) for one in charges).encode())
        file.flush()
        os.fsync(file.fileno())
        sync_directory(self.directory)
        sync_directory(self.directory.parent)

    def _stored(self, name: str, written: Sequence[Charge]) -> Message:
        value, about = store.read(self._path(name), "what was released there cannot be sent again: start anew")
        missing = set(about["charges"]) - {charge.release for charge in written}
        if missing:
            raise RunFailed(f"{self.directory / CHARGES}: lacks the charge for {min(missing)}; {DAMAGED}")
        return value

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"
