"""The secure aggregation protocol as functions of bytes and integers: secrets, masks, shares and the opened sum.

Sites form a roster, in the order of their names. In the paper's terms (Fig. 4): ``Secrets`` has the private keys c and
s and the seed b; ``shares_of`` is round 1, ``mask_numbers`` round 2, ``shares_to_reveal`` round 4, and
``unmask_sum`` the server's result. Unlike in the paper, each site also publishes the hash of its seed, so that wrong
shares are detected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE, VARIANCE, RefusedMessage

# Tensors as integers modulo 2^64, in which sums are exact and masks hide everything.


Words = NDArray[np.uint64]

FRACTION, COUNT_FRACTION = 32, 8
"""Fractional bits of values and of counters."""

MOST_SITES = 2048
MOST_COUNT = 2**44

WEIGHT_AND_LOSS = torch.zeros(2, dtype=torch.float64)
"""An empty example of the last two numbers of an upload."""


def encode(name: str, value: Tensor, weight: float = 1.0) -> Words:
    """Return a tensor's numbers as integers, multiplied by the site's weight.

    A value v with weight w becomes round(w·v·2^32). Admission allows |v| ≤ 10^6 < 2^20, and w is at most 1, so a site's
    number stays below 2^52 and the sum of 2,048 sites below 2^63: no overflow is possible. Counters get 8 fractional
    bits and must stay below 2^44. Rounding changes each site's number, and the mean of sites with equal weight, by at
    most 2^-33.
    """
    if not value.is_floating_point() and value.numel() and int(value.max()) >= MOST_COUNT:
        raise RefusedMessage(name, f"is a count above {MOST_COUNT}, the most that a secure sum can hold")
    scaled = value.to(torch.float64, copy=True).mul_(weight * 2.0 ** _fraction(value.dtype)).round_()
    return scaled.to(torch.int64).reshape(-1).numpy().view(np.uint64)


def decode(total: Words, like: Tensor) -> Tensor:
    """Return the value of a sum of encoded tensors, in float64 and in the shape of ``like``."""
    numbers = torch.from_numpy(total.view(np.int64).copy()).double()
    return (numbers * 2.0 ** -_fraction(like.dtype)).reshape(like.shape)


def encode_all(tensors: Mapping[str, Tensor], weight: float, loss: Tensor) -> Words:
    """Return a complete upload: the tensors, the site's weight, and its loss, which is not weighted by examples."""
    words, start = np.empty(size_of(tensors), dtype=np.uint64), 0
    for name, value in tensors.items():
        words[start : start + value.numel()] = encode(name, value, weight)
        start += value.numel()
    words[-2:] = *encode("weight", torch.tensor(weight, dtype=torch.float64)), *encode("loss", loss)
    return words


def size_of(like: Mapping[str, Tensor]) -> int:
    """Return the number of integers in an upload."""
    return sum(value.numel() for value in like.values()) + len(WEIGHT_AND_LOSS)


def decode_mean(total: Words, like: Mapping[str, Tensor], count: int) -> tuple[dict[str, Tensor], float]:
    """Return the weighted mean of ``count`` uploads in float64, and the plain mean of their losses."""
    weight, loss = decode(total[-2:], WEIGHT_AND_LOSS).tolist()
    return {name: part / weight for name, part in _decode_tensors(total, like)}, loss / count


