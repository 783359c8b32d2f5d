"""The directory of a run: its files, its environment record, its models of single rounds, and checks before a start."""

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
from fedvisage.nn.compute import LAYOUTS, Compute
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import Setup, set_up
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

# The environment record: everything besides the recipe that the bytes of a result depend on.

PACKAGES = ("torch", "timm", "numpy", "scikit-learn", "opencv-python-headless", "safetensors")


def describe(compute: Compute, threads: int) -> dict[str, Any]:
    """Return versions, processor, device, memory layout, number format and threads."""
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
    """Return the peak memory in MiB of this process and of its workers, which are given by process ID.

    Linux reports it best in /proc: the portable figure of ``getrusage`` starts there with the peak of the parent
    process. On other systems the result does not include the workers.
    """
    own_peak = _peak_kb("self")
    if own_peak is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1024 if sys.platform.startswith("linux") else 1024 * 1024), 1)
    return round((own_peak + sum(_peak_kb(str(number)) or 0 for number in workers)) / 1024, 1)


def _peak_kb(process: str) -> int | None:
    """Return the peak memory of a process in KiB; None if the system does not report it."""
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


# Snapshots: models of single rounds, saved during training and evaluated on the target after the run.

SNAPSHOTS = "snapshots"
BY_ROUND = "by_round"
"""The key of the snapshots' metrics in metrics.json."""

Keep = Callable[[Server], None]


def snapshot_saver(out: Path, recipe: Recipe) -> Keep:
    """Return a function that saves the models of the rounds that the recipe selects, in a run directory.

    Papers plot metrics by round (PrivacyFace's Figure 5, FedPAD's curves) and start from models of earlier rounds. Each
    file equals the ``model.safetensors`` of a run that ends at that round, except for exact statistics, which the
    server collects only once. ``training.start`` accepts such a file. A round that is trained again overwrites its
    snapshot.
    """
    every = recipe.evaluation.snapshots

    def keep(server: Server) -> None:
        if every is not None and server.round % every == 0:
            (out / SNAPSHOTS).mkdir(exist_ok=True)
            write_tensors(snapshot_path(out, server.round), with_constant_weights(server, server.finished()))

    return keep


def with_constant_weights(server: Server, finished: Message) -> Message:
    """Add the constant weights, which are never sent, to a finished model, so that it needs no other file."""
    return {**finished, **{name: plain(value) for name, value in server.method.beside(server.net).items()}}


def snapshot_path(out: Path, number: int) -> Path:
    """Return the path of the model of a round."""
    return out / SNAPSHOTS / f"round-{number}.safetensors"


def snapshot_metrics(setup: Setup, out: Path, trained: TrainingResult, data: RunData) -> dict[str, Any]:
    """Return the target metrics of each saved round, as a part of metrics.json.

    Without a target and benchmarks there are none. Only simulations can evaluate snapshots, because a federation does
    not see its target. The metrics select nothing, and they need no threshold, because the sites choose thresholds only
    for the finished model.
    """
    if setup.recipe.evaluation.snapshots is None or (data.user is None and not data.benchmarks):
        return {}
    evaluation = setup.recipe.evaluation.model_copy(update={"resamples": 0, "published": None})
    scorer = set_up(setup.recipe.model_copy(update={"evaluation": evaluation}), setup.method).scorer()
    figures = []
    for number, path in _saved_rounds(out, setup.recipe, trained.rounds):
        saved = replace(trained.saved, finished=read_tensors(path)[0])
        figures.append({"round": number, **setup.task.without_threshold(scorer, saved, data)})
    return {BY_ROUND: figures} if figures else {}


def _saved_rounds(out: Path, recipe: Recipe, rounds: int) -> Iterator[tuple[int, Path]]:
    """Yield the number and the path of each saved round; a run that adopted the model of another run has none."""
    every = recipe.evaluation.snapshots
    for number in range(every, rounds + 1, every) if every is not None else ():
        if (path := snapshot_path(out, number)).exists():
            yield number, path


RECIPE, ENVIRONMENT, DATA, METRICS, REPORT, SITES = (
    *("recipe.yaml", "environment.json", "data.json", "metrics.json", "report.html", "sites"),
)
START = "start.json"
"""The record of the weights that the network took from its start file."""
NAME = "federation.json"
"""The file with the name of a run in the federation that trains it."""

