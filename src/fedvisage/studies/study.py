"""Study files: recipes, sets, rows, seeds, figures, and the printed tables to compare with.

``like: [ONE, OTHER]`` inherits the keys of other files; later files override earlier ones, and the file's own keys
override all. So a table's rows are written once for rendered and for real data, and the size of studies once for all
tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError, choice_hint, suggestion
from fedvisage.data.selection import split_entry
from fedvisage.datasets.importing import read_spec
from fedvisage.datasets.protocols.catalogue import PROTOCOLS, locate_entry
from fedvisage.metrics.recorded import Metrics
from fedvisage.recipe import SITE_NAME, Section, expand_names, expand_sites, read_section
from fedvisage.studies.shipped import locate

# Figures: the columns of a study's table. ``value_of`` documents their names.

PERCENT = 100.0
OWN = ("generic", "personal", "group", "impostors", "heldout")
"""First parts of figures that do not belong to a further benchmark."""
_PUBLISHED = re.compile(r"published\.(?:hter_target_eer|hter_train_eer|tpr_bona_fide_1pct)")
_RATE = re.compile(r"(generic|personal)(?:\.(generic|local|own))?\.((?:tar|tpir)@\d+e-\d+)")
_IMPOSTORS = re.compile(r"impostors\.(?:within|across)\.tar@\d+e-\d+")
_HELDOUT = re.compile(r"heldout\.(eer|auc)")
_OWN_MODELS = re.compile(r"personal\.(?:eer|auc)")
_GROUP = re.compile(r"group\.([A-Za-z0-9_-]+)\.accuracy")
_BENCHMARK = re.compile(
    rf"({SITE_NAME.pattern})(?:\.([A-Za-z0-9_-]+))?\.(accuracy|(?:tar|tpir|rank)@(?:\d+e-\d+|[1-9]\d*))"
)

BLIND = ("heldout.eer", "heldout.auc")
"""Figures that choices between methods or settings may use."""

COSTS: Mapping[str, tuple[str, float]] = {
    "seconds": ("seconds", 1.0),
    "peak_rss_mb": ("peak_rss_mb", 1.0),
    "megabytes_up": ("bytes_up", 1e-6),
    "megabytes_down": ("bytes_down", 1e-6),
    "steps_per_epoch": ("steps_per_epoch", 1.0),
}
"""Costs of a run: their keys in metrics.json, and the factors of their units."""

HEADINGS: Mapping[str, str] = {
    "published.hter_target_eer": "HTER at the target's EER threshold (as published)",
    "published.hter_train_eer": "HTER at the training scores' EER threshold (as published)",
    "published.tpr_bona_fide_1pct": "bona fide accepted at 1 % of attacks (as published)",
    "tpr_at_fpr_1pct": "TPR at FPR 1 %",
    "apcer_pooled": "pooled APCER",
    "seconds": "seconds",
    "peak_rss_mb": "peak memory (MB)",
    "megabytes_up": "MB up",
    "megabytes_down": "MB down",
    "steps_per_epoch": "steps per epoch",
}
"""Headings of figures whose names are not clear enough."""
WORDS = ("accuracy", "rank")
"""Measures that are not abbreviations."""

Attacks = Literal["hter", "eer", "auc", "tpr_at_fpr_1pct", "bpcer", "apcer_pooled", "acer"]
_OWN = (_RATE, _PUBLISHED, _GROUP, _IMPOSTORS, _HELDOUT, _OWN_MODELS)
_NAMES = "|".join([*(one.pattern for one in _OWN), *COSTS, _BENCHMARK.pattern])
Figure = Attacks | Annotated[str, Field(pattern=f"^({_NAMES})$")]


def benchmark_of(figure: str) -> str | None:
    """Return the further benchmark of a figure; None for other figures."""
    is_own = any(pattern.fullmatch(figure) for pattern in _OWN)
    match = None if is_own else _BENCHMARK.fullmatch(figure)
    return None if match is None else match[1]


def value_of(metrics: Metrics, figure: str) -> float | None:
    """Return a figure of a run; None if it could not be measured.

    Figures of attack detection are names of metrics.json: `hter`. Figures of recognition combine model, rate and error
    rate: `generic.tar@1e-3`, `personal.tpir@1e-2`, and `personal.local.tar@1e-3` for one of the models that a site may
    use for its people. `published.hter_target_eer` follows a rule of papers (`metrics/threshold`), if the recipe has
    `evaluation.published`. `impostors.across.tar@1e-3` only counts impostor pairs from different groups,
    `impostors.within` those within one group; `group.African.accuracy` is the accuracy on ten folds of pairs within a
    group of the target's set. `heldout.eer` and `heldout.auc` are means over the sites, on their held-out images; they
    do not involve the target. `personal.eer` and `personal.auc` are those of the sites' own models. Costs are
    `seconds`, `peak_rss_mb`, `megabytes_up`, `megabytes_down` and `steps_per_epoch`; bytes that an interrupted run sent
    twice count once.

    Figures of a further benchmark start with its name: `lfw.accuracy` and `lfw.tar@1e-3` on its only list of pairs,
    `rfw.african.accuracy` on one of several lists, `ijb-c.tar@1e-4`, `ijb-c.tpir@1e-2` and `ijb-c.rank@1` on templates
    in the reading of released code, `ijb-c.conservative.tar@1e-4` in the other reading. Benchmarks without lists have
    the figures of a target.
    """
    if (match := _HELDOUT.fullmatch(figure)) is not None:
        sites = [site.number(match[1]) for site in metrics.parts("sites_heldout").values()]
        measured = [value for value in sites if value is not None]
        return fmean(measured) if measured else None
    for name in _recorded_names(metrics, figure):
        if name in metrics:
            value, again = metrics.number(name), metrics.number(f"repeated.{name}")
            return value if value is None or again is None else value - again
    return None


def _recorded_names(metrics: Metrics, figure: str) -> list[str]:
    """Return the names under which a run can have recorded a figure, the first choice first."""
    if figure in COSTS:
        return [COSTS[figure][0]]
    if _IMPOSTORS.fullmatch(figure):
        return [f"generic.{figure}"]
    if (match := _GROUP.fullmatch(figure)) is not None:
        return _names_of_group("generic", match[1])
    if (match := _RATE.fullmatch(figure)) is not None and match[2] is not None:
        return [f"{match[1]}.models.{match[2]}.{match[3]}"]
    if benchmark_of(figure) is None:
        return [figure]
    match = _BENCHMARK.fullmatch(figure)
    assert match is not None, "a benchmark metric needs its full form"
    name, part, measure = match.groups()
    start = f"benchmarks.{name}"
    if part is None:
        return [f"{start}.{place}.{measure}" for place in ("readings.published", "lists.all", "generic")]
    # On a group's list counts the model of the group's site, if each site has its own; lists have lower-case names.
    owners = [member for member in metrics.parts(f"{start}.members") if member.lower() == part]
    places = [f"{start}.members.{owner}" for owner in owners] or [start]
    names = [f"{place}.{kind}.{part}.{measure}" for place in places for kind in ("lists", "readings")]
    return names + (_names_of_group(f"{start}.generic", part) if measure == "accuracy" else [])


def _names_of_group(generic: str, group: str) -> list[str]:
    """Return the names of the accuracy on a group's pairs: of the group's site's own model, or of the only one."""
    return [f"{place}.groups.{group}.accuracy" for place in (f"{generic}.members.{group}", generic)]


