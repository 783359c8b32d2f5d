"""The directory of a run: its files, its environment record, and checks before a run starts or continues in it."""

from __future__ import annotations

import platform
import resource
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
    flatten,
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
from fedvisage.federation.method import Method
from fedvisage.federation.record.releases import CHARGES
from fedvisage.federation.record.store import CHECKPOINTS, Owner, recipe_digest
from fedvisage.federation.wire.message import digest_of
from fedvisage.methods.origin import origin_of
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.nn.compute import LAYOUTS, Compute
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData

# The environment record: everything besides the recipe that the bytes of a result depend on.

PACKAGES = ("torch", "timm", "numpy", "scikit-learn", "opencv-python-headless", "safetensors")

INSTRUCTION_SETS = ("sse", "ssse", "avx", "amx", "fma", "f16c", "asimd", "sve", "bf16", "i8mm")
"""The beginnings of their names."""


def describe(compute: Compute, threads: int) -> dict[str, Any]:
    """Return versions, processor, device, memory layout, number format and threads."""
    versions = dict.fromkeys(PACKAGES, "not installed")
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "fedvisage": VERSION,
        "python": platform.python_version(),
        "packages": versions,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(compute.device) if compute.device.type == "cuda" else "cpu",
        "precision": compute.precision,
        "layout": "first" if compute.layout == torch.contiguous_format else "last",
        "threads": threads,
        **({"deterministic": True} if torch.are_deterministic_algorithms_enabled() else {}),
    }


def processor_features() -> list[str]:
    """Return the instruction sets of the processor that numerical libraries choose their code by."""
    names = _field("/proc/cpuinfo", "flags") or _field("/proc/cpuinfo", "Features")
    return sorted(name for name in names.split() if name.startswith(INSTRUCTION_SETS))


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


def peak_kb(process: int | None = None) -> int | None:
    """Return the peak memory of a process, or of this one, in KiB; None if the system does not report it."""
    peak = _field(f"/proc/{process or 'self'}/status", "VmHWM")
    return int(peak.split()[0]) if peak else None


