"""Keys that two sites agree on, streams of masks drawn from them, and envelopes that only the other can open.

Key agreement is X25519 (RFC 7748), keys are derived by HKDF-SHA-256 (RFC 5869), streams are ChaCha20's and envelopes
ChaCha20-Poly1305's (RFC 8439). Every key is used for one stream or one envelope only, so no nonce is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedvisage.federation.secure.fixed_point import Words

KEY, TAG = 32, 16
"""Bytes of a key, and of what an envelope is longer than its content."""

STRETCH = 1 << 15
"""Numbers of a mask that are in memory at a time: few enough to stay in a processor's cache until they are added."""


def public_of(private: bytes) -> bytes:
    """Return the public half of a key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the key that both sides derive for a purpose; a public key of low order is a ``ValueError``."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=b"fedvisage " + purpose).derive(shared)


def add_stream(total: Words, key: bytes, *, subtract: bool = False) -> None:
    """Add a key's stream of numbers to an array in place, modulo 2^64, or subtract it."""
    start = 0
    for stretch in _stream(key, len(total)):
        part = total[start : start + len(stretch)]
        if subtract:
            np.subtract(part, stretch, out=part)
        else:
            np.add(part, stretch, out=part)
        start += len(stretch)


def seal(key: bytes, content: bytes) -> bytes:
    """Return an envelope."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), content, None)


def opened(key: bytes, envelope: bytes) -> bytes | None:
    """Return an envelope's content, or None when it was not sealed with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), envelope, None)
    except InvalidTag:
        return None


def _stream(key: bytes, count: int) -> Iterator[Words]:
    """Yield a key's numbers, a stretch at a time; each is gone when the next is drawn."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros, drawn = memoryview(bytes(8 * STRETCH)), memoryview(bytearray(8 * STRETCH))
    for start in range(0, count, STRETCH):
        size = 8 * min(STRETCH, count - start)
        encryptor.update_into(zeros[:size], drawn[:size])
        yield np.frombuffer(drawn[:size], dtype="<u8").astype(np.uint64, copy=False)
