"""Lists of revoked certificates that would readmit a member: fewer, older, renumbered, of another signer, or restored.

A case is a history: a server reads one list after another, at a start or while it runs, or a founder restores old
copies of the members' records between revocations. A revoked member must stay revoked. The check compares with the
content of the lists, independent of the server's own record.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
from campaigns.hostile.case import Case, WronglyAccepted, pick
from campaigns.hostile.files import replace_file
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.x509.oid import NameOID
from tests.distributed.federations import make_kits

from fedvisage.base.errors import UserError
from fedvisage.nvflare.admission import Admission
from fedvisage.nvflare.authority import FederationFile, open_authority
from fedvisage.nvflare.certificates import NAMED, REVOKED
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.preparation import prepare_server

MEMBERS = 6
BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
NUMBERS: tuple[int | None, ...] = (None, 0, 1, 2, 3, 4, 5, 2**40, 2**150)
REASONS = tuple(reason for reason in x509.ReasonFlags if reason is not x509.ReasonFlags.unspecified)
SIGNERS = ("own", "own", "own", "own", "own", "own", "other", "member")


@dataclass(frozen=True)
class Step:
    """A list as the server reads it, and the content of a valid list of its federation."""

    description: str
    data: bytes | None
    revoked: frozenset[int] | None = None
    """The revoked certificates of a list that this federation's authority signed; None for anything else."""
    restarts: bool = False
    moves: bool = False
    """True if the server starts with another directory for its runs."""
    odd: int | None = None
    """A seed, if another object replaces the file."""


