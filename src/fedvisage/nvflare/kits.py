"""Kits: a directory for the server, each site and the operator, with keys and certificates for mutual TLS.

``provision`` makes them all at once, with a certificate authority of the federation's own. Its key stays in
``authority/``: anyone who has it can let others in, so it belongs neither into a kit nor onto the server.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nvflare.lighter.entity import participant_from_dict
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.signature import SignatureBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Project

from fedvisage.errors import RunFailed, UserError
from fedvisage.files import read_json, write_json
from fedvisage.nvflare import hardening
from fedvisage.nvflare.federation_file import FederationFile
from fedvisage.nvflare.readmes import readme_of

Kind = Literal["server", "site", "operator"]
STARTUP: dict[Kind, str] = {"server": "fed_server.json", "site": "fed_client.json", "operator": "fed_admin.json"}
OWN = "fedvisage.json"
"""In a kit's ``local`` directory: settings that are this machine's own and never travel."""

ANEW = "take this kit anew from the one who provisioned it"
"""What helps where a kit's own files are damaged."""

README = "readme.txt"
UNWANTED = (README, "start.sh", "sub_start.sh", "stop_fl.sh", "fl_admin.sh", "system_info.ipynb")
"""NVFlare's own ways to start and look, which are not ours."""

REHEARSAL = "rehearsal"
"""Among these settings: all members are processes of one machine, so that nobody is to be protected from anybody."""


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
            return Kit(path, kind, _name_in(path / "startup" / file, kind))
    raise UserError(str(path), "is no kit; `fedvisage provision` makes them, and each machine gets its own")


def _article(kind: Kind) -> str:
    return {"server": "the server", "site": "a site", "operator": "the operator"}[kind]


def _name_in(path: Path, kind: Kind) -> str:
    try:
        tree = read_json(path, ANEW)
        name = {"server": lambda: tree["servers"][0]["admin_server"], "site": lambda: tree["client"]["fqsn"],
                "operator": lambda: tree["admin"]["username"]}[kind]()  # fmt: skip
    except (KeyError, IndexError, TypeError) as error:
        raise UserError(str(path), f"is damaged; {ANEW}") from error
    return str(name)


def provision(federation: FederationFile, directory: Path) -> None:
    """Make the kits of a federation in a new directory."""
    if directory.exists() and any(directory.iterdir()):
        raise UserError(str(directory), "is not empty; kits are made once, give another directory for new ones")
    authority = directory / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    made = _make(federation, authority)
    (directory / "sites").mkdir()
    places = {federation.server.host: directory / "server", federation.operator.email: directory / "operator"}
    places |= {name: directory / "sites" / name for name in federation.sites}
    for name, place in places.items():
        shutil.move(made / name, place)
    _harden_server(directory / "server", federation.server.organisation)
    for name, site in federation.sites.items():
        _harden_site(directory / "sites" / name, site.organisation)
    (directory / "operator" / "local" / "resources.json.default").unlink(missing_ok=True)
    _explain(directory / "server", "server", federation)
    _explain(directory / "operator", "operator", federation)
    for name in federation.sites:
        _explain(directory / "sites" / name, "site", federation)


def _make(federation: FederationFile, authority: Path) -> Path:
    """Have NVFlare make its kits and return where they lie; what it prints is shown only if it fails."""
    project = Project(federation.name, "", props={"api_version": 3})
    server = {"type": "server", "name": federation.server.host, "org": federation.server.organisation,
              "fed_learn_port": federation.server.port}  # fmt: skip
    sites = [{"type": "client", "name": name, "org": site.organisation} for name, site in federation.sites.items()]
    operator = {"type": "admin", "name": federation.operator.email, "org": federation.operator.organisation,
                "role": "project_admin"}  # fmt: skip
    for entry in (server, *sites, operator):
        project.add_participant(participant_from_dict(entry))
    builders = [WorkspaceBuilder(["master_template.yml"]), StaticFileBuilder(config_folder="config", scheme="grpc"),
                CertBuilder(), SignatureBuilder()]  # fmt: skip
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        Provisioner(str(authority), builders).provision(project)
    made = sorted((authority / federation.name).glob("prod_*"))
    if not made:
        raise RunFailed(f"{authority}: NVFlare could not make the kits: {said.getvalue().strip()}")
    return made[-1]


def _harden_server(kit: Path, organisation: str) -> None:
    """Close the server's kit; the paths of its stores are filled in where it is started."""
    _harden(kit, organisation, hardening.server_resources(_default(kit), "jobs", "snapshots"), at_site=False)


def _harden_site(kit: Path, organisation: str) -> None:
    _harden(kit, organisation, hardening.site_resources(_default(kit)), at_site=True)


def _harden(kit: Path, organisation: str, resources: dict[str, Any], *, at_site: bool) -> None:
    write_json(kit / "local" / OWN, {"organisation": organisation})
    write_json(kit / "local" / "resources.json", resources)
    write_json(kit / "local" / "authorization.json", hardening.authorization(at_site=at_site))
    for name in ("resources.json.default", "authorization.json.default", "privacy.json.sample"):
        (kit / "local" / name).unlink(missing_ok=True)


def _explain(kit: Path, kind: Kind, federation: FederationFile) -> None:
    """Put our page in the place of NVFlare's, whose commands know neither data nor a hardened kit."""
    for name in UNWANTED:
        for place in (kit, kit / "startup"):
            (place / name).unlink(missing_ok=True)
    text = readme_of(kind, kit.name, federation.name, federation.server.host, federation.server.port)
    (kit / README).write_text(text, encoding="utf-8")


def _default(kit: Path) -> dict[str, Any]:
    return read_json(kit / "local" / "resources.json.default", ANEW)


def own_settings(kit: Path) -> dict[str, str]:
    """Read a machine's own settings from its kit."""
    path = kit / "local" / OWN
    if not path.exists():
        return {}
    settings = read_json(path, "start this machine again with its command")
    return {str(key): str(value) for key, value in settings.items()}
