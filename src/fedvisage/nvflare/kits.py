"""Kits: a directory for the server, each site and each operator, with keys and certificates for mutual TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedvisage.errors import UserError
from fedvisage.files import read_json

Kind = Literal["server", "site", "operator"]
STARTUP: dict[Kind, str] = {"server": "fed_server.json", "site": "fed_client.json", "operator": "fed_admin.json"}
OWN = "fedvisage.json"
"""In a kit's ``local`` directory: settings that are this machine's own and never travel."""

ANEW = "take this kit anew from the one who provisioned it"
"""What helps where a kit's own files are damaged."""

REHEARSAL = "rehearsal"
"""Among these settings: all members are processes of one machine, so that nobody is to be protected from anybody."""


STREAMS, STREAMS_EACH = 1024, 16
"""Streams that a server carries, and those of one certificate, unless its kit says otherwise. A site has one, and one
more for each run that it takes part in, so that this is enough for 500 sites in one run."""


@dataclass(frozen=True)
class Kit:
    """An opened kit."""

    path: Path
    kind: Kind
    name: str

    @property
    def own(self) -> Path:
        """Where this machine's own settings are."""
        return self.path / "local" / OWN


def open_kit(path: Path, kind: Kind) -> Kit:
    """Open a kit that must be of a kind."""
    path = path.resolve()
    for found, file in STARTUP.items():
        if (path / "startup" / file).is_file():
            if found != kind:
                raise UserError(str(path), f"is the kit of {_article(found)}, this needs that of {_article(kind)}")
            if not (path / "local").is_dir():
                raise UserError(str(path / "local"), f"is missing; {ANEW}")
            return Kit(path, kind, _name_in(path / "startup" / file, kind))
    raise UserError(str(path), "is no kit; `fedvisage provision` makes them, and each machine gets its own")


def _article(kind: Kind) -> str:
    return {"server": "the server", "site": "a site", "operator": "an operator"}[kind]


def _name_in(path: Path, kind: Kind) -> str:
    try:
        tree = read_json(path, ANEW)
        name = {"server": lambda: tree["servers"][0]["admin_server"], "site": lambda: tree["client"]["fqsn"],
                "operator": lambda: tree["admin"]["username"]}[kind]()  # fmt: skip
    except (KeyError, IndexError, TypeError) as error:
        raise UserError(str(path), f"is damaged; {ANEW}") from error
    return str(name)


def own_settings(kit: Path) -> dict[str, str]:
    """Read a machine's own settings from its kit."""
    path = kit / "local" / OWN
    if not path.exists():
        return {}
    settings = read_json(path, "start this machine again with its command")
    return {str(key): str(value) for key, value in settings.items()}
