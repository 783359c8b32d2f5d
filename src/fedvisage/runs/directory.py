"""The directory of a run: its files, its environment record, and checks before a run starts or continues in it."""

from __future__ import annotations

import platform
import resource
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import (
    RESUME,
    disk_full_is_failure,
    file_digest,
    json_text,
    lock_directory,
    read_json,
    read_tensors,
    read_text,
    remove_unfinished,
    write_atomically,
    write_json,
)
from fedvisage.base.version import VERSION
from fedvisage.data.overlap import OVERLAP
from fedvisage.federation.record.releases import CHARGES
from fedvisage.federation.record.store import CHECKPOINTS, Owner, recipe_digest
from fedvisage.federation.wire.message import digest_of
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.nn.compute import LAYOUTS, Compute
from fedvisage.recipe import Recipe
from fedvisage.recipe.former import rename_places

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
        "precision": compute.precision,
        "layout": "first" if compute.layout == torch.contiguous_format else "last",
        "threads": threads,
        **({"deterministic": True} if torch.are_deterministic_algorithms_enabled() else {}),
    }


def peak_rss_mb(workers: Iterable[int] = ()) -> float:
    """Return the peak memory in MiB of this process and of its workers, whose peaks are given in KiB.

    Linux reports it best in /proc: the portable figure of ``getrusage`` starts there with the peak of the parent
    process. On other systems the result does not include the workers.
    """
    own_peak = peak_kb()
    if own_peak is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1024 if sys.platform.startswith("linux") else 1024 * 1024), 1)
    return round((own_peak + sum(workers)) / 1024, 1)


def peak_kb() -> int | None:
    """Return the peak memory of this process in KiB; None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
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


# The directory: its files, the checks of its state, and the records of a run's start.

RECIPE = "recipe.yaml"
ENVIRONMENT = "environment.json"
DATA = "data.json"
METRICS = "metrics.json"
REPORT = "report.html"
SITES = "sites"
SNAPSHOTS = "snapshots"
START = "start.json"
"""The record of the weights that the network took from its start file."""
NAME = "federation.json"
"""The file with the name of a run in the federation that trains it."""

EVALUATE_AGAIN = "delete it and continue with --resume, which evaluates the model again"


def finished_metrics(out: Path, recipe: Recipe, resume: bool) -> Metrics | None:
    """Return a finished run's metrics, or None for a new or unfinished run; refuse a directory of anything else."""
    if not out.exists() or (out.is_dir() and not _visible_entries(out)):
        return None  # a run that was killed before it wrote its recipe leaves hidden files only
    if not out.is_dir():
        raise UserError(str(out), "is a file, but --out must be a directory")
    if not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the run in it")
    if not (out / RECIPE).exists():
        raise UserError(str(out), "contains no run to resume")
    if not _contains_recipe(out, recipe):
        raise UserError(str(out), "was started with another recipe; resume with that recipe, or give another --out")
    path = out / METRICS
    return read_metrics(path, EVALUATE_AGAIN) if path.exists() else None


def with_recorded_values(recipe: Recipe, out: Path) -> Recipe:
    """Return a recipe with the values that an earlier run in the directory filled in, if there is one.

    These are layout, number format, and the number of public identities. To count these again, a finished run would
    need the public set.
    """
    recipe = close_settings(recipe, recorded_settings(out))
    if recipe.data.public is None or recipe.data.public_identities is not None or not (out / RECIPE).is_file():
        return recipe
    try:
        options = type(recipe.method)
        identities = recipes.load(out / RECIPE, [], options.model_validate).data.public_identities
    except UserError:
        return recipe  # `finished_metrics` reports the fault
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"public_identities": identities})})


