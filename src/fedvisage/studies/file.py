"""What a study file says: recipes, sets, rows, seeds, and the printed tables to stand beside its own.

``like: [ONE, OTHER]`` takes over what other files say, the later before the earlier, and this file's own words before
theirs. So a table's rows are written once for rendered and for real data, and a size of studies once for all tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from fedvisage import recipe as recipes
from fedvisage.data.selection import without_selection
from fedvisage.datasets.protocols.catalogue import PROTOCOLS, located
from fedvisage.datasets.wanted import read_wanted
from fedvisage.errors import UserError, choice
from fedvisage.recipe import SITE_NAME, Section, many_names, many_sites, read_section
from fedvisage.shipped import locate
from fedvisage.studies.figures import OWN, Figure, benchmark_of
from fedvisage.studies.printed import Printed

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
        own["recipe"] = _named(own["recipe"], path)
    if isinstance(own.get("recipes"), dict):
        own["recipes"] = {name: _named(entry, path) for name, entry in own["recipes"].items()}
    if isinstance(own.get("paper"), list):
        own["paper"] = [_named(entry, path) for entry in own["paper"]]
    return tree | own


def _likes(like: Any, path: Path) -> list[str]:
    """Return the names of the files that a file takes over."""
    names = [like] if isinstance(like, str) else like
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: like", "must be the name of a study, or a list of names")
    return names


def _named(entry: Any, path: Path) -> Any:
    """Return what an entry says: a file's path is relative to the file that names it, or a shipped name."""
    return recipes.read_tree(locate(entry, path.parent)) if isinstance(entry, str) else entry
