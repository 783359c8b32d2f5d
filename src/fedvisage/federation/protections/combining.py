"""Combining: the sites' uploads become one, by the recipe's rule or in a sum that shows no single one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedvisage.federation.combine import Combination, combination_of
from fedvisage.federation.protections.step import Incoming
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Federation


@dataclass(frozen=True)
class Combine(Incoming):
    """The mean, a robust rule (``federation/robust``) or a secure sum (``federation/secure``)."""

    name: str = "combine"

    def wanted(self, federation: Federation) -> bool:
        """Always."""
        return True

    def begin(self, federation: Federation, lent: Callable[[], Message]) -> Combination:
        """Return what uploads that are seen are folded into; ``lent`` returns what the sites of this round got."""
        return combination_of(federation, lent)
