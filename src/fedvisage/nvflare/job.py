"""The files that travel when a run is submitted: four JSON files and no code.

NVFlare signs them. Each machine reads the recipe from its own copy, and checks it again, name included, before using
it. The travelling recipe names the sites, but no path of any machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import file_digest, json_text
from fedvisage.base.progress import Say, discard
from fedvisage.datasets.sources import without_part
from fedvisage.federation.wire.message import Message
from fedvisage.methods import find, read_method
from fedvisage.nvflare.kits import CONTROLLER, EXECUTOR, SERVER_CLASS, SITE_CLASS
from fedvisage.nvflare.owner.submission import RECIPE_FILE, SIGNED, NotReady, Submission, read_submission
from fedvisage.recipe import Recipe
from fedvisage.recipe.data import named_weights
from fedvisage.tasks.catalogue import Setup, task_of
from fedvisage.tasks.opened import RunData

ELSEWHERE = "elsewhere"
"""Stands for a site's path in a travelling recipe."""

SETTLING = 300.0
"""Seconds that sites have to start: imports alone take several."""

CALLS = 100
"""Calls that NVFlare makes at once, however few the sites are; with fewer calls than sites, some sites would wait."""

REQUESTS, MOST_PAUSE = 10, 10.0
"""Requests per second of all sites together until the server's program is ready, and the longest pause of a site in
seconds. The server keeps about a mebibyte for each answer until the site acknowledges it."""

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
    for place, value in named_weights(tree).items():  # the digests of files travel instead of their paths
        section = tree
        for key in place[:-1]:
            section = section[key]
        section[place[-1]] = value if DIGEST.fullmatch(value) else _digest(Path(value), ".".join(("recipe", *place)))
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


def write_job(directory: Path, job: Job, sites: Sequence[str], signature: Mapping[str, Any] | None = None) -> None:
    """Write the four files; the operator's signature is in the file of the recipe."""
    config = directory / "app" / "config"
    config.mkdir(parents=True)
    meta = {
        "name": job.run,
        "resource_spec": {},
        "min_clients": min(job.recipe.federation.quorum, len(sites)),
        "deploy_map": {"app": ["server", *sites]},
    }
    # NVFlare's configuration of the two programs. Both ends must give up a piece of a tensor within the deadline.
    common = {"format_version": 2, "task_data_filters": [], "task_result_filters": []}
    common |= {CHUNK: job.recipe.federation.deadline / TRIES}
    names: dict[str, Any] = {"collab_obj_ids": []}
    controller = names | {"server_obj_id": "program", "sync_task_timeout": SETTLING}
    controller |= {"max_call_threads": max(CALLS, len(sites))}
    server = {
        "server": {"task_request_interval": min(MOST_PAUSE, max(0.1, len(sites) / REQUESTS))},
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
        (config / RECIPE_FILE, {"run": job.run, "recipe": recipes.tree_of(job.recipe), SIGNED: signature}),
    ):
        path.write_text(json_text(tree), encoding="utf-8")


def read_job(config: Path) -> Job:
    """Read and check a submitted job."""
    return check_job(read_submission(config))


def check_job(submission: Submission) -> Job:
    """Check the recipe of a submitted job."""
    check_named_by_digest(submission.tree)
    recipe = recipes.validate(submission.tree, read_method)
    check_travels(recipe)
    return Job(submission.run, recipe)


# The sets and files of weights of each machine, opened with the same checks as in a run in one process. The travelling
# recipe has "elsewhere" for every set. A site replaces it by its own directory, the operator by the target's set, and
# each machine that needs the public set of a recognition run has a copy of its own.


def data_at_site(setup: Setup, name: str, own: Mapping[str, str], cache: Path) -> RunData:
    """Open a site's data, as for a run with this site alone."""
    recipe = _with_data(setup.recipe, {name: own["data"]}, _public(setup.recipe, own))
    return setup.task.open(recipe, setup.method, cache, discard)


def sets_at_site(recipe: Recipe, own: Mapping[str, str]) -> list[Path]:
    """Return the directories of a site's own set, and of its copy of the public set if the recipe has one."""
    entries = (own["data"], _public(recipe, own))
    return [Path(without_part(entry)[0].strip()) for entry in entries if entry is not None]


def open_at_operator(setup: Setup, cache: Path, say: Say) -> RunData:
    """Open the sets of the operator's recipe without the sites; the numbers of the sites' people are not known here."""
    data = setup.recipe.data.model_copy(update={"sites": {}})
    opened = setup.task.open(setup.recipe.model_copy(update={"data": data}), setup.method, cache, say)
    return opened if opened.people is None else replace(opened, people=replace(opened.people, counted={}))


def pretrain_at_server(setup: Setup, own: Mapping[str, str], cache: Path) -> Message:
    """Pre-train on the server's own copy of the public set, if the recipe requires it."""
    recipe, task = setup.recipe, setup.task
    if recipe.training.pretrain is None:
        return {}
    opened = task.open(_with_data(recipe, {}, _public(recipe, own)), setup.method, cache, discard)
    if opened.people is None or opened.people.public is None:
        raise NotReady("has no public set to pre-train on")
    return task.pretrain(recipe, opened, setup.compute, cache, discard)


def _with_data(recipe: Recipe, sites: Mapping[str, str], public: str | None) -> Recipe:
    """Return a recipe with these data entries alone."""
    entries = {"sites": dict(sites), "target": None, "public": public, "benchmarks": None}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=entries)})


def _public(recipe: Recipe, own: Mapping[str, str]) -> str | None:
    """Return this machine's copy of the public set, if the recipe has one."""
    if recipe.data.public is None:
        return None
    if "public" not in own:
        raise NotReady("has no copy of the public set; give one with --public")
    return own["public"]


# Files of weights in a recipe: they stay where they are, and their digests travel. The operator's recipe names a file
# of the operator's. The travelling recipe has its SHA-256 instead. The server starts from its own copy, or reports the
# file that it lacks. Sites need theirs if a method keeps frozen weights that are never sent.


DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_named_by_digest(tree: Mapping[str, Any]) -> None:
    """Refuse a job that names a path: it would be a path of this machine that another one chose."""
    for place, value in named_weights(tree).items():
        if not DIGEST.fullmatch(value):
            raise UserError(
                ".".join(("recipe", *place)), "names a file by its path; between machines, name it by its digest"
            )


def weights_at_server(recipe: Recipe, own: Mapping[str, str]) -> dict[str, Path]:
    """Return the server's own copies of the files in a travelling recipe."""
    digests = set(named_weights(recipes.tree_of(recipe)).values())
    if not digests:
        return {}
    copies = weights_at_site(own)
    for digest in sorted(digests - copies.keys()):
        raise NotReady(f"the server has no file of weights with {digest}; start it with --weights FILE")
    return copies


def weights_at_site(own: Mapping[str, str]) -> dict[str, Path]:
    """Return a machine's file of weights by its digest: sites need it for weights that are never sent."""
    if "weights" not in own:
        return {}
    path = Path(own["weights"])
    return {_digest(path, str(path)): path}


def _digest(path: Path, place: str) -> str:
    """Return the digest of a file as recipes write it."""
    if not path.is_file():
        raise UserError(place, f"{path} does not exist")
    return f"sha256:{file_digest(path)}"
