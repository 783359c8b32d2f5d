"""Certificates and keys of kits: read, checked against each other and for expiry, without a connection.

This module detects faults of a kit's own files, before anything connects. ``greeting.py`` detects faults that only the
other end can show, such as a server of another federation.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_plain

ROOT = "rootCA.pem"
LARGEST = 1 << 20
"""Bytes of a file of certificates, or of a key, at most."""

REVOKED = "revoked.pem"
"""The list of certificates that the server refuses, next to the server's own certificate."""

NAMED = x509.ObjectIdentifier("2.25.147684768149363402161052013257802341921")
"""Extension of an entry in the list: the name of a member without a valid certificate."""

OPERATOR, VIEWER = "project_admin", "member"
"""The roles in the certificates of operators and viewers, as NVFlare names them."""

SOON = timedelta(days=30)
"""Time before the end of a certificate in which warnings appear."""

ANEW = "ask the person who provisioned the federation for this kit again"
RENEW = "ask the person who provisioned the federation to renew it (`provision --renew {}`)"
NEW = "the federation's root cannot be renewed: every member needs a new kit"


@dataclass(frozen=True)
class Credentials:
    """The three files that prove a machine's identity."""

    certificate: Path
    key: Path
    root: Path


def credentials_in(kit: Path, *, at_server: bool) -> Credentials:
    """Return the paths of a kit's certificate, its key and the root certificate of its federation."""
    stem, startup = "server" if at_server else "client", kit / "startup"
    return Credentials(startup / f"{stem}.crt", startup / f"{stem}.key", startup / ROOT)


