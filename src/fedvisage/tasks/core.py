"""The core calls of each task: what every site answers about a finished model, whatever the method."""

from __future__ import annotations

from collections.abc import Mapping

from fedvisage.federation.declared import Call, Declared
from fedvisage.federation.wire.upload import Upload
from fedvisage.tasks.pad import heldout
from fedvisage.tasks.recognition import heldout as personal
from fedvisage.tasks.scoring import Scorer

WITH_PRIVATE_STATE = (personal.PERSONAL,)
"""Calls that look at what a site has kept to itself."""


def calls(scorer: Scorer) -> dict[str, Call]:
    """Return the core calls of the scorer's method; the scorer is shared by the sites of a process."""
    return personal.calls(scorer) if scorer.method.task == "recognition" else heldout.calls(scorer)


def uploads(method: Declared) -> Mapping[str, tuple[Upload, ...]]:
    """Return what the core calls of a method upload, by call."""
    if method.task == "recognition":
        return personal.uploads(method)
    return {call: (upload,) for call, upload in heldout.UPLOADS.items()}
