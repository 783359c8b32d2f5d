"""Kits with exchanged, missing, damaged or foreign files, through the checks at the start.

The federation's server must complete a TLS handshake with every kit that starts. The check uses OpenSSL in memory,
without sockets.
"""

from __future__ import annotations

import json
import shutil
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from campaigns.hostile.case import Case, WronglyAccepted, pick
from campaigns.hostile.files import is_small, mutate_json, replace_file
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from tests.distributed.federations import make_kits
from tests.toy import discard, make_set

from fedvisage.nvflare.admission import Admission
from fedvisage.nvflare.certificates import Credentials, check, credentials_in
from fedvisage.nvflare.greeting import address_in
from fedvisage.nvflare.kits import STARTUP, Kind, hold_directories, open_kit, state_directory
from fedvisage.nvflare.preparation import check_own_sets, prepare_server, prepare_site

KITS: tuple[tuple[str, Kind], ...] = (
    ("server", "server"),
    ("sites/bank", "site"),
    ("sites/border", "site"),
    ("operator", "operator"),
)
OURS = ("fedvisage.nvflare.", "nvflare.collab.runtime.")
"""Prefixes of the three classes that a kit allows."""

CREDENTIALS = ("client.crt", "client.key", "server.crt", "server.key", "rootCA.pem")


