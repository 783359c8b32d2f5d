"""The members of a federation: kits for new members, renewed certificates, and revocations.

Call ``provision`` again after every change. It does not change earlier kits: later changes are updates, a few
files that the owner copies over the kit.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from nvflare.lighter.entity import participant_from_dict
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.signature import SignatureBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Project
from nvflare.lighter.utils import serialize_cert

from fedvisage.base.errors import RunFailed, UserError, choice_hint
from fedvisage.base.files import read_json, write_atomically, write_json
from fedvisage.nvflare.authority import (
    BOOK,
    FOLDER,
    ROOT_DAYS,
    Authority,
    FederationFile,
    FederationMember,
    ServerEntry,
    create_authority,
    open_authority,
)
from fedvisage.nvflare.certificates import (
    OPERATOR,
    REVOKED,
    SOON,
    VIEWER,
    certificates_in,
    credentials_in,
    fingerprint_of,
    order_of,
    read_revocations,
)
from fedvisage.nvflare.joining import KEY, JoinRequest, check_keys, check_requests, digest_of, files_of
from fedvisage.nvflare.kits import (
    ANEW,
    OWN,
    WITH_ARTICLE,
    Kind,
    authorization,
    hold_directories,
    make_private,
    own_settings,
    readme_of,
    server_resources,
    site_resources,
)
from fedvisage.nvflare.owner.policy import ANY, policy_path, policy_text

SERVER = "server"
"""The server's name in options that take a member's name; its host name works, too."""

UPDATES = "updates"


@dataclass(frozen=True)
class Changes:
    """The result of provisioning."""

    kits: Mapping[Path, str]
    """New kits, and their owners."""
    updates: Mapping[Path, str]
    """Files to copy over a kit, and the owner of that kit."""
    notes: tuple[str, ...]
    """Members that were left unchanged, and further advice."""


def provision(
    federation: FederationFile,
    directory: Path,
    *,
    revoke: Iterable[str] = (),
    renew: Iterable[str] = (),
    requests: Sequence[JoinRequest] = (),
    root_days: int = ROOT_DAYS,
) -> Changes:
    """Make the kits and updates that a federation lacks.

    A new directory gets all kits. Later calls make kits for new members, and apply ``revoke`` and ``renew``. Members
    that make their own keys get their kits, without a key, when their requests come.
    """
    described, own_keys = _members_in_file(federation), federation.own_keys
    check_requests(requests, described, own_keys)
    keys = {request.name: request.key for request in requests}
    folder, new = directory / FOLDER, not directory.exists() or not any(directory.iterdir())
    if not new and not (folder / BOOK).exists():
        raise UserError(
            str(directory), "is not empty and does not contain a federation; give another directory for its kits"
        )
    with hold_directories(folder):
        authority = create_authority(federation, folder, root_days) if new else open_authority(folder)
        # All checks come before kits and updates.
        _check_unchanged(federation, authority)
        joining = {
            name: member
            for name, member in described.items()
            if name in keys or (name not in authority.members and name not in own_keys)
        }
        revoked = [_full_name(name, authority, {}) for name in dict.fromkeys(revoke)]
        renewed = [_full_name(name, authority, joining) for name in dict.fromkeys(renew)]
        check_keys(requests, authority, revoked, own_keys.intersection(renewed))
        if authority.host in revoked:
            raise UserError(
                "--revoke", "sites would not be notified: if the server's key is lost, provision a new federation"
            )
        placed = _place(joining, authority, directory)
        changed = {*revoked, *renewed, *keys}
        notes: list[str] = (
            [] if new else [*_take_over_lists(authority, directory), *_notes(authority, federation, changed)]
        )
        updates = _revoke(authority, revoked, directory, {*renewed, *keys})
        kits = _add(authority, placed, described, keys, directory, federation.server)
        updates |= _renew(authority, renewed, directory)
        authority.save()
    for name in sorted(own_keys - authority.members.keys()):
        notes.append(f"{name} makes its own key, and new kits do not pin it: sign its request with --sign")
    for kit, name in kits.items():
        if name in keys:
            digest = digest_of(files_of(kit))
            notes.append(f"{name} needs the digest of its kit, over another channel than the kit: {digest}")
    return Changes(kits, updates, tuple(notes))


def _members_in_file(federation: FederationFile) -> dict[str, FederationMember]:
    """Return all members in the file; the first operator's kit has the shorter path."""
    members = {federation.server.host: FederationMember("server", federation.server.organisation, "server")}
    for number, operator in enumerate(federation.operator):
        kit = f"operators/{operator.email}" if number else "operator"
        members[operator.email] = FederationMember(operator.role, operator.organisation, kit)
    return members | {
        name: FederationMember("site", site.organisation, f"sites/{name}") for name, site in federation.sites.items()
    }


