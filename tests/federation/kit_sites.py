"""Sites with kits and memories, as in a real federation, on a transport within this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.toy import SITES, quiet_reporter, recipe_of, shortest_recipe

from fedvisage.base.errors import RunFailed
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.record.ledger import JsonLines, read_lines
from fedvisage.federation.record.store import SiteStore, StateCache
from fedvisage.federation.secure.calls import layout_of, threshold_of
from fedvisage.federation.secure.total import TooFewSites, sum_uploads
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message, Order, Reply
from fedvisage.federation.wire.schema import SUMMED, schema_of
from fedvisage.methods import METHODS
from fedvisage.nvflare.authority import FederationFile
from fedvisage.nvflare.certificates import credentials_in
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.trust import KitTrust, content_of, images_of
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import set_up

NOTHING = np.empty(0, np.uint64)


def provision_kits(directory: Path) -> Path:
    """Make the kits of a federation with the toy sites."""
    content = {
        "server": {"host": "localhost"},
        "operator": {"email": "operator@example.org"},
        "sites": {name: {"organisation": "owner"} for name in SITES},
    }
    provision(FederationFile.model_validate(content), directory)
    return directory


def open_trust(
    kits: Path,
    name: str,
    memory: Path,
    run: str = "r",
    images: Any = NOTHING,
    allowed: Sequence[frozenset[str]] = (),
    recipe: Recipe | None = None,
    content: str = "",
) -> KitTrust:
    """Open the trust of a site, or with the name ``localhost`` that of the server's kit."""
    at_server = name == "localhost"
    papers = credentials_in(kits / ("server" if at_server else f"sites/{name}"), at_server=at_server)
    recipe = recipe or shortest_recipe("fedpad")
    return KitTrust(papers, memory / name, recipe, run, images, allowed, content=content)


class KitTransport(LocalTransport):
    """A transport between sites with kits, whose memories stay in a directory; B's reply to one call may be lost."""

    def __init__(
        self,
        site_workers: Sequence[SiteWorker],
        kits: Path,
        memory: Path,
        run: str = "first",
        lost: str = "",
        allowed: Sequence[frozenset[str]] = (),
    ) -> None:
        """Give each site its trust for a run."""
        super().__init__(site_workers)
        self.lost = lost
        for worker in site_workers:
            images, content = images_of(worker.train, memory / "cache"), content_of(worker.train)
            recipe = worker.workspace.recipe
            worker.trust = open_trust(kits, worker.name, memory, run, images, allowed, recipe, content)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Execute the orders."""
        for reply in super().call(orders):
            is_lost = reply.site == "B" and orders["B"].call == self.lost
            yield Reply("B", None, "the line is dead", reply.ticket) if is_lost else reply


def uploads_of(run: Path, field: str) -> list[str]:
    """Return the sites that sent a field, by the run's ledger."""
    rows = read_lines(run / "ledger.jsonl")
    return [row["site"] for row in rows if row["direction"] == "up" and row["field"] == field]


@dataclass(frozen=True)
class RoundView:
    """The server's view of one round of training: the mean of a sum, or single uploads."""

    mean: Message
    uploads: Mapping[str, Message]


def train_round(
    content: Mapping[str, Any],
    directory: Path,
    wire: Callable[[Sequence[SiteWorker]], LocalTransport] = LocalTransport,
    start: float = 0.0,
) -> RoundView:
    """Run the first round of a recipe of plain values, from weights that the server chooses.

    The weights follow from seed 0, whatever the recipe's own, and are moved by ``start``.
    """
    recipe = recipe_of(content)
    setup, method = set_up(recipe, METHODS[recipe.method.name]), METHODS[recipe.method.name]
    sites = setup.task.open(recipe, method, directory / "cache", quiet_reporter().say).sites
    workspace, store = setup.workspace(), StateCache()
    schema = schema_of(method.calls[SUMMED].uploads, recipe, workspace.net)
    network = method.initial_network(recipe_of({**content, "runtime": {**content["runtime"], "seed": 0}}))
    whole = {f"{part}.{name}": value for part in network for name, value in network[part].state_dict().items()}
    lent = {
        name: whole[name] + start if whole[name].is_floating_point() else whole[name]
        for name in schema.tensors
        if name in whole
    }
    workers = [
        SiteWorker(name, site.train, site.heldout, SiteStore(directory / "state" / name, store), workspace)
        for name, site in sites.items()
    ]
    ledger = JsonLines(directory / "ledger.jsonl")
    exchange = Exchange(recipe, wire(workers), workspace.schemas, ledger)
    exchange.open_round(1)
    try:
        if recipe.federation.secure is not None:
            return RoundView(sum_uploads(exchange, lent, layout_of(schema), threshold_of(recipe, 1)).value, {})
        replies = list(exchange.run(SUMMED, lent))
    except TooFewSites as error:
        raise RunFailed(f"{error}{exchange.record.reasons()}") from error
    finally:
        ledger.close()
    if failures := [f"{reply.site}: {reply.failure}" for reply in replies if reply.message is None]:
        raise RunFailed("; ".join(failures))
    names = list(layout_of(schema))
    uploads = {reply.site: {name: reply.message[name].double() for name in names} for reply in replies if reply.message}
    totals = {name: torch.stack([upload[name] for upload in uploads.values()]).sum(0) for name in names}
    return RoundView({name: total / len(uploads) for name, total in totals.items()}, uploads)
