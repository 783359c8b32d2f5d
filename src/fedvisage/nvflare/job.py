"""The files that travel when a run is submitted: four JSON files and no code.

NVFlare signs them. Each machine reads the recipe from its own copy, and checks it again, name included, before using
it. The travelling recipe names the sites, but no path of any machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import json_text, parse_json
from fedvisage.methods import find, read_method
from fedvisage.nvflare.kits import CONTROLLER, EXECUTOR, SERVER_CLASS, SITE_CLASS
from fedvisage.nvflare.own_files import check_named_by_digest, name_by_digest
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import task_of

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
RECIPE_FILE = "recipe.json"
ELSEWHERE = "elsewhere"
"""Stands for a site's path in a travelling recipe."""

SETTLING = 300.0
"""Seconds that sites have to start: imports alone take several."""

CALLS = 100
"""Calls that NVFlare makes at once, however few the sites are; with fewer calls than sites, some sites would wait."""

CHUNK = "tensor_streaming_per_request_timeout"
"""NVFlare's timeout, in seconds, for a piece of a tensor from the other end: 600 unless a job sets it."""

TRIES = 4
"""NVFlare's tries to fetch a piece. All tries together take a deadline, with 14 s of pauses between them. Without this
limit, an end that died while it answered would hold the other one for forty minutes."""


@dataclass(frozen=True)
class Job:
    """A run in its travelling form."""

    run: str
    recipe: Recipe


def without_local_parts(recipe: Recipe) -> Recipe:
    """Return a recipe without the parts that concern only its writer: paths, target, benchmarks and trackers."""
    check_travels(recipe)
    tree = recipes.tree_of(recipe)
    tree.pop("tracking", None)  # figures are tracked where the run was started
    name_by_digest(tree)
    public = None if recipe.data.public is None else ELSEWHERE
    tree["data"] |= {"sites": dict.fromkeys(tree["data"]["sites"], ELSEWHERE), "target": None, "public": public}
    tree["data"].pop("benchmarks", None)  # only the writer of the recipe evaluates on them
    return recipes.validate(tree, read_method)


def check_travels(recipe: Recipe) -> None:
    """Refuse recipes that only a simulation can run."""
    method = find(recipe.method)
    if method.pooled:
        raise UserError("recipe.method.name", f"{method.name} merges all sites' data; use --on local")
    task_of(method).check_real(recipe)
    if recipe.evaluation.features:
        raise UserError(
            "recipe.evaluation.features", "requires features of the sites' images; leave it out, or use --on local"
        )
    if recipe.evaluation.snapshots is not None:
        raise UserError(
            "recipe.evaluation.snapshots",
            "evaluates rounds at the target, which a federation does not see; use --on local",
        )


def write_job(directory: Path, job: Job, sites: Sequence[str]) -> None:
    """Write the four files."""
    config = directory / "app" / "config"
    config.mkdir(parents=True)
    meta = {
        "name": job.run,
        "resource_spec": {},
        "min_clients": min(job.recipe.federation.quorum, len(sites)),
        "deploy_map": {"app": ["server", *sites]},
    }
    common = {"format_version": 2, "task_data_filters": [], "task_result_filters": []}
    common |= {CHUNK: job.recipe.federation.deadline / TRIES}
    names = {"collab_obj_ids": []}
    controller = names | {"server_obj_id": "program", "sync_task_timeout": SETTLING}
    controller |= {"max_call_threads": max(CALLS, len(sites))}
    server = {
        "server": {"task_request_interval": 0.1},
        "workflows": [{"id": "controller", "path": CONTROLLER, "args": controller}],
        "components": [{"id": "program", "path": SERVER_CLASS, "args": {}}],
    }
    executor = {"path": EXECUTOR, "args": names | {"client_obj_id": "program"}}
    site = {
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "program", "path": SITE_CLASS, "args": {}}],
    }
    for path, tree in (
        (directory / "meta.json", meta),
        (config / "config_fed_server.json", common | server),
        (config / "config_fed_client.json", common | site),
        (config / RECIPE_FILE, {"run": job.run, "recipe": recipes.tree_of(job.recipe)}),
    ):
        path.write_text(json_text(tree), encoding="utf-8")


def read_job(config: Path) -> Job:
    """Read and check a submitted job."""
    try:
        submitted = parse_json((config / RECIPE_FILE).read_text(encoding="utf-8"))
        run, tree = submitted["run"], submitted["recipe"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(RECIPE_FILE, "is missing from the job, or damaged") from error
    if not isinstance(run, str) or not RUN_NAME.fullmatch(run):
        raise UserError(f"{RECIPE_FILE}: run", "is not a run name")
    if not isinstance(tree, dict):
        raise UserError(f"{RECIPE_FILE}: recipe", "must be a mapping")
    check_named_by_digest(tree)
    recipe = recipes.validate(tree, read_method)
    check_travels(recipe)
    return Job(run, recipe)
