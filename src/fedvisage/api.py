"""Recipes from files, names or plain values, and runs of them; what is handed in takes the place of what they name."""

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
from fedvisage.metrics.scores import whole_rows
from fedvisage.recipe import Recipe
from fedvisage.recipe import load as load_recipe
from fedvisage.report.compare import Comparison, as_values
from fedvisage.report.compare import compare as compared
from fedvisage.report.compare_tables import as_text
from fedvisage.report.page import write_report
from fedvisage.report.run_files import as_written
from fedvisage.report.tracking.tensorboard import write_events
from fedvisage.runs.directory import METRICS, RECIPE, REPORT
from fedvisage.runs.evaluate import evaluate as judge
from fedvisage.runs.evaluate import recount as recount_run
from fedvisage.runs.run import Wire, run_and_report
from fedvisage.studies import conduct
from fedvisage.studies.shipped import locate
from fedvisage.tasks.catalogue import summary
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.finished_model import FinishedModel, open_model

# Tables as people look at them: pandas' where it is installed, and a list of rows where it is not.


def table(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame, or as they are."""
    if find_spec("pandas") is None:
        return list(rows)
    from pandas import DataFrame

    return DataFrame(rows)


def lines_of(path: Path) -> Any:
    """Return a file of JSON lines as a table; a last line that was cut off is left out."""
    return table(read_lines(path))


def columns_of(path: Path) -> Any:
    """Return a CSV file as a table, with numbers where all of a column are."""
    rows: list[dict[str, Any]] = list(whole_rows(path)[1])
    for column in rows[0] if rows else ():
        for kind in (int, float):
            with suppress(ValueError):
                numbers = [kind(row[column]) for row in rows]
                for row, number in zip(rows, numbers, strict=True):
                    row[column] = number
                break
    return table(rows)


# A run as an object: the files of its directory, read when they are asked for.


SCORES = "scores.csv"


@dataclass(frozen=True)
class Run:
    """A finished run; in a notebook it shows its report."""

    directory: Path
    method: Method | None = None
    """The method, where it was handed in."""

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """All figures."""
        return read_json(self._file(METRICS))

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        own = read_method if self.method is None else self.method.options.model_validate
        return load_recipe(self._file(RECIPE), [], own)

    @property
    def rounds(self) -> Any:
        """A row for each round: seconds, losses, who replied, bytes; a DataFrame where pandas is installed."""
        return lines_of(self._file(ROUNDS))

    @property
    def ledger(self) -> Any:
        """A row for each field that crossed between a site and the server."""
        return lines_of(self._file(LEDGER))

    @property
    def scores(self) -> Any:
        """A row for each scored frame; for recognition, for each pair of the benchmark."""
        return columns_of(self._file(SCORES))

    @cached_property
    def model(self) -> FinishedModel:
        """The finished model, ready to use."""
        return open_model(self.directory, method=self.method)

    def report(self) -> Path:
        """Return the path of the report, one HTML page; it is drawn if it is not there."""
        path = self.directory / REPORT
        if not path.exists():
            write_events(self.directory)
            write_report(self.directory)
        return path

    def _file(self, name: str) -> Path:
        path = self.directory / name
        if not path.exists():
            raise UserError(str(path), "does not exist; is this the directory of a finished run?")
        return path

    def __str__(self) -> str:
        """Return the headline figures."""
        with as_written(self.directory):
            judged = self.metrics["user"] is not None
            return "\n".join([*(summary(self.metrics) if judged else ()), f"run: {self.directory}"])

    def _repr_html_(self) -> str:
        page = html.escape(self.report().read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'


# Runs beside each other.


@dataclass(frozen=True)
class Comparisons:
    """A comparison: mean ± std over seeds, and differences to the first group with t intervals over targets."""

    rows: tuple[Comparison, ...]

    def values(self) -> list[dict[str, Any]]:
        """Return all figures as plain values."""
        return as_values(self.rows)

    def __str__(self) -> str:
        """Return the tables as Markdown."""
        return as_text(self.rows)

    def _repr_markdown_(self) -> str:
        return as_text(self.rows)


def compare(runs: Sequence[Run | str | Path]) -> Comparisons:
    """Compare finished runs."""
    return Comparisons(tuple(compared([one.directory if isinstance(one, Run) else Path(one) for one in runs])))


# Finished models, opened and judged again.


def open(directory: str | Path, *, method: Method | None = None) -> FinishedModel:
    """Open the model of a finished run, from the run's directory or from one that holds its two model files.

    ``method`` is that of the run, where the list does not know it.
    """
    return _told(open_model(Path(directory), method=method))


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
    """Judge a finished model on a prepared set or ``synth:`` line, its own user's unless one is named.

    ``adapt`` adapts it to the images first, without their labels; ``pairs`` is a list of pairs for recognition.
    ``benchmarks`` are further sets by name, each judged by the lists that lie beside it; nothing else is judged then,
    unless ``data`` is named.
    ``allow_mixed_crops`` takes a set that was cropped otherwise than what the model was trained on.
    Pictures that the model was trained on are refused unless ``allow_overlap``; with ``verify`` every byte of the set
    is read and compared with its digest.
    """
    directory = model.directory if isinstance(model, FinishedModel | Run) else Path(model)
    opened = _told(open_model(directory, adapt, None if pairs is None else Path(pairs), _method_of(model)))
    entry, where = None if data is None else str(data), None if out is None else Path(out)
    others = {name: str(one) for name, one in (benchmarks or {}).items()}
    return judge(
        opened, entry, Path(cache), where, benchmarks=others,
        checks=Checks(allow_mixed_crops, allow_overlap, verify), say=_warn,
    )  # fmt: skip


def _told(model: FinishedModel) -> FinishedModel:
    """Warn of what is to be known of a model's crops."""
    for line in model.notices:
        _warn(line)
    return model


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def _method_of(model: FinishedModel | Run | str | Path) -> Method | None:
    """Return the method of a model that is open already; files name theirs."""
    if isinstance(model, FinishedModel):
        return model.setup.method
    return model.method if isinstance(model, Run) else None


# The lists: methods by name, and the models that algorithms can train.


def methods() -> dict[str, Method]:
    """Return all methods by name, those of other packages among them."""
    return all_methods()


def models() -> dict[str, Model]:
    """Return the models that algorithms can train, by name, those of other packages among them."""
    return MODELS | {name: model_named(name) for name in extensions.names("models")}


# Studies: a grid of recipes that makes one table.


@dataclass(frozen=True)
class Studied:
    """A finished study: where it lies, and its table."""

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
) -> Studied:
    """Run what is missing of a study, a file or a shipped name, and return its table.

    Below ``root`` lie datasets; what lacks is imported into ``sets``. ``allow_mixed_crops`` takes sets that were
    cropped in different ways, ``allow_overlap`` pictures that are at two places, such as a site and the user.
    """
    where = Path(out) if out is not None else Path("runs") / f"{Path(path).stem}{'-smoke' if smoke else ''}"
    say = Reporter(Console(highlight=False), quiet=quiet).say
    file = locate(Path(path), verb="study")
    table = conduct(
        file, where, Path(cache), say, changes=changes, smoke=smoke, workers=workers,
        root=None if root is None else Path(root), sets=None if sets is None else Path(sets),
        checks=Checks(allow_mixed_crops, allow_overlap),
    )  # fmt: skip
    return Studied(where, table)


