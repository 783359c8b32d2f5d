"""The Python API: load recipes, run and compare them, run studies, and evaluate finished models."""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base import extensions
from fedvisage.base.arguments import check_arguments, wrong_argument
from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE, json_key
from fedvisage.base.progress import reporter_on_stdout
from fedvisage.data.prepared import PreparedSet
from fedvisage.device.exported import Exported, is_export
from fedvisage.device.fused import Fused, open_export
from fedvisage.federation.method import Method
from fedvisage.federation.record.ledger import LEDGER, ROUNDS, read_lines
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.methods import MODELS, Catalogue, find, listed_methods, reader_of
from fedvisage.methods.models.model import Model
from fedvisage.methods.origin import check_name
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.metrics.scores import read_complete_rows
from fedvisage.recipe import ADAPTATIONS, Recipe
from fedvisage.recipe import load as load_recipe
from fedvisage.report.compare import Comparison, as_values
from fedvisage.report.compare import compare as compared
from fedvisage.report.compare_tables import as_text, in_form
from fedvisage.report.run_files import damaged_files_are_errors
from fedvisage.report.tables import as_csv, as_latex
from fedvisage.runs.directory import METRICS, RECIPE, REPORT
from fedvisage.runs.evaluate import evaluate as evaluate_model
from fedvisage.runs.evaluate import evaluate_export
from fedvisage.runs.evaluate import recount as recount_run
from fedvisage.runs.request import Request
from fedvisage.runs.run import run as run_recipe
from fedvisage.runs.workers import Wire
from fedvisage.starts.published import locate_detector
from fedvisage.studies.shipped import locate
from fedvisage.tasks.catalogue import summary
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.finished_model import FinishedModel, open_model
from fedvisage.tasks.pad.task import SCORES