def heading(figure: str) -> str:
    """Return the heading of a figure's column."""
    if figure in HEADINGS:
        return HEADINGS[figure]
    *prefixes, name = figure.split(".")
    measure, *rate = name.split("@")
    words = ["held-out" if word == "heldout" else word for word in prefixes]
    return " ".join([*words, "@".join([measure if measure in WORDS else measure.upper(), *rate])])


def scale(figure: str) -> float:
    """Return the factor of a figure in tables: rates are in per cent, costs in their own units."""
    return COSTS[figure][1] if figure in COSTS else PERCENT


# Printed tables of papers: figures by row and target, printed averages, and contradictions between the two.

Values = list[float]
ROUNDING = 0.01
"""Largest difference between a printed average and the mean of its printed rows, both rounded to two places."""


class PrintedTable(Section):
    """One printed table, percent, its values in the order of ``columns``.

    ``rows`` gives a row's values by target; if the paper prints a row for each data centre, by target and site. Other
    tables of the same study may hold the rows behind ``averages``, because papers repeat each other's rows. An average
    may cover the first columns only.
    """

    source: str
    columns: list[Figure] = ["hter", "eer", "auc"]
    rows: dict[str, dict[str, Values | dict[str, Values]]]
    averages: dict[str, Values] = {}
    notes: list[str] = []

    @model_validator(mode="after")
    def _values_fill_the_columns(self) -> PrintedTable:
        lines = [
            values for targets in self.rows.values() for entry in targets.values() for values in _sites(entry).values()
        ]
        wrong = [values for values in lines if len(values) != len(self.columns)]
        wrong += [values for values in self.averages.values() if not 1 <= len(values) <= len(self.columns)]
        if wrong:
            raise ValueError(f"{wrong[0]} are not the {len(self.columns)} columns {', '.join(self.columns)}")
        return self


