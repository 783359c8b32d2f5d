"""A member's own key: the request that the member sends to the founder, and the kit that it gets without a key.

The key is made in the directory that becomes the member's kit, and stays there. A request is a PKCS #10 certificate
signing request; the authority uses its name, its role and its key, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from nvflare.lighter.utils import generate_keys, x509_name

from fedvisage.base.errors import UserError
from fedvisage.base.files import json_key, read_plain, write_atomically
from fedvisage.nvflare.authority import Authority, FederationMember, is_member_name, write_key
from fedvisage.nvflare.certificates import LARGEST, ROOT, Credentials, check, fingerprint_of
from fedvisage.nvflare.kits import ANEW, Kind, Kit, make_private, open_kit

KEY, CERTIFICATE, REQUEST = Path("startup") / "client.key", Path("startup") / "client.crt", "request.csr"
ROLES: tuple[Kind, ...] = ("site", "operator", "viewer")
LARGEST_REQUEST = 1 << 14
"""Bytes of a request, at most."""
LEAST_BITS, MOST_BITS, EXPONENT = 2048, 4096, 65537
"""Bounds of an RSA key that the authority certifies."""
ASK = "ask the member for a new request"


@dataclass(frozen=True)
class JoinRequest:
    """A request with a valid signature of its own key."""

    path: Path
    name: str
    kind: Kind
    key: RSAPublicKey
    fingerprint: str


def make_request(name: str, role: str, directory: Path) -> JoinRequest:
    """Make a key and a request in a new directory, which becomes the kit."""
    if role not in ROLES:
        raise UserError("--role", f"{role!r} is not a role; choose site, operator or viewer")
    if not is_member_name(name, role):
        form = "an e-mail address" if role in ("operator", "viewer") else "letters, digits, '-' and '_'; not 'server'"
        raise UserError("NAME", f"{name!r} is not the name of {role}s; use {form}, at most 64 characters")
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise UserError(str(directory), "exists; give a new directory, which becomes the kit") from error
    (directory / KEY).parent.mkdir(mode=0o700)
    key, _ = generate_keys()
    write_key(directory / KEY, key)
    request = x509.CertificateSigningRequestBuilder(x509_name(name, role=role)).sign(key, SHA256())
    write_atomically(directory / REQUEST, request.public_bytes(Encoding.PEM))
    return read_request(directory / REQUEST)


def read_request(path: Path) -> JoinRequest:
    """Read a request, which may be hostile, and verify its signature."""
    content, place = read_plain(path, LARGEST_REQUEST), str(path)
    if b"PRIVATE KEY" in content:
        raise UserError(place, f"contains a private key, which is no longer secret; delete this file, and {ASK}")
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd names, which are refused below
            request = x509.load_pem_x509_csr(content)
            key = request.public_key()
            if not (
                isinstance(key, RSAPublicKey)
                and LEAST_BITS <= key.key_size <= MOST_BITS
                and key.public_numbers().e == EXPONENT
            ):
                raise UserError(
                    place, f"needs an RSA key of {LEAST_BITS} to {MOST_BITS} bits with exponent 65537; {ASK}"
                )
            if not request.is_signature_valid:
                raise UserError(place, f"is not signed with the key that it names; {ASK}")
            name, role = (str(attribute.value) for attribute in request.subject)
            if role not in ROLES or request.subject != x509_name(name, role=role) or len(request.attributes):
                raise ValueError
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise UserError(place, f"is not a request with a name, a role and a key alone; {ASK}") from error
    return JoinRequest(path, name, role, key, fingerprint_of(request))


def check_requests(
    requests: Sequence[JoinRequest], described: Mapping[str, FederationMember], own_keys: Collection[str]
) -> None:
    """Refuse requests that the federation file does not provide for."""
    for number, request in enumerate(requests):
        member, place = described.get(request.name), str(request.path)
        if member is None or member.kind != request.kind:
            fault = f"is from the {request.kind} {request.name!r}, which the federation file does not name"
            raise UserError(place, f"{fault}; add it there with `key: own` if you expect it")
        if request.name not in own_keys:
            fault = f"is from {request.name}, whose key `provision` makes"
            raise UserError(place, f"{fault}; write `key: own` for it in the federation file")
        for other in requests[:number]:
            if request.name == other.name or request.fingerprint == other.fingerprint:
                raise UserError(place, f"has the name or the key of {other.path}; give one of them")


def check_keys(
    requests: Sequence[JoinRequest], authority: Authority, revoked: Collection[str], renewed: Iterable[str]
) -> None:
    """Refuse keys that were certified before, a second key of a member, and the renewal of a revoked own key."""
    for name in renewed:
        if name in revoked or not authority.members[name].holding:
            raise UserError(name, "makes its own key: to admit it again, sign a new request of it with --sign")
    owners = {fingerprint_of(authority.root): authority.name}
    for name, member in authority.members.items():
        owners |= {fingerprint_of(issued.certificate): name for issued in member.issued}
    for request in requests:
        if owner := owners.get(request.fingerprint):
            fault = f"has a key that was certified before, for {owner}"
            raise UserError(str(request.path), f"{fault}; --renew extends a certificate, a revoked key stays revoked")
        existing = authority.members.get(request.name)
        if existing and existing.holding and request.name not in revoked:
            fault = f"has a second key of {request.name}, whose first is not revoked"
            raise UserError(str(request.path), f"{fault}; replace the first with --revoke {request.name}")


def files_of(kit: Path) -> dict[str, bytes]:
    """Return the files of a kit by their paths in it; refuse links, devices and large files."""
    paths = sorted(kit.rglob("*"))
    for path in paths:
        if path.is_symlink():
            raise UserError(str(path), f"is a link, and kits have none; {ANEW}")
    return {str(path.relative_to(kit)): read_plain(path, LARGEST) for path in paths if not path.is_dir()}


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return the digest of a kit's files."""
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    return f"sha256:{hashlib.sha256(json_key(digests).encode()).hexdigest()}"


def finish_join(directory: Path, kit: Path, digest: str) -> Kit:
    """Copy a kit without a key into the directory of the key that it was made for."""
    if not (directory / REQUEST).exists():
        raise UserError(str(directory), "has no request; `fedvisage join request` makes one, with its key")
    request = read_request(directory / REQUEST)
    received = open_kit(kit, request.kind)
    files = files_of(received.path)
    # The kit decides what runs on this machine, so it must be the one that the founder made.
    if (actual := digest_of(files)) != digest:
        raise UserError(str(kit), f"has the digest {actual}, not {digest}; compare it with the founder, or {ANEW}")
    if str(KEY) in files:
        raise UserError(str(kit / KEY), "is a key that others know; ask for a kit that was made from your request")
    if received.name != request.name:
        raise UserError(str(kit), f"is the kit of {received.name!r}, and the request is from {request.name!r}; {ANEW}")
    check(Credentials(kit / CERTIFICATE, directory / KEY, kit / "startup" / ROOT), request.name)
    for path, content in files.items():
        target = directory / path
        if os.path.lexists(target) and (target.is_symlink() or read_plain(target) != content):
            raise UserError(str(target), "exists and differs from the kit's; move it away")
    for folder in (path for path in sorted(received.path.rglob("*")) if path.is_dir()):  # some have no files
        (directory / folder.relative_to(received.path)).mkdir(exist_ok=True)
    for path, content in files.items():
        write_atomically(directory / path, content)
    make_private(directory)
    return open_kit(directory, request.kind)
