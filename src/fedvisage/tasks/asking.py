"""Requests to the sites about a finished model, and a summary of their held-out scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedvisage.federation.method import RESULT, START
from fedvisage.federation.server import Server, join_members, members_of
from fedvisage.federation.wire.message import Message
from fedvisage.metrics.threshold import Histogram, auc_from_histogram, eer_from_histogram
from fedvisage.tasks.pad import heldout


def collect_histograms(server: Server, finished: Message, call: str = heldout.SCORES) -> dict[str, Histogram]:
    """Request histograms of scores from the sites, by default the scores of held-out images."""
    return {name: reply["histogram"].numpy() for name, reply in call_with_model(server, call, finished).items()}


def call_with_model(server: Server, call: str, finished: Message) -> dict[str, Message]:
    """Send a call about a finished model to the sites; if each site has its own model, send each site that one."""
    if server.method.members != "each":
        return server.ask(call, finished)
    members = members_of(finished)
    return server.ask(call, each={name: members[name] for name in server.present})


def choose_kept(
    server: Server, result: Message, heldout_table: Callable[[Message], dict[str, Any]]
) -> tuple[Message, dict[str, Any]]:
    """Return the model that ``training.keep`` names, and the held-out metrics of start and result by site."""
    keep = server.recipe.training.keep
    if keep is None:
        return result, {}
    models = {START: {name: server.start[name] for name in result}, RESULT: result}
    tables = {name: heldout_table(model) for name, model in models.items()}
    return join_members(models) if keep == "average" else models[keep], {"model": keep, **tables}


def source_summary(histograms: Mapping[str, Histogram]) -> dict[str, float]:
    """Return the mean AUC and EER of the sites' held-out scores, for model selection and progress."""
    aucs = [value for counts in histograms.values() if (value := auc_from_histogram(counts)) is not None]
    eers = [value for counts in histograms.values() if (value := eer_from_histogram(counts)) is not None]
    return {"auc": float(np.mean(aucs)), "eer": float(np.mean(eers))} if aucs else {}