Given = Recipe | str | Path | Mapping[str, Any]
"""A recipe: read already, a file or a shipped name, or its content as plain values."""

Set = PreparedSet | str | Path
"""A prepared set, opened or not, or a ``synth:`` line that makes one."""


def load(recipe: Given, changes: Mapping[str, Any] | None = None, *, method: Method | None = None) -> Recipe:
    """Return a recipe with changes such as ``{"training.rounds": 4}``, validated.

    ``method`` takes the place of the method that the recipe names. It is one that the list does not know, and its
    options validate the recipe's section ``method``. Options of the recipe's own method that it lacks are left out; any
    other unknown key is an error.
    """
    tree = _tree_of(recipe)
    if method is not None:
        check_name(method)
        tree["method"] = _shared(tree.get("method"), method)
    for key, value in (changes or {}).items():
        recipes.put(tree, key, value)
    if method is None:
        return recipes.validate(tree, read_method)
    section = tree["method"]
    own = dict(section) if isinstance(section, Mapping) else {}
    return recipes.validate({**tree, "method": {**own, "name": method.name}}, method.options.model_validate)


def run(
    recipe: Given,
    *,
    out: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    method: Method | None = None,
    transport: Wire = LocalTransport,
    data: Mapping[str, Set] | None = None,
    cache: str | Path = CACHE,
    resume: bool = False,
    quiet: bool = False,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
    verify: bool = False,
) -> Run:
    """Run a recipe: train, judge at the user, write the run directory with its report.

    ``method`` takes the place of the recipe's, with its options as far as the method has them; the run records where it
    came from. ``transport`` makes a transport of the sites' ends. ``data`` replaces entries of the recipe: sets by the
    name of a site, or under ``user`` and ``public``; a name that the recipe does not have is refused. ``out`` is a new
    directory, or with ``resume`` one to continue in. Sets that were cropped in different ways are refused, unless
    ``allow_mixed_crops``. Pictures that are at two places, such as a site and the user, are refused unless
    ``allow_overlap``; with ``verify`` every byte of the sets is read and compared with its digest.
    """
    chosen = load(recipe, changes, method=method)
    if data:
        chosen = load(chosen, _entries(data, chosen), method=method)
    stem = Path(recipe).stem if isinstance(recipe, str | Path) else chosen.method.name
    where = Path(out) if out is not None else Path("runs") / f"{stem}-seed{chosen.runtime.seed}"
    reporter = Reporter(Console(highlight=False), quiet=quiet)
    run_and_report(
        chosen, where, Path(cache), reporter, method=method, resume=resume, wire=transport,
        checks=Checks(allow_mixed_crops, allow_overlap, verify),
    )  # fmt: skip
    return Run(where, method)


