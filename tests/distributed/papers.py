"""Two federations' kits, made once: what is right in one is foreign in the other."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedvisage.nvflare.authority import FederationFile
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.rehearsal import free_port


def make_kits(directory: Path) -> Path:
    """Provision a federation of two sites on this machine."""
    content = {
        "server": {"host": "localhost", "port": free_port()},
        "operator": {"email": "operator@example.org"},
        "sites": {"bank": {"organisation": "bank"}, "border": {"organisation": "agency"}},
    }
    provision(FederationFile.model_validate(content), directory)
    return directory


def copy_of(kit: Path, place: Path) -> Path:
    """Return a copy of a kit that a test may spoil."""
    return Path(shutil.copytree(kit, place / "kit"))