EVALUATE_AGAIN = "delete it and continue with --resume, which judges the model again"


def finished_metrics(out: Path, recipe: Recipe, resume: bool) -> dict[str, Any] | None:
    """Return a finished run's metrics, or None for a new or unfinished run; refuse a directory of anything else."""
    if not out.exists() or (out.is_dir() and not _visible_entries(out)):
        return None  # a run that was killed before it wrote its recipe leaves hidden files only
    if not out.is_dir():
        raise UserError(str(out), "is a file; --out names a directory")
    if not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the run in it")
    if not (out / RECIPE).exists():
        raise UserError(str(out), "holds no run that could be resumed")
    if not _contains_recipe(out, recipe):
        raise UserError(str(out), "was started with another recipe; resume with that recipe, or give another --out")
    path = out / METRICS
    return read_json(path, EVALUATE_AGAIN) if path.exists() else None


@contextmanager
def undo_failed_start(out: Path) -> Iterator[None]:
    """Empty a new run's directory again if a user's mistake ends the run before its first checkpoint.

    The corrected recipe is a different one, and the files of the failed start would make the run refuse it. Records of
    values that sites or the server released under differential privacy are never removed. A run that has a name in a
    federation stays too, because the federation may still be working on it.
    """
    fresh = not _visible_entries(out)
    try:
        yield
    except UserError:
        has_records = (out / NAME).exists() or any(out.glob(f"{CHECKPOINTS}/*")) or any(out.rglob(CHARGES))
        if fresh and not has_records:
            for path in _visible_entries(out):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        raise


def _visible_entries(directory: Path) -> list[Path]:
    """Return the entries of a directory, except hidden files."""
    return [path for path in directory.iterdir() if not path.name.startswith(".")]


def _contains_recipe(out: Path, recipe: Recipe) -> bool:
    """Return whether a run's directory contains a recipe; keys that are newer than the run have their default values.

    The recipe of a run of an earlier version leaves settings open; they have the values with which that run computed.
    """
    if read_text(out / RECIPE) == recipes.text_of(recipe):
        return True
    try:
        recorded = recipes.load(out / RECIPE, [], type(recipe.method).model_validate)
    except UserError:
        return False
    return close_settings(recorded, recorded_settings(out)) == recipe


def close_settings(recipe: Recipe, settings: Mapping[str, str]) -> Recipe:
    """Return a recipe whose layout and number format have these values where it leaves them to ``auto``."""
    closed = {key: value for key, value in settings.items() if getattr(recipe.runtime, key) == "auto"}
    return recipe.model_copy(update={"runtime": recipe.runtime.model_copy(update=closed)})


def recorded_settings(out: Path) -> dict[str, str]:
    """Return the layout and number format of the run in a directory; empty if it contains none.

    The resolved recipe has both. In recipes of earlier versions they may be open: then the environment record has the
    number format, and the layout unless the version had only one.
    """
    try:
        runtime = recipes.read_tree(out / RECIPE)["runtime"]
        environment = read_json(out / ENVIRONMENT) if (out / ENVIRONMENT).exists() else {}
        recorded = {"layout": "last", **environment}
        settings = {key: runtime.get(key, "auto") for key in ("layout", "precision")}
        settings = {key: recorded[key] if value == "auto" else value for key, value in settings.items()}
    except (UserError, LookupError, TypeError, AttributeError):  # `finished_metrics` reports faults of the recipe
        return {}
    return settings if settings["layout"] in LAYOUTS and settings["precision"] in ("fp32", "bf16") else {}


def write_once(path: Path, text: str) -> None:
    """Write a file unless it exists, as in a resumed run."""
    if not path.exists():
        write_atomically(path, text.encode())


def write_or_compare(path: Path, digests: Mapping[str, str]) -> None:
    """Record the digests of the data, and refuse to continue a run with other data than it began with."""
    write_once(path, json_text(digests))
    recorded = read_json(path)
    changed = sorted(name for name in recorded.keys() | digests.keys() if recorded.get(name) != digests.get(name))
    if changed:
        raise UserError(changed[0], f"is not the data that the run in {path.parent} began with; start anew elsewhere")


def start_digest(recipe: Recipe) -> dict[str, str]:
    """Return the digest of the weights that a recipe starts from, in the format of the data digests."""
    start = recipe.training.starts_from
    return {} if start is None else {"training.start": digest_of(read_tensors(Path(start.file))[0])}
