"""Kits as people mix them up, lose halves of them, or copy them from elsewhere, through the checks at the start.

A kit that starts must be one with which the federation's server shakes hands: that is tried here with OpenSSL, from
memory to memory, against the server's own papers. Nothing listens, and nothing connects.
"""

from __future__ import annotations

import json
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from campaigns.hostile.case import Admitted, Case, pick
from campaigns.hostile.files import changed_json, is_small, odd_file
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from tests.distributed.federations import make_kits
from tests.toy import discard, make_set

from fedvisage.nvflare.admission import Admission
from fedvisage.nvflare.certificates import check, credentials_in
from fedvisage.nvflare.greeting import address_in
from fedvisage.nvflare.kits import STARTUP, Kind, hold_directories, open_kit
from fedvisage.nvflare.node import check_own_sets, prepare_server, prepare_site, runs_directory, state_directory

KITS: tuple[tuple[str, Kind], ...] = (
    ("server", "server"),
    ("sites/bank", "site"),
    ("sites/border", "site"),
    ("operator", "operator"),
)
OURS = ("fedvisage.nvflare.", "nvflare.collab.runtime.")
"""How the names of the three classes begin that a kit lets run."""

PAPERS = ("client.crt", "client.key", "server.crt", "server.key", "rootCA.pem")


class Kits:
    """Kits of two federations, and papers that an authority of our own made."""

    def __init__(self, prepared: Path) -> None:
        """Provision both federations, once."""
        self.own, self.other = make_kits(prepared / "own"), make_kits(prepared / "other")
        self.data = make_set(prepared / "data", "data", 0, subjects=2, frames=1)
        for made in (self.own, self.other):
            address_in(open_kit(made / "operator", "operator"))

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Take a kit, spoil it, and start it as what it is, or as something else."""
        name, kind = pick(draws, KITS)
        kit = place / "kit"
        shutil.copytree(self.own / name, kit)
        done = [name, *(self._spoil(kit, draws) for _ in range(int(draws.integers(1, 3))))]
        if draws.random() < 0.1:
            kind = pick(draws, tuple(STARTUP))
            done.append(f"as {kind}")
        return Case(done, partial(self._start, kit, kind), links=True)

    def _spoil(self, kit: Path, draws: np.random.Generator) -> str:
        files = sorted(path for folder in ("startup", "local") for path in (kit / folder).glob("*") if is_small(path))
        papers = [path for path in files if path.name in PAPERS]
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
        if not papers or way == "gone":
            shutil.rmtree(kit / pick(draws, ("startup", "local")), ignore_errors=True)
            return "gone"
        path = pick(draws, papers if draws.random() < 0.7 else files)
        if way == "odd":
            return f"{path.name} {odd_file(path, draws)}"
        if way == "foreign":
            return self._foreign(kit, path, draws)
        if way == "swap":
            one, other = pick(draws, papers), pick(draws, papers)
            data = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(data)
            return f"{one.name} for {other.name}"
        if way == "json":
            path = pick(draws, [path for path in files if path.suffix == ".json"] or papers)
            try:
                done, text = changed_json(path.read_text(), draws)
            except ValueError:
                return "nothing"
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            return f"{path.name} {done}"
        if way == "bytes":
            raw = bytearray(path.read_bytes() or b"x")
            for _ in range(int(draws.integers(1, 5))):
                raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
            path.write_bytes(raw)
            return f"{path.name} bytes"
        return authority(kit, draws) if way == "authority" else other_form(kit, draws)

    def _foreign(self, kit: Path, path: Path, draws: np.random.Generator) -> str:
        """Put a file of another member's, or of another federation's kit in the place of this one's."""
        others = [made / name for made in (self.own, self.other) for name, _ in KITS]
        source = pick(draws, others)
        found = sorted(
            one
            for one in source.rglob("*")
            if one.name == path.name or (one.suffix == path.suffix and one.name in PAPERS)
        )
        if not found:
            return "nothing"
        chosen = [path] if draws.random() < 0.6 else [one for one in path.parent.iterdir() if one.name in PAPERS]
        for one in chosen:
            if (beside := source / "startup" / one.name).is_file() and is_small(one):
                shutil.copy(beside, one)
        return f"{', '.join(one.name for one in chosen)} of {source.parents[0].name}/{source.name}"

    def _start(self, kit: Path, kind: Kind) -> None:
        opened = open_kit(kit, kind)
        papers = credentials_in(opened.path, at_server=kind == "server")
        check(papers, opened.name)
        address_in(opened)
        if kind == "server":
            with hold_directories(opened.path, runs_directory(opened, None)):
                prepare_server(opened)
                Admission(opened.path, discard).read()
        elif kind == "site":
            with hold_directories(opened.path, state_directory(opened, None)):
                check_own_sets(opened, self.data, None, None, discard)
                prepare_site(opened, str(self.data))
        name = opened.name
        self._look(papers.certificate, papers.key, papers.root, name, at_server=kind == "server")
        if kind != "operator":
            resources = json.loads((kit / "local" / "resources.json").read_bytes())
            allowed = resources["class_allow_list"], resources["class_list_enforcement_mode"]
            if [len(allowed[0]), allowed[1]] != [3, "enforce"] or not all(one.startswith(OURS) for one in allowed[0]):
                raise Admitted(f"starts with {allowed}")
        tree = json.loads((kit / "startup" / STARTUP[kind]).read_bytes())
        if name not in str(tree):
            raise Admitted(f"is taken for {name!r}, which it does not say")

    def _look(self, certificate: Path, key: Path, root: Path, name: str, *, at_server: bool) -> None:
        """Shake hands as this kit would with an honest member of whichever federation its root is that of."""
        whose = {
            (made / "server" / "startup" / "rootCA.pem").read_bytes().strip(): made for made in (self.own, self.other)
        }
        made = whose.get(root.read_bytes().strip())
        try:
            one = context(certificate, key, root, server=at_server)
            if made is None:  # a federation of which nothing else is here: it must hold before its own root
                return
            beside = made / ("sites/bank" if at_server else "server") / "startup"
            stem = "client" if at_server else "server"
            other = context(beside / f"{stem}.crt", beside / f"{stem}.key", beside / "rootCA.pem", server=not at_server)
            found = handshake(one, other)[1] if at_server else handshake(other, one)[0]
        except (ssl.SSLError, OSError, ValueError) as error:
            raise Admitted(f"starts, and OpenSSL would not: {error}") from None
        names = [value for pair in found.get("subject", ()) for field, value in pair if field == "commonName"]
        if names != [name]:
            raise Admitted(f"starts as {name!r} with the papers of {names}")