def _check_unchanged(federation: FederationFile, authority: Authority) -> None:
    """Refuse changes to values in other members' kits, or in a certificate."""
    for key, now, then in (
        ("name", federation.name, authority.name),
        ("server.host", federation.server.host, authority.host),
        ("server.port", federation.server.port, authority.port),
    ):
        if now != then:
            raise UserError(
                key,
                f"cannot change: every kit already contains {then!r}; provision a new federation in another directory",
            )
    for name, member in _members_in_file(federation).items():
        existing = authority.members.get(name)
        if existing and (existing.kind, existing.organisation) != (member.kind, member.organisation):
            previous = f"{WITH_ARTICLE[existing.kind]} of {existing.organisation!r}"
            raise UserError(
                name, f"is {previous} according to its certificate; revoke it and give the new member another name"
            )


def _full_name(name: str, authority: Authority, joining: Mapping[str, FederationMember]) -> str:
    """Return the full name of an existing member."""
    full_name = authority.host if name == SERVER else name
    if full_name in joining:
        raise UserError(name, "gets a new kit now; there is nothing to renew")
    if full_name not in authority.members:
        others = sorted(name for name in authority.members if name != authority.host)
        raise UserError(name, f"is not a member{choice_hint(name, (SERVER, *others))}")
    return full_name


def _place(
    joining: Mapping[str, FederationMember], authority: Authority, directory: Path
) -> dict[str, FederationMember]:
    """Return the members that get a kit, with paths that are free."""
    # A new first operator gets another path if an operator already has the shorter one.
    taken = {member.kit for member in authority.members.values()}
    placed = {
        name: replace(member, kit=f"operators/{name}") if member.kit in taken else member
        for name, member in joining.items()
    }
    placed |= {name: authority.members[name] for name in joining if name in authority.members}  # with a new key
    for member in placed.values():
        if (directory / member.kit).exists():
            raise UserError(str(directory / member.kit), "exists, and a new kit takes this place; move it away first")
    return placed


def _add(
    authority: Authority,
    placed: Mapping[str, FederationMember],
    described: Mapping[str, FederationMember],
    requested: Mapping[str, RSAPublicKey],
    directory: Path,
    server: ServerEntry,
) -> dict[Path, str]:
    """Make kits, without a key for members that sent requests."""
    at_server = placed.get(authority.host) or authority.members[authority.host]
    with new_kits(authority, at_server, placed, requested) as kits:
        for name, kit in kits.items():
            member = authority.members.get(name, placed[name])
            credentials = credentials_in(kit, at_server=member.kind == "server")
            authority.members[name] = member.with_certificate(certificates_in(credentials.certificate)[0])
            if placed[name].kind == "server":  # the server requires a list from its first start on
                write_atomically(kit / "startup" / REVOKED, authority.revocations())
                streams = {"streams": str(server.streams), "streams_each": str(server.streams_each)}
                write_json(kit / "local" / OWN, own_settings(kit) | streams)
            place = directory / placed[name].kit
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(kit, place)
    keys: dict[Kind, dict[str, str]] = {"server": {}, "operator": {}, "viewer": {}, "site": {}}
    for name, member in authority.members.items():
        if member.holding:
            keys[member.kind][name] = fingerprint_of(member.holding[-1].certificate)
    for name in described.keys() - authority.members.keys():  # their own keys are not known yet
        keys[described[name].kind][name] = ANY
    for name, member in placed.items():
        if member.kind == "site":
            others = {site: key for site, key in keys["site"].items() if site != name}
            write_atomically(policy_path(directory / member.kit), policy_text(keys["operator"], others).encode())
    return {directory / member.kit: name for name, member in placed.items()}


