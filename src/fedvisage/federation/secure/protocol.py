"""The protocol, as functions of bytes and whole numbers: who draws what, who masks with what, who opens what.

Sites stand in a roster, in the order of their names. In the paper's words (Fig. 4): ``Secrets`` holds the private keys
c and s and the seed b; ``shares_of`` is round 1, ``mask`` round 2, ``revealed`` round 4, ``opened_sum`` what the
server makes of it. Beside the paper each site publishes the hash of its seed, so that wrong shares are noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fedvisage.federation.secure import shamir
from fedvisage.federation.secure.fixed_point import Words
from fedvisage.federation.secure.keys import KEY, TAG, add_stream, agreed, opened, public_of, seal

ENVELOPE = 2 * shamir.SHARE + TAG
"""Bytes of an envelope: a share of the mask key, a share of the seed."""

NOTHING = bytes(shamir.SHARE)
"""Stands for a share that its holder cannot give."""


class CannotOpen(Exception):
    """The masks of a sum cannot be taken off: too few shares, or wrong ones."""


@dataclass(frozen=True)
class Secrets:
    """What a site draws for one sum: its key for envelopes, its key for masks, and the seed of its own mask."""

    sealing: bytes
    masking: bytes
    seed: bytes

    @staticmethod
    def drawn(draw: shamir.Draw) -> Secrets:
        """Draw all three."""
        return Secrets(draw(KEY), draw(KEY), draw(KEY))

    def public(self) -> Public:
        """Return what the others may see."""
        return Public(public_of(self.sealing), public_of(self.masking), hashlib.sha256(self.seed).digest())


@dataclass(frozen=True)
class Public:
    """A site's public keys, and the hash of its seed."""

    sealing: bytes
    masking: bytes
    seed_hash: bytes


Roster = Sequence[Public]


def shares_of(secrets: Secrets, roster: Roster, own: int, threshold: int, draw: shamir.Draw) -> list[bytes]:
    """Return an envelope for each site of the roster, with its shares of the mask key and of the seed."""
    pairs = zip(
        shamir.split(secrets.masking, threshold, len(roster), draw),
        shamir.split(secrets.seed, threshold, len(roster), draw),
        strict=True,
    )
    return [seal(_envelope_key(secrets, roster, own, own, to), b"".join(pair)) for to, pair in enumerate(pairs)]


def mask(numbers: Words, secrets: Secrets, roster: Roster, own: int, present: Collection[int]) -> None:
    """Put numbers, where they stand, under the site's own mask and one mask for each other site that shared."""
    add_stream(numbers, secrets.seed)
    for other in present:
        if other != own:
            add_stream(numbers, agreed(secrets.masking, roster[other].masking, b"mask"), subtract=own > other)


def revealed(
    secrets: Secrets, roster: Roster, own: int, envelopes: Mapping[int, bytes], survivors: Collection[int]
) -> list[bytes]:
    """Return for each site one share: of its seed if its numbers are in the sum, of its mask key if they are not.

    Never both: with both, the server could take the masks off a single upload.
    """
    shares = [NOTHING] * len(roster)
    for sender, envelope in envelopes.items():
        content = opened(_envelope_key(secrets, roster, own, sender, own), envelope)
        if content is not None:
            shares[sender] = content[shamir.SHARE :] if sender in survivors else content[: shamir.SHARE]
    return shares


def opened_sum(
    total: Words,
    roster: Roster,
    present: Collection[int],
    survivors: Collection[int],
    shares: Mapping[int, Sequence[bytes]],
    threshold: int,
) -> Words:
    """Take the masks off the survivors' sum; ``shares`` are the revealed ones, by who revealed them."""
    result = total.copy()
    for site in sorted(present):
        secret = _joined({holder: given[site] for holder, given in shares.items()}, site, threshold)
        if site in survivors:
            if hashlib.sha256(secret).digest() != roster[site].seed_hash:
                raise CannotOpen(f"the shares of the seed of site {site + 1} in the roster are wrong")
            add_stream(result, secret, subtract=True)
            continue
        if public_of(secret) != roster[site].masking:
            raise CannotOpen(f"the shares of the mask key of site {site + 1} in the roster are wrong")
        for other in survivors:
            add_stream(result, agreed(secret, roster[other].masking, b"mask"), subtract=other < site)
    return result


def _joined(given: Mapping[int, bytes], site: int, threshold: int) -> bytes:
    usable = {holder: share for holder, share in given.items() if share != NOTHING}
    if len(usable) < threshold:
        raise CannotOpen(f"{len(usable)} shares for site {site + 1} in the roster, {threshold} needed")
    return shamir.join(usable, threshold)


def _envelope_key(secrets: Secrets, roster: Roster, own: int, sender: int, receiver: int) -> bytes:
    """Return the key for envelopes in one direction; ``own`` is one of its ends."""
    other = receiver if own == sender else sender
    return agreed(secrets.sealing, roster[other].sealing, b"envelope %d to %d" % (sender, receiver))
