"""A repeatable source of noise."""

from torch import Generator

from fedvisage.federation.privacy.mechanisms import DerivedDraws


def draws_of(seed: int) -> DerivedDraws:
    return DerivedDraws(Generator().manual_seed(seed))
