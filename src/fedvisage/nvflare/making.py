"""Make kits: NVFlare writes them, then they are restricted and get our readme.

NVFlare gives each kit a new key and a certificate of the federation's root. NVFlare's working files are deleted, so
that a member's key is in its kit alone.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from nvflare.lighter.entity import participant_from_dict
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.signature import SignatureBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Project
from nvflare.lighter.utils import serialize_cert

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import read_json, write_json
from fedvisage.nvflare import kits
from fedvisage.nvflare.admission import OPERATOR
from fedvisage.nvflare.authority import Authority, FederationMember
from fedvisage.nvflare.kits import ANEW, OWN, Kind, readme_of

README = "readme.txt"
UNWANTED = (README, "start.sh", "sub_start.sh", "stop_fl.sh", "fl_admin.sh", "system_info.ipynb")
"""NVFlare's own pages and start scripts, which our commands replace."""

TYPES: Mapping[Kind, str] = {"server": "server", "site": "client", "operator": "admin"}


@contextmanager
def new_kits(
    authority: Authority, server: FederationMember, members: Mapping[str, FederationMember]
) -> Iterator[dict[str, Path]]:
    """Make a kit for each of these members, next to the authority; delete kits that are not moved away."""
    with tempfile.TemporaryDirectory(dir=authority.directory, prefix=".making-") as scratch:
        place = _write_kits(authority, server, members, Path(scratch)) if members else Path(scratch)
        for name, member in members.items():
            _finish(place / name, name, member, authority)
        yield {name: place / name for name in members}


def certificate_in(kit: Path, kind: Kind) -> x509.Certificate:
    """Return the certificate of a new kit."""
    return x509.load_pem_x509_certificate((kit / "startup" / f"{stem_of(kind)}.crt").read_bytes())


def stem_of(kind: Kind) -> str:
    """Return the file name of a kit's key and certificate, without the suffix."""
    return "server" if kind == "server" else "client"


def _write_kits(
    authority: Authority, server: FederationMember, members: Mapping[str, FederationMember], scratch: Path
) -> Path:
    """Have NVFlare make its kits, and return their directory; NVFlare's output is shown only on failure."""
    root = serialize_cert(authority.root)
    project = Project(
        authority.name, "", props={"api_version": 3}, serialized_root_cert=root, root_private_key=authority.key
    )
    for name, member in {authority.host: server, **members}.items():  # every kit names the server
        project.add_participant(participant_from_dict(_entry(name, member, authority.port)))
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(),
        SignatureBuilder(),
    ]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        Provisioner(str(scratch), builders).provision(project)
    written = sorted((scratch / authority.name).glob("prod_*"))
    if not written:
        raise RunFailed(f"{authority.directory}: NVFlare could not make the kits: {output.getvalue().strip()}")
    return written[-1]


def _entry(name: str, member: FederationMember, port: int) -> dict[str, Any]:
    """Return a member as NVFlare's project describes it."""
    entry = {"type": TYPES[member.kind], "name": name, "org": member.organisation}
    if member.kind == "server":
        return entry | {"fed_learn_port": port}
    return entry | {"role": OPERATOR} if member.kind == "operator" else entry


def _finish(kit: Path, name: str, member: FederationMember, authority: Authority) -> None:
    """Restrict a kit, and replace NVFlare's page and scripts, which know neither our data nor restricted kits."""
    if member.kind == "operator":
        (kit / "local" / "resources.json.default").unlink(missing_ok=True)
    else:
        _harden(kit, member)
    for unwanted in UNWANTED:
        for place in (kit, kit / "startup"):
            (place / unwanted).unlink(missing_ok=True)
    text = readme_of(member.kind, name, authority.name, authority.host, authority.port)
    (kit / README).write_text(text, encoding="utf-8")
    make_private(kit)


def make_private(directory: Path) -> None:
    """Make a directory, all directories in it, and its keys accessible to their owner alone."""
    for path in (directory, *directory.rglob("*")):
        if path.is_dir() or path.suffix == ".key":
            path.chmod(0o700 if path.is_dir() else 0o600)


def _harden(kit: Path, member: FederationMember) -> None:
    """Write a machine's permissions; the paths of the server's stores are filled in when it starts."""
    default = read_json(kit / "local" / "resources.json.default", ANEW)
    at_site = member.kind == "site"
    resources = kits.site_resources(default) if at_site else kits.server_resources(default, "jobs", "snapshots")
    write_json(kit / "local" / OWN, {"organisation": member.organisation})
    write_json(kit / "local" / "resources.json", resources)
    write_json(kit / "local" / "authorization.json", kits.authorization(at_site=at_site))
    for name in ("resources.json.default", "authorization.json.default", "privacy.json.sample"):
        (kit / "local" / name).unlink(missing_ok=True)


def move(kit: Path, place: Path) -> None:
    """Move a new kit to the place from which it is handed out."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(kit, place)