def quoted_figures(tables: Sequence[PrintedTable], row: str, target: str, site: str | None = None) -> dict[str, float]:
    """Return the printed figures of a row for a target: of one data centre, or the mean over all printed centres."""
    for table in tables:
        entry = table.rows.get(row, {}).get(target)
        if entry is not None:
            sites = _sites(entry)
            chosen = list(sites.values()) if site is None else [sites[site]] if site in sites else []
            return dict(zip(table.columns, np.mean(chosen, axis=0).tolist(), strict=True)) if chosen else {}
    return {}


def quoted_mean(tables: Sequence[PrintedTable], row: str, targets: Collection[str]) -> dict[str, float]:
    """Return the mean of the printed figures over targets, in any order, if all targets have a printed row."""
    lines = [quoted_figures(tables, row, target) for target in targets]
    return {name: fmean(line[name] for line in lines) for name in lines[0]} if all(lines) else {}


def printing_errors(tables: Sequence[PrintedTable], rows: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Report printed averages that contradict the printed rows, for rows printed for exactly these targets."""
    contradictions = []
    for table in tables:
        for row, averages in table.averages.items():
            printed = {target for other in tables for target in other.rows.get(row, {})}
            if row not in rows or printed != set(targets):
                continue
            means = quoted_mean(tables, row, printed)
            for name, average in zip(table.columns, averages, strict=False):
                if name in means and abs(means[name] - average) > ROUNDING:
                    contradictions.append(
                        f"{table.source}, prints {average:.2f} as the average {heading(name)} of {row}; "
                        f"its rows average {means[name]:.2f}, as shown above."
                    )
    return contradictions


def _sites(entry: Values | dict[str, Values]) -> dict[str, Values]:
    return entry if isinstance(entry, dict) else {"": entry}


Tree = dict[str, Any]

DATA = "data"
"""Assumed folder of a protocol's sets, as in the shipped studies."""


class StudyRow(Section):
    """One row of the table: changes to a recipe, or another evaluation of another row's model.

    ``recipe`` names one of the study's further recipes. ``sites`` names the training sets of this row, if they differ
    from the study's, and ``public`` another set of public identities. ``trained_by`` names an earlier row: this row
    inherits its recipe, changes and sets, and evaluates its finished model instead of training the same model again.
    ``quotes`` names the printed row to compare with, if its name differs.
    """

    recipe: str | None = None
    set: list[str] = []
    sites: list[str] | None = None
    public: str | None = None
    trained_by: str | None = None
    quotes: str | None = None

    @field_validator("sites", mode="before")
    @classmethod
    def _many_sites(cls, value: Any) -> Any:
        return expand_names(value) if isinstance(value, list) else value


class Study(Section):
    """A study file, with the content of the recipes and printed tables that it names.

    All ``sites`` except the target's train, and each of ``targets`` is the target in turn; both default to all sets
    except public ones. For recognition, ``public`` names the set of public identities, which is neither, and
    ``benchmarks`` names further sets for the evaluation of every finished model: their figures start with their names.
    A ``protocol`` replaces sets: its folds are the targets, and define the training data of each site. ``trains`` gives
    the part of a set on which its site trains, if that differs from the part for evaluation: one frame per video, for
    example. ``imports`` gives the dataset and import settings of each set, by the name of the set's directory. A set
    without an entry can be any prepared set of that name, and ``made_by`` gives a command that makes one.
    ``beside`` assigns printed figures to figures of another name.
    """

    title: str
    recipe: Tree
    recipes: dict[str, Tree] = {}
    protocol: str | None = None
    sets: dict[str, str]
    trains: dict[str, str] = {}
    sites: list[str]
    targets: list[str]
    public: str | None = None
    benchmarks: dict[str, str] = {}
    imports: dict[str, str] = {}
    made_by: dict[str, str] = {}
    set: list[str] = []
    rows: dict[str, StudyRow] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    figures: list[Figure] = ["hter", "eer", "auc"]
    paper: list[PrintedTable] = []
    beside: dict[Figure, Figure] = {}

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError("a repeated seed repeats the same run")
        return value

    @field_validator("benchmarks")
    @classmethod
    def _benchmarks_have_names_of_their_own(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not SITE_NAME.fullmatch(name) or name in OWN:
                reserved = ", ".join(OWN)
                raise ValueError(
                    f"{name!r}: use letters, digits, '-' and '_', and not {reserved}, which metric names begin with"
                )
        return value

    @model_validator(mode="before")
    @classmethod
    def _all_sets_are_sites_and_targets(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and isinstance(tree.get("protocol"), str):
            tree = _expand_protocol(tree)
        if not isinstance(tree, dict) or not isinstance(tree.get("sets"), dict):
            return tree
        sets = expand_sites(tree["sets"])
        rows = tree["rows"].values() if isinstance(tree.get("rows"), dict) else ()
        public = {tree.get("public"), *(row.get("public") for row in rows if isinstance(row, dict))}
        sites = tree.get("sites", [name for name in sets if name not in public])
        sites = expand_names(sites) if isinstance(sites, list) else sites
        return {"targets": sites, **tree, "sets": sets, "sites": sites}

    @model_validator(mode="after")
    def _there_are_targets_beside_sites(self) -> Study:
        if self.protocol is None and len(self.sets) < 2:
            raise ValueError("sets needs at least two entries, one to train on and one to evaluate on")
        if self.protocol is not None and self.public is not None:
            raise ValueError("public requires recognition, but protocols are about attacks; remove one")
        if self.protocol is not None and self.trains:
            raise ValueError("trains requires sets, but a protocol defines its own training data; remove one")
        return self


def _expand_protocol(tree: Tree) -> Tree:
    """Replace a protocol with its sets: all sites of all folds, with the folds as targets."""
    protocol = PROTOCOLS.get(tree["protocol"])
    if protocol is None:
        raise ValueError(
            f"{tree['protocol']!r} is not a known protocol{suggestion(str(tree['protocol']), PROTOCOLS)}; "
            "`fedvisage data protocols` lists them"
        )
    entries = {site: entry for fold in protocol.folds.values() for site, entry in fold.sites.items()}
    sites = {
        name: entries[name] for name in (*protocol.folds, *entries) if name in entries
    }  # in the order of the targets
    imports = {name: f"{imported.kind} {imported.options}".strip() for name, imported in protocol.sets.items()}
    sets = {site: locate_entry(entry, Path(DATA)) for site, entry in sites.items()}
    return {"targets": list(protocol.folds), "sites": list(sites), **tree, "sets": sets, "imports": imports}


def load_study(path: Path) -> Study:
    """Read and validate a study file and all files that it names."""
    study = read_section(Study, _read_inherited(path), f"{path}: ")
    places: dict[str, str] = {}
    # Rows: only an earlier row can have trained a model, and each row needs a directory of its own.
    for number, (name, row) in enumerate(study.rows.items()):
        place = f"{path}: rows.{name}"
        if row.trained_by is not None and row.trained_by not in list(study.rows)[:number]:
            raise UserError(f"{place}.trained_by", f"{row.trained_by!r} is not a row above this one")
        if row.recipe is not None and row.recipe not in study.recipes:
            raise UserError(
                f"{place}.recipe",
                f"{row.recipe!r} is not among the study's recipes{choice_hint(row.recipe, study.recipes)}",
            )
        _check_names(row.sites or [], study, f"{place}.sites")
        _check_names([] if row.public is None else [row.public], study, f"{place}.public")
        if places.setdefault(slug(name), name) != name:
            raise UserError(place, f"has the same output directory as {places[slug(name)]!r}; give it another name")
    _check_names(study.sites, study, f"{path}: sites")
    _check_names(list(study.trains), study, f"{path}: trains")
    # A site may train on another part of its set, but not on another set.
    for name, entry in study.trains.items():
        if split_entry(entry)[0] != split_entry(study.sets[name])[0]:
            raise UserError(
                f"{path}: trains.{name}", f"{entry!r} selects from a different set than {study.sets[name]!r}"
            )
    for name, text in study.imports.items():  # raises for malformed settings
        read_spec(text, f"{path}: imports.{name}")
    if study.protocol is None:
        _check_names(study.targets, study, f"{path}: targets")
    elif unknown := [target for target in study.targets if target not in PROTOCOLS[study.protocol].folds]:
        folds = PROTOCOLS[study.protocol].folds
        raise UserError(
            f"{path}: targets", f"{unknown[0]!r} is not a target of {study.protocol}{choice_hint(unknown[0], folds)}"
        )
    _check_names([] if study.public is None else [study.public], study, f"{path}: public")
    # The pattern of figures allows any benchmark name; only the study knows its benchmarks.
    for figure in study.figures:
        if (benchmark := benchmark_of(figure)) not in (None, *study.benchmarks):
            place = f"{path}: figures"
            raise UserError(
                place,
                f"{figure} belongs to {benchmark!r}, which is not among the study's benchmarks"
                f"{choice_hint(str(benchmark), study.benchmarks)}",
            )
    return study


def slug(row: str) -> str:
    """Return a row's name in the form used in directory names."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in row).lower().split())


def _check_names(names: list[str], study: Study, place: str) -> None:
    for name in names:
        if name not in study.sets:
            raise UserError(place, f"{name!r} is not among the study's sets{choice_hint(name, study.sets)}")


def _read_inherited(path: Path, above: tuple[Path, ...] = ()) -> Tree:
    """Read a file with its inherited keys, and with the content of the files that it names."""
    tree: Tree = {}
    content = recipes.read_tree(path)
    above = (*above, path.resolve())
    like = content.pop("like", [])
    names = [like] if isinstance(like, str) else like
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: like", "must be the name of a study, or a list of names")
    for name in names:
        inherited = locate(name, path.parent)
        if inherited.resolve() in above:
            raise UserError(f"{path}: like", f"{name} inherits from a study that inherits from it")
        tree |= _read_inherited(inherited, above)
    if "recipe" in content:
        content["recipe"] = _read_named(content["recipe"], path)
    if isinstance(content.get("recipes"), dict):
        content["recipes"] = {name: _read_named(entry, path) for name, entry in content["recipes"].items()}
    if isinstance(content.get("paper"), list):
        content["paper"] = [_read_named(entry, path) for entry in content["paper"]]
    return tree | content


def _read_named(entry: Any, path: Path) -> Any:
    """Return an entry's content; a file name is a path relative to the naming file, or a shipped name."""
    return recipes.read_tree(locate(entry, path.parent)) if isinstance(entry, str) else entry
