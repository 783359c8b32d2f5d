"""A repeatable source of noise."""

from torch import Generator

from fedvisage.privacy.draws import DerivedDraws


def draws_of(seed: int) -> DerivedDraws:
    return DerivedDraws(Generator().manual_seed(seed))
