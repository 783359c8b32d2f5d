"""The seal of a run: a chain of digests over its files that detects missing, damaged and mixed-up files.

`seal.json` lists each file of a finished run with its size and SHA-256, and the digest of the chain over this list.
The chain has no key. It detects files that were lost, cut off, edited or taken from another run by mistake. It does not
detect forgery: an attacker who changes a run can write a new seal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import file_digest, json_text, read_json, write_atomically, write_json
from fedvisage.data.overlap import OVERLAP
from fedvisage.federation.record.ledger import LEDGER, ROUNDS
from fedvisage.metrics import recorded
from fedvisage.metrics.recorded import Metrics

SEAL, METRICS = "seal.json", "metrics.json"
WEIGHTS, SETTINGS, COUNTS = "model.safetensors", "model.json", "heldout.safetensors"
PAIRS, SIMILARITIES, FEATURES = "pairs.csv", "similarities.safetensors", "features.safetensors"
# The modules that write these files import their names from here, because some load torch, which reports lack.
FILES = (
    *("recipe.yaml", "environment.json", "data.json", OVERLAP, "start.json", ROUNDS, LEDGER, WEIGHTS, SETTINGS),
    *(COUNTS, "scores.csv", PAIRS, SIMILARITIES, FEATURES, METRICS),
)
"""The files that a seal covers if a run has them: all files that metrics, reports or the model depend on."""
SEALED = "sealed"
"""The key of `metrics.json` that records the existence of a seal, so that a missing seal is detected."""
FORMAT = 1
RESTORE = "restore the file that the run wrote, or run again"


class _Entry(BaseModel):
    """The entry of one file in a seal."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class _Seal(BaseModel):
    """The content of a seal."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    format: int
    files: dict[str, _Entry]
    chain: str


def write_sealed(directory: Path, metrics: Metrics) -> None:
    """Seal the files of a run, then write its metrics, which mark it as finished.

    The seal already covers the metrics, so an interruption between both writes leaves an unfinished run.
    """
    text = json_text({"format": recorded.FORMAT, **metrics, SEALED: True}).encode()
    paths = {name: directory / name for name in FILES if name != METRICS and (directory / name).exists()}
    files = {name: _Entry(bytes=path.stat().st_size, sha256=file_digest(path)) for name, path in sorted(paths.items())}
    files[METRICS] = _Entry(bytes=len(text), sha256=hashlib.sha256(text).hexdigest())
    write_json(directory / SEAL, _Seal(format=FORMAT, files=files, chain=_chain(files)).model_dump())
    write_atomically(directory / METRICS, text)


def check_seal(directory: Path) -> bool:
    """Return whether a run has a seal; raise an error that names the first file that does not match it.

    Runs of earlier versions, and a copy of only the two model files, have no seal.
    """
    path = directory / SEAL
    if not path.exists():
        figures = directory / METRICS
        if figures.exists() and read_json(figures).get(SEALED):
            raise UserError(str(path), f"is missing, although {METRICS} records a seal for this run; restore it")
        return False
    seal = _read_seal(path)
    wrong = {name: reason for name in FILES if (reason := _mismatch(directory / name, seal.files.get(name)))}
    if 2 * len(wrong) > len(seal.files) and METRICS in wrong:
        raise UserError(
            str(path), "belongs to another run: most files beside it differ from it; restore the seal of this run"
        )
    for name, reason in wrong.items():
        other_files = ", ".join(file for file in wrong if file != name)
        raise UserError(str(directory / name), reason + (f" (also wrong: {other_files})" if other_files else ""))
    return True


def chain_of(directory: Path) -> str:
    """Return the digest of a run's chain, which identifies the run, or an empty text without a seal."""
    path = directory / SEAL
    return _read_seal(path).chain if path.exists() else ""


def _mismatch(path: Path, entry: _Entry | None) -> str:
    """Return the difference between a file and its entry, with a remedy; empty if there is none."""
    if entry is None:
        return f"does not belong to this run: {SEAL} does not list it; remove it" if path.exists() else ""
    if not path.exists():
        return f"is missing: {SEAL} lists it; {RESTORE}"
    if path.is_file() and (size := path.stat().st_size) != entry.bytes:
        kind = "was cut off or belongs to" if size < entry.bytes else "was changed or belongs to"
        return f"{kind} another run: it has {size:,} bytes, but {entry.bytes:,} in {SEAL}; {RESTORE}"
    if file_digest(path, entry.bytes) != entry.sha256:
        return f"was changed or belongs to another run: its digest is not the one in {SEAL}; {RESTORE}"
    return ""


def _read_seal(path: Path) -> _Seal:
    try:
        seal = _Seal.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        detail = plain_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 200)
        raise UserError(str(path), f"is not the seal of a run ({detail}); {RESTORE}") from None
    if seal.format != FORMAT:
        raise UserError(str(path), f"has format {seal.format}, this version reads {FORMAT}; use a newer fedvisage")
    if METRICS not in seal.files or set(seal.files) - set(FILES) or seal.chain != _chain(seal.files):
        raise UserError(str(path), f"was changed: its digest does not match its list of files; {RESTORE}")
    return seal


def _chain(files: Mapping[str, _Entry]) -> str:
    """Return the last link of the chain; each link is the digest of the previous link and of a file's entry."""
    link = f"fedvisage run {FORMAT}"
    for name, entry in sorted(files.items()):
        link = hashlib.sha256(f"{link}\n{name}\n{entry.bytes}\n{entry.sha256}".encode()).hexdigest()
    return link
