"""Masks of secure aggregation over what a site sends: the server learns the sum and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from fedvisage.federation.declared import Call
from fedvisage.federation.secure.calls import secured
from fedvisage.federation.wire.schema import schema_of
from fedvisage.federation.wire.upload import SUMMED
from fedvisage.recipe import Federation, Recipe


@dataclass(frozen=True)
class Mask:
    """The summed upload goes under masks that cancel in the sum."""

    name: str = "mask"

    def wanted(self, federation: Federation) -> bool:
        """With secure aggregation."""
        return federation.secure is not None

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls with the summed one masked, and those that exchange keys and shares."""
        return secured(calls, schema_of(calls[SUMMED].uploads, recipe, net), recipe)
