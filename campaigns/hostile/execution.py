"""Execution of cases one after another in one process, with the outcome of each."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import sys
import time
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from campaigns.hostile.case import REFUSALS, Kind, WronglyAccepted, message_fault
from campaigns.hostile.guard import SECRET_TEXT, Guard
from campaigns.hostile.kinds import KINDS


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case."""

    number: int
    title: str
    end: str
    """``refused``, or ``harmless``: accepted, and the independent check passed."""
    findings: tuple[str, ...]
    seconds: float
    memory: int


def random_of_case(seed: int, kind: str, number: int) -> np.random.Generator:
    """Return the random stream of a case, which follows from its name."""
    return np.random.default_rng([seed, sum(kind.encode()), len(kind), number])


def run_cases(
    kind: str, seed: int, numbers: range, base: Path, out: TextIO, deadline: float, *, verbose: bool = False
) -> None:
    """Run cases of a kind until a deadline (monotonic), and write the outcome of each as a line of JSON."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    (base / "prepared").mkdir(parents=True)
    cases = KINDS[kind].prepare(base / "prepared")
    guard = Guard(base)
    guard.limit_memory()
    for number in numbers:
        if time.monotonic() > deadline:
            return
        out.write(json.dumps({"begun": number}) + "\n")
        out.flush()
        outcome = run_case(cases, seed, kind, number, guard, verbose=verbose)
        out.write(json.dumps(asdict(outcome)) + "\n")
        out.flush()


def run_case(cases: Kind, seed: int, kind: str, number: int, guard: Guard, *, verbose: bool = False) -> Outcome:
    """Run one case in an empty directory."""
    errors = sys.__stderr__
    shutil.rmtree(guard.place, onerror=_remove_unreadable)
    guard.place.mkdir()
    case = cases.case(random_of_case(seed, kind, number), guard.place)
    end, findings = "harmless", list[str]()
    with guard.watch(links=case.links) as observed, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            case.check()
        except REFUSALS as error:
            end = "refused"
            if (fault := message_fault(error)) is not None:
                findings.append(fault)
            if SECRET_TEXT in str(error):
                findings.append("the message reveals the target of a link")
            if verbose and errors is not None:
                errors.write(f"{error}\n")
        except WronglyAccepted as error:
            findings.append(f"wrongly accepted: {error}")
        except MemoryError:
            findings.append("asked for more memory than a case may have")
        except (Exception, RecursionError) as error:  # the program must refuse by REFUSALS alone
            last = traceback.extract_tb(error.__traceback__)[-1]
            findings.append(f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:200]!r}")
            if verbose:
                traceback.print_exc(file=errors)
    findings += observed.findings
    return Outcome(number, ", ".join(case.changes)[:300], end, tuple(findings), observed.seconds, observed.memory)


def _remove_unreadable(function: object, path: str, error: object) -> None:
    """Remove a file or directory that a case made unreadable."""
    if not os.path.lexists(path):
        return
    os.chmod(os.path.dirname(path), 0o700)
    if not os.path.islink(path):
        os.chmod(path, 0o700)
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