class Kits:
    """Kits of two federations, and certificates of an authority of our own."""

    def __init__(self, prepared: Path) -> None:
        """Provision both federations, once."""
        self.own, self.other = make_kits(prepared / "own"), make_kits(prepared / "other")
        self.data = make_set(prepared / "data", "data", 0, subjects=2, frames=1)
        for federation in (self.own, self.other):
            address_in(open_kit(federation / "operator", "operator"))

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Change a kit, and start it as a member of its kind or of another one."""
        name, kind = pick(draws, KITS)
        kit = place / "kit"
        shutil.copytree(self.own / name, kit)
        changes = [name, *(self._change(kit, draws) for _ in range(int(draws.integers(1, 3))))]
        if draws.random() < 0.1:
            kind = pick(draws, tuple(STARTUP))
            changes.append(f"as {kind}")
        return Case(changes, partial(self._check_start, kit, kind), links=True)

    def _change(self, kit: Path, draws: np.random.Generator) -> str:
        files = sorted(path for folder in ("startup", "local") for path in (kit / folder).glob("*") if is_small(path))
        credentials = [path for path in files if path.name in CREDENTIALS]
        way = pick(
            draws,
            (
                "odd",
                "odd",
                "foreign",
                "foreign",
                "swap",
                "json",
                "json",
                "bytes",
                "authority",
                "authority",
                "form",
                "gone",
            ),
        )
        if not credentials or way == "gone":
            shutil.rmtree(kit / pick(draws, ("startup", "local")), ignore_errors=True)
            return "gone"
        path = pick(draws, credentials if draws.random() < 0.7 else files)
        if way == "odd":
            return f"{path.name} {replace_file(path, draws)}"
        if way == "foreign":
            return self._replace_foreign(kit, path, draws)
        if way == "swap":
            one, other = pick(draws, credentials), pick(draws, credentials)
            data = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(data)
            return f"{one.name} for {other.name}"
        if way == "json":
            path = pick(draws, [path for path in files if path.suffix == ".json"] or credentials)
            try:
                changes, text = mutate_json(path.read_text(), draws)
            except ValueError:
                return "nothing"
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            return f"{path.name} {changes}"
        if way == "bytes":
            raw = bytearray(path.read_bytes() or b"x")
            for _ in range(int(draws.integers(1, 5))):
                raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
            path.write_bytes(raw)
            return f"{path.name} bytes"
        return use_own_authority(kit, draws) if way == "authority" else reencode(kit, draws)

    def _replace_foreign(self, kit: Path, path: Path, draws: np.random.Generator) -> str:
        """Replace files by those of another member's or another federation's kit."""
        others = [federation / name for federation in (self.own, self.other) for name, _ in KITS]
        source = pick(draws, others)
        sources = sorted(
            each
            for each in source.rglob("*")
            if each.name == path.name or (each.suffix == path.suffix and each.name in CREDENTIALS)
        )
        if not sources:
            return "nothing"
        targets = (
            [path]
            if draws.random() < 0.6
            else [target for target in path.parent.iterdir() if target.name in CREDENTIALS]
        )
        for target in targets:
            if (replacement := source / "startup" / target.name).is_file() and is_small(target):
                shutil.copy(replacement, target)
        return f"{', '.join(target.name for target in targets)} of {source.parents[0].name}/{source.name}"

    def _check_start(self, kit: Path, kind: Kind) -> None:
        opened = open_kit(kit, kind)
        credentials = credentials_in(opened.path, at_server=kind == "server")
        check(credentials, opened.name)
        address_in(opened)
        if kind == "server":
            with hold_directories(opened.path, state_directory(opened, None)):
                prepare_server(opened)
                Admission(opened.path, discard).read()
        elif kind == "site":
            with hold_directories(opened.path, state_directory(opened, None)):
                check_own_sets(opened, self.data, None, None, discard)
                prepare_site(opened, str(self.data))
        name = opened.name
        self._check_handshake(credentials, name, at_server=kind == "server")
        if kind in ("server", "site"):
            resources = json.loads((kit / "local" / "resources.json").read_bytes())
            allowed = resources["class_allow_list"], resources["class_list_enforcement_mode"]
            if [len(allowed[0]), allowed[1]] != [3, "enforce"] or not all(each.startswith(OURS) for each in allowed[0]):
                raise WronglyAccepted(f"starts with {allowed}")
        tree = json.loads((kit / "startup" / STARTUP[kind]).read_bytes())
        if name not in str(tree):
            raise WronglyAccepted(f"starts as {name!r}, which is not in its settings")

    def _check_handshake(self, credentials: Credentials, name: str, *, at_server: bool) -> None:
        """Complete a handshake with an honest member of the federation that has the kit's root certificate."""
        federations = {
            (federation / "server" / "startup" / "rootCA.pem").read_bytes().strip(): federation
            for federation in (self.own, self.other)
        }
        federation = federations.get(credentials.root.read_bytes().strip())
        try:
            own = context(credentials.certificate, credentials.key, credentials.root, server=at_server)
            if federation is None:  # an authority of our own has no other member
                return
            beside = federation / ("sites/bank" if at_server else "server") / "startup"
            stem = "client" if at_server else "server"
            other = context(beside / f"{stem}.crt", beside / f"{stem}.key", beside / "rootCA.pem", server=not at_server)
            peer = handshake(own, other)[1] if at_server else handshake(other, own)[0]
        except (ssl.SSLError, OSError, ValueError) as error:
            raise WronglyAccepted(f"starts, and OpenSSL refuses it: {error}") from None
        names = [value for pair in peer.get("subject", ()) for field, value in pair if field == "commonName"]
        if names != [name]:
            raise WronglyAccepted(f"starts as {name!r} with the certificate of {names}")


def context(certificate: Path, key: Path, root: Path, *, server: bool) -> ssl.SSLContext:
    """Return the TLS context of a member's credentials."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    tls.load_cert_chain(certificate, key)
    tls.load_verify_locations(root)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_REQUIRED
    return tls


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> list[Any]:
    """Complete a handshake in memory; return the certificates that the server and the client received."""
    down, up = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up)]
    for _ in range(8):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    ends[1].write(b"x")
    if ends[0].read(1) != b"x":
        raise ValueError("nothing arrived")
    return [end.getpeercert() for end in ends]


def use_own_authority(kit: Path, draws: np.random.Generator) -> str:
    """Replace a kit's credentials by those of an authority of our own, with one fault or none."""
    stem, name = ("server", "localhost") if (kit / "startup" / "server.crt").is_file() else ("client", name_in(kit))
    fault = pick(draws, FAULTS)
    root_key, key = key_of(draws, fault), key_of(draws, fault)
    names = {"no name": "", "other name": "somebody", "long name": "n" * 64, "odd name": "bank\x00border"}
    name, issuer = names.get(fault, name), "stranger" if fault == "other issuer" else "root"
    days = {"expired": (-90, -1), "early": (2, 90), "reversed": (-1, -2)}.get(fault, (-1, 90))
    root = create_certificate(
        "root", "root", root_key, root_key, days if fault != "root expired" else (-90, -1), ca=fault != "no authority"
    )
    certificate = create_certificate(name, issuer, key, root_key, days, ca=False)
    chain = [certificate, root, certificate] if fault == "long chain" else [certificate]
    startup = kit / "startup"
    startup.mkdir(exist_ok=True)
    overwrite(startup / f"{stem}.crt", b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain))
    locked = serialization.BestAvailableEncryption(b"word") if fault == "password" else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    overwrite(startup / f"{stem}.key", pem)
    overwrite(startup / "rootCA.pem", root.public_bytes(serialization.Encoding.PEM))
    return f"own authority, {fault}"


