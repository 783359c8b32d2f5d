"""A run's directory: which files it has, whether it may be written into, and whether it is finished."""

from __future__ import annotations

import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import json_text, read_json, read_tensors, read_text, write_atomically, write_tensors
from fedvisage.base.version import VERSION
from fedvisage.federation.record.releases import CHARGES
from fedvisage.federation.record.store import CHECKPOINTS
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message, digest_of, plain
from fedvisage.methods import read_method
from fedvisage.nn.compute import Compute
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import Setup, set_up
from fedvisage.tasks.opened import Opened
from fedvisage.tasks.task import Trained

# What the bytes of a result depend on besides the recipe, written beside every run.


PACKAGES = ("torch", "timm", "numpy", "scikit-learn", "opencv-python-headless", "safetensors")


def describe(compute: Compute, threads: int) -> dict[str, Any]:
    """Return versions, processor, threads and number format."""
    return {
        "fedvisage": VERSION,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(compute.device) if compute.device.type == "cuda" else "cpu",
        "precision": "bf16" if compute.half else "fp32",
        "layout": "first" if compute.layout == torch.contiguous_format else "last",
        "threads": threads,
    }


def peak_rss_mb(workers: Iterable[int] = ()) -> float:
    """Return the most memory that this process has used, in MiB, and its workers, each by its number.

    Linux says it best in /proc: the figure that every system has begins, there, with that of the process that started
    this one. Other systems say nothing of the workers.
    """
    own = _peak_kb("self")
    if own is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1024 if sys.platform.startswith("linux") else 1024 * 1024), 1)
    return round((own + sum(_peak_kb(str(number)) or 0 for number in workers)) / 1024, 1)


def _peak_kb(process: str) -> int | None:
    """Return the most memory that a process has used; none if the system does not say."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


# Models of single rounds: kept on the way, and judged at the user once the run is finished.
#
# Papers draw figures by round (PrivacyFace's Figure 5, FedPAD's courses), and start from models of mid-course. Each
# file
# is as ``model.safetensors`` would be if the run had ended there, but for exact statistics, which sites are asked
# for
# once; ``training.start`` takes it. To judge them is a simulation's privilege: a federation does not see its user.
# Nothing is chosen by it, and only figures are told that follow from no threshold, since the sites choose that for
# the
# finished model alone.


SNAPSHOTS = "snapshots"
BY_ROUND = "by_round"
"""Where metrics.json has the figures."""

Keep = Callable[[Server], None]


def kept_in(out: Path, recipe: Recipe) -> Keep:
    """Return what keeps the model of a round, if its turn has come; a round that is trained again is kept again."""
    every = recipe.evaluation.snapshots

    def keep(server: Server) -> None:
        if every is not None and server.round % every == 0:
            (out / SNAPSHOTS).mkdir(exist_ok=True)
            write_tensors(place(out, server.round), whole(server, server.finished()))

    return keep


def whole(server: Server, finished: Message) -> Message:
    """Put beside a finished model what never travelled, so that it needs no other file."""
    return {**finished, **{name: plain(value) for name, value in server.method.beside(server.net).items()}}


def place(out: Path, number: int) -> Path:
    """Return where the model of a round lies."""
    return out / SNAPSHOTS / f"round-{number}.safetensors"


def judged(setup: Setup, out: Path, trained: Trained, data: Opened) -> dict[str, Any]:
    """Return the figures at the user of each round that was kept, as a part of metrics.json; without a user, none."""
    if setup.recipe.evaluation.snapshots is None or (data.user is None and not data.benchmarks):
        return {}
    evaluation = setup.recipe.evaluation.model_copy(update={"resamples": 0, "published": None})
    scorer = set_up(setup.recipe.model_copy(update={"evaluation": evaluation}), setup.method).scorer()
    found = []
    for number, path in _kept(out, setup.recipe, trained.rounds):
        saved = replace(trained.saved, finished=read_tensors(path)[0])
        found.append({"round": number, **setup.task.without_threshold(scorer, saved, data)})
    return {BY_ROUND: found} if found else {}


def _kept(out: Path, recipe: Recipe, rounds: int) -> Iterator[tuple[int, Path]]:
    """Yield the rounds that were kept; a run that took over another one's model has none."""
    every = recipe.evaluation.snapshots
    for number in range(every, rounds + 1, every) if every is not None else ():
        if (path := place(out, number)).exists():
            yield number, path


RECIPE, ENVIRONMENT, DATA, METRICS, REPORT, SITES = (
    *("recipe.yaml", "environment.json", "data.json", "metrics.json", "report.html", "sites"),
)
START = "start.json"
"""What the network took from the file that it started from."""
NAME = "federation.json"
"""The name that a run has in the federation that trains it."""

JUDGE_AGAIN = "delete it and continue with --resume, which judges the model again"


def finished(out: Path, recipe: Recipe, resume: bool) -> dict[str, Any] | None:
    """Return a finished run's figures; refuse a directory that is in use for something else."""
    if not out.exists() or (out.is_dir() and not _shown(out)):
        return None  # a run that was killed before it wrote its recipe leaves hidden files only
    if not out.is_dir():
        raise UserError(str(out), "is a file; --out names a directory")
    if not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the run in it")
    if not (out / RECIPE).exists():
        raise UserError(str(out), "holds no run that could be resumed")
    if not _says(out / RECIPE, recipe):
        raise UserError(str(out), "was started with another recipe; resume with that recipe, or give another --out")
    path = out / METRICS
    return read_json(path, JUDGE_AGAIN) if path.exists() else None


@contextmanager
def taken_back(out: Path) -> Iterator[None]:
    """Leave a directory as empty as it was, when a mistake of the user's ends its first run before the first round.

    With the mistake mended, the recipe is another one: what the failed start left would refuse it. What sites or the
    server have told under differential privacy stays told, and is never removed; a federation may still be at work on
    a run that has a name there.
    """
    fresh = not _shown(out)
    try:
        yield
    except UserError:
        begun = (out / NAME).exists() or any(out.glob(f"{CHECKPOINTS}/*")) or any(out.rglob(CHARGES))
        if fresh and not begun:
            for path in _shown(out):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        raise


def _shown(directory: Path) -> list[Path]:
    """Return what lies in a directory, but for hidden files."""
    return [path for path in directory.iterdir() if not path.name.startswith(".")]


def _says(path: Path, recipe: Recipe) -> bool:
    """Tell whether a file says what a recipe says; keys that came later than the file have their defaults."""
    if read_text(path) == recipes.text_of(recipe):
        return True
    try:
        return recipes.load(path, [], read_method) == recipe
    except UserError:
        return False


def write_once(path: Path, text: str) -> None:
    """Write a file that a resumed run leaves as it was."""
    if not path.exists():
        write_atomically(path, text.encode())


def write_or_compare(path: Path, digests: Mapping[str, str]) -> None:
    """Record what the data was, and refuse to go on with other data than a run began with."""
    write_once(path, json_text(digests))
    known = read_json(path)
    changed = sorted(name for name in known.keys() | digests.keys() if known.get(name) != digests.get(name))
    if changed:
        raise UserError(changed[0], f"is not the data that the run in {path.parent} began with; start anew elsewhere")


def start_digest(recipe: Recipe) -> dict[str, str]:
    """Return the digest of the weights that a recipe starts from, beside those of its data."""
    start = recipe.training.starts_from
    return {} if start is None else {"training.start": digest_of(read_tensors(Path(start.file))[0])}
