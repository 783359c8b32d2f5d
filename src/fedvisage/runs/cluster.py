"""The description of a Ray cluster, which needs no Ray."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cluster:
    """A cluster to connect to, and what a run may do there."""

    address: str | None = None
    """HOST:PORT of a Ray cluster's head node; by default that of RAY_ADDRESS, or a head node on this machine."""
    gpus_per_worker: float = 1.0
    """Share of a GPU per worker of a Ray cluster; with 0.5, two workers share one."""
    allow_different_machines: bool = False
    """Use nodes of a Ray cluster with other processors or libraries, which may give other bytes."""
    copy_data: bool = False
    """Send sets that a node of a Ray cluster does not have to its cache."""


def prepare_ray() -> None:
    """Set variables that Ray reads when it is imported, unless the user has set them.

    A token that Ray would find is used, nothing is reported to Ray's authors, and our lines replace Ray's warnings.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if "RAY_AUTH_TOKEN" in os.environ or token_path().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def token_path() -> Path:
    """Return the path of the token that Ray reads."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
