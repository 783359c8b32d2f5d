"""What a machine of a federation opens: its own sets, through the same checks as a run in one process.

The travelling recipe says "elsewhere" for every set. A site puts its own directory in its place, the operator the
user's set, and each machine that needs the public set of a recognition run has a copy of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedvisage.federation.method import Message, Method
from fedvisage.progress import Say, unheard
from fedvisage.recipe import Recipe
from fedvisage.tasks.opened import Opened
from fedvisage.tasks.setup import Setup
from fedvisage.tasks.task import Task


class NotReady(Exception):
    """A machine cannot take part; the reason quotes nothing of its data, so that it may be told to others."""


def at_site(setup: Setup, name: str, own: Mapping[str, str], cache: Path) -> Opened:
    """Open a site's data, as the recipe of a run with this site alone."""
    recipe = _with(setup.recipe, {name: own["data"]}, _public(setup.recipe, own))
    return setup.task.open(recipe, setup.method, cache, unheard)


def at_operator(task: Task, recipe: Recipe, method: Method, cache: Path, say: Say) -> Opened:
    """Open what the operator's recipe names beside the sites; what it counts of sites' people is not known here."""
    alone = recipe.model_copy(update={"data": recipe.data.model_copy(update={"sites": {}})})
    opened = task.open(alone, method, cache, say)
    return opened if opened.people is None else replace(opened, people=replace(opened.people, counted={}))


def first_at_server(setup: Setup, own: Mapping[str, str], cache: Path) -> Message:
    """Pre-train on the server's own copy of the public set, if the recipe wants it."""
    recipe, task = setup.recipe, setup.task
    if recipe.training.pretrain is None:
        return {}
    opened = task.open(_with(recipe, {}, _public(recipe, own)), setup.method, cache, unheard)
    if opened.people is None or opened.people.public is None:
        raise NotReady("has no public set to pre-train on")
    return task.first(recipe, opened, setup.compute, cache, unheard)


def _with(recipe: Recipe, sites: Mapping[str, str], public: str | None) -> Recipe:
    own = {"sites": dict(sites), "user": None, "public": public, "benchmarks": None}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=own)})


def _public(recipe: Recipe, own: Mapping[str, str]) -> str | None:
    if recipe.data.public is None:
        return None
    if "public" not in own:
        raise NotReady("has no copy of the public set; it is given with --public")
    return own["public"]
