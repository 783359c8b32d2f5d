"""The preparation of a kit on this machine: old jobs, the places of runs and private state, and checks of own sets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.data.integrity import check_bytes
from fedvisage.data.overlap import HELD_OUT, PUBLIC, find_overlap, refuse_overlap
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import SPLITS
from fedvisage.datasets.sources import without_part
from fedvisage.federation.secure.memory import ALLOW, PLAIN
from fedvisage.nvflare import kits
from fedvisage.nvflare.admission import move_memory
from fedvisage.nvflare.cells import rules
from fedvisage.nvflare.kits import ANEW, REQUIRE_SECURE, ROSTERS, Kit, own_settings, state_directory
from fedvisage.recipe import SITE_NAME
from fedvisage.tasks.checks import USUAL, Checks

# Folders of old jobs. NVFlare keeps them in a kit forever: logs, and at the server another copy of the results. The
# newest are kept to explain failed runs. A result is in the run's own directory, too, where an operator who was away
# gets it.


KEPT = 20
"""Jobs whose folders are kept."""

STORE = "jobs"
"""The server's store of submitted jobs, in its kit."""

WAITING = ("SUBMITTED", "APPROVED", "DISPATCHED")
"""NVFlare's statuses of jobs that have not begun."""


def remove_old_jobs(kit: Path) -> None:
    """Delete the folders of old jobs; call this while no process uses the kit."""
    for place in (kit, kit / STORE):
        paths = place.iterdir() if place.is_dir() else ()
        jobs = [path for path in paths if rules.is_job_id(path.name) and path.is_dir()]
        for path in sorted(jobs, key=lambda job: job.stat().st_mtime, reverse=True)[KEPT:]:
            with suppress(UserError, KeyError):  # a half-written job in the store never begins
                if read_json(path / "meta")["status"] in WAITING:
                    continue
            shutil.rmtree(path, ignore_errors=True)


# Preparation of a kit on this machine: the places of its stores, runs, data and private state.


def prepare_server(kit: Kit, state: Path | None = None, public: str | None = None, weights: Path | None = None) -> None:
    """Set the places of runs, jobs and snapshots: in the kit by default, never in a place that federations share."""
    remove_old_jobs(kit.path)
    runs = state_directory(kit, state)
    runs.mkdir(parents=True, exist_ok=True)
    move_memory(kit.path, Path(own_settings(kit.path).get("state", runs)), runs)
    write_json(kit.own, own_settings(kit.path) | {"state": str(runs)} | _public(public) | _weights(weights))
    jobs, snapshots = str(kit.path / STORE), str(kit.path / "snapshots")
    _close(kit, lambda tree: kits.server_resources(tree, jobs, snapshots))


def checks_directory(kept: Path) -> Path:
    """Return the directory of a site's cached checks, next to its runs, which have longer names."""
    return kept / "cache"


def check_own_sets(
    kit: Kit, data: Path, state: Path | None, public: Path | None, say: Say, checks: Checks = USUAL
) -> None:
    """Refuse a site's sets if their files were changed, or if pictures are at two places of this machine.

    The places are the site's training images, its held-out images, and the public set. All results stay here.
    """
    cache, places = checks_directory(state_directory(kit, state)), {}
    for path in (data, *(() if public is None else (public,))):
        prepared = PreparedSet.open(path)
        check_bytes(path, cache, whole=checks.verify, say=say)
        if path == public:
            places[PUBLIC] = [View.of(prepared)]
        else:
            trained = View.of(prepared, "train")
            places["--data"] = [trained]
            places[f"--data{HELD_OUT}"] = [View.of(prepared, split) for split in SPLITS if split != "train"]
    for line in refuse_overlap(find_overlap(places, cache, say), checks.allow_overlap):
        say(f"note: {line}")


def prepare_site(
    kit: Kit,
    data: str,
    state: Path | None = None,
    public: str | None = None,
    weights: Path | None = None,
    rosters: Sequence[str] = (),
    require_secure: bool = False,
) -> None:
    """Set a site's own prepared set, which is checked before anything starts.

    ``rosters`` are allowed in secure sums until the next start, whatever the site remembers. With ``require_secure``,
    the site refuses all other runs.
    """
    _check_set(data)
    allowed = as_setting(rosters)
    remove_old_jobs(kit.path)
    kept = state_directory(kit, state)
    kept.mkdir(parents=True, exist_ok=True)
    settings = {"data": data, "state": str(kept), ROSTERS: allowed, REQUIRE_SECURE: "yes" if require_secure else "no"}
    write_json(kit.own, own_settings(kit.path) | settings | _public(public) | _weights(weights))
    _close(kit, kits.site_resources)


def _close(kit: Kit, closed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write a kit's resources with their restrictions, whatever was changed since it was provisioned."""
    path = kit.path / "local" / "resources.json"
    try:
        write_json(path, closed(read_json(path, ANEW)))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"is damaged; {ANEW}") from error


def _public(entry: str | None) -> dict[str, str]:
    """Return the setting for a public set, which must be a prepared set."""
    if entry is None:
        return {}
    _check_set(entry)
    return {"public": entry}


def _weights(path: Path | None) -> dict[str, str]:
    """Return the setting for a file of weights, which must exist."""
    if path is None:
        return {}
    if not path.is_file():
        raise UserError(str(path), "does not exist; --weights must name a safetensors file")
    return {"weights": str(path.resolve())}


def _check_set(entry: str) -> None:
    PreparedSet.open(Path(without_part(entry)[0].strip()))


def as_setting(rosters: Sequence[str]) -> str:
    """Return rosters as a setting of a machine, or refuse what is neither a list of sites nor ``plain``."""
    for roster in rosters:
        names = roster.split(",")
        is_list = len(set(names)) >= max(2, len(names)) and all(SITE_NAME.fullmatch(name) for name in names)
        if not is_list and roster != PLAIN:
            raise UserError(
                ALLOW, f"{roster!r} is not a list of two or more sites; write their names as A,B,C, or {PLAIN}"
            )
    return " ".join(rosters)
