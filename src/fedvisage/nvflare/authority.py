"""The description of a federation, and its authority: root key, members, certificates and revocations.

An authority is stored in ``authority`` next to the kits it made, readable by its owner alone. Its key can let anyone
into the federation, so it belongs neither into a kit nor onto the server. Members' own keys are in their kits and
nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key
from pydantic import Field, field_validator, model_validator

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_json, write_atomically, write_json
from fedvisage.nvflare.certificates import NAMED, order_of
from fedvisage.nvflare.kits import STREAMS, STREAMS_EACH, Kind
from fedvisage.recipe import SITE_NAME, Section, read_section, read_tree

# The description file of a federation: its server, sites and operators.


HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
EMAIL = r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}$"
ORGANISATION = r"^[A-Za-z0-9_]{1,63}$"
LONGEST_NAME = 64
"""Letters of a name in a certificate, at most."""

KeyMaker = Literal["founder", "own"]
"""The maker of a member's key: the founder (``provision``) or the member itself (``join request``)."""


def is_member_name(name: str, kind: str) -> bool:
    """Return whether a site, an operator or a viewer can have this name."""
    if kind in ("operator", "viewer"):
        return bool(re.fullmatch(EMAIL, name)) and len(name) <= LONGEST_NAME
    return bool(SITE_NAME.fullmatch(name)) and name.lower() not in ("server", "operator")


class ServerEntry(Section):
    """The server's address. Sites and the operator connect to it; no connection goes to a site."""

    host: str
    port: int = Field(8002, ge=1, le=65535)
    organisation: str = Field("server", pattern=ORGANISATION)
    streams: int = Field(STREAMS, ge=10, le=100_000)
    """Streams that the server carries at once: one for each site and operator, and one more for each site of a run."""
    streams_each: int = Field(STREAMS_EACH, ge=2, le=1000)
    """Streams of one certificate; beyond this number the oldest is closed."""

    @field_validator("host")
    @classmethod
    def _host_is_a_name(cls, value: str) -> str:
        if not HOST.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a host name; write the name that sites connect to, such as fed.example.org"
            )
        return value


class SiteEntry(Section):
    """A data owner."""

    organisation: str = Field(pattern=ORGANISATION)
    key: KeyMaker = "founder"


class OperatorEntry(Section):
    """A person who may submit and stop runs, or only see them; the address is the name in certificates."""

    email: str = Field(pattern=EMAIL, max_length=LONGEST_NAME)
    organisation: str = Field("server", pattern=ORGANISATION)
    role: Literal["operator", "viewer"] = "operator"
    key: KeyMaker = "founder"


