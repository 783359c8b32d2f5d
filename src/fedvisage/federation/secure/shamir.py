"""Shamir's secret sharing: a secret in n shares of which any t give it back, and fewer say nothing about it.

A. Shamir, "How to Share a Secret", Communications of the ACM 22, 1979. A secret of 32 bytes is the constant term of a
random polynomial of degree t − 1 over the integers modulo the Mersenne prime 2^521 − 1; the share of holder i is its
value at i + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

PRIME = 2**521 - 1
SECRET, SHARE = 32, 66
"""Bytes of a secret and of a share."""

Draw = Callable[[int], bytes]
"""Returns so many random bytes."""


def split(secret: bytes, threshold: int, count: int, draw: Draw) -> list[bytes]:
    """Return one share for each of ``count`` holders, any ``threshold`` of which give the secret back."""
    if not 1 <= threshold <= count:
        raise ValueError(f"{count} holders cannot need {threshold} of their shares")
    terms = [int.from_bytes(secret, "little"), *(_element(draw) for _ in range(threshold - 1))]
    return [_value(terms, holder + 1).to_bytes(SHARE, "little") for holder in range(count)]


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
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
    # Wrong shares give a number that no secret is; what is left of it fails the check of whoever uses it.
    return int(total % PRIME % 2 ** (8 * SECRET)).to_bytes(SECRET, "little")


def _element(draw: Draw) -> int:
    """Return a number below the prime; modulo would favour small ones by less than 2^-128."""
    return int.from_bytes(draw(SHARE + 16), "little") % PRIME


def _value(terms: list[int], x: int) -> int:
    total = 0
    for term in reversed(terms):
        total = (total * x + term) % PRIME
    return total