def _decode_tensors(total: Words, like: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the sum of each tensor, in the order of an upload."""
    start = 0
    for name, value in like.items():
        yield name, decode(total[start : start + value.numel()], value)
        start += value.numel()


def implausible_part(total: Words, like: Mapping[str, Tensor], count: int) -> str | None:
    """Return the first part of an opened sum that ``count`` sites with checked numbers cannot produce, or None.

    The server cannot check single uploads, but it can check their sum: masked data other than valid numbers nearly
    always give sums far outside the bounds.
    """
    weight, loss = decode(total[-2:], WEIGHT_AND_LOSS).tolist()
    slack = count * 2.0**-FRACTION
    if not 0 < weight <= count + slack:
        return f"the sites count {weight:.3g} in all"
    if not abs(loss) <= count * LARGEST_MAGNITUDE:
        return "the loss is out of range"
    for name, part in _decode_tensors(total, like):
        low, high = -LARGEST_MAGNITUDE * weight - slack, LARGEST_MAGNITUDE * weight + slack
        if not like[name].is_floating_point():
            low, high = 0.0, MOST_COUNT * weight + count
        elif name.endswith(VARIANCE):
            low = -slack
        if part.numel() and not (low <= float(part.min()) and float(part.max()) <= high):
            return f"{name} is out of range"
    return None


def _fraction(dtype: torch.dtype) -> int:
    return FRACTION if dtype.is_floating_point else COUNT_FRACTION


# Key agreement of two sites, mask streams from the agreed keys, and envelopes that only the other site can open.


KEY, TAG = 32, 16
"""Bytes of a key, and the bytes that an envelope adds to its content."""

STRETCH = 1 << 15
"""Number of a mask's integers in memory at a time, few enough to stay in the processor's cache until they are added."""


def public_of(private: bytes) -> bytes:
    """Return the public half of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derive_key(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the key that both sides derive for a purpose; a public key of low order raises ``ValueError``.

    Key agreement is X25519 (RFC 7748), key derivation HKDF-SHA-256 (RFC 5869), streams are ChaCha20 and envelopes
    ChaCha20-Poly1305 (RFC 8439). Every key is used for one stream or one envelope only, so no nonce is needed.
    """
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=b"fedvisage " + purpose).derive(shared)


def add_stream(total: Words, key: bytes, *, subtract: bool = False) -> None:
    """Add a key's stream of integers to an array in place, modulo 2^64, or subtract it."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros, drawn = memoryview(bytes(8 * STRETCH)), memoryview(bytearray(8 * STRETCH))
    for start in range(0, len(total), STRETCH):
        part = total[start : start + STRETCH]
        encryptor.update_into(zeros[: part.nbytes], drawn[: part.nbytes])
        stretch = np.frombuffer(drawn[: part.nbytes], dtype="<u8")
        if subtract:
            np.subtract(part, stretch, out=part)
        else:
            np.add(part, stretch, out=part)


def open_envelope(key: bytes, envelope: bytes) -> bytes | None:
    """Return an envelope's content, or None if it was not sealed with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), envelope, None)
    except InvalidTag:
        return None


# Shamir's secret sharing: any t of n shares give the secret, and fewer shares contain no information about it.


PRIME = 2**521 - 1
SECRET, SHARE = 32, 66
"""Bytes of a secret and of a share."""

Draw = Callable[[int], bytes]
"""Returns the requested number of random bytes."""


def split_secret(secret: bytes, threshold: int, count: int, draw: Draw) -> list[bytes]:
    """Return one share for each of ``count`` holders; any ``threshold`` of them give the secret.

    A. Shamir, "How to Share a Secret", Communications of the ACM 22, 1979. A secret of 32 bytes is the constant term of
    a random polynomial of degree t − 1 over the integers modulo the Mersenne prime 2^521 − 1; the share of holder i is
    its value at i + 1.
    """
    if not 1 <= threshold <= count:
        raise ValueError(f"{count} holders cannot need {threshold} of their shares")
    # A random number modulo the prime; the modulo favours small ones by less than 2^-128.
    drawn = (int.from_bytes(draw(SHARE + 16), "little") % PRIME for _ in range(threshold - 1))
    terms = [int.from_bytes(secret, "little"), *drawn]
    return [_value(terms, holder + 1).to_bytes(SHARE, "little") for holder in range(count)]


def join_shares(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret from shares by holder; of more than enough, those of the first holders are used."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, {threshold} needed")
    points = [(holder + 1, int.from_bytes(shares[holder], "little")) for holder in sorted(shares)[:threshold]]
    total = 0
    for x, y in points:
        above = below = 1
        for other, _ in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        total += y * above * pow(below, -1, PRIME)
    # Wrong shares give a number that is not the secret; the truncated result fails the check of the caller.
    return int(total % PRIME % 2 ** (8 * SECRET)).to_bytes(SECRET, "little")


def _value(terms: list[int], x: int) -> int:
    total = 0
    for term in reversed(terms):
        total = (total * x + term) % PRIME
    return total


ENVELOPE = 2 * SHARE + TAG
"""Bytes of an envelope with a share of the mask key and a share of the seed."""

NOTHING = bytes(SHARE)
"""Represents a share that its holder cannot reveal."""


class CannotOpen(Exception):
    """The masks of a sum cannot be removed, because shares are missing or wrong."""


@dataclass(frozen=True)
class Secrets:
    """A site's secrets for one sum: its key for envelopes, its key for masks, and the seed of its own mask."""

    sealing: bytes
    masking: bytes
    seed: bytes

    @staticmethod
    def draw(draw: Draw) -> Secrets:
        """Draw all three."""
        return Secrets(draw(KEY), draw(KEY), draw(KEY))

    def public(self) -> Public:
        """Return the public keys and the hash of the seed."""
        return Public(public_of(self.sealing), public_of(self.masking), hashlib.sha256(self.seed).digest())


@dataclass(frozen=True)
class Public:
    """A site's public keys, and the hash of its seed."""

    sealing: bytes
    masking: bytes
    seed_hash: bytes


Roster = Sequence[Public]


def shares_of(secrets: Secrets, roster: Roster, own: int, threshold: int, draw: Draw) -> list[bytes]:
    """Return one envelope per site of the roster, with its shares of the mask key and of the seed."""
    pairs = zip(
        split_secret(secrets.masking, threshold, len(roster), draw),
        split_secret(secrets.seed, threshold, len(roster), draw),
        strict=True,
    )
    return [
        ChaCha20Poly1305(_envelope_key(secrets, roster, own, own, to)).encrypt(bytes(12), b"".join(pair), None)
        for to, pair in enumerate(pairs)
    ]


def mask_numbers(numbers: Words, secrets: Secrets, roster: Roster, own: int, present: Collection[int]) -> None:
    """Mask numbers in place, with the site's own mask and one mask for each other site that shared its keys."""
    add_stream(numbers, secrets.seed)
    for other in present:
        if other != own:
            add_stream(numbers, derive_key(secrets.masking, roster[other].masking, b"mask"), subtract=own > other)


def shares_to_reveal(
    secrets: Secrets, roster: Roster, own: int, envelopes: Mapping[int, bytes], survivors: Collection[int]
) -> list[bytes]:
    """Return one share per site: of its seed if its numbers are in the sum, of its mask key otherwise.

    Never both: with both, the server could unmask a single upload.
    """
    shares = [NOTHING] * len(roster)
    for sender, envelope in envelopes.items():
        content = open_envelope(_envelope_key(secrets, roster, own, sender, own), envelope)
        if content is not None:
            shares[sender] = content[SHARE:] if sender in survivors else content[:SHARE]
    return shares


def unmask_sum(
    total: Words,
    roster: Roster,
    present: Collection[int],
    survivors: Collection[int],
    shares: Mapping[int, Sequence[bytes]],
    threshold: int,
) -> Words:
    """Return the unmasked sum of the survivors; ``shares`` has the revealed shares by the site that revealed them."""
    result = total.copy()
    # A survivor's own mask follows from its seed. A lost site's pairwise masks follow from its mask key.
    for site in sorted(present):
        usable = {holder: rows[site] for holder, rows in shares.items() if rows[site] != NOTHING}
        if len(usable) < threshold:
            raise CannotOpen(f"{len(usable)} shares for site {site + 1} in the roster, {threshold} needed")
        secret = join_shares(usable, threshold)
        if site in survivors:
            # Wrong shares give another number; without this check the sum would be wrong unnoticed.
            if hashlib.sha256(secret).digest() != roster[site].seed_hash:
                raise CannotOpen(f"the shares of the seed of site {site + 1} in the roster are wrong")
            add_stream(result, secret, subtract=True)
            continue
        if public_of(secret) != roster[site].masking:
            raise CannotOpen(f"the shares of the mask key of site {site + 1} in the roster are wrong")
        for other in survivors:
            add_stream(result, derive_key(secret, roster[other].masking, b"mask"), subtract=other < site)
    return result


def _envelope_key(secrets: Secrets, roster: Roster, own: int, sender: int, receiver: int) -> bytes:
    """Return the key for envelopes in one direction; ``own`` is one of its ends."""
    other = receiver if own == sender else sender
    return derive_key(secrets.sealing, roster[other].sealing, b"envelope %d to %d" % (sender, receiver))
