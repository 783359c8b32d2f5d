"""Admission: nothing that differs from its declaration goes any further."""

from __future__ import annotations

from dataclasses import dataclass

from fedvisage.federation.protections.step import Incoming
from fedvisage.federation.record.releases import Told, told
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import Schema, check
from fedvisage.recipe import Federation, Recipe


@dataclass(frozen=True)
class Admit(Incoming):
    """Every reply, whatever the call, is checked by name, type, shape and value, and so is what it says it cost."""

    name: str = "admit"

    def wanted(self, federation: Federation) -> bool:
        """Always."""
        return True

    def reply(self, message: Message, schema: Schema, recipe: Recipe) -> Told | None:
        """Refuse a reply that does not fit; return what a release in it is said to have cost."""
        check(message, schema)
        return told(message, recipe.privacy.noise)
