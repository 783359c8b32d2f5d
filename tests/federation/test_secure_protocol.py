"""A secure sum equals the plain sum, or there is none."""

import itertools
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tests.refusals import failed

from fedvisage.federation.secure import protocol
from fedvisage.federation.secure.protocol import CannotOpen, Public, Secrets, Words
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE, RefusedMessage

SIZE = 12


@dataclass
class KeyExchange:
    """Sites up to the point where their masked numbers lie at the server."""

    secrets: list[Secrets]
    roster: list[Public]
    present: list[int]
    envelopes: dict[int, dict[int, bytes]]
    """By receiver, then by sender."""
    threshold: int

    def mask(self, site: int, numbers: Words) -> Words:
        result = numbers.copy()
        protocol.mask_numbers(result, self.secrets[site], self.roster, site, self.present)
        return result

    def open_sum(self, total: Words, survivors: Collection[int], answering: Collection[int]) -> Words:
        shares = {
            site: protocol.shares_to_reveal(self.secrets[site], self.roster, site, self.envelopes[site], survivors)
            for site in answering
        }
        return protocol.unmask_sum(total, self.roster, self.present, survivors, shares, self.threshold)


def key_exchange(
    count: int, threshold: int, draws: np.random.Generator, present: Collection[int] | None = None
) -> KeyExchange:
    secrets = [Secrets.draw(draws.bytes) for _ in range(count)]
    roster, members = [one.public() for one in secrets], sorted(range(count) if present is None else present)
    sealed = {site: protocol.shares_of(secrets[site], roster, site, threshold, draws.bytes) for site in members}
    envelopes = {to: {sender: sealed[sender][to] for sender in members} for to in members}
    return KeyExchange(secrets, roster, members, envelopes, threshold)


def draw_subset(of: Collection[int], at_least: int, draws: np.random.Generator) -> list[int]:
    """Draw the survivors of some sites, at least ``at_least`` of them."""
    count = int(draws.integers(at_least, len(of) + 1))
    return sorted(draws.choice(sorted(of), size=count, replace=False).tolist())


def total_of(rows: list[Words]) -> Words:
    return np.array([sum(int(row[i]) for row in rows) % 2**64 for i in range(SIZE)], dtype=np.uint64)


