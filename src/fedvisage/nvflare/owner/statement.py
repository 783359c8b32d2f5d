"""The operators' signatures of a run, which a site verifies before it reads the recipe.

The signature covers the run's name, the digest of the whole recipe, and so its roster and method, the operator's
versions and the time. A server can therefore neither change a run, nor act in the name of an operator, nor repeat a run
of long ago. The names in NVFlare's description of a job are the server's, and count for nothing.

A second operator can sign the recipe, for any run of it. Sites with the rule ``signatures: 2`` require that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedvisage.base.errors import UserError
from fedvisage.base.files import flatten, json_key, parse_json, read_json, write_json
from fedvisage.nvflare.certificates import (
    OPERATOR,
    Credentials,
    certificates_in,
    name_of,
    role_of,
    sign,
    signer_of,
    signing_key,
)
from fedvisage.nvflare.greeting import VERSIONS
from fedvisage.nvflare.owner.submission import NotReady, Submission

CONTEXT, SECOND_CONTEXT = b"\0fedvisage run\0", b"\0fedvisage recipe\0"

SECOND = "second"
"""The key of the second operator's signature in the first one's."""

VALID = timedelta(days=7)
"""Age up to which a site accepts a signature. `--resume`, and each repetition of a job, signs again."""

AHEAD = timedelta(hours=1)
"""Time by which an operator's clock may be ahead."""


def sign_run(credentials: Credentials, run: str, tree: Mapping[str, Any]) -> dict[str, str]:
    """Return an operator's signature of a run and its recipe, as a job contains it."""
    signed = {"time": _now(), "versions": VERSIONS}
    return signed | {"credential": _credential(credentials, _statement(run, tree, signed))}


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
    if role_of(certificate) != OPERATOR:
        raise NotReady("refuses the job: a member signed it that is not an operator")
    if not -AHEAD <= age <= VALID:
        raise NotReady(
            f"refuses the job: it was signed on {signed['time'][:10]}, and a signature is valid for {VALID.days} days; "
            "--resume signs again; are the clocks right?"
        )
    return certificate


def write_second_signature(path: Path, credentials: Credentials, tree: Mapping[str, Any]) -> None:
    """Write a file with a recipe and an operator's signature of it, for the runs of another operator."""
    time = _now()
    write_json(path, {"recipe": tree, "time": time, "credential": _credential(credentials, _second(tree, time))})


def read_second_signature(path: Path, credentials: Credentials, tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the signature in a file, as a job contains it; refuse one of another recipe, or of the same operator."""
    content = read_json(path, "ask the other operator to sign again")
    signed, tree = content.get("recipe"), parse_json(json_key(tree).encode())
    if signed != tree:
        theirs, ours = (dict(flatten(each)) if isinstance(each, dict) else {} for each in (signed, tree))
        changed = sorted(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
        fault = f"is a signature of another recipe: {', '.join(changed[:5])} differ"
        raise UserError(str(path), f"{fault}; give `cosign` the recipe and changes of this run, with these values")
    second = {key: str(content.get(key)) for key in ("time", "credential")}
    try:
        signer = _second_signer(second, tree, certificates_in(credentials.root)[0])
    except NotReady as error:
        raise UserError(str(path), f"has no valid signature: {error}") from error
    if name_of(signer) == name_of(certificates_in(credentials.certificate)[0]):
        raise UserError(str(path), "is your own signature; another operator must sign")
    return second


def verify_second(
    submission: Submission, root: x509.Certificate, now: datetime | None = None
) -> x509.Certificate | None:
    """Return the certificate of the second operator, or None if there is none; refuse an invalid signature."""
    second = (submission.signature or {}).get(SECOND)
    return None if second is None else _second_signer(second, submission.tree, root, now)


def _second_signer(
    second: Any, tree: Mapping[str, Any], root: x509.Certificate, now: datetime | None = None
) -> x509.Certificate:
    try:
        signer = signer_of(bytes.fromhex(second["credential"]), _second(tree, second["time"]), root)
        age = (now or datetime.now(UTC)) - datetime.fromisoformat(second["time"])
    except (KeyError, TypeError, ValueError) as error:
        raise NotReady("refuses the job: the second operator's signature does not match its recipe") from error
    if role_of(signer) != OPERATOR:
        raise NotReady("refuses the job: the second signature is not an operator's")
    if not -AHEAD <= age <= VALID:
        dated = f"the second operator's signature is of {second['time'][:10]}, and is valid for {VALID.days} days"
        raise NotReady(f"refuses the job: {dated}; sign again; are the clocks right?")
    return signer


def digest_of_recipe(tree: Mapping[str, Any]) -> str:
    """Return the digest of a recipe of plain values."""
    return hashlib.sha256(json_key(tree).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _credential(credentials: Credentials, statement: bytes) -> str:
    certificate = certificates_in(credentials.certificate)[0].public_bytes(Encoding.DER)
    return sign(signing_key(credentials), certificate, statement).hex()


def _second(tree: Mapping[str, Any], time: str) -> bytes:
    return SECOND_CONTEXT + json_key({"recipe": digest_of_recipe(tree), "time": time}).encode()


def _statement(run: str, tree: Mapping[str, Any], signed: Mapping[str, str]) -> bytes:
    return CONTEXT + json_key({"run": run, "recipe": digest_of_recipe(tree), **signed}).encode()