def table(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame, or as a list if pandas is not installed."""
    if find_spec("pandas") is None:
        return list(rows)
    from pandas import DataFrame

    return DataFrame(rows)


A_RECIPE = "a recipe, its file, a shipped name such as 'demo/fedpad', or a mapping"
A_DATASET = "fv.dataset(images, labels, subjects=subjects)"
A_PATH = "a path, such as 'runs/first'"
A_RUN = "a run or its directory, such as 'runs/first'"
A_METHOD = "a method, such as fv.methods()['fedprox'] or an algorithm on a model: fedprox(fv.models()['resnet18'])"
RUNS = "a list of runs or their directories, such as ['runs/a', 'runs/b']"
CHANGES = "a mapping such as {'training.rounds': 4}, or a list such as ['training.rounds=4']"
ADVICE = "; keys of the recipe go into changes={'training.rounds': 4}"
"""Valid values of arguments, in the words of messages."""


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run, whose files are read at their first use; a notebook displays its report."""

    directory: Path
    method: Method | None = None
    """The method, if the caller passed it in."""

    def __post_init__(self) -> None:
        """Accept a directory as text."""
        if not isinstance(self.directory, str | Path):
            raise wrong_argument("directory", A_PATH, self.directory)
        object.__setattr__(self, "directory", Path(self.directory))

    @cached_property
    def metrics(self) -> Metrics:
        """All metrics, by name."""
        return read_metrics(self._file(METRICS))

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        return load_recipe(self._file(RECIPE), [], reader_of(self.method))

    @property
    def rounds(self) -> Any:
        """One row per round: seconds, losses, sites that replied, bytes; a DataFrame if pandas is installed."""
        return table(read_lines(self._file(ROUNDS)))

    @property
    def ledger(self) -> Any:
        """One row per field that a site or the server sent."""
        return table(read_lines(self._file(LEDGER)))

    @property
    def scores(self) -> Any:
        """One row per scored frame; for recognition, one row per pair of the benchmark."""
        if self.metrics["target"] is None:
            raise UserError(str(self.directory), "has no scores, because the run has no target; set data.target")
        rows: list[dict[str, Any]] = list(read_complete_rows(self._file(SCORES))[1])
        # A column becomes numbers if all its values are numbers.
        for column in rows[0] if rows else ():
            for kind in (int, float):
                with suppress(ValueError):
                    numbers = [kind(row[column]) for row in rows]
                    for row, number in zip(rows, numbers, strict=True):
                        row[column] = number
                    break
        return table(rows)

    @cached_property
    def model(self) -> FinishedModel:
        """The finished model, ready to use."""
        return open_model(self.directory, method=self.method)

    def report(self) -> Path:
        """Return the path of the report, one HTML page, and write it first if it is missing."""
        path = self.directory / REPORT
        if not path.exists() and self._file(METRICS):
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

    def __repr__(self) -> str:
        """Return the directory, and the name of a method that was passed in."""
        return f"Run({str(self.directory)!r}{f', method={self.method!r}' if self.method else ''})"

    def __str__(self) -> str:
        """Return the headline metrics."""
        with damaged_files_are_errors(self.directory):
            has_target = self.metrics["target"] is not None
            return "\n".join([*(summary(self.metrics) if has_target else ()), f"run: {self.directory}"])

    def _repr_html_(self) -> str:
        page = html.escape(self.report().read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """A comparison of runs: mean ± std over seeds, and differences to the first group with t intervals over targets."""

    rows: tuple[Comparison, ...]

    def values(self) -> list[dict[str, Any]]:
        """Return all metrics as plain values."""
        return as_values(self.rows)

    @property
    def figures(self) -> Any:
        """One row per method and figure, with its difference to the first; a DataFrame if pandas is installed."""
        rows = []
        for row in self.rows:
            for name, figure in row.figures.items():
                difference = row.differences.get(name)
                values = {"method": row.label, "figure": name, "runs": row.runs, "mean": figure.mean, "std": figure.std}
                of_difference = {key: getattr(difference, key, None) for key in ("low", "high", "verdict", "over")}
                rows.append({**values, "difference": getattr(difference, "mean", None), **of_difference})
        return table(rows)

    def csv(self) -> str:
        """Return the figures as CSV, with means and standard deviations in separate columns."""
        return in_form(self.rows, as_csv)

    def latex(self) -> str:
        """Return the figures as a LaTeX tabular, without caption and label."""
        return in_form(self.rows, as_latex)

    def __repr__(self) -> str:
        """Return the tables as Markdown."""
        return as_text(self.rows)

    _repr_markdown_ = __repr__


@check_arguments(runs=RUNS)
def compare(runs: Sequence[Run | str | Path] | Iterator[Run | str | Path]) -> ComparisonResult:
    """Compare finished runs."""
    directories = [_directory_of(run, f"runs[{number}]") for number, run in enumerate(runs)]
    if not directories:
        raise UserError("runs", f"must be {RUNS}; got none")
    return ComparisonResult(tuple(compared(directories)))


def _directory_of(run: Run | str | Path, place: str) -> Path:
    if not isinstance(run, Run | str | Path):
        raise wrong_argument(place, A_RUN, run)
    return run.directory if isinstance(run, Run) else Path(run)


# Evaluation of finished models.


AN_OPERATING_POINT = "one of the forms 'bpcer=1%', 'apcer=5%', 'fmr=1e-4' and 'eer'"


@check_arguments(directory=A_RUN, method=A_METHOD, at=AN_OPERATING_POINT)
def open(directory: Run | str | Path, *, method: Method | None = None, at: str | None = None) -> FinishedModel | Any:
    """Open the model of a finished run, from the run's directory or from a directory with its two model files.

    ``method`` is the method of the run, if the catalogue does not contain it. ``at`` is an operating point, such as
    ``bpcer=1%``, that replaces the model's threshold. The directory of an export or of a fused model, and the name of a
    published detector that is in the cache, become models of ``fedvisage.device``; they have ``score``, ``is_live`` and
    ``threshold``, too.
    """
    if not isinstance(directory, Run):
        directory = locate_detector(directory)
    if isinstance(directory, Path) and is_export(directory):
        exported = open_export(directory)
        for line in exported.notices:
            _warn(line)
        return exported if at is None else exported.at(at)
    if isinstance(directory, Run):
        method, directory = method or directory.method, directory.directory
    return _warn_of_crops(open_model(Path(directory), method=method, at=at))


@check_arguments(
    model="an opened model, a run or export, or its directory, such as 'runs/first'",
    data="a dataset, its path or a synth: line, such as 'sets/lab'; arrays become one with fv.dataset",
    adapt=f"one of the texts {', '.join(ADAPTATIONS)}",
    pairs="the path of a list of pairs",
    benchmarks="a mapping from names to sets, such as {'lfw': 'sets/lfw'}",
    by="a column of the set, such as 'tone', or with edges, such as 'age=30,60'",
    out=A_PATH,
    cache=A_PATH,
)
def evaluate(
    model: FinishedModel | Exported | Fused | Run | str | Path,
    data: DatasetSource | None = None,
    *,
    adapt: str | None = None,
    pairs: str | Path | None = None,
    benchmarks: Mapping[str, DatasetSource] | None = None,
    by: str | None = None,
    out: str | Path | None = None,
    cache: str | Path = CACHE,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
    verify: bool = False,
) -> dict[str, Any]:
    """Evaluate a finished model on a dataset or ``synth:`` line, by default the run's target.

    ``adapt`` first adapts the model to the images, without their labels. ``pairs`` is a list of pairs for recognition.
    ``by`` is a column of the set, such as ``tone``, whose groups are compared.
    ``benchmarks`` maps names to further sets; each is evaluated with the lists in its directory. With benchmarks, the
    function evaluates another set only if ``data`` names one.
    ``allow_mixed_crops`` accepts a set whose crops differ from those of the training data. Images from the training
    data raise an error unless ``allow_overlap`` is set. ``verify`` reads every byte of the set and compares it with the
    set's digest.
    """
    checks, out_directory = Checks(allow_mixed_crops, allow_overlap, verify), None if out is None else Path(out)
    entry = None if data is None else _entry(data, "data")
    directory = locate_detector(model) if isinstance(model, str | Path) else model.directory
    if isinstance(model, Exported | Fused) or is_export(directory):
        exported = model if isinstance(model, Exported | Fused) else open_export(directory)
        if adapt or pairs or benchmarks:
            raise UserError("adapt", "and pairs and benchmarks apply to a run; leave them out, or name the run")
        if entry is None:
            raise UserError("data", "is missing; an export has no target, so name a prepared set")
        return evaluate_export(exported, entry, Path(cache), out_directory, by=by, checks=checks, say=_warn)
    method = model.setup.method if isinstance(model, FinishedModel) else None
    method = model.method if isinstance(model, Run) else method
    opened = _warn_of_crops(open_model(directory, adapt, None if pairs is None else Path(pairs), method))
    if isinstance(model, FinishedModel):  # its thresholds may be those of an operating point
        opened = replace(opened, saved=replace(opened.saved, thresholds=model.thresholds))
    sets = {name: _entry(dataset, f"benchmarks.{name}") for name, dataset in (benchmarks or {}).items()}
    return evaluate_model(opened, entry, Path(cache), out_directory, benchmarks=sets, by=by, checks=checks, say=_warn)


def _warn_of_crops(model: FinishedModel) -> FinishedModel:
    """Issue the notices about a model's crops as warnings."""
    for line in model.notices:
        _warn(line)
    return model


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


@check_arguments()
def methods() -> Catalogue[Method]:
    """Return all methods by name, including those of other packages."""
    return listed_methods()


@check_arguments()
def models() -> Catalogue[Model]:
    """Return the models that algorithms can train, by name, including those of other packages."""
    return Catalogue(MODELS | extensions.load_all("models", MODELS, Model))


Changes = Mapping[str, Any] | Sequence[str]
"""Changes of a recipe: values by dotted key, or texts of the form ``key=value``, as on the command line."""


@dataclass(frozen=True, repr=False)
class StudyResult:
    """A finished study: its directory and its table."""

    directory: Path
    table: dict[str, Any]

    def __repr__(self) -> str:
        """Return the directory."""
        return f"StudyResult({str(self.directory)!r})"

    def __str__(self) -> str:
        """Return the table as Markdown."""
        return (self.directory / "table.md").read_text(encoding="utf-8")

    _repr_markdown_ = __str__


@check_arguments(
    f"{ADVICE}; a method of your own needs an entry point, and its name in the study (docs/extending.md#registration)",
    path="a study's file or a shipped name, such as 'studies/table3-demo'",
    out=A_PATH,
    changes=CHANGES,
    root=A_PATH,
    sets=A_PATH,
    cache=A_PATH,
)
def study(
    path: str | Path,
    *,
    out: str | Path | None = None,
    changes: Changes = (),
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

    if workers < 1:
        raise wrong_argument("workers", "1 or more", workers)
    directory = Path(out) if out is not None else Path("runs") / f"{Path(path).stem}{'-smoke' if smoke else ''}"
    if isinstance(changes, Mapping):
        changes = [f"{key}={json_key(_plain(value))}" for key, value in changes.items()]
    say = reporter_on_stdout(quiet).say
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


@check_arguments(ADVICE, recipe=A_RECIPE, changes=CHANGES, method=A_METHOD)
def load(recipe: RecipeSource, changes: Changes | None = None, *, method: Method | None = None) -> Recipe:
    """Load and validate a recipe with changes such as ``{"training.rounds": 4}`` or ``["training.rounds=4"]``.

    ``method`` replaces the method that the recipe names. It is a method outside the catalogue, and its options validate
    the recipe's section ``method``. Options that only the recipe's own method has are dropped; any other unknown key is
    an error.
    """
    if isinstance(recipe, Recipe):
        tree = recipes.tree_of(recipe)
    elif isinstance(recipe, Mapping):
        tree = dict(_plain(recipe))
    else:
        tree = recipes.read_tree(locate(Path(recipe), verb="run"))
    if method is not None:
        check_name(method)
        tree["method"] = _shared_options(tree.get("method"), method)
    if isinstance(changes, Mapping):
        for key, value in changes.items():
            recipes.set_value(tree, str(key), _plain(value))
    else:
        for number, change in enumerate(changes or ()):
            if not isinstance(change, str):
                raise wrong_argument(f"changes[{number}]", "a text such as 'training.rounds=4'", change)
            recipes.apply_override(tree, change)
    if method is not None:
        section = tree["method"]
        tree["method"] = {**(section if isinstance(section, Mapping) else {}), "name": method.name}
    return recipes.validate(tree, reader_of(method))


@check_arguments(
    ADVICE,
    recipe=A_RECIPE,
    out=A_PATH,
    changes=CHANGES,
    method=A_METHOD,
    transport="a class or function that makes a transport from sites, such as "
    "fedvisage.federation.site_worker.LocalTransport; `fedvisage run --on nvflare` runs between organisations",
    data=f"a mapping from the recipe's sites, target or public to sets, such as {{'A': {A_DATASET}}}",
    cache=A_PATH,
)
def run(
    recipe: RecipeSource,
    *,
    out: str | Path | None = None,
    changes: Changes | None = None,
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
        fixed = {name: f"data.{name}" for name in ("target", "public") if getattr(resolved.data, name) is not None}
        keys = {name: f"data.sites.{name}" for name in resolved.data.sites} | fixed
        if unknown := [name for name in data if name not in keys]:
            names = ", ".join(map(repr, unknown))
            raise UserError(
                "data",
                f"the recipe has no {names}; it has {', '.join(keys)}. Replace one of these, or add an "
                "entry with changes={'data.sites.NAME': ...}",
            )
        entries = {keys[name]: _entry(dataset, f"data.{name}") for name, dataset in data.items()}
        resolved = load(resolved, entries, method=method)
    stem = Path(recipe).stem if isinstance(recipe, str | Path) else resolved.method.name
    directory = Path(out) if out is not None else Path("runs") / f"{stem}-seed{resolved.runtime.seed}"
    checks = Checks(allow_mixed_crops, allow_overlap, verify)
    request = Request(resolved, directory, Path(cache), method, resume, transport, checks=checks, report=True)
    run_recipe(request, reporter_on_stdout(quiet))
    return Run(directory, method)


@check_arguments(run=A_RUN, out="the path of a new directory, such as 'runs/exact'", cache=A_PATH)
def recount(run: Run | str | Path, out: str | Path, *, cache: str | Path = CACHE, quiet: bool = False) -> Run:
    """Evaluate a finished run with exact BatchNorm statistics, like a run with ``training.statistics: exact``.

    Nothing is trained. The server requests the statistics of the sites' training images, layer by layer, and new
    thresholds. ``out`` is a new directory, or the directory of an interrupted recount.
    """
    recount_run(_directory_of(run, "run"), Path(out), Path(cache), reporter_on_stdout(quiet))
    return Run(Path(out))


def _plain(value: Any) -> Any:
    """Return a copy of a value without types that no recipe has: paths, tuples, and numbers of NumPy or torch."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if getattr(value, "shape", None) == () else value


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


def _entry(dataset: DatasetSource, place: str) -> str:
    """Return the entry of a recipe for a dataset."""
    if not isinstance(dataset, PreparedSet | str | Path):
        raise wrong_argument(place, f"a dataset, its path or a synth: line; {A_DATASET} makes one of arrays", dataset)
    return str(dataset.path.resolve() if isinstance(dataset, PreparedSet) else dataset)
