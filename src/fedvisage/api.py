"""The Python API: load recipes, run and compare them, run studies, and evaluate finished models."""

from __future__ import annotations

import copy
import html
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from fedvisage import recipe as recipes
from fedvisage.base import extensions
from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE, read_json
from fedvisage.base.progress import Reporter
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Method
from fedvisage.federation.record.ledger import LEDGER, ROUNDS, read_lines
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.methods import MODELS, all_methods, find, model_named, read_method
from fedvisage.methods.models.model import Model
from fedvisage.methods.origin import check_name
from fedvisage.metrics.scores import read_complete_rows
from fedvisage.recipe import Recipe
from fedvisage.recipe import load as load_recipe
from fedvisage.recipe.former import rename_in_metrics, rename_in_recipe, rename_keys
from fedvisage.report.compare import Comparison, as_values
from fedvisage.report.compare import compare as compared
from fedvisage.report.compare_tables import as_text
from fedvisage.report.run_files import damaged_files_are_errors
from fedvisage.runs.directory import METRICS, RECIPE, REPORT
from fedvisage.runs.evaluate import evaluate as evaluate_model
from fedvisage.runs.evaluate import recount as recount_run
from fedvisage.runs.request import Request
from fedvisage.runs.run import run as run_recipe
from fedvisage.runs.workers import Wire
from fedvisage.studies.shipped import locate
from fedvisage.tasks.catalogue import summary
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.finished_model import FinishedModel, open_model