class Lists:
    """Lists that the authorities of two federations sign, and certificates of members to revoke."""

    def __init__(self, prepared: Path) -> None:
        """Provision both federations, and issue the certificates, once."""
        self.own = make_kits(prepared / "own")
        self.authority = open_authority(self.own / "authority")
        other = open_authority(make_kits(prepared / "other") / "authority")
        member = serialization.load_pem_private_key((self.own / "sites/bank/startup/client.key").read_bytes(), None)
        assert isinstance(member, RSAPrivateKey)
        self.keys = {"own": self.authority.key, "other": other.key, "member": member}
        self.certificates = [self._certificate(number) for number in range(MEMBERS)]

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Create a history of a server, or sometimes of a founder."""
        if draws.random() < 0.05:
            return self._founder_case(draws, place)
        shutil.copytree(self.own / "server", place / "server")
        steps = [self._step(draws) for _ in range(int(draws.integers(2, 8)))]
        return Case([step.description for step in steps], partial(self._check_server, place, steps), links=True)

    def _certificate(self, number: int) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"member-{number}")])
        builder = x509.CertificateBuilder(self.authority.root.subject, subject, self.authority.root.public_key())
        builder = builder.serial_number(1000 + number).not_valid_before(BEGAN).not_valid_after(BEGAN + timedelta(900))
        return builder.sign(self.authority.key, hashes.SHA256())

    def _step(self, draws: np.random.Generator) -> Step:
        """Draw a list and a change of its file."""
        restarts, moves = bool(draws.random() < 0.5), bool(draws.random() < 0.2)
        way = pick(draws, ("list",) * 8 + ("missing", "odd", "cut", "two", "binary"))
        description, data, revoked = self._list(draws)
        if way == "missing":
            return Step(way, None, None, restarts, moves)
        if way == "odd":
            return Step(f"odd: {description}", data, revoked, restarts, moves, int(draws.integers(2**32)))
        if way == "cut":
            return Step(way, data[: int(draws.integers(len(data) - 30))], None, restarts, moves)
        if way == "two":  # readers take the first
            return Step(f"two: {description}", data + self._list(draws)[1], revoked, restarts, moves)
        if way == "binary":
            data = x509.load_pem_x509_crl(data).public_bytes(serialization.Encoding.DER)
            return Step(way, data, None, restarts, moves)
        return Step(description, data, revoked, restarts, moves)

    def _list(self, draws: np.random.Generator) -> tuple[str, bytes, frozenset[int] | None]:
        """Draw a list: its number, date, certificates, signer and the names in its entries."""
        number, signer, days = pick(draws, NUMBERS), pick(draws, SIGNERS), int(draws.integers(0, 40))
        serials = [1000 + member for member in range(MEMBERS) if draws.random() < 0.6]
        date = BEGAN + timedelta(days)
        builder = x509.CertificateRevocationListBuilder(self.authority.root.subject, date, date + timedelta(900))
        if number is not None:
            builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        for serial in serials:
            entry = x509.RevokedCertificateBuilder(serial, date)
            if draws.random() < 0.3:
                entry = entry.add_extension(x509.CRLReason(pick(draws, REASONS)), critical=False)
            if draws.random() < 0.3:
                value = pick(
                    draws, (b"\x0c\x04bank", b"", b"\x0c", b"\xff" * 300, b"\x0c\x05\x1b[31m", b"\x0c\x02\n\r")
                )
                entry = entry.add_extension(x509.UnrecognizedExtension(NAMED, value), critical=False)
            builder = builder.add_revoked_certificate(entry.build())
        data = builder.sign(self.keys[signer], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        description = f"{signer} {number} {days} {sorted(serial - 1000 for serial in serials)}"
        return description, data, frozenset(serials) if signer == "own" else None

    def _check_server(self, place: Path, steps: Sequence[Step]) -> None:
        """Let a server read one list after another, and check after each that revoked members stay revoked."""
        kit, ever_revoked, error = place / "server", frozenset[int](), None
        path = kit / "startup" / REVOKED
        running: Admission | None = None
        for number, step in enumerate(steps):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
            if step.data is not None:
                path.write_bytes(step.data)
            if step.odd is not None:
                replace_file(path, np.random.default_rng(step.odd))
                is_whole = path.is_file() and not path.is_symlink() and path.stat().st_size == len(step.data or b"")
                step = replace(
                    step, revoked=step.revoked if is_whole else None, data=step.data if path.exists() else None
                )
            if step.moves:
                prepare_server(open_kit(kit, "server"), place / f"runs-{number}")
            messages = list[str]()
            try:
                if running is None or step.restarts:
                    running = None
                    started = Admission(kit, messages.append)
                    started.read()
                    running = started
                    if step.revoked is None and (step.data is not None or ever_revoked):
                        raise WronglyAccepted(f"starts with {step.description}")
                    accepted = True
                else:
                    running.follow()
                    accepted = not any("stays in force" in line for line in messages) and step.revoked is not None
                    accepted = accepted and self._serials_refused_by(running) == step.revoked
            except UserError as refusal:
                error, accepted = refusal, False
            if accepted and step.revoked is not None:
                if not ever_revoked <= step.revoked:
                    raise WronglyAccepted(f"takes {step.description} after {sorted(ever_revoked)}")
                ever_revoked = step.revoked
            if running is not None and not ever_revoked <= self._serials_refused_by(running):
                raise WronglyAccepted(
                    f"admits {sorted(ever_revoked - self._serials_refused_by(running))} after {step.description}"
                )
            if running is not None and not all(name.isprintable() for name in running.revoked()):
                raise WronglyAccepted(f"names members by {list(running.revoked())}")
        if error is not None:
            raise error

    def _serials_refused_by(self, server: Admission) -> frozenset[int]:
        """Return the serial numbers of the certificates that a server refuses."""
        return frozenset(each.serial_number for each in self.certificates if server.refusal(each))

    def _founder_case(self, draws: np.random.Generator, place: Path) -> Case:
        """Draw a founder's actions: revoke and renew members, and restore older copies of their records."""
        actions = [
            (pick(draws, ("revoke", "revoke", "restore", "renew")), pick(draws, ("bank", "border")), draws.random())
            for _ in range(int(draws.integers(3, 7)))
        ]
        return Case(
            [f"{action} {name} {share:.2f}" for action, name, share in actions],
            partial(self._check_founder, place, actions),
        )

    def _check_founder(self, place: Path, actions: Sequence[tuple[str, str, float]]) -> None:
        """Execute the actions, and check that a server accepts every list and that lists only grow."""
        kits, server = place / "kits", place / "server"
        shutil.copytree(self.own / "authority", kits / "authority")
        shutil.copytree(self.own / "server", server)
        sites = {name: {"organisation": member.organisation} for name, member in self.authority.members.items()}
        operator, host = "operator@example.org", self.authority.host
        file = FederationFile.model_validate(
            {
                "server": {"host": host, "port": self.authority.port},
                "operator": {"email": operator},
                "sites": {name: entry for name, entry in sites.items() if name not in (host, operator)},
            }
        )
        book, ever_revoked = kits / "authority" / "members.json", set[int]()
        copies = [book.read_bytes()]
        for action, name, share in actions:
            if action == "restore":
                book.write_bytes(copies[int(share * len(copies))])
                continue
            provision(file, kits, revoke=[name] * (action == "revoke"), renew=[name] * (action == "renew"))
            copies.append(book.read_bytes())
            update = kits / "updates" / "server" / "startup" / REVOKED
            if not update.exists():
                continue
            shutil.copyfile(update, server / "startup" / REVOKED)
            try:
                Admission(server, lambda text: None).read()
            except UserError as error:
                raise WronglyAccepted(f"the founder's list is refused: {error}") from None
            now = {entry.serial_number for entry in x509.load_pem_x509_crl(update.read_bytes())}
            if not ever_revoked <= now:
                raise WronglyAccepted(f"the list of {action} {name} lacks {sorted(ever_revoked - now)}")
            ever_revoked |= now
