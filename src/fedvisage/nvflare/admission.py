"""Whom a server lets connect: every connection shows a certificate, and those on the server's list are refused.

The list lies in the server's kit (``startup/revoked.pem``), signed by the federation's root (X.509 CRL). It is looked
at again whenever its file changes, and connections that it names are then cut. TLS itself lets them in, for gRPC knows
no such lists; but nothing is read from a connection before its certificate was looked at, so a token that a member was
given before is of no use either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import NameOID

from fedvisage.errors import UserError
from fedvisage.files import read_plain
from fedvisage.nvflare.certificates import REVOKED, ROOT, name_of
from fedvisage.progress import Say

logger = logging.getLogger("fedvisage.admission")

OPERATOR = "project_admin"
"""What stands in an operator's certificate."""


@dataclass
class Admission:
    """The list of a server's kit, and when the certificates of those who connected end."""

    kit: Path
    say: Say
    until: dict[str, datetime] = field(default_factory=dict)
    dropped: Callable[[str], None] = logger.info
    """Told the name of a member whose connection is cut."""
    _stamp: tuple[int, int] | None = None
    _list: x509.CertificateRevocationList | None = None
    _told: set[str] = field(default_factory=set)

    @property
    def path(self) -> Path:
        """Return where the list is."""
        return self.kit / "startup" / REVOKED

    def read(self) -> None:
        """Read the list again if its file has changed; there is none until somebody is revoked."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            self._stamp, self._list = None, None
            return
        stamp = state.st_mtime_ns, state.st_size
        if stamp != self._stamp:
            self._list = self._parsed()
            self._stamp = stamp

    def follow(self) -> None:
        """Read it again at work: a list that does not hold is said once, and the one before stays."""
        try:
            self.read()
        except UserError as error:
            self._tell(f"{error}; the list before it stays in force")

    def refusal(self, certificate: x509.Certificate) -> str | None:
        """Return why its holder may not connect."""
        if self._list is None:
            return None
        entry = self._list.get_revoked_certificate_by_serial_number(certificate.serial_number)
        if entry is None:
            return None
        why = f"it was revoked on {entry.revocation_date_utc:%Y-%m-%d}"
        self._tell(f"refused {name_of(certificate)}: its certificate does not hold, {why}")
        return why

    def enter(self, certificate: x509.Certificate) -> None:
        """Remember who connected, and until when that is possible."""
        self.until[name_of(certificate)] = certificate.not_valid_after_utc

    def _tell(self, text: str) -> None:
        """Say it the first time, and log it whenever."""
        logger.warning("%s", text)
        if text not in self._told:
            self._told.add(text)
            self.say(text)

    def _parsed(self) -> x509.CertificateRevocationList:
        try:
            found = x509.load_pem_x509_crl(read_plain(self.path))
            root = x509.load_pem_x509_certificate(read_plain(self.kit / "startup" / ROOT))
            key = root.public_key()
            holds = isinstance(key, RSAPublicKey) and found.is_signature_valid(key)
        except ValueError as error:
            raise UserError(str(self.path), "holds no list of revoked certificates; copy it again") from error
        if not holds:
            raise UserError(str(self.path), "is not signed by this federation's authority; copy it again")
        return found


def is_operator(certificate: x509.Certificate) -> bool:
    """Return whether it is an operator's certificate."""
    roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    return any(role.value == OPERATOR for role in roles)