def _field(path: str, name: str) -> str:
    """Return the first value of a field in a file of the system; an empty text if there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


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

SHOWN = 3
"""Changed keys of a recipe that a message names."""

EVALUATE_AGAIN = "delete it and continue with --resume, which evaluates the model again"


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run, through which the run reads and writes the files that describe it."""

    path: Path

    def __truediv__(self, name: str) -> Path:
        """Return the path of a file of the run."""
        return self.path / name

    def finished_metrics(self, recipe: Recipe, method: Method, resume: bool) -> Metrics | None:
        """Return a finished run's metrics, or None for a new or unfinished run; refuse anything else."""
        place = str(self.path)
        if not self.path.exists() or (self.path.is_dir() and not self._visible_entries()):
            return None  # a run that was killed before it wrote its recipe leaves hidden files only
        if not self.path.is_dir():
            raise UserError(place, "is a file, but --out must be a directory")
        if not resume:
            raise UserError(place, "is not empty; give another --out, or --resume to continue the run in it")
        if not (self / RECIPE).exists():
            raise UserError(place, "contains no run to resume")
        if difference := self.difference_to(recipe):
            raise UserError(
                place, f"was started with another recipe ({difference}); resume with that recipe, or give another --out"
            )
        origin = read_json(self / ENVIRONMENT).get("method") if (self / ENVIRONMENT).exists() else None
        if origin is not None and origin != origin_of(method, recipe.method):
            raise UserError(str(self / ENVIRONMENT), f"has another source of method {method.name}; give another --out")
        return read_metrics(self / METRICS, EVALUATE_AGAIN) if (self / METRICS).exists() else None

    def difference_to(self, recipe: Recipe) -> str:
        """Return the keys in which the run's recipe differs from this one, with both values; empty for an equal one."""
        if read_text(self / RECIPE) == recipes.text_of(recipe):
            return ""
        # Keys that are newer than the run have their default values, and settings that an earlier version left open
        # have the values with which that run computed.
        recorded = self._recorded_recipe(recipe)
        closed = None if recorded is None else close_settings(recorded, self.settings)
        if closed == recipe:
            return ""
        now = dict(flatten(recipes.tree_of(recipe)))
        try:
            before = dict(flatten(recipes.read_tree(self / RECIPE) if closed is None else recipes.tree_of(closed)))
        except UserError as error:
            return error.message
        changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        changed.sort(key=lambda key: key not in before or key not in now)  # options of one method alone come last
        values = [f"{key} was {before.get(key, 'absent')}, is {now.get(key, 'absent')}" for key in changed]
        more = [f"{len(values) - SHOWN} more"] if len(values) > SHOWN else []
        return ", ".join([*values[:SHOWN], *more]) or "written differently"

    def with_recorded_values(self, recipe: Recipe) -> Recipe:
        """Return a recipe with the values that an earlier run in the directory filled in, if there is one.

        These are layout, number format, and the number of public identities. To count these again, a finished run would
        need the public set.
        """
        recipe = close_settings(recipe, self.settings)
        if recipe.data.public is None or recipe.data.public_identities is not None or not (self / RECIPE).is_file():
            return recipe
        recorded = self._recorded_recipe(recipe)
        if recorded is None:  # `finished_metrics` reports the fault
            return recipe
        identities = {"public_identities": recorded.data.public_identities}
        return recipe.model_copy(update={"data": recipe.data.model_copy(update=identities)})

    def _recorded_recipe(self, recipe: Recipe) -> Recipe | None:
        """Read the run's recipe with the options of a recipe's method; return None if that is impossible."""
        try:
            return recipes.load(self / RECIPE, [], type(recipe.method).model_validate)
        except UserError:
            return None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Create the directory, keep other processes out of it, and remove the unfinished files of a killed run.

        A full disk ends the run with a message. A user's mistake before a new run's first checkpoint empties the
        directory again: the corrected recipe is a different one, and the files of the failed start would make the run
        refuse it. Records of values that sites or the server released under differential privacy are never removed. A
        run that has a name in a federation stays too, because the federation may still be working on it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with lock_directory(self.path), disk_full_is_failure(self.path, RESUME):
            fresh = not self._visible_entries()
            try:
                remove_unfinished(self.path)
                yield
            except UserError:
                has_records = (self / NAME).exists() or any(self.path.rglob(CHARGES))
                if fresh and not has_records and not any(self.path.glob(f"{CHECKPOINTS}/*")):
                    for path in self._visible_entries():
                        if path.is_dir():
                            shutil.rmtree(path)
                        else:
                            path.unlink()
                raise

    def _visible_entries(self) -> list[Path]:
        return [path for path in self.path.iterdir() if not path.name.startswith(".")]

    @property
    def settings(self) -> dict[str, str]:
        """The layout and number format of the run in the directory; empty if it contains none.

        The resolved recipe has both. In recipes of earlier versions they may be open: then the environment record has
        the number format, and the layout unless the version had only one.
        """
        try:
            runtime = recipes.read_tree(self / RECIPE)["runtime"]
            settings = {key: runtime.get(key, "auto") for key in ("layout", "precision")}
            if "auto" in settings.values():
                environment = read_json(self / ENVIRONMENT) if (self / ENVIRONMENT).exists() else {}
                recorded = {"layout": "last", **environment}
                settings = {key: recorded[key] if value == "auto" else value for key, value in settings.items()}
        except (UserError, LookupError, TypeError, AttributeError):  # `finished_metrics` reports faults of the recipe
            return {}
        return settings if settings["layout"] in LAYOUTS and settings["precision"] in ("fp32", "bf16") else {}

    def record_start(self, setup: Setup, data: RunData, overlap: Mapping[str, Any], workers: Mapping[str, Any]) -> None:
        """Write the files that describe a run before it trains; the environment record gets that of its workers.

        A run is refused with other data than it began with. A run with a checkpoint, which has the digests of these
        files, keeps them. Without one, training begins again, so the process is recorded again.
        """
        self.write_once(RECIPE, recipes.text_of(setup.recipe))  # first, as it marks the directory as a run
        digests, start = dict(data.digests), setup.recipe.training.starts_from
        if start is not None:
            digests["training.start"] = digest_of(read_tensors(Path(start.file))[0])
        has_checkpoint = any((self / CHECKPOINTS).glob("*.safetensors"))
        if not has_checkpoint:
            self.write_once(DATA, json_text(digests))
        recorded = read_json(self / DATA)
        changed = sorted(name for name in recorded.keys() | digests.keys() if recorded.get(name) != digests.get(name))
        if changed:
            raise UserError(
                changed[0],
                f"is not the data that {self / DATA} records for the start of the run; restore it, or start a new run",
            )
        # No byte of the result depends on the number of workers.
        environment = {**describe(setup.compute, setup.recipe.runtime.threads), **workers}
        # A method with code outside the package is recorded by its modules and the digest of its source.
        if origin := origin_of(setup.method, setup.recipe.method):
            environment["method"] = origin
        if not has_checkpoint:
            write_json(self / OVERLAP, overlap)
            write_json(self / ENVIRONMENT, {**environment, "run": self.name or secrets.token_hex(8)})

    @property
    def name(self) -> str:
        """The random name of the run in the directory; empty at a server."""
        path = self / ENVIRONMENT
        return str(read_json(path).get("run", "")) if path.exists() else ""

    def owner(self, site: str = "") -> Owner:
        """Return the run, the recipe and the site that a site's private state in the directory names."""
        return Owner(site, self.name, recipe_digest(read_text(self / RECIPE)), unnamed=not self.name)

    def digests(self) -> dict[str, str]:
        """Return the digests of the run's files that do not grow, by name; a checkpoint records them."""
        paths = [self / name for name in (DATA, OVERLAP, ENVIRONMENT, START)]
        paths += sorted((self / SNAPSHOTS).glob("round-*"))
        return {str(path.relative_to(self.path)): file_digest(path) for path in paths if path.exists()}

    def write_once(self, name: str, text: str) -> None:
        """Write a file unless it exists, as in a resumed run."""
        if not (self / name).exists():
            write_atomically(self / name, text.encode())


def close_settings(recipe: Recipe, settings: Mapping[str, str]) -> Recipe:
    """Return a recipe whose layout and number format have these values where it leaves them to ``auto``."""
    closed = {key: value for key, value in settings.items() if getattr(recipe.runtime, key) == "auto"}
    return recipe.model_copy(update={"runtime": recipe.runtime.model_copy(update=closed)})


def snapshot_path(out: Path, number: int) -> Path:
    """Return the path of the model of a round."""
    return out / SNAPSHOTS / f"round-{number}.safetensors"
