"""The kinds of hostile input, with the number of cases of a whole campaign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from campaigns.hostile.case import Kind


@dataclass(frozen=True)
class Entry:
    """A kind, whose module is imported by :meth:`prepare`."""

    title: str
    count: int
    location: str

    def prepare(self, prepared: Path) -> Kind:
        """Create the kind."""
        module, _, name = self.location.partition(":")
        create: Callable[[Path], Kind] = getattr(import_module(f"campaigns.hostile.{module}"), name)
        return create(prepared)


KINDS: Mapping[str, Entry] = {
    "uploads": Entry("uploads of a hostile site", 10_000, "uploads:Uploads"),
    "recipes": Entry("recipes, studies, federation files", 2_000, "recipes:Recipes"),
    "runs": Entry("models and run directories", 2_000, "runs:Runs"),
    "run-files": Entry("files of two runs exchanged one by one", 2_000, "run_files:RunFiles"),
    "interrupted-runs": Entry("files of interrupted runs, at --resume", 500, "interrupted_runs:InterruptedRuns"),
    "sets": Entry("prepared sets and folders to import", 2_000, "sets:Sets"),
    "exports": Entry("exported directories", 2_000, "exports:Exports"),
    "galleries": Entry("galleries edited without their key", 2_000, "galleries:Galleries"),
    "kits": Entry("kits", 500, "kits:Kits"),
    "lists": Entry("lists of revoked certificates", 1_000, "lists:Lists"),
    "wire": Entry("messages on the wire: depth, count, size", 2_000, "wire:Wire"),
    "orders": Entry("orders at a site: undeclared, repeated, out of range", 2_000, "orders:Orders"),
    "members": Entry("member messages: names, channels, administration", 2_000, "members:Members"),
    "differing-sums": Entry("pairs of runs over the same data that differ", 2_000, "differing:Differing"),
}
