"""Whom a server lets connect: every connection shows a certificate, and those on the server's list are refused.

The list lies in the server's kit (``startup/revoked.pem``), signed by the federation's root (X.509 CRL) and numbered.
The server remembers the newest list that it has read, beside its runs: an older one, such as a restored backup, and a
missing one are refused. It is looked at again whenever its file changes, and connections that it names are then cut.
TLS itself lets them in, for gRPC knows no such lists; but nothing is read from a connection before its certificate was
looked at, so a token that a member was given before is of no use either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import NameOID

from fedvisage.errors import UserError
from fedvisage.files import read_json, read_plain, write_json
from fedvisage.nvflare.certificates import REVOKED, ROOT, name_of
from fedvisage.nvflare.kits import own_settings
from fedvisage.progress import Say

logger = logging.getLogger("fedvisage.admission")

OPERATOR = "project_admin"
"""What stands in an operator's certificate."""

NEWEST = "revocations.json"
"""The server's file, beside its runs, with the newest list that it has read of each federation."""

AGAIN = "copy the newest one from updates/server of the federation's kits"


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
        """Read the list again if its file has changed; only a kit from before lists had numbers may have none."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            self._accept_missing()
            return
        stamp = state.st_mtime_ns, state.st_size
        if stamp != self._stamp:
            self._list = self._not_older(self._parsed())
            self._stamp = stamp

    def follow(self) -> None:
        """Read it again at work: a list that does not hold is said once, and the one before stays."""
        try:
            self.read()
        except UserError as error:
            self._tell_once(f"{error}; the list before it stays in force")

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

    def _tell_once(self, text: str) -> None:
        """Log and say it the first time: the list is looked at every second."""
        if text not in self._told:
            self._tell(text)

    def _accept_missing(self) -> None:
        """Accept that there is no list if this server never read one; refuse a list that was taken away."""
        if (newest := self._newest()) is not None:
            raise UserError(str(self.path), f"is missing, and list {newest[0]} was in force; {AGAIN}")
        self._tell_once(f"{self.path} does not exist: this kit is older than numbered lists, which counts as list 0")

    def _not_older(self, found: x509.CertificateRevocationList) -> x509.CertificateRevocationList:
        """Refuse a list that is older than the newest one that was read, and remember a newer one."""
        number, newest = _number_of(found), self._newest()
        order = number or 0, found.last_update_utc.isoformat()
        if newest is not None and order < newest:
            raise UserError(str(self.path), f"is list {order[0]} of {order[1][:10]}, older than list {newest[0]} of "
                            f"{newest[1][:10]}, which was in force; {AGAIN}")  # fmt: skip
        if number is None:
            self._tell_once(f"{self.path} has no number: it was made before lists had them, and counts as list 0")
        if order != newest:
            known = self._known()
            self.memory.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.memory, {**known, self._federation(): list(order)})
        return found

    @property
    def memory(self) -> Path:
        """Return the file that remembers the newest list; it lies apart from the list, so that one copy misses it."""
        return Path(own_settings(self.kit).get("state", self.kit / "runs")) / NEWEST

    def _newest(self) -> tuple[int, str] | None:
        """Return number and date of the newest list of this federation that this server has read."""
        entry = self._known().get(self._federation())
        try:
            return None if entry is None else (int(entry[0]), str(entry[1]))
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise UserError(str(self.memory), "is damaged; bring it back from a copy") from error

    def _known(self) -> dict[str, Any]:
        return read_json(self.memory, "bring it back from a copy") if self.memory.exists() else {}

    def _federation(self) -> str:
        """Return the fingerprint of the federation's root: the same directory may serve several in turn."""
        return self._root().fingerprint(hashes.SHA256()).hex()

    def _root(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(read_plain(self.kit / "startup" / ROOT))

    def _parsed(self) -> x509.CertificateRevocationList:
        try:
            found = x509.load_pem_x509_crl(read_plain(self.path))
            key = self._root().public_key()
            holds = isinstance(key, RSAPublicKey) and found.is_signature_valid(key)
        except ValueError as error:
            raise UserError(str(self.path), "holds no list of revoked certificates; copy it again") from error
        if not holds:
            raise UserError(str(self.path), "is not signed by this federation's authority; copy it again")
        return found


def _number_of(found: x509.CertificateRevocationList) -> int | None:
    """Return a list's number; lists had none before they were numbered."""
    try:
        return found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return None


def is_operator(certificate: x509.Certificate) -> bool:
    """Return whether it is an operator's certificate."""
    roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    return any(role.value == OPERATOR for role in roles)