def context(certificate: Path, key: Path, root: Path, *, server: bool) -> ssl.SSLContext:
    """Return how OpenSSL uses somebody's papers."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.load_cert_chain(certificate, key)
    made.load_verify_locations(root)
    made.check_hostname, made.verify_mode = False, ssl.CERT_REQUIRED
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> list[Any]:
    """Shake hands from memory to memory and return what the server, and what the client, saw of the other's papers."""
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


def authority(kit: Path, draws: np.random.Generator) -> str:
    """Put papers of an authority of our own into a kit, with something wrong about them, or nothing."""
    stem, name = ("server", "localhost") if (kit / "startup" / "server.crt").is_file() else ("client", name_in(kit))
    wrong = pick(draws, WRONGS)
    root_key, key = key_of(draws, wrong), key_of(draws, wrong)
    called = {"no name": "", "other name": "somebody", "long name": "n" * 64, "odd name": "bank\x00border"}.get(
        wrong, name
    )
    days = {"expired": (-90, -1), "early": (2, 90), "reversed": (-1, -2)}.get(wrong, (-1, 90))
    root = made_paper(
        "root", "root", root_key, root_key, days if wrong != "root expired" else (-90, -1), ca=wrong != "no authority"
    )
    paper = made_paper(called, "root" if wrong != "other issuer" else "stranger", key, root_key, days, ca=False)
    chain = [paper, root, paper] if wrong == "long chain" else [paper]
    startup = kit / "startup"
    startup.mkdir(exist_ok=True)
    put(startup / f"{stem}.crt", b"".join(one.public_bytes(serialization.Encoding.PEM) for one in chain))
    locked = serialization.BestAvailableEncryption(b"word") if wrong == "password" else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    put(startup / f"{stem}.key", pem)
    put(startup / "rootCA.pem", root.public_bytes(serialization.Encoding.PEM))
    return f"own authority, {wrong}"


def put(path: Path, data: bytes) -> None:
    """Write a file anew, and not through what stands in its place: a link, a pipe, a directory."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(data)


WRONGS = (
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
POOL: dict[str, list[Any]] = {}
"""Keys are slow to make and are no part of what is drawn: two of each sort serve all cases."""


def key_of(draws: np.random.Generator, wrong: str) -> Any:
    """Return a key of the sort that a case wants."""
    sort = wrong if wrong in ("curve", "edwards", "short") else "plain"
    if sort not in POOL:
        make = {
            "curve": lambda: ec.generate_private_key(ec.SECP256R1()),
            "edwards": ed25519.Ed25519PrivateKey.generate,
            "short": lambda: rsa.generate_private_key(65537, 1024),
            "plain": lambda: rsa.generate_private_key(65537, 2048),
        }[sort]
        POOL[sort] = [make(), make()]
    return POOL[sort][int(draws.integers(2))]


def made_paper(name: str, issuer: str, key: Any, by: Any, days: tuple[int, int], *, ca: bool) -> x509.Certificate:
    """Return a certificate."""
    now = datetime.now(UTC)
    begins, ends = sorted((now + timedelta(days=days[0]), now + timedelta(days=days[1])))

    def called(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])

    made = x509.CertificateBuilder(
        called(issuer), called(name), key.public_key(), x509.random_serial_number(), begins, ends
    )
    made = made.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    return made.sign(by, None if isinstance(by, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def other_form(kit: Path, draws: np.random.Generator) -> str:
    """Write a kit's papers in another form than PEM with one thing in it."""
    found = sorted(path for path in (kit / "startup").glob("*") if path.name in PAPERS and is_small(path))
    if not found:
        return "nothing"
    path = pick(draws, found)
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
    """Return the name that a kit says it has."""
    for file, keys in (("fed_client.json", ("client", "fqsn")), ("fed_admin.json", ("admin", "username"))):
        try:
            node: Any = json.loads((kit / "startup" / file).read_bytes())
            for key in keys:
                node = node[key]
            return str(node)[:60] or "nobody"
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return "nobody"
