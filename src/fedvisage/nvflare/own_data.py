"""What a machine of a federation opens: its own sets, through the same checks as a run in one process.

The travelling recipe says "elsewhere" for every set. A site puts its own directory in its place, the operator the
user's set, and whoever needs the public set of a recognition run has a copy of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fedvisage.federation.declared import Declared
from fedvisage.federation.wire.message import Message
from fedvisage.nn.precision import Compute
from fedvisage.recipe import Recipe
from fedvisage.tasks.opened import Gathered
from fedvisage.tasks.pad.data import gather
from fedvisage.tasks.recognition.data import PUBLIC, gather_identities
from fedvisage.tasks.recognition.pretraining import pretrained


class NotReady(Exception):
    """A machine cannot take part; the reason quotes nothing of its data, so that it may be told to others."""


def at_site(recipe: Recipe, method: Declared, name: str, own: Mapping[str, str], cache: Path) -> Gathered:
    """Open a site's data, as the recipe of a run with this site alone."""
    return _open(_with(recipe, {name: own["data"]}, _public(recipe, own)), method, cache, 1, _silent)


def at_operator(recipe: Recipe, method: Declared, cache: Path, workers: int, say: Callable[[str], None]) -> Gathered:
    """Open what the operator's recipe names beside the sites; what it counts of sites' people is not known here."""
    found = _open(recipe.model_copy(update={"data": recipe.data.model_copy(update={"sites": {}})}),
                  method, cache, workers, say)  # fmt: skip
    return found if found.people is None else replace(found, people=replace(found.people, counted={}))


def first_at_server(recipe: Recipe, method: Declared, own: Mapping[str, str], compute: Compute, cache: Path) -> Message:
    """Pre-train on the server's own copy of the public set, if the recipe wants it."""
    if recipe.training.pretrain is None:
        return {}
    found = _open(_with(recipe, {}, _public(recipe, own)), method, cache, 1, _silent)
    public = found.people.public if found.people else None
    if public is None:
        raise NotReady("has no public set to pre-train on")
    return pretrained(recipe, public, found.digests[PUBLIC], compute, cache, _silent)


def _open(recipe: Recipe, method: Declared, cache: Path, workers: int, say: Callable[[str], None]) -> Gathered:
    opening = gather_identities if method.task == "recognition" else gather
    return opening(recipe, method, cache, workers, say)


def _with(recipe: Recipe, sites: Mapping[str, str], public: str | None) -> Recipe:
    own = {"sites": dict(sites), "user": None, "public": public}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=own)})


def _public(recipe: Recipe, own: Mapping[str, str]) -> str | None:
    if recipe.data.public is None:
        return None
    if "public" not in own:
        raise NotReady("has no copy of the public set; it is given with --public")
    return own["public"]


def _silent(text: str) -> None:
    """Say nothing: nobody listens."""