class FederationFile(Section):
    """The content of the description file, the input of ``fedvisage provision``."""

    name: str = Field("fedvisage", pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")
    server: ServerEntry
    sites: dict[str, SiteEntry] = Field(min_length=1)
    operator: tuple[OperatorEntry, ...] = Field(min_length=1)
    """The operators, who have equal rights, and the viewers."""

    @field_validator("operator", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, Mapping | OperatorEntry) else value

    @field_validator("sites", mode="before")
    @classmethod
    def _names_are_text(cls, value: Any) -> Any:
        return {str(name): entry for name, entry in value.items()} if isinstance(value, Mapping) else value

    @field_validator("sites")
    @classmethod
    def _names_are_plain(cls, value: dict[str, SiteEntry]) -> dict[str, SiteEntry]:
        for name in value:
            if not is_member_name(name, "site"):
                raise ValueError(f"site name {name!r}: use letters, digits, '-' and '_', at most 64; not 'server'")
        return value

    @field_validator("operator")
    @classmethod
    def _somebody_operates(cls, value: tuple[OperatorEntry, ...]) -> tuple[OperatorEntry, ...]:
        if all(operator.role == "viewer" for operator in value):
            raise ValueError("only viewers are named, who cannot submit runs; name an operator")
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> FederationFile:
        names = [self.server.host, *self.sites, *(operator.email for operator in self.operator)]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{repeated[0]!r} is named twice; server, sites and operators need distinct names")
        return self

    @property
    def own_keys(self) -> set[str]:
        """The names of the members that make their own keys."""
        sites = {name for name, site in self.sites.items() if site.key == "own"}
        return sites | {operator.email for operator in self.operator if operator.key == "own"}


def read_federation(path: Path) -> FederationFile:
    """Read and check the description of a federation."""
    tree = read_tree(path)
    try:
        return read_section(FederationFile, tree, f"{path}: ")
    except UserError as error:
        if not isinstance(tree.get("operator"), Mapping):
            raise
        raise UserError(error.place.replace("operator.0.", "operator."), error.message) from error


CERTIFICATE, KEY, BOOK = "root.pem", "root.key", "members.json"
FOLDER = "authority"

ROOT_DAYS = 3650
"""Days that a root is valid: no certificate outlives it, and only new kits for all members replace it."""

UTF8_STRING = 0x0C
"""The tag of a text in DER, followed by its length."""

LOST = "restore it from a backup, or provision a new federation in another directory"


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate that was issued to a member."""

    certificate: x509.Certificate
    revoked: datetime | None = None

    @property
    def until(self) -> datetime:
        """The end of its validity."""
        return self.certificate.not_valid_after_utc


@dataclass(frozen=True)
class FederationMember:
    """A member: its kind, organisation, kit, and certificates, the newest last."""

    kind: Kind
    organisation: str
    kit: str
    issued: tuple[IssuedCertificate, ...] = ()

    @property
    def holding(self) -> tuple[IssuedCertificate, ...]:
        """The certificates that are not revoked."""
        return tuple(issued for issued in self.issued if issued.revoked is None)

    @property
    def until(self) -> datetime | None:
        """The latest end of its certificates; None if all are revoked."""
        return max((issued.until for issued in self.holding), default=None)

    def with_certificate(self, certificate: x509.Certificate) -> FederationMember:
        """Return the member with one more certificate."""
        return replace(self, issued=(*self.issued, IssuedCertificate(certificate)))


@dataclass
class Authority:
    """An opened authority."""

    directory: Path
    name: str
    host: str
    port: int
    root: x509.Certificate
    key: RSAPrivateKey
    members: dict[str, FederationMember] = field(default_factory=dict)
    revocation_number: int = 0
    """The number of the newest list of revoked certificates."""
    revoked_others: dict[int, datetime] = field(default_factory=dict)
    """Revoked certificates that no member's record has: ``members.json`` was restored from an older copy."""

    def save(self) -> None:
        """Write the records of all members."""
        members = {}
        for name, member in sorted(self.members.items()):
            issued = []
            for entry in member.issued:
                revoked = entry.revoked and entry.revoked.isoformat()
                issued.append({"certificate": serialize_cert(entry.certificate).decode(), "revoked": revoked})
            kit = {"kind": member.kind, "organisation": member.organisation, "kit": member.kit}
            members[name] = kit | {"issued": issued}
        book: dict[str, Any] = {"name": self.name, "host": self.host, "port": self.port, "members": members}
        book["revocations"] = self.revocation_number
        if self.revoked_others:
            book["revoked"] = {f"{serial:x}": when.isoformat() for serial, when in self.revoked_others.items()}
        write_json(self.directory / BOOK, book)

    def renew(self, old: x509.Certificate) -> x509.Certificate:
        """Return a certificate with the same content for the same key, valid from now."""
        now = datetime.now(UTC)
        until = min(now + (old.not_valid_after_utc - old.not_valid_before_utc), self.root.not_valid_after_utc)
        builder = x509.CertificateBuilder(self.root.subject, old.subject, old.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(until)
        for extension in old.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        return builder.sign(self.key, hashes.SHA256())

    def revocations(self, readmitted: Iterable[str] = ()) -> bytes:
        """Return the numbered and signed list of all revoked certificates (X.509 CRL, PEM).

        It names the members without a valid certificate, except those who are about to get one.
        """
        now, number = datetime.now(UTC), x509.CRLNumber(self.revocation_number)
        builder = x509.CertificateRevocationListBuilder(self.root.subject, now, self.root.not_valid_after_utc)
        builder = builder.add_extension(number, critical=False)
        for serial, when in self.revoked_others.items():
            builder = builder.add_revoked_certificate(x509.RevokedCertificateBuilder(serial, when).build())
        for name, member in self.members.items():
            for issued in (issued for issued in member.issued if issued.revoked):
                entry = x509.RevokedCertificateBuilder(issued.certificate.serial_number, issued.revoked)
                if not member.holding and name not in readmitted:
                    text = name.encode()  # at most 64 letters, as in a certificate
                    entry = entry.add_extension(
                        x509.UnrecognizedExtension(NAMED, bytes((UTF8_STRING, len(text))) + text), critical=False
                    )
                builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def take_over(self, revocations: x509.CertificateRevocationList) -> list[str]:
        """Take over the revocations of a list that the members' records lack, and return the names, or serial numbers.

        The number of the next list is then higher than this one's.
        """
        self.revocation_number = max(self.revocation_number, order_of(revocations)[0])
        lacking = {entry.serial_number: entry.revocation_date_utc for entry in revocations}
        for issued in (issued for member in self.members.values() for issued in member.issued if issued.revoked):
            lacking.pop(issued.certificate.serial_number, None)
        lacking = {serial: when for serial, when in lacking.items() if serial not in self.revoked_others}
        taken = []
        for name, member in self.members.items():
            dates = [lacking.pop(issued.certificate.serial_number, issued.revoked) for issued in member.issued]
            certificates = tuple(
                replace(issued, revoked=date) for issued, date in zip(member.issued, dates, strict=True)
            )
            if certificates != member.issued:
                self.members[name] = replace(member, issued=certificates)
                taken.append(name)
        self.revoked_others |= lacking
        return taken + [f"certificate {serial:x}" for serial in lacking]


def create_authority(federation: FederationFile, directory: Path, days: int) -> Authority:
    """Create a new authority; only its owner can read the key."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    key, public = generate_keys()
    subject = Identity(federation.name)
    root = generate_cert(subject, subject, key, public, valid_days=days, ca=True)
    write_key(directory / KEY, key)
    write_atomically(directory / CERTIFICATE, serialize_cert(root))
    return Authority(directory, federation.name, federation.server.host, federation.server.port, root, key)


def write_key(path: Path, key: RSAPrivateKey) -> None:
    """Write a private key into a new file that its owner alone can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(serialize_pri_key(key))


def open_authority(directory: Path) -> Authority:
    """Open an existing authority."""
    book = read_json(directory / BOOK, LOST)
    # Any fault of these files has the same remedy, because a partly read authority would forget members.
    try:
        root = x509.load_pem_x509_certificate((directory / CERTIFICATE).read_bytes())
        key = cast("RSAPrivateKey", load_pem_private_key((directory / KEY).read_bytes(), password=None))
        members = {}
        for name, entry in book["members"].items():
            issued = []
            for record in entry["issued"]:
                certificate = x509.load_pem_x509_certificate(record["certificate"].encode())
                revoked = None if record["revoked"] is None else datetime.fromisoformat(record["revoked"])
                issued.append(IssuedCertificate(certificate, revoked))
            organisation, kit = str(entry["organisation"]), str(entry["kit"])
            members[str(name)] = FederationMember(entry["kind"], organisation, kit, tuple(issued))
        others = {int(serial, 16): datetime.fromisoformat(when) for serial, when in book.get("revoked", {}).items()}
        authority = Authority(
            directory,
            str(book["name"]),
            str(book["host"]),
            int(book["port"]),
            root,
            key,
            members,
            int(book.get("revocations", 0)),
            others,
        )
    except OSError as error:
        raise UserError(str(error.filename), f"cannot be read ({error.strerror}); {LOST}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(str(directory), f"is damaged; {LOST}") from error
    if key.public_key() != root.public_key():
        raise UserError(str(directory / KEY), f"is not the key of {CERTIFICATE}; {LOST}")
    return authority
