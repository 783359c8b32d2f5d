"""Getting a kit ready to start on this machine: where its stores, runs, data and private state are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedvisage.data.batches import View
from fedvisage.data.checked import check_bytes
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import SPLITS
from fedvisage.datasets.sources import without_part
from fedvisage.errors import UserError
from fedvisage.files import read_json, write_json
from fedvisage.nvflare import hardening
from fedvisage.nvflare.kits import ANEW, Kit, own_settings
from fedvisage.nvflare.tidying import STORE, tidy
from fedvisage.nvflare.trust import ROSTERS, as_setting
from fedvisage.progress import Say
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.overlap import HELD_OUT, PUBLIC, check_apart, look_for_overlap


def runs_in(kit: Kit, state: Path | None) -> Path:
    """Return where a server keeps its runs."""
    return (state or kit.path / "runs").resolve()


def kept_in(kit: Kit, state: Path | None) -> Path:
    """Return where a site keeps its private state."""
    return (state or kit.path / "state").resolve()


def prepare_server(kit: Kit, state: Path | None = None, public: str | None = None, weights: Path | None = None) -> None:
    """Settle where runs, jobs and snapshots lie: by default in the kit, never in a place that federations share."""
    tidy(kit.path)
    runs = runs_in(kit, state)
    runs.mkdir(parents=True, exist_ok=True)
    write_json(kit.own, own_settings(kit.path) | {"state": str(runs)} | _public(public) | _weights(weights))
    jobs, snapshots = str(kit.path / STORE), str(kit.path / "snapshots")
    _close(kit, lambda tree: hardening.server_resources(tree, jobs, snapshots))


def checked_in(kept: Path) -> Path:
    """Return where a site keeps what it found out about its sets, beside its runs, which have longer names."""
    return kept / "cache"


def check_own_sets(
    kit: Kit,
    data: Path,
    state: Path | None,
    public: Path | None,
    say: Say,
    checks: Checks = USUAL,
) -> None:
    """Refuse a site's sets if bytes were changed, or if pictures are at two places of this machine.

    The places are what the site trains on, what it holds out, and the public set. All of it stays here.
    """
    cache, places = checked_in(kept_in(kit, state)), {}
    for path in (data, *(() if public is None else (public,))):
        found = PreparedSet.open(path)
        check_bytes(path, cache, whole=checks.verify, say=say)
        if path == public:
            places[PUBLIC] = [View.of(found)]
        else:
            trained = View.of(found, "train")
            places["--data"] = [trained]
            places[f"--data{HELD_OUT}"] = [View.of(found, split) for split in SPLITS if split != "train"]
    for line in check_apart(look_for_overlap(places, cache, say), checks.allow_overlap):
        say(f"note: {line}")


def prepare_site(
    kit: Kit,
    data: str,
    state: Path | None = None,
    public: str | None = None,
    weights: Path | None = None,
    rosters: Sequence[str] = (),
) -> None:
    """Settle whose data a site trains on: its own prepared set, looked at before anything starts.

    ``rosters`` are allowed in secure sums until the next start, whatever the site remembers.
    """
    _check_set(data)
    allowed = as_setting(rosters)
    tidy(kit.path)
    kept = kept_in(kit, state)
    kept.mkdir(parents=True, exist_ok=True)
    own = {"data": data, "state": str(kept), ROSTERS: allowed}
    write_json(kit.own, own_settings(kit.path) | own | _public(public) | _weights(weights))
    _close(kit, hardening.site_resources)


def _close(kit: Kit, closed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write a kit's resources as they must be, whatever was made of them since it was provisioned."""
    path = kit.path / "local" / "resources.json"
    try:
        write_json(path, closed(read_json(path, ANEW)))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"is damaged; {ANEW}") from error


def _public(entry: str | None) -> dict[str, str]:
    if entry is None:
        return {}
    _check_set(entry)
    return {"public": entry}


def _weights(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    if not path.is_file():
        raise UserError(str(path), "does not exist; --weights names a safetensors file")
    return {"weights": str(path.resolve())}


def _check_set(entry: str) -> None:
    PreparedSet.open(Path(without_part(entry)[0].strip()))