def check(credentials: Credentials, name: str, now: datetime | None = None) -> None:
    """Refuse files that do not match each other, this name or today's date; the message names the file."""
    own, key_file = credentials.certificate, credentials.key
    chain, (root, *_), key = certificates_in(own), certificates_in(credentials.root), key_in(key_file)
    if (mode := key_file.stat().st_mode & 0o777) & 0o077:  # other users of this machine could use the key
        remedy = f"run `chmod 600 {key_file}`"
        raise UserError(str(key_file), f"has mode {mode:o}, and its group or others can use it; {remedy}")
    kit_certificate, now, form = chain[0], now or datetime.now(UTC), (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != kit_certificate.public_key().public_bytes(*form):
        raise UserError(str(key_file), f"is not the key of {own.name}; {ANEW}")
    if (actual_name := name_of(kit_certificate)) != name:
        raise UserError(str(own), f"belongs to {actual_name!r}, but the kit belongs to {name!r}; {ANEW}")
    if not leads_to(chain, root):
        raise UserError(str(own), f"does not belong to the same federation as {credentials.root.name}; {ANEW}")
    for path, certificate, advice in ((own, kit_certificate, RENEW.format(name)), (credentials.root, root, NEW)):
        if now > certificate.not_valid_after_utc:
            raise UserError(str(path), f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}; {advice}")
        if now < (began := certificate.not_valid_before_utc):
            fault = f"is not valid before {began:%Y-%m-%d %H:%M} UTC; is this machine's clock right?"
            raise UserError(str(path), fault)
    # Connections would refuse keys that are too short today, or of kinds unknown to TLS.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for path in (credentials.root, own):
        try:
            if path == credentials.root:
                context.load_verify_locations(path)
            else:
                context.load_cert_chain(own, key_file)
        except ssl.SSLError as error:
            reason = (error.reason or "unknown").lower().replace("_", " ")
            raise UserError(str(path), f"cannot be used for a connection ({reason}); {ANEW}") from error


def expiry_of(credentials: Credentials) -> datetime:
    """Return the earliest end of a kit's certificates."""
    return min(
        certificate.not_valid_after_utc
        for path in (credentials.certificate, credentials.root)
        for certificate in certificates_in(path)
    )


def warning(credentials: Credentials, name: str, now: datetime | None = None) -> str | None:
    """Return a line about the kit's certificate that ends first, if it ends soon."""
    until = {path: certificates_in(path)[0].not_valid_after_utc for path in (credentials.certificate, credentials.root)}
    first = min(until, key=lambda path: until[path])
    remaining = until[first] - (now or datetime.now(UTC))
    if remaining > SOON:
        return None
    advice = RENEW.format(name) if first == credentials.certificate and until[credentials.root] > until[first] else NEW
    return f"{first} ends on {until[first]:%Y-%m-%d}, in {max(remaining.days, 0)} days; {advice}"


def name_of(certificate: x509.Certificate) -> str:
    """Return the name of a certificate's owner."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def role_of(certificate: x509.Certificate) -> str | None:
    """Return the role of an operator or a viewer; other members have none."""
    roles = [str(role.value) for role in certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)]
    return roles[0] if len(roles) == 1 and roles[0] in (OPERATOR, VIEWER) else None


def leads_to(chain: Sequence[x509.Certificate], root: x509.Certificate) -> bool:
    """Return whether each certificate is signed by the next one, and the last one by the root."""
    try:
        for certificate, issuer in zip(chain, (*chain[1:], root), strict=True):
            certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def certificates_in(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a file, a kit's own first."""
    try:
        return x509.load_pem_x509_certificates(_bytes(path))
    except ValueError as error:
        raise UserError(str(path), f"does not contain a certificate; {ANEW}") from error


def key_in(path: Path) -> PrivateKeyTypes:
    """Return the private key of a file."""
    if not path.exists():
        raise UserError(str(path), f"is missing; `fedvisage join finish` adds a key of your own, or {ANEW}")
    try:
        return load_pem_private_key(_bytes(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(str(path), f"does not contain a key; {ANEW}") from error


def _bytes(path: Path) -> bytes:
    if not path.exists():
        raise UserError(str(path), f"is missing; {ANEW}")
    return read_plain(path, LARGEST)


# Signatures with a kit's key. A credential is a certificate and a signature. The first byte of each statement is zero:
# when a member connects, NVFlare has the kit's key sign texts that the server chooses, and such a text begins with the
# member's name.


SIZES = struct.Struct(">HH")
PADDING = PSS(MGF1(SHA256()), SHA256.digest_size)


def signing_key(credentials: Credentials) -> RSAPrivateKey:
    """Return the key of a kit, which must be able to sign statements."""
    key = key_in(credentials.key)
    if not isinstance(key, RSAPrivateKey):
        raise UserError(str(credentials.key), f"is not an RSA key, which signing requires; {ANEW}")
    return key


def sign(key: RSAPrivateKey, certificate: bytes, statement: bytes) -> bytes:
    """Return a credential: a certificate in DER, and its key's signature of a statement."""
    signature = key.sign(statement, PADDING, SHA256())
    return SIZES.pack(len(certificate), len(signature)) + certificate + signature


def signer_of(credential: bytes, statement: bytes, root: x509.Certificate) -> x509.Certificate:
    """Return the certificate that signed a statement.

    Raise ``ValueError`` unless the root issued it, both are valid today, and the signature matches.
    """
    now = datetime.now(UTC)
    try:
        lengths, rest = SIZES.unpack_from(credential), credential[SIZES.size :]
        certificate, signature = x509.load_der_x509_certificate(rest[: lengths[0]]), rest[lengths[0] : sum(lengths)]
        key = certificate.public_key()
        if not (isinstance(key, RSAPublicKey) and leads_to([certificate], root)):
            raise ValueError
        if not all(each.not_valid_before_utc <= now <= each.not_valid_after_utc for each in (certificate, root)):
            raise ValueError
        key.verify(signature, statement, PADDING, SHA256())
    except (InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion, struct.error) as error:
        raise ValueError from error
    return certificate


def fingerprint_of(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """Return the digest of a certificate's key. A renewed certificate keeps the key, and so the digest."""
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


# Lists of revoked certificates.


def read_revocations(
    path: Path, root: x509.Certificate, remedy: str = "copy it again"
) -> x509.CertificateRevocationList:
    """Read a list, and check its signature."""
    try:
        revocations, key = x509.load_pem_x509_crl(read_plain(path)), root.public_key()
        is_signed = isinstance(key, RSAPublicKey) and revocations.is_signature_valid(key)
    except ValueError as error:
        raise UserError(str(path), f"does not contain a list of revoked certificates; {remedy}") from error
    if not is_signed:
        raise UserError(str(path), f"is not signed by this federation's authority; {remedy}")
    return revocations


def number_of(revocations: x509.CertificateRevocationList) -> int | None:
    """Return a list's number, or None for a list from before numbers."""
    try:
        return revocations.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return None


def order_of(revocations: x509.CertificateRevocationList) -> tuple[int, str]:
    """Return the values by which lists are ordered: number and date."""
    return number_of(revocations) or 0, revocations.last_update_utc.isoformat()
