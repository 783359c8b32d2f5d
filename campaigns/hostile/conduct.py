"""Carrying cases out one after another, in a process of their own, and noting what became of each."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from campaigns.hostile.case import KNOWN, Admitted, Kind, line_of
from campaigns.hostile.guard import WORDS, Guard
from campaigns.hostile.kinds import KINDS

NAMED = {name: place for place, name in enumerate(sorted(KINDS))}


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

    number: int
    title: str
    ended: str
    """``refused``, or ``harmless``: taken in, and an independent look found nothing wrong with it."""
    wrongs: tuple[str, ...]
    seconds: float
    grown: int


def draws_of(seed: int, kind: str, number: int) -> np.random.Generator:
    """Return the stream of a case; it depends on nothing but its name."""
    return np.random.default_rng([seed, sum(kind.encode()), len(kind), number])


def attack(kind: str, seed: int, numbers: range, base: Path, out: TextIO, until: float, *, loud: bool = False) -> None:
    """Carry out cases of a kind and write a line of JSON for each, until a moment (monotonic)."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    (base / "prepared").mkdir(parents=True)
    made = KINDS[kind].make(base / "prepared")
    guard = Guard(base)
    guard.bound()
    for number in numbers:
        if time.monotonic() > until:
            return
        out.write(json.dumps({"begun": number}) + "\n")
        out.flush()
        outcome = carried_out(made, seed, kind, number, guard, loud=loud)
        out.write(json.dumps(asdict(outcome)) + "\n")
        out.flush()


def carried_out(made: Kind, seed: int, kind: str, number: int, guard: Guard, *, loud: bool = False) -> Outcome:
    """Carry out one case in an empty place."""
    shutil.rmtree(guard.place, onerror=_let_in)
    guard.place.mkdir()
    case = made.case(draws_of(seed, kind, number), guard.place)
    ended, wrongs = "harmless", list[str]()
    with guard.watching(links=case.links) as seen, _hushed(loud):
        try:
            case.take()
        except KNOWN as error:
            ended = "refused"
            if (wrong := line_of(error)) is not None:
                wrongs.append(wrong)
            if WORDS in str(error):
                wrongs.append("the line tells what lies behind a link")
            if loud:
                sys.__stderr__.write(f"{error}\n")
        except Admitted as error:
            ended, wrongs = "harmless", [f"taken in: {error}"]
        except MemoryError:
            wrongs.append("asked for more memory than a case may have")
        except (Exception, RecursionError) as error:  # the one thing that a campaign is for
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrongs.append(f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:200]!r}")
            if loud:
                traceback.print_exc(file=sys.__stderr__)
    return Outcome(number, ", ".join(case.done)[:300], ended, (*wrongs, *seen.wrongs), seen.seconds, seen.grown)


@contextlib.contextmanager
def _hushed(loud: bool) -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _let_in(function: object, path: str, error: object) -> None:
    """Remove what a case made unreadable."""
    if not os.path.lexists(path):
        return
    os.chmod(os.path.dirname(path), 0o700)
    if not os.path.islink(path):
        os.chmod(path, 0o700)
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