def overwrite(path: Path, data: bytes) -> None:
    """Replace a path by a new file, without following a link or writing into a pipe."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(data)


FAULTS = (
    "nothing",
    "expired",
    "early",
    "reversed",
    "root expired",
    "no name",
    "other name",
    "long name",
    "odd name",
    "no authority",
    "other issuer",
    "long chain",
    "password",
    "curve",
    "edwards",
    "short",
)
KEY_POOL: dict[str, list[Any]] = {}
"""Two keys per type serve all cases, because key generation is slow and does not follow from the seed."""


def key_of(draws: np.random.Generator, fault: str) -> Any:
    """Return a key of the type that a fault needs."""
    sort = fault if fault in ("curve", "edwards", "short") else "plain"
    if sort not in KEY_POOL:
        generators: dict[str, Callable[[], Any]] = {
            "curve": lambda: ec.generate_private_key(ec.SECP256R1()),
            "edwards": ed25519.Ed25519PrivateKey.generate,
            "short": lambda: rsa.generate_private_key(65537, 1024),
            "plain": lambda: rsa.generate_private_key(65537, 2048),
        }
        KEY_POOL[sort] = [generators[sort](), generators[sort]()]
    return KEY_POOL[sort][int(draws.integers(2))]


def create_certificate(
    name: str, issuer: str, key: Any, issuer_key: Any, days: tuple[int, int], *, ca: bool
) -> x509.Certificate:
    """Return a certificate."""
    now = datetime.now(UTC)
    begins, ends = sorted((now + timedelta(days=days[0]), now + timedelta(days=days[1])))

    def name_of(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])

    builder = x509.CertificateBuilder(
        name_of(issuer), name_of(name), key.public_key(), x509.random_serial_number(), begins, ends
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    return builder.sign(issuer_key, None if isinstance(issuer_key, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def reencode(kit: Path, draws: np.random.Generator) -> str:
    """Write one of a kit's credentials in another form than PEM with one object."""
    paths = sorted(path for path in (kit / "startup").glob("*") if path.name in CREDENTIALS and is_small(path))
    if not paths:
        return "nothing"
    path = pick(draws, paths)
    data = path.read_bytes()
    way = pick(draws, ("binary", "twice", "before", "windows", "huge", "other words", "public"))
    forms: dict[str, bytes] = {
        "twice": data + data,
        "before": b"Bag Attributes\n" + data,
        "windows": data.replace(b"\n", b"\r\n"),
        "huge": data + b"#" * (1 << 24),
        "other words": data.replace(b"CERTIFICATE", b"X509 CRL").replace(b"PRIVATE", b"PUBLIC"),
    }
    if way == "binary":
        forms[way] = b"".join(data.splitlines()[1:-1])
    if way == "public":
        forms[way] = (
            b"-----BEGIN PUBLIC KEY-----\n" + b"\n".join(data.splitlines()[1:-1]) + b"\n-----END PUBLIC KEY-----\n"
        )
    path.write_bytes(forms[way])
    return f"{path.name} {way}"


def name_in(kit: Path) -> str:
    """Return the name in a kit's settings."""
    for file, keys in (("fed_client.json", ("client", "fqsn")), ("fed_admin.json", ("admin", "username"))):
        try:
            node: Any = json.loads((kit / "startup" / file).read_bytes())
            for key in keys:
                node = node[key]
            return str(node)[:60] or "nobody"
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return "nobody"
