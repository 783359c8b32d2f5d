"""What a study file says: recipes, sets, rows, seeds, and the printed tables to stand beside its own.

``like: [ONE, OTHER]`` takes over what other files say, the later before the earlier, and this file's own words before
theirs. So a table's rows are written once for rendered and for real data, and a size of studies once for all tables.
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
from fedvisage.base.errors import UserError, choice
from fedvisage.data.selection import without_selection
from fedvisage.datasets.import_spec import read_wanted
from fedvisage.datasets.protocols.catalogue import PROTOCOLS, located
from fedvisage.recipe import SITE_NAME, Section, many_names, many_sites, read_section
from fedvisage.report.compare import PLACES, TABLES
from fedvisage.studies.shipped import locate

# The figures that a study can put into columns, and where a run's metrics.json has them.
#
# Attack detection's stand at the top: `hter`. Recognition's are named by model, rate and error rate:
# `generic.tar@1e-3`,
# `personal.tpir@1e-2`, and `personal.local.tar@1e-3` for one of the models by which a site can know its people;
# `published.hter_target_eer` is by a rule of papers (`metrics/published`), where the recipe says
# `evaluation.published`.
# `impostors.across.tar@1e-3` counts pairs of two people of different groups alone, `impostors.within` of one group;
# `group.African.accuracy` is the accuracy on ten folds of pairs within a group of the user's set. `heldout.eer` and
# `heldout.auc` are of the sites' held-out images, the mean over sites: no figure of the user. What a run cost:
# `seconds`, `peak_rss_mb`, `megabytes_up`, `megabytes_down`, `steps_per_epoch`; bytes that an interrupted run sent
# twice
# count once.
#
# A further benchmark's begin with its name: `lfw.accuracy` and `lfw.tar@1e-3` on its only list of pairs,
# `rfw.african.accuracy` on one of several, `ijb-c.tar@1e-4`, `ijb-c.tpir@1e-2` and `ijb-c.rank@1` on templates as
# released code reads them, `ijb-c.conservative.tar@1e-4` in the other reading. Without lists they are those of a
# user.


PERCENT = 100.0
OWN = ("generic", "personal", "group", "impostors", "heldout")
"""What figures that are of no further benchmark begin with."""
USUAL = ("published", "all")
"""The reading of templates and the list of pairs that a benchmark's figure means if it names none."""

_RATE = re.compile(r"(generic|personal)(?:\.(generic|local|own))?\.(tar|tpir)@(\d+e-\d+)")
_PUBLISHED = re.compile(r"published\.(hter_target_eer|hter_train_eer|tpr_bona_fide_1pct)")
_IMPOSTORS = re.compile(r"impostors\.(within|across)\.tar@(\d+e-\d+)")
_HELDOUT = re.compile(r"heldout\.(eer|auc)")
_GROUP = re.compile(r"group\.([A-Za-z0-9_-]+)\.accuracy")
_BENCHMARK = re.compile(
    rf"({SITE_NAME.pattern})(?:\.([A-Za-z0-9_-]+))?\.(?:(accuracy)|(tar|tpir|rank)@(\d+e-\d+|[1-9]\d*))"
)
_KINDS = {**TABLES, "rank": "rank"}

BLIND = ("heldout.eer", "heldout.auc")
"""What may be looked at while a choice is being made."""

COSTS: Mapping[str, tuple[str, float]] = {
    "seconds": ("seconds", 1.0),
    "peak_rss_mb": ("peak_rss_mb", 1.0),
    "megabytes_up": ("bytes_up", 1e-6),
    "megabytes_down": ("bytes_down", 1e-6),
    "steps_per_epoch": ("steps_per_epoch", 1.0),
}
"""What a run cost: its name in metrics.json, and what it is multiplied with."""

