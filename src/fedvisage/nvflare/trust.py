"""A site's defence against a dishonest server: its kit's certificate and key, and its memory of earlier runs.

The receiver of a credential checks that its own root certificate issued the signer's certificate, that the certificate
has the signer's name, is valid today, and has the key that the site's rules pin, and that the signature matches the
statement. Each statement is about one run of one recipe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding

from fedvisage import recipe as recipes
from fedvisage.base.files import json_key
from fedvisage.data.batches import View
from fedvisage.data.duplicates import contents_of
from fedvisage.federation.record.store import recipe_digest
from fedvisage.federation.secure.memory import FIELD, Digests, RunMemory
from fedvisage.federation.secure.trust import CREDENTIAL, Trust
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.nvflare.certificates import (
    ANEW,
    Credentials,
    certificates_in,
    credentials_in,
    fingerprint_of,
    name_of,
    sign,
    signer_of,
    signing_key,
)
from fedvisage.nvflare.job import Job
from fedvisage.nvflare.kits import ROSTERS
from fedvisage.recipe import Recipe

MEMORY = ".secure"
"""The folder of a site's memory of earlier runs, next to its runs, whose names begin with a letter or digit."""


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
        pins: Mapping[str, str] | None = None,
        content: str = "",
    ) -> None:
        """Read the kit's certificates and key; all statements name run and recipe. ``pins`` has members' keys."""
        super().__init__(memory, recipe, run, images, allowed, content)
        self._key, self._root, self._pins = signing_key(credentials), certificates_in(credentials.root)[0], pins or {}
        self._certificate = certificates_in(credentials.certificate)[0].public_bytes(Encoding.DER)
        context = json_key({"run": run, "recipe": recipe_digest(recipes.text_of(recipe))})
        self._context = b"\0fedvisage secure aggregation\0" + context.encode() + b"\0"

    def sign(self, statement: bytes) -> bytes:
        """Return certificate and signature in ``CREDENTIAL`` bytes."""
        credential = sign(self._key, self._certificate, self._context + statement)
        if len(credential) > CREDENTIAL:
            raise RefusedMessage(FIELD, f"this site's certificate does not fit into {CREDENTIAL} bytes; {ANEW}")
        return credential.ljust(CREDENTIAL, b"\0")

    def verify(self, site: str, statement: bytes, credential: bytes) -> None:
        """Raise ``Refused`` unless a certificate of that site, with the pinned key, signed the statement."""
        try:
            certificate = signer_of(credential, self._context + statement, self._root)
            if name_of(certificate) != site:
                raise ValueError
        except ValueError as error:
            raise RefusedMessage(
                FIELD,
                f"a message of site {site} is not signed with a valid certificate of that site; the server or that "
                "site is at fault, so nothing was revealed",
            ) from error
        if fingerprint_of(certificate) != self._pins.get(site, fingerprint_of(certificate)):
            raise RefusedMessage(FIELD, f"the key of site {site} is not the one that this site's rule members pins")


def trust_of(kit: Path, own: Mapping[str, str], job: Job, trained: View, cache: Path, pins: Mapping[str, str]) -> Trust:
    """Return a site's trust for a job."""
    allowed = [frozenset(roster.split(",")) for roster in own.get(ROSTERS, "").split()]
    credentials, memory = credentials_in(kit, at_server=False), Path(own["state"]) / MEMORY
    images, content = images_of(trained, cache), content_of(trained)
    return KitTrust(credentials, memory, job.recipe, job.run, images, allowed, pins, content)


def images_of(view: View, cache: Path) -> Digests:
    """Return the digests of a view's images; plain ones, such as black frames, reveal nothing and are left out."""
    digests = [np.empty(0, np.uint64)]
    for part in view.slices:
        contents = contents_of(part.set, cache)
        digests.append(contents.exact[part.indices][~contents.plain[part.indices]])
    return np.concatenate(digests)


def content_of(view: View) -> str:
    """Return a digest of all that training reads of a view: the files of its sets, and the order of its images."""
    digest = hashlib.sha256()
    for part in view.slices:
        digest.update(f"{part.set.digest} {len(part.indices)} ".encode() + part.indices.astype("<i8").tobytes())
    return digest.hexdigest()
