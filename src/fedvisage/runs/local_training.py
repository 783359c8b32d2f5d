"""The sites of a run on this machine: their workers, and a training that adopts the members of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedvisage.base.progress import Reporter
from fedvisage.federation.record.store import SiteStore, StateCache, generations_of
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.schema import Schema
from fedvisage.runs.directory import SITES, owner_in
from fedvisage.runs.request import Training
from fedvisage.runs.train import train_over_transport
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult


def open_site_workers(
    setup: Setup, out: Path, data: RunData, reporter: Reporter
) -> tuple[list[SiteWorker], Mapping[str, Schema]]:
    """Return the worker of each site, with its data and its private state, and the schemas of their uploads."""
    workspace, state_cache, owner = setup.workspace(), StateCache(), owner_in(out)
    workspace.on_batch = reporter.batch
    public = data.people.public if data.people else None
    strangers = data.people.strangers if data.people else {}
    site_workers = [
        SiteWorker(
            name,
            site.train,
            site.heldout,
            SiteStore(out / SITES / name, state_cache, replace(owner, site=name)),
            workspace,
            public=public,
            strangers=strangers.get(name),
            unseen=site.unseen,
        )
        for name, site in data.sites.items()
    ]
    return site_workers, workspace.schemas


def adoption(trained: Path) -> Training:
    """Return a training that adopts the members of a finished run, and its sites' own models, without new rounds."""

    def adopt(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        site_workers, schemas = open_site_workers(setup, out, data, reporter)
        generations = generations_of(trained) if data.people is not None else {}
        owner = owner_in(trained)
        for worker in site_workers:
            name, own = worker.name, replace(owner, site=worker.name)
            worker.store.take_over(trained / SITES / name, own, generations.get(name, 0))
        return train_over_transport(setup, out, LocalTransport(site_workers), schemas, reporter, adopted=trained)

    return adopt
