"""The operator's signature of a run, which a site verifies before it reads the recipe.

The signature covers the run's name, the digest of the whole recipe, and so its roster and method, the operator's
versions and the time. A server can therefore neither change a run, nor act in the name of an operator, nor repeat a run
of long ago. The names in NVFlare's description of a job are the server's, and count for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedvisage.base.files import json_key
from fedvisage.nvflare.admission import is_operator
from fedvisage.nvflare.certificates import (
    Credentials,
    certificates_in,
    sign,
    signer_of,
    signing_key,
)
from fedvisage.nvflare.greeting import VERSIONS
from fedvisage.nvflare.owner.submission import NotReady, Submission

CONTEXT = b"\0fedvisage run\0"

VALID = timedelta(days=7)
"""Age up to which a site accepts a signature. `--resume`, and each repetition of a job, signs again."""

AHEAD = timedelta(hours=1)
"""Time by which an operator's clock may be ahead."""


def sign_run(credentials: Credentials, run: str, tree: Mapping[str, Any]) -> dict[str, str]:
    """Return an operator's signature of a run and its recipe, as a job contains it."""
    signed = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "versions": VERSIONS}
    certificate = certificates_in(credentials.certificate)[0].public_bytes(Encoding.DER)
    credential = sign(signing_key(credentials), certificate, _statement(run, tree, signed))
    return signed | {"credential": credential.hex()}


def verify_run(submission: Submission, root: x509.Certificate, now: datetime | None = None) -> x509.Certificate | None:
    """Return the operator's certificate that signed a job, or None if none did; refuse an invalid signature."""
    if submission.signature is None:
        return None
    values = submission.signature
    try:
        signed = {key: str(values[key]) for key in ("time", "versions")}
        statement = _statement(submission.run, submission.tree, signed)
        certificate = signer_of(bytes.fromhex(values["credential"]), statement, root)
        age = (now or datetime.now(UTC)) - datetime.fromisoformat(signed["time"])
    except (KeyError, TypeError, ValueError) as error:
        fault = "its signature does not match its run and recipe, or has no valid certificate of this federation"
        raise NotReady(f"refuses the job: {fault}; the server or the operator is at fault") from error
    if not is_operator(certificate):
        raise NotReady("refuses the job: a member signed it that is not an operator")
    if not -AHEAD <= age <= VALID:
        raise NotReady(
            f"refuses the job: it was signed on {signed['time'][:10]}, and a signature is valid for {VALID.days} days; "
            "--resume signs again; are the clocks right?"
        )
    return certificate


def digest_of_recipe(tree: Mapping[str, Any]) -> str:
    """Return the digest of a recipe of plain values."""
    return hashlib.sha256(json_key(tree).encode()).hexdigest()


def _statement(run: str, tree: Mapping[str, Any], signed: Mapping[str, str]) -> bytes:
    return CONTEXT + json_key({"run": run, "recipe": digest_of_recipe(tree), **signed}).encode()