def recount(run: Run | str | Path, out: str | Path, *, cache: str | Path = CACHE, quiet: bool = False) -> Run:
    """Judge a finished run again with exact BatchNorm statistics, as ``training.statistics: exact`` would have left it.

    Nothing is trained. The run's sites are asked for the statistics of their training images, layer by layer, and for
    new thresholds; ``out`` is a new directory, or the unfinished one of a recount that was interrupted.
    """
    trained = run.directory if isinstance(run, Run) else Path(run)
    recount_run(trained, Path(out), Path(cache), Reporter(Console(highlight=False), quiet=quiet))
    return Run(Path(out))


def _tree_of(recipe: Given) -> dict[str, Any]:
    if isinstance(recipe, Recipe):
        return recipes.tree_of(recipe)
    if isinstance(recipe, str | Path):
        return recipes.read_tree(locate(Path(recipe), verb="run"))
    if isinstance(recipe, Mapping):
        return copy.deepcopy(dict(recipe))
    raise UserError("recipe", f"must be a recipe, a path, a shipped name or a mapping, got {type(recipe).__name__}")


def _shared(section: Any, method: Method) -> dict[str, Any]:
    """Return a recipe's section ``method`` without the options that only the method has which the recipe names."""
    own = dict(section) if isinstance(section, Mapping) else {"name": section}
    model = own.get("model")
    named = {"name": own.get("name"), "model": model.get("name") if isinstance(model, Mapping) else model}
    try:
        theirs = {*find(named).options.model_fields, "model"}
    except UserError:  # the recipe was written for the method that is passed in
        theirs = set()
    return {key: value for key, value in own.items() if key in method.options.model_fields or key not in theirs}


def _entries(data: Mapping[str, Set], recipe: Recipe) -> dict[str, str]:
    """Return the changes of a recipe that replace its entries by these sets."""
    fixed = {name: f"data.{name}" for name in ("user", "public") if getattr(recipe.data, name) is not None}
    keys = {name: f"data.sites.{name}" for name in recipe.data.sites} | fixed
    if unknown := [name for name in data if name not in keys]:
        named = ", ".join(map(repr, unknown))
        raise UserError("data", f"the recipe has no {named}; it has {', '.join(keys)}. Replace one of these, or add an "
                        "entry with changes={'data.sites.NAME': ...}")  # fmt: skip
    entries = {}
    for name, one in data.items():
        if not isinstance(one, PreparedSet | str | Path):
            raise UserError(f"data.{name}", f"must be a prepared set or where one lies, got {type(one).__name__}")
        entries[keys[name]] = str(one.path.resolve() if isinstance(one, PreparedSet) else one)
    return entries