def _take_over_lists(authority: Authority, directory: Path) -> Iterator[str]:
    """Take over the revocations of earlier lists that ``members.json`` lacks, and yield a note about each such list.

    It lacks some when it was restored from an older copy: the next list would have a number that was already used, and
    the server would refuse it.
    """
    for kit in (directory / UPDATES / SERVER, directory / authority.members[authority.host].kit):
        for path in (kit / "startup" / REVOKED, kit / "local" / REVOKED):
            if path.exists():
                revocations, number = read_revocations(path, authority.root), authority.revocation_number
                taken = authority.take_over(revocations)
                if taken or authority.revocation_number > number:
                    older = f"{authority.directory / BOOK} is older than list {order_of(revocations)[0]} in {path}"
                    yield (
                        f"warning: {older}: took over its number and revocations ({', '.join(taken) or 'none'}). "
                        "Certificates issued in between are unknown: restore the newest copy if there is one"
                    )


def _revoke(authority: Authority, names: Iterable[str], directory: Path, readmitted: Iterable[str]) -> dict[Path, str]:
    """Revoke all certificates of members; the list is an update for the server."""
    names, now = list(names), datetime.now(UTC).replace(microsecond=0)
    for name in names:
        issued = tuple(replace(entry, revoked=entry.revoked or now) for entry in authority.members[name].issued)
        authority.members[name] = replace(authority.members[name], issued=issued)
        shutil.rmtree(directory / UPDATES / name, ignore_errors=True)
    if not names:
        return {}
    authority.revocation_number += 1
    authority.save()  # first: after a crash here, the next list must not lack a revocation of this one
    update = directory / UPDATES / SERVER
    (update / "startup").mkdir(parents=True, exist_ok=True)
    write_atomically(update / "startup" / REVOKED, authority.revocations(readmitted))
    return {update: authority.host}


def _renew(authority: Authority, names: Iterable[str], directory: Path) -> dict[Path, str]:
    """Give members a new certificate for their existing key; a revoked member gets a new key as well."""
    members = {name: authority.members[name] for name in names}
    updates = {
        name: directory / UPDATES / (SERVER if member.kind == "server" else name) for name, member in members.items()
    }
    for update in updates.values():
        (update / "startup").mkdir(parents=True, exist_ok=True)
    revoked = {name: member for name, member in members.items() if not member.holding}
    with new_kits(authority, authority.members[authority.host], revoked, {}) as kits:
        for name, kit in kits.items():
            at_server = revoked[name].kind == "server"
            created = credentials_in(kit, at_server=at_server)
            target = credentials_in(updates[name], at_server=at_server)
            shutil.move(created.key, target.key)
            shutil.move(created.certificate, target.certificate)
            authority.members[name] = revoked[name].with_certificate(certificates_in(target.certificate)[0])
    for name, member in members.items():
        if name not in revoked:
            certificate = authority.renew(member.holding[-1].certificate)
            target = credentials_in(updates[name], at_server=member.kind == "server")
            write_atomically(target.certificate, certificate.public_bytes(Encoding.PEM))
            authority.members[name] = member.with_certificate(certificate)
    for update in updates.values():
        make_private(update)
    return {update: name for name, update in updates.items()}


def _notes(authority: Authority, federation: FederationFile, changed: Container[str]) -> Iterator[str]:
    """Yield a note about members that were left unchanged, and about each that needs a change."""
    now, wanted, unchanged = datetime.now(UTC), _members_in_file(federation), []
    for name, member in authority.members.items():
        if name in changed:
            continue
        if member.until is None:
            if name in wanted:
                again = "--sign" if name in federation.own_keys else f"--renew {name}"
                yield f"{name} is revoked: remove it from the file, or admit it again with {again}"
        elif name not in wanted:
            yield f"{name} is no longer in the file, but can connect until {member.until:%Y-%m-%d}: --revoke {name}"
        elif member.until - now < SOON:
            yield f"{name}'s certificate ends on {member.until:%Y-%m-%d}: --renew {name}"
        else:
            unchanged.append(name)
    if unchanged:
        yield f"unchanged: {', '.join(unchanged)}"
    if authority.root.not_valid_after_utc - now < SOON:
        yield f"the federation's root ends on {authority.root.not_valid_after_utc:%Y-%m-%d}: provision a new federation"


