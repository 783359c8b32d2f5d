"""The files of a job: its log at the server and each site, and the result and outcome for the operator."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from fedvisage.base.errors import RunFailed, UserError, plain_line
from fedvisage.base.files import json_line, parse_json, read_json, write_atomically, write_json
from fedvisage.base.progress import Reporter
from fedvisage.federation.record.ledger import LEDGER, ROUNDS
from fedvisage.metrics.identification import SiteFigures
from fedvisage.tasks.seal import SETTINGS, WEIGHTS

if TYPE_CHECKING:  # torch would stay in the memory of waiting machines
    from fedvisage.tasks.task import TrainingResult

# A run's log at a server or site: one JSON object per line, with time, run and round.


LOG = "log.jsonl"
LAST, BYTES, LETTERS = 20, 32_768, 300
"""Lines that a console shows, bytes at the end of a log that it reads, and characters of a line."""


class RunLog(Reporter):
    """Writes a run's progress and messages to its log."""

    def __init__(self, directory: Path, run: str) -> None:
        """Continue the log of a run."""
        super().__init__(Console(file=io.StringIO()), quiet=True)
        self._path, self._run, self._round = directory / LOG, run, 0

    def advance(self, done: int, total: int, note: str) -> None:
        """Log the end of a round."""
        self._round = done
        self.note("round", note, of=total)

    def say(self, text: str) -> None:
        """Log a message."""
        self.note("said", text)

    def note(self, event: str, message: str, **values: str | int) -> None:
        """Write a line."""
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "run": self._run, "round": self._round, "event": event, **values, "message": message}
        with self._path.open("a+b") as file:
            file.seek(max(0, file.tell() - 1))
            is_torn = file.read() not in (b"", b"\n")  # a full disk cut the last line off
            file.write(b"\n" * is_torn + json_line(line).encode())


def last_lines(directory: Path) -> list[dict[str, Any]]:
    """Return time and message of the last entries of a run's log."""
    return [
        {"time": str(entry["time"]), "message": plain_line(str(entry["message"]), LETTERS)}
        for entry in _last_entries(directory)
    ]


def last_round(directory: Path) -> int:
    """Return the round of the last entry of a run's log, or 0."""
    entries = _last_entries(directory)
    return int(entries[-1]["round"]) if entries else 0


def log_size(directory: Path) -> int:
    """Return the size of a run's log."""
    path = directory / LOG
    return path.stat().st_size if path.exists() else 0


def last_failure(directory: Path, since: int) -> str:
    """Return the reason in the last entry of a run's log if it is a failure behind this size, or nothing."""
    entries = _last_entries(directory, since)
    failed = entries and entries[-1]["event"] == "failed"
    return plain_line(str(entries[-1]["message"]), LETTERS) if failed else ""


def _last_entries(directory: Path, since: int = 0) -> list[dict[str, Any]]:
    """Return the last complete entries behind a size of the log; a log that is shorter than this size was replaced."""
    path = directory / LOG
    if not path.exists():
        return []
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(since if since <= size else 0, size - BYTES))
        lines = file.read().split(b"\n")[:-1]
    entries = []
    for line in lines[-LAST:]:
        with suppress(ValueError):  # the first line may begin before these bytes; a full disk tears lines
            entries.append(parse_json(line.decode(errors="replace")))
    return entries


RESULT = "fedvisage"
"""The folder of a job's workspace that holds the result."""

OUTCOME, TRAINED = "outcome.json", "trained.json"
DIED = "died.json"
"""Next to the outcome: the sites whose processes ended while the job ran."""

LEFT = "left.json"
"""Next to the outcome: the sites that were stopped or revoked while the job ran, and the reasons."""

FILES = (WEIGHTS, SETTINGS, LEDGER, ROUNDS, TRAINED)


@dataclass(frozen=True)
class JobOutcome:
    """The end of a job: finished, refused for a person's mistake, or failed."""

    how: Literal["finished", "refused", "failed"]
    place: str = ""
    message: str = ""