@pytest.mark.parametrize("count", [*range(2, 15), 20, 25, 32, 40, 50])
def test_sum_of_the_survivors_is_exact(count: int) -> None:
    draws = np.random.default_rng(count)
    threshold = int(draws.integers(max(2, count // 2), count + 1))
    present = draw_subset(range(count), threshold, draws)
    survivors = draw_subset(present, threshold, draws)
    answering = draw_subset(survivors, threshold, draws)
    sites = key_exchange(count, threshold, draws, present)
    numbers = {site: draws.integers(0, 2**64, SIZE, dtype=np.uint64) for site in present}
    total = total_of([sites.mask(site, numbers[site]) for site in survivors])
    actual = sites.open_sum(total, survivors, answering)
    assert actual.tolist() == total_of([numbers[site] for site in survivors]).tolist()


@pytest.mark.parametrize("count", [2, 3, 7, 20])
def test_fewer_shares_than_the_threshold_reveal_nothing(count: int) -> None:
    draws = np.random.default_rng(count)
    threshold = count // 2 + 1
    sites = key_exchange(count, threshold, draws)
    total = total_of([sites.mask(site, np.zeros(SIZE, np.uint64)) for site in range(count)])
    with failed(CannotOpen, f"{threshold - 1} shares", f"{threshold} needed"):
        sites.open_sum(total, range(count), range(threshold - 1))


def test_wrong_share_prevents_the_sum() -> None:
    draws = np.random.default_rng(0)
    sites = key_exchange(5, 3, draws)
    total = total_of([sites.mask(site, np.zeros(SIZE, np.uint64)) for site in range(4)])
    shares = {
        site: protocol.shares_to_reveal(sites.secrets[site], sites.roster, site, sites.envelopes[site], range(4))
        for site in range(3)
    }
    for victim in (0, 4):  # a seed's share, and a mask key's
        damaged = {**shares, 1: [draws.bytes(protocol.SHARE) if i == victim else s for i, s in enumerate(shares[1])]}
        with failed(CannotOpen, f"site {victim + 1}"):
            protocol.unmask_sum(total, sites.roster, sites.present, range(4), damaged, 3)


def test_other_shares_replace_an_unreadable_envelope() -> None:
    draws = np.random.default_rng(1)
    sites = key_exchange(4, 2, draws)
    sites.envelopes[0][2] = draws.bytes(protocol.ENVELOPE)
    numbers = [draws.integers(0, 2**64, SIZE, dtype=np.uint64) for _ in range(4)]
    total = total_of([sites.mask(site, numbers[site]) for site in range(4)])
    assert sites.open_sum(total, range(4), range(4)).tolist() == total_of(numbers).tolist()


def test_a_site_never_reveals_both_shares_of_another() -> None:
    sites = key_exchange(4, 2, np.random.default_rng(2))
    for survivors in ([0, 1], [0, 1, 2, 3]):
        rows = protocol.shares_to_reveal(sites.secrets[0], sites.roster, 0, sites.envelopes[0], survivors)
        for sender, row in enumerate(rows):
            content = protocol.open_envelope(
                protocol._envelope_key(sites.secrets[0], sites.roster, 0, sender, 0), sites.envelopes[0][sender]
            )
            assert content is not None
            mask_share, seed_share = content[: protocol.SHARE], content[protocol.SHARE :]
            assert row == (seed_share if sender in survivors else mask_share)


def bytes_of(numbers: Words) -> np.ndarray:
    return np.bincount(numbers.view(np.uint8), minlength=256)


def test_single_uploads_and_incomplete_sums_look_uniform() -> None:
    draws = np.random.default_rng(3)
    sites = key_exchange(4, 3, draws)
    small = protocol.encode("w", torch.from_numpy(draws.normal(size=40_000) * 0.05))
    assert chisquare(bytes_of(small)).pvalue < 1e-100
    uploads = [sites.mask(site, small) for site in range(4)]
    for lacking in ([0], [3], [0, 1], [1, 2, 3]):
        seen = np.asarray(np.sum([uploads[site] for site in lacking], axis=0, dtype=np.uint64))
        assert chisquare(bytes_of(seen)).pvalue > 1e-3
    # The server and its colluders know every mask except the site's own one.
    for other in (1, 2, 3):
        key = protocol.derive_key(sites.secrets[other].masking, sites.roster[0].masking, b"mask")
        protocol.add_stream(uploads[0], key, subtract=True)
    assert chisquare(bytes_of(uploads[0])).pvalue > 1e-3


def test_masks_are_the_published_cipher() -> None:
    """RFC 8439, A.1, test vectors 1 and 2: the first two blocks of ChaCha20 under a key of zeros."""
    total = np.zeros(16, dtype=np.uint64)
    protocol.add_stream(total, bytes(32))
    assert total.tobytes()[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert total.tobytes()[64:80].hex() == "9f07e7be5551387a98ba977c732d080d"


def test_mask_longer_than_one_block_is_removed() -> None:
    whole = np.zeros(protocol.STRETCH * 2 + 5, dtype=np.uint64)
    protocol.add_stream(whole, bytes(32))
    start = np.zeros(protocol.STRETCH + 1, dtype=np.uint64)
    protocol.add_stream(start, bytes(32))
    assert np.array_equal(whole[: len(start)], start)
    assert len(np.unique(whole)) == len(whole)
    protocol.add_stream(whole, bytes(32), subtract=True)
    assert not whole.any()


def test_any_sufficient_shares_give_the_secret() -> None:
    draws = np.random.default_rng(4)
    secret = draws.bytes(32)
    shares = dict(enumerate(protocol.split_secret(secret, 3, 6, draws.bytes)))
    for holders in itertools.combinations(shares, 3):
        assert protocol.join_shares({holder: shares[holder] for holder in holders}, 3) == secret
    first, second = (int.from_bytes(share, "little") for share in protocol.split_secret(secret, 2, 2, draws.bytes))
    assert (2 * first - second) % protocol.PRIME == int.from_bytes(secret, "little")  # the line's value at 0
    with pytest.raises(ValueError, match="2 shares, 3 needed"):
        protocol.join_shares({0: shares[0], 4: shares[4]}, 3)


def test_rounding_stays_within_its_bound_and_counters_are_exact() -> None:
    draws = np.random.default_rng(5)
    uploads = [
        {"w": torch.from_numpy(draws.normal(size=500) * 10 ** draws.uniform(-6, 3)), "n": torch.tensor(7 + site)}
        for site in range(3)
    ]
    encoded = [protocol.encode_all(upload, 1.0, torch.tensor(0.25 * site)) for site, upload in enumerate(uploads)]
    actual, loss = protocol.decode_mean(np.sum(encoded, axis=0, dtype=np.uint64), uploads[0], 3)
    plain = torch.stack([upload["w"] for upload in uploads]).mean(dim=0)
    assert float((actual["w"] - plain).abs().max()) <= 2.0**-33 + 1e-12
    assert int(actual["n"]) == 8
    assert loss == 0.25


def test_the_largest_values_of_the_most_sites_do_not_overflow() -> None:
    largest = {"w": torch.tensor([LARGEST_MAGNITUDE, -LARGEST_MAGNITUDE]), "n": torch.tensor(protocol.MOST_COUNT - 1)}
    one = protocol.encode_all(largest, 1.0, torch.tensor(LARGEST_MAGNITUDE))
    total = one * np.uint64(protocol.MOST_SITES)
    actual, _ = protocol.decode_mean(total, largest, protocol.MOST_SITES)
    assert actual["w"].tolist() == [LARGEST_MAGNITUDE, -LARGEST_MAGNITUDE]
    assert int(actual["n"]) == protocol.MOST_COUNT - 1
    with pytest.raises(RefusedMessage, match=r"^n: .*count"):
        protocol.encode("n", torch.tensor(protocol.MOST_COUNT))


def test_impossible_sum_is_refused_by_field() -> None:
    """A masked site may send any number; the server checks the sum after unmasking."""
    upload = {"w": torch.tensor([2.0, -3.0]), "b.running_var": torch.tensor([0.5]), "n": torch.tensor([4])}
    honest = protocol.encode_all(upload, 1.0, torch.tensor(0.5, dtype=torch.float64))
    assert protocol.implausible_part(honest + honest, upload, 2) is None
    far = {0: "w", 1: "w", 2: "b.running_var", 3: "n", 4: "count", 5: "loss"}
    for place, word in far.items():
        for number in (2**63, 2**62, -(2**61)):
            total = honest + honest
            total[place : place + 1] += np.uint64(number % 2**64)
            assert word in (protocol.implausible_part(total, upload, 2) or ""), (place, number)
    below = {**upload, "b.running_var": torch.tensor([-0.5])}
    assert "running_var" in (
        protocol.implausible_part(protocol.encode_all(below, 1.0, torch.tensor(0.0)), below, 1) or ""
    )


def test_largest_permitted_sums_are_accepted() -> None:
    largest = {"w": torch.tensor([LARGEST_MAGNITUDE, -LARGEST_MAGNITUDE]), "n": torch.tensor(protocol.MOST_COUNT - 1)}
    one = protocol.encode_all(largest, 1.0, torch.tensor(LARGEST_MAGNITUDE))
    assert protocol.implausible_part(one * np.uint64(protocol.MOST_SITES), largest, protocol.MOST_SITES) is None