# New kits. NVFlare writes them, each with a new key and a certificate of the federation's root. Then they are
# restricted and get our readme. NVFlare's working files are deleted, so that a member's key is in its kit alone.


README = "readme.txt"
UNWANTED = (README, "start.sh", "sub_start.sh", "stop_fl.sh", "fl_admin.sh", "system_info.ipynb")
"""NVFlare's own pages and start scripts, which our commands replace."""

TYPES: Mapping[Kind, str] = {"server": "server", "site": "client", "operator": "admin", "viewer": "admin"}
ROLES: Mapping[Kind, str] = {"operator": OPERATOR, "viewer": VIEWER}


class Certificates(CertBuilder):  # type: ignore[misc]
    """NVFlare's certificates, but for the keys of members that sent requests."""

    def __init__(self, requested: Mapping[str, RSAPublicKey]) -> None:
        """Take the requested keys, by the names of members."""
        super().__init__()
        self.requested = requested

    def _generate_cert(self, subject: str, org: str, issuer: str, signer: Any, key: Any, **options: Any) -> Any:
        return super()._generate_cert(subject, org, issuer, signer, self.requested.get(subject, key), **options)


@contextmanager
def new_kits(
    authority: Authority,
    server: FederationMember,
    members: Mapping[str, FederationMember],
    requested: Mapping[str, RSAPublicKey],
) -> Iterator[dict[str, Path]]:
    """Make a kit for each of these members, next to the authority; delete kits that are not moved away."""
    with tempfile.TemporaryDirectory(dir=authority.directory, prefix=".making-") as scratch:
        place = _write_kits(authority, server, members, requested, Path(scratch)) if members else Path(scratch)
        for name, member in members.items():
            _finish(place / name, name, member, authority)
            if name in requested:
                (place / name / KEY).unlink()  # NVFlare's, which no certificate has
        yield {name: place / name for name in members}


def _write_kits(
    authority: Authority,
    server: FederationMember,
    members: Mapping[str, FederationMember],
    requested: Mapping[str, RSAPublicKey],
    scratch: Path,
) -> Path:
    """Have NVFlare make its kits, and return their directory; NVFlare's output is shown only on failure."""
    root = serialize_cert(authority.root)
    project = Project(
        authority.name, "", props={"api_version": 3}, serialized_root_cert=root, root_private_key=authority.key
    )
    for name, member in {authority.host: server, **members}.items():  # every kit names the server
        entry: dict[str, Any] = {"type": TYPES[member.kind], "name": name, "org": member.organisation}
        if member.kind == "server":
            entry["fed_learn_port"] = authority.port
        elif member.kind in ROLES:
            entry["role"] = ROLES[member.kind]
        project.add_participant(participant_from_dict(entry))
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        Certificates(requested),
        SignatureBuilder(),
    ]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        Provisioner(str(scratch), builders).provision(project)
    written = sorted((scratch / authority.name).glob("prod_*"))
    if not written:
        raise RunFailed(f"{authority.directory}: NVFlare could not make the kits: {output.getvalue().strip()}")
    return written[-1]


def _finish(kit: Path, name: str, member: FederationMember, authority: Authority) -> None:
    """Restrict a kit, and replace NVFlare's page and scripts, which know neither our data nor restricted kits."""
    local = kit / "local"
    if member.kind not in ROLES:
        # This machine's permissions; the paths of the server's stores are filled in when it starts.
        default, at_site = read_json(local / "resources.json.default", ANEW), member.kind == "site"
        resources = site_resources(default) if at_site else server_resources(default, "jobs", "snapshots")
        write_json(local / OWN, {"organisation": member.organisation})
        write_json(local / "resources.json", resources)
        write_json(local / "authorization.json", authorization(at_site=at_site))
        for name_of_default in ("authorization.json.default", "privacy.json.sample"):
            (local / name_of_default).unlink(missing_ok=True)
    (local / "resources.json.default").unlink(missing_ok=True)
    for unwanted in UNWANTED:
        for place in (kit, kit / "startup"):
            (place / unwanted).unlink(missing_ok=True)
    text = readme_of(member.kind, name, authority.name, authority.host, authority.port)
    (kit / README).write_text(text, encoding="utf-8")
    make_private(kit)