def write_trained(run: Path, trained: TrainingResult) -> None:
    """Write the values of a training that are in no other file; a training writes this file last."""
    personal = {
        model: {
            site: [list(rates.tar.items()), list(rates.tpir.items()), rates.counts] for site, rates in sites.items()
        }
        for model, sites in trained.personal.items()
    }
    note = {
        "rounds": trained.rounds,
        "heldout": trained.heldout,
        "personal": personal,
        "kept": trained.kept,
        "ended": trained.ended,
        **({"shortcuts": trained.shortcuts} if trained.shortcuts else {}),
    }
    write_json(run / TRAINED, note)


def read_trained(run: Path) -> TrainingResult:
    """Read a finished training."""
    from fedvisage.tasks import saved_model
    from fedvisage.tasks.task import TrainingResult

    saved = saved_model.load(run)
    with _file_of_server(TRAINED):
        note = read_json(run / TRAINED)
        personal = {
            model: {
                site: SiteFigures(dict(tar), dict(tpir), tuple(counts)) for site, (tar, tpir, counts) in sites.items()
            }
            for model, sites in note["personal"].items()
        }
        return TrainingResult(
            saved,
            int(note["rounds"]),
            dict(note["heldout"]),
            personal=personal,
            kept=dict(note.get("kept", {})),
            ended=dict(note.get("ended", {})),
            shortcuts=dict(note.get("shortcuts", {})),
        )


def write_result(outcome: JobOutcome, run: Path, place: Path) -> None:
    """Put a job's result where NVFlare lets the operator download it."""
    place.mkdir(parents=True, exist_ok=True)
    if outcome.how == "finished":
        for name in FILES:
            shutil.copyfile(run / name, place / name)
    write_json(place / OUTCOME, asdict(outcome))


def fetch_result(downloaded: Path, out: Path) -> bool:
    """Move a downloaded result into the operator's run directory, or raise the server's error.

    Returns whether there was a result: a job that was ended from outside leaves none.
    """
    outcomes = sorted(downloaded.rglob(f"{RESULT}/{OUTCOME}"))
    if not outcomes:
        return False
    place = outcomes[0].parent
    with _file_of_server(OUTCOME):
        note = read_json(outcomes[0])
        how, where, message = note["how"], str(note["place"]), str(note["message"])
    if how == "refused":
        raise UserError(where, message)
    if how == "failed":
        raise RunFailed(f"at the server: {message}")
    for name in FILES:
        with _file_of_server(name):
            content = (place / name).read_bytes()
        write_atomically(out / name, content)
    return True


def has_finished(downloaded: Path) -> bool:
    """Return whether a downloaded result is that of a finished run."""
    with _file_of_server(OUTCOME):
        return any(read_json(path).get("how") == "finished" for path in downloaded.rglob(f"{RESULT}/{OUTCOME}"))


_NOTES = threading.Lock()
"""Held while a note is read and written: connections have threads of their own."""


def note_death(place: Path, site: str) -> None:
    """Add a site to the sites whose processes ended, in a file that NVFlare lets the operator download."""
    place.mkdir(parents=True, exist_ok=True)
    with _NOTES:
        sites = read_json(place / DIED)["sites"] if (place / DIED).exists() else []
        write_json(place / DIED, {"sites": sorted({*sites, site})})


def note_left(place: Path, site: str, reason: str) -> None:
    """Add a site to the sites that left a job, in a file that the job's program reads."""
    place.mkdir(parents=True, exist_ok=True)
    with _NOTES:
        write_json(place / LEFT, {**left_sites(place), site: reason})


def left_sites(place: Path) -> dict[str, str]:
    """Return the sites that left a job, and the reasons."""
    return dict(read_json(place / LEFT)) if (place / LEFT).exists() else {}


def dead_sites(downloaded: Path) -> list[str]:
    """Return the sites whose processes ended while a job ran."""
    with _file_of_server(DIED):
        return [str(name) for path in downloaded.rglob(f"{RESULT}/{DIED}") for name in read_json(path)["sites"]]


@contextmanager
def _file_of_server(name: str) -> Iterator[None]:
    """Turn a missing or damaged file of a result, which comes from another organisation, into a failure of the run."""
    try:
        yield
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"{name} of the server's result is missing or damaged"
        raise RunFailed(f"{fault}; ask the server's owner, then start again with another --out") from error