def table(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame, or as a list if pandas is not installed."""
    if find_spec("pandas") is None:
        return list(rows)
    from pandas import DataFrame

    return DataFrame(rows)


def lines_of(path: Path) -> Any:
    """Return a file of JSON lines as a table, without an incomplete last line."""
    return table(read_lines(path))


def columns_of(path: Path) -> Any:
    """Return a CSV file as a table, with a column as numbers if all its values are numbers."""
    rows: list[dict[str, Any]] = list(read_complete_rows(path)[1])
    for column in rows[0] if rows else ():
        for kind in (int, float):
            with suppress(ValueError):
                numbers = [kind(row[column]) for row in rows]
                for row, number in zip(rows, numbers, strict=True):
                    row[column] = number
                break
    return table(rows)


SCORES = "scores.csv"


@dataclass(frozen=True)
class Run:
    """A finished run, whose files are read at their first use; a notebook displays its report."""

    directory: Path
    method: Method | None = None
    """The method, if the caller passed it in."""

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """All metrics."""
        return rename_in_metrics(read_json(self._file(METRICS)))

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        read_section = read_method if self.method is None else self.method.options.model_validate
        return load_recipe(self._file(RECIPE), [], read_section)

    @property
    def rounds(self) -> Any:
        """One row per round: seconds, losses, sites that replied, bytes; a DataFrame if pandas is installed."""
        return lines_of(self._file(ROUNDS))

    @property
    def ledger(self) -> Any:
        """One row per field that a site or the server sent."""
        return lines_of(self._file(LEDGER))

    @property
    def scores(self) -> Any:
        """One row per scored frame; for recognition, one row per pair of the benchmark."""
        return columns_of(self._file(SCORES))

    @cached_property
    def model(self) -> FinishedModel:
        """The finished model, ready to use."""
        return open_model(self.directory, method=self.method)

    def report(self) -> Path:
        """Return the path of the report, one HTML page, and write it first if it is missing."""
        path = self.directory / REPORT
        if not path.exists():
            # Imported here, because these load the plotting libraries.
            from fedvisage.report.page import write_report
            from fedvisage.report.tracking.tensorboard import write_events

            write_events(self.directory)
            write_report(self.directory)
        return path

    def _file(self, name: str) -> Path:
        path = self.directory / name
        if not path.exists():
            raise UserError(str(path), "does not exist; is this the directory of a finished run?")
        return path

    def __str__(self) -> str:
        """Return the headline metrics."""
        with damaged_files_are_errors(self.directory):
            has_target = self.metrics["target"] is not None
            return "\n".join([*(summary(self.metrics) if has_target else ()), f"run: {self.directory}"])

    def _repr_html_(self) -> str:
        page = html.escape(self.report().read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison of runs: mean ± std over seeds, and differences to the first group with t intervals over targets."""

    rows: tuple[Comparison, ...]

    def values(self) -> list[dict[str, Any]]:
        """Return all metrics as plain values."""
        return as_values(self.rows)

    def __str__(self) -> str:
        """Return the tables as Markdown."""
        return as_text(self.rows)

    def _repr_markdown_(self) -> str:
        return as_text(self.rows)


def compare(runs: Sequence[Run | str | Path]) -> ComparisonResult:
    """Compare finished runs."""
    return ComparisonResult(tuple(compared([run.directory if isinstance(run, Run) else Path(run) for run in runs])))


# Evaluation of finished models.


def open(directory: str | Path, *, method: Method | None = None) -> FinishedModel:
    """Open the model of a finished run, from the run's directory or from a directory with its two model files.

    ``method`` is the method of the run, if the catalogue does not contain it.
    """
    return _warn_of_crops(open_model(Path(directory), method=method))


def evaluate(
    model: FinishedModel | Run | str | Path,
    data: str | Path | None = None,
    *,
    adapt: str | None = None,
    pairs: str | Path | None = None,
    benchmarks: Mapping[str, str | Path] | None = None,
    out: str | Path | None = None,
    cache: str | Path = CACHE,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
    verify: bool = False,
) -> dict[str, Any]:
    """Evaluate a finished model on a dataset or ``synth:`` line, by default the run's target.

    ``adapt`` first adapts the model to the images, without their labels. ``pairs`` is a list of pairs for recognition.
    ``benchmarks`` maps names to further sets; each is evaluated with the lists in its directory. With benchmarks, the
    function evaluates another set only if ``data`` names one.
    ``allow_mixed_crops`` accepts a set whose crops differ from those of the training data. Images from the training
    data raise an error unless ``allow_overlap`` is set. ``verify`` reads every byte of the set and compares it with the
    set's digest.
    """
    directory = model.directory if isinstance(model, FinishedModel | Run) else Path(model)
    opened = _warn_of_crops(open_model(directory, adapt, None if pairs is None else Path(pairs), _method_of(model)))
    entry, out_directory = None if data is None else str(data), None if out is None else Path(out)
    sets = {name: str(path) for name, path in (benchmarks or {}).items()}
    return evaluate_model(
        opened,
        entry,
        Path(cache),
        out_directory,
        benchmarks=sets,
        checks=Checks(allow_mixed_crops, allow_overlap, verify),
        say=_warn,
    )


def _warn_of_crops(model: FinishedModel) -> FinishedModel:
    """Issue the notices about a model's crops as warnings."""
    for line in model.notices:
        _warn(line)
    return model


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def _method_of(model: FinishedModel | Run | str | Path) -> Method | None:
    """Return the method of an open model or run; None for a path, whose files name the method."""
    if isinstance(model, FinishedModel):
        return model.setup.method
    return model.method if isinstance(model, Run) else None


def methods() -> dict[str, Method]:
    """Return all methods by name, including those of other packages."""
    return all_methods()


def models() -> dict[str, Model]:
    """Return the models that algorithms can train, by name, including those of other packages."""
    return MODELS | {name: model_named(name) for name in extensions.names("models")}


@dataclass(frozen=True)
class StudyResult:
    """A finished study: its directory and its table."""

    directory: Path
    table: dict[str, Any]

    def __str__(self) -> str:
        """Return the table as Markdown."""
        return (self.directory / "table.md").read_text(encoding="utf-8")

    def _repr_markdown_(self) -> str:
        return str(self)


def study(
    path: str | Path,
    *,
    out: str | Path | None = None,
    changes: Sequence[str] = (),
    smoke: bool = False,
    workers: int = 1,
    root: str | Path | None = None,
    sets: str | Path | None = None,
    cache: str | Path = CACHE,
    quiet: bool = False,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
) -> StudyResult:
    """Run the missing runs of a study (a file or a shipped name) and return its table.

    A study is a grid of recipes that makes one table. ``root`` is the directory of downloaded datasets; missing sets
    are imported from there into ``sets``. ``allow_mixed_crops`` accepts sets with different crops, ``allow_overlap``
    images that appear in two places, such as a site and the target.
    """
    from fedvisage.studies.conduct import run_study  # imported here, because it loads the plotting libraries

    directory = Path(out) if out is not None else Path("runs") / f"{Path(path).stem}{'-smoke' if smoke else ''}"
    say = Reporter(Console(highlight=False), quiet=quiet).say
    file = locate(Path(path), verb="study")
    table = run_study(
        file,
        directory,
        Path(cache),
        say,
        changes=changes,
        smoke=smoke,
        workers=workers,
        root=None if root is None else Path(root),
        sets=None if sets is None else Path(sets),
        checks=Checks(allow_mixed_crops, allow_overlap),
    )
    return StudyResult(directory, table)


RecipeSource = Recipe | str | Path | Mapping[str, Any]
"""A recipe: an object, a file, a shipped name, or its content as plain values."""

DatasetSource = PreparedSet | str | Path
"""A dataset as an object or a path, or a ``synth:`` line that renders one."""


def load(recipe: RecipeSource, changes: Mapping[str, Any] | None = None, *, method: Method | None = None) -> Recipe:
    """Load and validate a recipe with changes such as ``{"training.rounds": 4}``.

    ``method`` replaces the method that the recipe names. It is a method outside the catalogue, and its options validate
    the recipe's section ``method``. Options that only the recipe's own method has are dropped; any other unknown key is
    an error.
    """
    tree = _tree_of(recipe)
    if method is not None:
        check_name(method)
        tree["method"] = _shared_options(tree.get("method"), method)
    for key, value in (changes or {}).items():
        recipes.set_value(tree, key, value, say=_warn)
    if method is None:
        return recipes.validate(tree, read_method)
    section = tree["method"]
    options = dict(section) if isinstance(section, Mapping) else {}
    return recipes.validate({**tree, "method": {**options, "name": method.name}}, method.options.model_validate)


def run(
    recipe: RecipeSource,
    *,
    out: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    method: Method | None = None,
    transport: Wire = LocalTransport,
    data: Mapping[str, DatasetSource] | None = None,
    cache: str | Path = CACHE,
    resume: bool = False,
    quiet: bool = False,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
    verify: bool = False,
) -> Run:
    """Run a recipe: train, evaluate on the target, and write the run directory with its report.

    ``method`` replaces the recipe's method and takes over those of its options that it has; the run records its source.
    ``transport`` makes a transport from the sites of this process. ``data`` replaces entries of the recipe: sets by the
    name of a site, or under ``target`` and ``public``; a name that the recipe lacks is an error. ``out`` is
    a new directory, or with ``resume`` the directory of an unfinished run. Sets with different crops raise an error
    unless ``allow_mixed_crops`` is set, and so do images that appear in two places, such as a site and the target,
    unless ``allow_overlap`` is set. ``verify`` reads every byte of the sets and compares it with their digests.
    """
    resolved = load(recipe, changes, method=method)
    if data:
        resolved = load(resolved, _entries(data, resolved), method=method)
    stem = Path(recipe).stem if isinstance(recipe, str | Path) else resolved.method.name
    directory = Path(out) if out is not None else Path("runs") / f"{stem}-seed{resolved.runtime.seed}"
    checks = Checks(allow_mixed_crops, allow_overlap, verify)
    request = Request(resolved, directory, Path(cache), method, resume, transport, checks=checks, report=True)
    run_recipe(request, Reporter(Console(highlight=False), quiet=quiet))
    return Run(directory, method)


def recount(run: Run | str | Path, out: str | Path, *, cache: str | Path = CACHE, quiet: bool = False) -> Run:
    """Evaluate a finished run with exact BatchNorm statistics, like a run with ``training.statistics: exact``.

    Nothing is trained. The server requests the statistics of the sites' training images, layer by layer, and new
    thresholds. ``out`` is a new directory, or the directory of an interrupted recount.
    """
    trained = run.directory if isinstance(run, Run) else Path(run)
    recount_run(trained, Path(out), Path(cache), Reporter(Console(highlight=False), quiet=quiet))
    return Run(Path(out))


def _tree_of(recipe: RecipeSource) -> dict[str, Any]:
    if isinstance(recipe, Recipe):
        return recipes.tree_of(recipe)
    if isinstance(recipe, str | Path):
        return rename_in_recipe(recipes.read_tree(locate(Path(recipe), verb="run")), _warn)
    if isinstance(recipe, Mapping):
        return rename_in_recipe(copy.deepcopy(dict(recipe)), _warn)
    raise UserError("recipe", f"must be a recipe, a path, a shipped name or a mapping, got {type(recipe).__name__}")


def _shared_options(section: Any, method: Method) -> dict[str, Any]:
    """Return a recipe's section ``method`` without the options that only the recipe's own method has."""
    options = dict(section) if isinstance(section, Mapping) else {"name": section}
    model = options.get("model")
    named = {"name": options.get("name"), "model": model.get("name") if isinstance(model, Mapping) else model}
    try:
        recipe_options = {*find(named).options.model_fields, "model"}
    except UserError:  # the recipe was written for the method that is passed in
        recipe_options = set()
    return {
        key: value for key, value in options.items() if key in method.options.model_fields or key not in recipe_options
    }


def _entries(data: Mapping[str, DatasetSource], recipe: Recipe) -> dict[str, str]:
    """Return the changes that replace data entries of a recipe with these sets."""
    fixed = {name: f"data.{name}" for name in ("target", "public") if getattr(recipe.data, name) is not None}
    keys = {name: f"data.sites.{name}" for name in recipe.data.sites} | fixed
    if "user" not in keys:
        data = rename_keys(data, {"user": "target"}, "data.", _warn)
    if unknown := [name for name in data if name not in keys]:
        names = ", ".join(map(repr, unknown))
        raise UserError(
            "data",
            f"the recipe has no {names}; it has {', '.join(keys)}. Replace one of these, or add an "
            "entry with changes={'data.sites.NAME': ...}",
        )
    entries = {}
    for name, dataset in data.items():
        if not isinstance(dataset, PreparedSet | str | Path):
            raise UserError(f"data.{name}", f"must be a prepared set or its path, got {type(dataset).__name__}")
        entries[keys[name]] = str(dataset.path.resolve() if isinstance(dataset, PreparedSet) else dataset)
    return entries