@contextmanager
def hold_directory(out: Path) -> Iterator[None]:
    """Create the directory of a run, keep other processes out of it, and remove the unfinished files of a killed run.

    A full disk ends the run with a message, and a user's mistake at its start leaves the directory empty.
    """
    out.mkdir(parents=True, exist_ok=True)
    with lock_directory(out), disk_full_is_failure(out, RESUME), undo_failed_start(out):
        remove_unfinished(out)
        yield


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
        settings = {key: runtime.get(key, "auto") for key in ("layout", "precision")}
        if "auto" in settings.values():
            environment = read_json(out / ENVIRONMENT) if (out / ENVIRONMENT).exists() else {}
            recorded = {"layout": "last", **environment}
            settings = {key: recorded[key] if value == "auto" else value for key, value in settings.items()}
    except (UserError, LookupError, TypeError, AttributeError):  # `finished_metrics` reports faults of the recipe
        return {}
    return settings if settings["layout"] in LAYOUTS and settings["precision"] in ("fp32", "bf16") else {}


def record_start(
    out: Path, recipe: Recipe, digests: Mapping[str, str], overlap: Mapping[str, Any], environment: Mapping[str, Any]
) -> None:
    """Write the files that describe a run before it trains.

    A run is refused with other data or another method than it began with. A run with a checkpoint, which has the
    digests of these files, keeps them. Without one, training begins again, so the process is recorded again.
    """
    write_once(out / RECIPE, recipes.text_of(recipe))  # first, as it marks the directory as a run
    digests = {**digests, **_start_digest(recipe)}
    has_checkpoint = any((out / CHECKPOINTS).glob("*.safetensors"))
    if not has_checkpoint:
        write_once(out / DATA, json_text(digests))
    _check_same_data(out / DATA, digests)
    if has_checkpoint or (out / ENVIRONMENT).exists():
        _check_same_method(out / ENVIRONMENT, environment)
    if not has_checkpoint:
        write_json(out / OVERLAP, overlap)
        write_json(out / ENVIRONMENT, {**environment, "run": run_name(out) or secrets.token_hex(8)})


def run_name(out: Path) -> str:
    """Return the random name of the run in a directory; empty if an earlier version began it, or at a server."""
    path = out / ENVIRONMENT
    return str(read_json(path).get("run", "")) if path.exists() else ""


def owner_in(out: Path) -> Owner:
    """Return the run and the recipe that the sites' private state in a run's directory names, without a site."""
    run = run_name(out)
    return Owner(run=run, recipe=recipe_digest(read_text(out / RECIPE)), unnamed=not run)


def digests_of_files(out: Path) -> dict[str, str]:
    """Return the digests of the files of a run that do not grow, by name; a checkpoint records them."""
    paths = [*(out / name for name in (DATA, OVERLAP, ENVIRONMENT, START)), *sorted((out / SNAPSHOTS).glob("round-*"))]
    return {str(path.relative_to(out)): file_digest(path) for path in paths if path.exists()}


def write_once(path: Path, text: str) -> None:
    """Write a file unless it exists, as in a resumed run."""
    if not path.exists():
        write_atomically(path, text.encode())


def _start_digest(recipe: Recipe) -> dict[str, str]:
    """Return the digest of the weights that a recipe starts from, in the format of the data digests."""
    start = recipe.training.starts_from
    return {} if start is None else {"training.start": digest_of(read_tensors(Path(start.file))[0])}


def _check_same_data(path: Path, digests: Mapping[str, str]) -> None:
    """Refuse to continue a run with other data than it began with."""
    recorded = rename_places(read_json(path))
    changed = sorted(name for name in recorded.keys() | digests.keys() if recorded.get(name) != digests.get(name))
    if changed:
        raise UserError(
            changed[0],
            f"is not the data that {path} records for the start of the run; restore it, or start a new run",
        )


def _check_same_method(path: Path, environment: Mapping[str, Any]) -> None:
    """Refuse to continue a run with a method whose source differs from the one passed in at its start."""
    recorded = read_json(path)
    if "method" in recorded and recorded["method"] != environment.get("method"):
        raise UserError(
            str(path),
            "the run began with another method, which was passed in from Python; pass in "
            "the same one, or use a new directory",
        )