HEADINGS: Mapping[str, str] = {
    "published.hter_target_eer": "HTER at the user's EER threshold (as published)",
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
"""Columns whose names do not say enough."""
WORDS = ("accuracy", "rank")
"""Measures that are no abbreviations."""

Attacks = Literal["hter", "eer", "auc", "tpr_at_fpr_1pct", "bpcer", "apcer_pooled", "acer"]
_OWN = (_RATE, _PUBLISHED, _GROUP, _IMPOSTORS, _HELDOUT)
_NAMES = "|".join([*(one.pattern for one in _OWN), *COSTS, _BENCHMARK.pattern])
Figure = Attacks | Annotated[str, Field(pattern=f"^({_NAMES})$")]


def benchmark_of(figure: str) -> str | None:
    """Return the further benchmark that a figure is of; None for what a run has of itself."""
    own = any(one.fullmatch(figure) for one in _OWN)
    found = None if own else _BENCHMARK.fullmatch(figure)
    return None if found is None else found[1]


def value_of(metrics: Mapping[str, Any], figure: str) -> float | None:
    """Return a figure of a run; None where it could not be measured."""
    if (benchmark := benchmark_of(figure)) is not None:
        return _of_benchmark((metrics.get("benchmarks") or {}).get(benchmark) or {}, figure)
    if (group := _GROUP.fullmatch(figure)) is not None:
        return _of_group(metrics, group[1])
    if (rule := _PUBLISHED.fullmatch(figure)) is not None:
        by_papers: float | None = (metrics.get("published") or {}).get(rule[1])
        return by_papers
    if (heldout := _HELDOUT.fullmatch(figure)) is not None:
        return _mean([site.get(heldout[1]) for site in (metrics.get("sites_heldout") or {}).values()])
    if (impostors := _IMPOSTORS.fullmatch(figure)) is not None:
        kinds = (metrics.get("generic") or {}).get("tar_by_impostors") or {}
        return (kinds.get(f"{impostors[1]} groups") or {}).get(impostors[2])
    found = _RATE.fullmatch(figure)
    if found is None:
        key = COSTS[figure][0] if figure in COSTS else figure
        value: float | None = metrics.get(key)
        again: int | None = (metrics.get("repeated") or {}).get(key)  # bytes that only an interruption cost
        return value if value is None or again is None else value - again
    place, model, kind, rate = found.groups()
    table = metrics.get(PLACES[place]) or {}
    if model is not None:
        table = (table.get("models") or {}).get(model) or {}
    value = (table.get(TABLES[kind]) or {}).get(rate)
    return value


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _of_benchmark(judged: Mapping[str, Any], figure: str) -> float | None:
    """Return a figure of a further benchmark; of a group, that of the group's own site's model where there is one."""
    found = _BENCHMARK.fullmatch(figure)
    assert found is not None, "what is of a benchmark has its form"
    _, part, accuracy, kind, rate = found.groups()
    if (generic := judged.get("generic")) is not None:
        if accuracy and part:
            return _of_group({"generic": generic}, part)
        tables = {"": {**generic, "accuracy": generic.get("accuracy_on_ten_folds")}}
    else:
        own = {name.lower(): one for name, one in (judged.get("members") or {}).items()}.get(part or "", judged)
        tables = own.get("lists") or own.get("readings") or {}
    table = next((tables[name] for name in ((part,) if part else ("", *USUAL)) if name in tables), {})
    value: float | None = table.get("accuracy") if accuracy else (table.get(_KINDS[kind]) or {}).get(rate)
    return value


def _of_group(metrics: Mapping[str, Any], group: str) -> float | None:
    """Return the accuracy on a group's pairs: of the group's own site's model, where each site has one."""
    generic = metrics.get("generic") or {}
    judged = (generic.get("members") or {}).get(group) or generic
    value: float | None = ((judged.get("groups") or {}).get(group) or {}).get("accuracy_on_ten_folds")
    return value


def heading(figure: str) -> str:
    """Return what stands above a figure's column."""
    if figure in HEADINGS:
        return HEADINGS[figure]
    *whose, what = figure.split(".")
    measure, *rate = what.split("@")
    words = ["held-out" if word == "heldout" else word for word in whose]
    return " ".join([*words, "@".join([measure if measure in WORDS else measure.upper(), *rate])])


def scale(figure: str) -> float:
    """Return what a figure is multiplied with in tables: rates are shown in per cent, costs in their own units."""
    return COSTS[figure][1] if figure in COSTS else PERCENT


# What a paper printed: its figures by row and user, its own averages, and where the two do not agree.


Values = list[float]
ROUNDING = 0.01
"""How far an average may be from the mean of its rows when both were rounded to two places."""


class Printed(Section):
    """One printed table, percent, its values in the order of ``columns``.

    ``rows`` gives a row's values by user; where the paper prints a row for each data centre, by user and site. Other
    tables of the same study may hold the rows that ``averages`` are of: papers repeat each other's rows. An average may
    be printed of the first columns only.
    """

    source: str
    columns: list[Figure] = ["hter", "eer", "auc"]
    rows: dict[str, dict[str, Values | dict[str, Values]]]
    averages: dict[str, Values] = {}
    notes: list[str] = []

    @model_validator(mode="after")
    def _values_fill_the_columns(self) -> Printed:
        lines = [
            values for users in self.rows.values() for entry in users.values() for values in _sites(entry).values()
        ]
        wrong = [values for values in lines if len(values) != len(self.columns)]
        wrong += [values for values in self.averages.values() if not 1 <= len(values) <= len(self.columns)]
        if wrong:
            raise ValueError(f"{wrong[0]} are not the {len(self.columns)} columns {', '.join(self.columns)}")
        return self


def quoted(tables: Sequence[Printed], row: str, user: str, site: str | None = None) -> dict[str, float]:
    """Return what was printed for a row at a user: for one data centre, or as the mean over all that have a line."""
    for table in tables:
        entry = table.rows.get(row, {}).get(user)
        if entry is not None:
            sites = _sites(entry)
            chosen = list(sites.values()) if site is None else [sites[site]] if site in sites else []
            return _column_means(table, chosen)
    return {}


def quoted_mean(tables: Sequence[Printed], row: str, users: Collection[str]) -> dict[str, float]:
    """Return the mean over users of what was printed, where all of them have a line; their order is no matter."""
    lines = [quoted(tables, row, user) for user in users]
    return {name: fmean(line[name] for line in lines) for name in lines[0]} if all(lines) else {}


def slips(tables: Sequence[Printed], rows: Sequence[str], users: Sequence[str]) -> list[str]:
    """Say which printed averages do not follow from the printed rows; only where all of a row's users are here."""
    said = []
    for table in tables:
        for row in [row for row in table.averages if row in rows]:
            means = quoted_mean(tables, row, _users(tables, row)) if _users(tables, row) == set(users) else {}
            for name, average in zip(table.columns, table.averages[row], strict=False):
                if name in means and abs(means[name] - average) > ROUNDING:
                    said.append(
                        f"{table.source}, prints {average:.2f} as the average {heading(name)} of {row}; "
                        f"its rows average {means[name]:.2f}, which stands above."
                    )
    return said


def _users(tables: Sequence[Printed], row: str) -> set[str]:
    return {user for table in tables for user in table.rows.get(row, {})}


def _sites(entry: Values | dict[str, Values]) -> dict[str, Values]:
    return entry if isinstance(entry, dict) else {"": entry}


def _column_means(table: Printed, lines: Sequence[Values]) -> dict[str, float]:
    return dict(zip(table.columns, np.mean(lines, axis=0).tolist(), strict=True)) if lines else {}


Tree = dict[str, Any]

DATA = "data"
"""Where the sets of a protocol are taken to lie, as those of the shipped studies."""


class Row(Section):
    """One row of the table: changes to a recipe, or the model of another row judged another way.

    ``recipe`` names one of the study's further recipes. ``sites`` names the sets that train in this row, where they are
    not the study's, and ``public`` another set of public identities. ``trained_by`` names a row above: its recipe,
    changes and sets are taken over, and its finished model is judged instead of training the same one again. ``quotes``
    is the printed row to stand beside this one, where it has another name.
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
        return many_names(value) if isinstance(value, list) else value


class Study(Section):
    """A study file, with the recipes and printed tables that it names read in.

    All ``sites`` but the user's train, and each of ``users`` is judged in turn; both are all sets unless said. For
    recognition, ``public`` names the set of public identities, which is neither, and ``benchmarks`` are further sets on
    which every finished model is judged: figures begin with their names. A ``protocol`` stands for sets: its folds are
    the users, and say who trains on what. ``trains`` gives the part of a set that its site trains on, where that is not
    what a user is judged by: one frame of each video, for one. ``imports`` says by the name of a set's directory which
    dataset it is of, imported how. ``beside`` says which printed figure stands beside one that has another name.
    """

    title: str
    recipe: Tree
    recipes: dict[str, Tree] = {}
    protocol: str | None = None
    sets: dict[str, str]
    trains: dict[str, str] = {}
    sites: list[str]
    users: list[str]
    public: str | None = None
    benchmarks: dict[str, str] = {}
    imports: dict[str, str] = {}
    set: list[str] = []
    rows: dict[str, Row] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    figures: list[Figure] = ["hter", "eer", "auc"]
    paper: list[Printed] = []
    beside: dict[Figure, Figure] = {}

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError("the same seed twice gives the same run twice")
        return value

    @field_validator("benchmarks")
    @classmethod
    def _benchmarks_have_names_of_their_own(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not SITE_NAME.fullmatch(name) or name in OWN:
                known = ", ".join(OWN)
                raise ValueError(
                    f"{name!r}: use letters, digits, '-' and '_', and not {known}, as figures begin with them"
                )
        return value

    @model_validator(mode="before")
    @classmethod
    def _all_sets_are_sites_and_users(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and isinstance(tree.get("protocol"), str):
            tree = _divided(tree)
        if not isinstance(tree, dict) or not isinstance(tree.get("sets"), dict):
            return tree
        sets = many_sites(tree["sets"])
        rows = tree["rows"].values() if isinstance(tree.get("rows"), dict) else ()
        public = {tree.get("public"), *(row.get("public") for row in rows if isinstance(row, dict))}
        sites = tree.get("sites", [name for name in sets if name not in public])
        sites = many_names(sites) if isinstance(sites, list) else sites
        return {"users": sites, **tree, "sets": sets, "sites": sites}

    @model_validator(mode="after")
    def _there_are_users_beside_sites(self) -> Study:
        if self.protocol is None and len(self.sets) < 2:
            raise ValueError("sets must have two at least, one to train on and one to judge on")
        if self.protocol is not None and self.public is not None:
            raise ValueError("public is for recognition, and protocols are about attacks; leave one out")
        if self.protocol is not None and self.trains:
            raise ValueError("trains stands beside sets, and a protocol says itself who trains on what; leave one out")
        return self


def _divided(tree: Tree) -> Tree:
    """Put the sets of a protocol in the place of sets: all sites of all folds, and the folds as users."""
    protocol = PROTOCOLS.get(tree["protocol"])
    if protocol is None:
        raise ValueError(f"{tree['protocol']!r} is no known protocol; `fedvisage data protocols` lists them")
    found = {site: entry for fold in protocol.folds.values() for site, entry in fold.sites.items()}
    sites = {name: found[name] for name in (*protocol.folds, *found) if name in found}  # in the order of the users
    imports = {name: f"{one.kind} {one.options}".strip() for name, one in protocol.sets.items()}
    sets = {site: located(entry, Path(DATA)) for site, entry in sites.items()}
    return {"users": list(protocol.folds), "sites": list(sites), **tree, "sets": sets, "imports": imports}


def read(path: Path) -> Study:
    """Read and validate a study file, with all the files that it names."""
    study = _validated(path)
    places: dict[str, str] = {}
    for number, (name, row) in enumerate(study.rows.items()):
        place = f"{path}: rows.{name}"
        if row.trained_by is not None and row.trained_by not in list(study.rows)[:number]:
            raise UserError(f"{place}.trained_by", f"{row.trained_by!r} is no row above this one")
        if row.recipe is not None and row.recipe not in study.recipes:
            raise UserError(
                f"{place}.recipe", f"{row.recipe!r} is not among the study's recipes{choice(row.recipe, study.recipes)}"
            )
        _check_names(row.sites or [], study, f"{place}.sites")
        _check_names([] if row.public is None else [row.public], study, f"{place}.public")
        if places.setdefault(slug(name), name) != name:
            raise UserError(place, f"has the same directory as {places[slug(name)]!r}; give it another name")
    _check_names(study.sites, study, f"{path}: sites")
    _check_names(list(study.trains), study, f"{path}: trains")
    for name, entry in study.trains.items():
        if without_selection(entry)[0] != without_selection(study.sets[name])[0]:
            raise UserError(f"{path}: trains.{name}", f"{entry!r} is of another set than {study.sets[name]!r}")
    for name, text in study.imports.items():
        read_wanted(text, f"{path}: imports.{name}")
    if study.protocol is None:
        _check_names(study.users, study, f"{path}: users")
    elif unknown := [user for user in study.users if user not in PROTOCOLS[study.protocol].folds]:
        folds = PROTOCOLS[study.protocol].folds
        raise UserError(f"{path}: users", f"{unknown[0]!r} is no user of {study.protocol}{choice(unknown[0], folds)}")
    _check_names([] if study.public is None else [study.public], study, f"{path}: public")
    for figure in study.figures:
        if (benchmark := benchmark_of(figure)) not in (None, *study.benchmarks):
            place = f"{path}: figures"
            raise UserError(place, f"{figure} is of {benchmark!r}, which is not among the study's benchmarks"
                            f"{choice(str(benchmark), study.benchmarks)}")  # fmt: skip
    return study


def slug(row: str) -> str:
    """Return a row's name as part of a directory's."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in row).lower().split())


def _check_names(names: list[str], study: Study, place: str) -> None:
    for name in names:
        if name not in study.sets:
            raise UserError(place, f"{name!r} is not among the study's sets{choice(name, study.sets)}")


def _validated(path: Path) -> Study:
    return read_section(Study, _whole(path), f"{path}: ")


def _whole(path: Path, above: tuple[Path, ...] = ()) -> Tree:
    """Read a file with what it takes over, and with the files that it names in the place of their names."""
    tree: Tree = {}
    own, above = recipes.read_tree(path), (*above, path.resolve())
    for name in _likes(own.pop("like", []), path):
        other = locate(name, path.parent)
        if other.resolve() in above:
            raise UserError(f"{path}: like", f"{name} takes over what takes over from it")
        tree |= _whole(other, above)
    if "recipe" in own:
        own["recipe"] = _read_named(own["recipe"], path)
    if isinstance(own.get("recipes"), dict):
        own["recipes"] = {name: _read_named(entry, path) for name, entry in own["recipes"].items()}
    if isinstance(own.get("paper"), list):
        own["paper"] = [_read_named(entry, path) for entry in own["paper"]]
    return tree | own


def _likes(like: Any, path: Path) -> list[str]:
    """Return the names of the files that a file takes over."""
    names = [like] if isinstance(like, str) else like
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: like", "must be the name of a study, or a list of names")
    return names


def _read_named(entry: Any, path: Path) -> Any:
    """Return what an entry says: a file's path is relative to the file that names it, or a shipped name."""
    return recipes.read_tree(locate(entry, path.parent)) if isinstance(entry, str) else entry
