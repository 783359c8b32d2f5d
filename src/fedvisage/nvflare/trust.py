"""A site's defence against a dishonest server: its kit's certificate and key, and its memory of earlier runs.

A credential is a certificate and a signature. The receiver checks that its own root certificate issued the certificate,
that the certificate has the signer's name and is valid today, and that the signature matches the statement. Each
statement is about one run of one recipe. Its first byte is zero: when a site connects, NVFlare has the kit's key sign
texts that the server chooses, and such a text begins with the site's name.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import json_key
from fedvisage.data.batches import View
from fedvisage.data.duplicates import contents_of
from fedvisage.federation.record.store import recipe_digest
from fedvisage.federation.secure.memory import ALLOW, FIELD, PLAIN, Digests, RunMemory
from fedvisage.federation.secure.trust import CREDENTIAL, Trust
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.nvflare.certificates import ANEW, Credentials, certificates_in, credentials_in, key_in, leads_to, name_of
from fedvisage.nvflare.job import Job
from fedvisage.recipe import SITE_NAME, Recipe

ROSTERS = "rosters"
"""Key among a machine's own settings: the rosters that the administrator allows, separated by spaces."""

REQUIRE_SECURE = "require_secure"
"""Key among a site's own settings, with the value "yes" if it refuses runs without secure sums."""

PERSON_BUDGET = "person_epsilon"
"""Key among a site's own settings: the ε per person over all its runs; empty if each run's recipe sets the limit."""

MEMORY = ".secure"
"""The folder of a site's memory of earlier runs, next to its runs, whose names begin with a letter or digit."""

SIZES = struct.Struct(">HH")
PADDING = PSS(MGF1(SHA256()), SHA256.digest_size)


class KitTrust(RunMemory):
    """Signs with the key of a kit, verifies by its root certificate, and remembers runs."""

    def __init__(
        self,
        credentials: Credentials,
        memory: Path,
        recipe: Recipe,
        run: str,
        images: Digests,
        allowed: Sequence[frozenset[str]] = (),
    ) -> None:
        """Read the kit's certificates and key; all statements name the run and its recipe."""
        super().__init__(memory, recipe, run, images, allowed)
        key = key_in(credentials.key)
        if not isinstance(key, RSAPrivateKey):
            raise UserError(str(credentials.key), f"is not an RSA key, which signing secure sums requires; {ANEW}")
        self._key, self._root = key, certificates_in(credentials.root)[0]
        self._certificate = certificates_in(credentials.certificate)[0].public_bytes(Encoding.DER)
        context = json_key({"run": run, "recipe": recipe_digest(recipes.text_of(recipe))})
        self._context = b"\0fedvisage secure aggregation\0" + context.encode() + b"\0"

    def sign(self, statement: bytes) -> bytes:
        """Return certificate and signature in ``CREDENTIAL`` bytes."""
        signature = self._key.sign(self._context + statement, PADDING, SHA256())
        credential = SIZES.pack(len(self._certificate), len(signature)) + self._certificate + signature
        if len(credential) > CREDENTIAL:
            raise RefusedMessage(FIELD, f"this site's certificate does not fit into {CREDENTIAL} bytes; {ANEW}")
        return credential.ljust(CREDENTIAL, b"\0")

    def verify(self, site: str, statement: bytes, credential: bytes) -> None:
        """Raise ``Refused`` unless a certificate of that site signed the statement."""
        try:
            lengths, rest = SIZES.unpack_from(credential), credential[SIZES.size :]
            certificate, signature = x509.load_der_x509_certificate(rest[: lengths[0]]), rest[lengths[0] : sum(lengths)]
            key, now = certificate.public_key(), datetime.now(UTC)
            if not isinstance(key, RSAPublicKey) or name_of(certificate) != site:
                raise ValueError
            if not (leads_to([certificate], self._root) and _is_valid(certificate, now) and _is_valid(self._root, now)):
                raise ValueError
            key.verify(signature, self._context + statement, PADDING, SHA256())
        except (ValueError, InvalidSignature, struct.error) as error:
            raise RefusedMessage(
                FIELD,
                f"a message of site {site} is not signed with a valid certificate of that site; the server or that "
                "site is at fault, so nothing was revealed",
            ) from error


def trust_of(kit: Path, own: Mapping[str, str], job: Job, trained: View, cache: Path) -> Trust:
    """Return a site's trust for a job."""
    allowed = [frozenset(roster.split(",")) for roster in own.get(ROSTERS, "").split()]
    credentials, memory = credentials_in(kit, at_server=False), Path(own["state"]) / MEMORY
    return KitTrust(credentials, memory, job.recipe, job.run, images_of(trained, cache), allowed)


def images_of(view: View, cache: Path) -> Digests:
    """Return the digests of a view's images; plain ones, such as black frames, reveal nothing and are left out."""
    digests = [np.empty(0, np.uint64)]
    for part in view.slices:
        contents = contents_of(part.set, cache)
        digests.append(contents.exact[part.indices][~contents.plain[part.indices]])
    return np.concatenate(digests)


def as_setting(rosters: Sequence[str]) -> str:
    """Return rosters as a setting of a machine, or refuse what is neither a list of sites nor ``plain``."""
    for roster in (roster for roster in rosters if roster != PLAIN):
        names = roster.split(",")
        if len(set(names)) < max(2, len(names)) or not all(SITE_NAME.fullmatch(name) for name in names):
            raise UserError(
                ALLOW, f"{roster!r} is not a list of two or more sites; write their names as A,B,C, or {PLAIN}"
            )
    return " ".join(rosters)


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    """Return whether a certificate is valid now."""
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
