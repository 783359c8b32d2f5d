"""A site's signatures, their verification, and its memory of earlier runs, as protection from a lying server.

``Trust`` is the interface. Between organisations ``nvflare/trust.py`` implements it with the kit's certificate and a
memory on the site's disk. In a simulation one process of one user runs all sites, so ``SIMULATED_TRUST`` does nothing;
it signs with zeros, so that messages have the same fields and sizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from fedvisage.base.files import json_key
from fedvisage.federation.secure.protocol import Public

CREDENTIAL = 2048
"""Bytes of a signature together with the certificate that verifies it, padded with zeros."""


class Trust(Protocol):
    """A site's protection from a lying server."""

    def sign(self, statement: bytes) -> bytes:
        """Return a credential of ``CREDENTIAL`` bytes: this site's signature of a statement about this run."""

    def verify(self, site: str, statement: bytes, credential: bytes) -> None:
        """Raise ``Refused`` unless the credential is that site's signature of the statement about this run."""

    def check_use(self) -> None:
        """Raise ``Refused`` if this run and earlier ones on this data could reveal single uploads."""

    def remember_use(self) -> None:
        """Check this run, and bind this data to its members and settings, durably."""

    def remember_survivors(self, round_number: int, survivors: Sequence[str]) -> None:
        """Raise ``Refused`` if this round already had other survivors; store these, durably."""


class SimulatedTrust:
    """The trust of a simulation in one process: it signs and verifies, but remembers nothing."""

    def sign(self, statement: bytes) -> bytes:
        """Return zeros."""
        return bytes(CREDENTIAL)

    def verify(self, site: str, statement: bytes, credential: bytes) -> None:
        """Accept anything."""

    def check_use(self) -> None:
        """Accept any run."""

    def remember_use(self) -> None:
        """Store nothing."""

    def remember_survivors(self, round_number: int, survivors: Sequence[str]) -> None:
        """Store nothing."""


SIMULATED_TRUST: Trust = SimulatedTrust()


def keys_statement(round_number: int, site: str, public: Public) -> bytes:
    """Return the statement that a site signs about its public keys."""
    return _statement({"about": "keys", "round": round_number, "site": site, "keys": _keys_as_hex(public)})


def survivors_statement(
    round_number: int, roster: Sequence[str], publics: Sequence[Public], survivors: Sequence[str], lent: str
) -> bytes:
    """Return the statement that a site signs about the survivors of a sum.

    It contains a digest of the roster, and the digest of the model that the server ``lent``: a server that lends some
    sites a model from which nothing is learned would see the others' uploads in the sum.
    """
    keys = _statement([[name, _keys_as_hex(public)] for name, public in zip(roster, publics, strict=True)])
    digest = hashlib.sha256(keys).hexdigest()
    about = {"about": "survivors", "round": round_number, "roster": digest, "lent": lent}
    return _statement(about | {"survivors": list(survivors)})


def _keys_as_hex(public: Public) -> list[str]:
    return [public.sealing.hex(), public.masking.hex(), public.seed_hash.hex()]


def _statement(value: object) -> bytes:
    return json_key(value).encode()
