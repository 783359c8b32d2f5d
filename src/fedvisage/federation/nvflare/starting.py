"""Getting a kit ready to start on this machine: where its stores, runs, data and private state are."""

from __future__ import annotations

import json
from pathlib import Path

from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.nvflare import hardening
from fedvisage.federation.nvflare.kits import Kit, own_settings, write_json


def prepare_server(kit: Kit, state: Path | None = None) -> None:
    """Settle where runs, jobs and snapshots lie: by default in the kit, never in a place that federations share."""
    runs = (state or kit.path / "runs").resolve()
    runs.mkdir(parents=True, exist_ok=True)
    write_json(kit.own, own_settings(kit.path) | {"state": str(runs)})
    resources = kit.path / "local" / "resources.json"
    tree = json.loads(resources.read_text(encoding="utf-8"))
    jobs, snapshots = str(kit.path / "jobs"), str(kit.path / "snapshots")
    write_json(resources, hardening.server_resources(tree, jobs, snapshots))


def prepare_site(kit: Kit, data: Path, state: Path | None = None) -> None:
    """Settle whose data a site trains on: its own prepared set, looked at before anything starts."""
    found = PreparedSet.open(data)
    kept = (state or kit.path / "state").resolve()
    kept.mkdir(parents=True, exist_ok=True)
    write_json(kit.own, own_settings(kit.path) | {"data": str(found.path.resolve()), "state": str(kept)})
