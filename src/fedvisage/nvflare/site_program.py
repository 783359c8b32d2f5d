"""The program of a job at a site: it receives orders, and sends replies or reasons, nothing else.

NVFlare starts it in a process of its own for each job. The site worker is the same as in a local run. A reason that
leaves the site never has the text of an exception, unless we wrote it: an exception may quote a file name or a person's
id. The full text is in the site's own log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from nvflare.collab import collab

from fedvisage import recipe as recipes
from fedvisage.base.errors import NoRoom, UserError
from fedvisage.base.files import disk_full_is_failure, lock_directory, read_json, remove_unfinished, write_json
from fedvisage.data.integrity import Snapshot
from fedvisage.federation.privacy.accountant import BudgetSpent
from fedvisage.federation.record.releases import SiteAccount, stated_cost
from fedvisage.federation.record.store import Owner, SiteStore, recipe_digest
from fedvisage.federation.site import TrainingFailed
from fedvisage.federation.site_worker import SiteWorker
from fedvisage.federation.wire.message import Message, digest_of, size_of
from fedvisage.federation.wire.schema import RefusedMessage, Schema
from fedvisage.methods import find
from fedvisage.nvflare import bounds, transport
from fedvisage.nvflare.job import data_at_site, sets_at_site, weights_at_site
from fedvisage.nvflare.kits import REHEARSAL, own_settings
from fedvisage.nvflare.outcome import RunLog
from fedvisage.nvflare.owner.acceptance import AcceptedRun, accept_run
from fedvisage.nvflare.owner.record import Row, SiteRecord
from fedvisage.nvflare.owner.submission import NotReady, read_submission
from fedvisage.nvflare.preparation import checks_directory
from fedvisage.nvflare.trust import trust_of
from fedvisage.tasks.catalogue import set_up

logger = logging.getLogger("fedvisage.site")

PATIENCE = 60.0
"""Seconds to wait for a process of an earlier job that still holds the run."""

DATA_FILE = "data.json"

PLACES = ("recipe", "data.")
"""Prefixes of places in a recipe: these may leave the site."""


class SiteProgram:
    """The calls that the server can make."""

    def __init__(self) -> None:
        """Start empty: NVFlare builds this object before it knows the job, and passes no arguments."""
        self._lock = threading.Lock()
        self._held = ExitStack()
        self._worker: SiteWorker | None = None
        self._log: RunLog | None = None
        self._accepted: AcceptedRun | None = None
        self._record: SiteRecord | None = None
        self._run = self._last_reason = ""
        self._threads = 1
        self._snapshot: Snapshot | None = None
        self._round = -1
        """The round of the last order, before which the data was compared with the snapshot."""
        bounds.install()

    @collab.publish
    def restore(self, generation: int) -> transport.Parcel:  # noqa: D102
        context = collab.fl_ctx
        return self._answer(lambda: self._restore(context, generation))

    @collab.publish
    def carry_out(self, order: dict) -> transport.Parcel:  # type: ignore[type-arg]  # noqa: D102
        ticket = transport.ticket_of(order)
        return self._answer(lambda: self._execute(order), ticket)

    @collab.publish
    def commit(self, generation: int) -> transport.Parcel:  # noqa: D102
        return self._answer(lambda: self._commit(generation))

    def _answer(self, work: Callable[[], Message], ticket: str = "") -> transport.Parcel:
        """Run one task at a time, and turn any failure into a reason that reveals no data."""
        spent = False
        with self._lock:
            try:
                torch.set_num_threads(self._threads)  # in every call: threads of a pool do not inherit it
                with disk_full_is_failure(Path("this site's state")):
                    return transport.pack_reply(work(), ticket)
            except (TrainingFailed, RefusedMessage, NotReady, BudgetSpent) as error:
                reason, spent = str(error), isinstance(error, BudgetSpent)
            except UserError as error:
                logger.error("%s", error)
                place = error.place if error.place.startswith(PLACES) else "a file"  # it may be named after a person
                reason = f"{place} was refused at the site; see its log for the reason"
            except NoRoom as error:
                logger.error("%s", error)
                reason = "its disk is full; see its log"
            except Exception as error:  # any exception is logged, and becomes a reply without its text
                logger.exception("an order could not be carried out")
                reason = f"{type(error).__name__} at the site; see its log for details"
            logger.error("answered: %s", reason)
            if self._log is not None:
                with suppress(OSError):  # perhaps the same full disk
                    self._log.note("failed", reason)
            if self._record is not None and reason != self._last_reason:
                with suppress(OSError, NoRoom, UserError):  # the reason may be a record that was edited
                    event = "refused" if self._accepted is None else "failed"
                    self._record.append(event, run=self._run, reason=reason)
                self._last_reason = reason
            return transport.pack_failure(reason, ticket, spent=spent)

    def _opened_worker(self) -> SiteWorker:
        """Return the site worker, which ``restore`` opens."""
        if self._worker is None:
            raise NotReady("received a request before its starting point")
        return self._worker

    def _execute(self, parcel: object) -> Message:
        """Execute an order; the first one of a round only if the data is unchanged."""
        worker, order = self._opened_worker(), transport.unpack_order(parcel)
        if self._accepted is not None:
            self._accepted.check_withdrawn()
            self._accepted.check_time()
        if order.round != self._round:
            self._check_unchanged()
            self._round = order.round
            if self._log is not None:
                self._log.advance(order.round, worker.workspace.recipe.training.rounds, "began")
        message = worker.execute(order)
        if self._record is not None:
            values = sent_values(message, worker.workspace.schemas[order.call])
            if self._accepted is not None:
                values["processor"] = round(self._accepted.processor_seconds(), 1)
            self._record.append("sent", run=self._run, round=order.round, call=order.call, **values)
        return message

    def _check_unchanged(self) -> None:
        """End this site's part of the run if its data changed: later orders and commits are refused as well."""
        if self._snapshot is not None and (changed := self._snapshot.changed_file()) is not None:
            self._round = -1
            logger.error("%s changed while the run was reading it", changed)
            raise NotReady(f"{changed.name} of its data changed during the run; restore it, then --resume the run")

    def _commit(self, generation: int) -> Message:
        """Commit a generation, and return the one that is committed."""
        self._check_unchanged()
        committed = self._opened_worker().commit(generation)
        if self._log is not None:
            self._log.advance(generation, 0, "committed")
        return {"generation": torch.tensor(committed)}

    def _restore(self, context: Any, generation: int) -> Message:
        """Open the site worker on the first call, and restore a generation."""
        if self._worker is None:
            self._worker = self._open(context)
        self._worker.restore(generation)
        return {}

    def _open(self, context: Any) -> SiteWorker:
        """Read this site's own copy of the job, check that its owner accepts the run, and open its own data."""
        workspace, name = context.get_workspace(), context.get_identity_name()
        kit = Path(workspace.get_root_dir())
        submission = read_submission(Path(workspace.get_app_config_dir(context.get_job_id())))
        settings = own_settings(kit)
        self._record = None if REHEARSAL in settings else SiteRecord(kit, Path(settings["state"]))
        self._run, self._accepted = submission.run, None
        state = Path(settings["state"])
        directory = state / submission.run
        directory.mkdir(parents=True, exist_ok=True)
        self._log = RunLog(directory, submission.run)  # from here the site's administrator reads of a refusal
        accepted = self._accepted = accept_run(kit, name, settings, submission)
        job = accepted.job
        with ExitStack() as held:
            try:
                held.enter_context(lock_directory(directory, PATIENCE))
            except UserError as error:
                raise NotReady("still has a process of an earlier job that holds this run") from error
            remove_unfinished(directory)
            self._threads = job.recipe.runtime.threads
            torch.set_num_threads(self._threads)
            self._snapshot = Snapshot(sets_at_site(job.recipe, settings))  # before the data is read and checked
            setup = set_up(job.recipe, find(job.recipe.method), weights_at_site(settings))
            cache = checks_directory(state)
            data = data_at_site(setup, name, settings, cache)
            digest = recipe_digest(recipes.text_of(job.recipe))
            digest = _check_same_data(directory / DATA_FILE, data.digests, digest)
            site, people = data.sites[name], data.people
            trust = trust_of(kit, settings, job, site.train, cache, accepted.policy.pins)
            worker = SiteWorker(
                name,
                site.train,
                site.heldout,
                SiteStore(directory, owner=Owner(name, job.run, digest, unnamed=not digest)),
                setup.workspace(),
                public=people.public if people else None,
                strangers=people.strangers[name] if people else None,
                unseen=site.unseen,
                trust=trust,
                account=SiteAccount(state, accepted.policy.epsilon, accepted.policy.delta),
            )
            worker.workspace.on_batch = lambda *_: accepted.check_time()
            orders = (tensors.extent for tensors in worker.workspace.accepted.values())
            bounds.limit(orders, context.get_engine().get_cell())
            self._held = held.pop_all()  # only on success: a site that could not open its data must not lock itself out
        return worker


def sent_values(message: Message, schema: Schema) -> Row:
    """Return the fields of a reply with sizes and digests, and the ε of the site's releases so far."""
    groups, cost = schema.group(message), stated_cost(message, "")
    fields = [
        {"field": upload.name, "kind": upload.kind, "bytes": size_of(group.values()), "digest": digest_of(group)}
        for upload, group in zip(schema.uploads, groups.values(), strict=True)
    ]
    return {"fields": fields} | ({} if cost is None else {"epsilon": cost.figures["total"]["epsilon"]})


def _check_same_data(path: Path, digests: Mapping[str, str], recipe: str) -> str:
    """Refuse data other than the data with which this site's part of the run began.

    Return the recipe's digest of then, which later versions may write in another way; empty if an earlier one began.
    """
    if not path.exists():
        write_json(path, {**digests, "recipe": recipe})
    recorded = read_json(path)
    began_with = str(recorded.pop("recipe", ""))
    if recorded != digests:
        raise NotReady("the data is not the data that this run began with")
    return began_with
