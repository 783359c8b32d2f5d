"""The recipe: all settings that a run depends on, in one frozen and validated object."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from pydantic import field_validator, model_validator

from fedvisage.recipe.data import Data, Input
from fedvisage.recipe.evaluation import Evaluation
from fedvisage.recipe.federation import Federation
from fedvisage.recipe.runtime import Privacy, Report, Runtime, Tracking
from fedvisage.recipe.section import MethodOptions, Section
from fedvisage.recipe.training import Training

Own = TypeVar("Own", bound=MethodOptions)


class Recipe(Section):
    """All settings that a run depends on."""

    unset: ClassVar[frozenset[str]] = frozenset({"report", "tracking"})

    title: str = ""
    """Free text for reports."""
    method: MethodOptions
    """The method and its own options; ``method: fedpad`` is short for ``method: {name: fedpad}``."""
    data: Data
    input: Input = Input()
    training: Training
    federation: Federation = Federation()
    evaluation: Evaluation = Evaluation()
    privacy: Privacy = Privacy()
    runtime: Runtime = Runtime()
    report: Report | None = None
    tracking: Tracking | None = None

    def options(self, kind: type[Own]) -> Own:
        """Return the method's own options, which have the type that the method's file declares."""
        assert isinstance(self.method, kind)
        return self.method

    @field_validator("tracking", mode="before")
    @classmethod
    def _name_is_a_tracker(cls, value: Any) -> Any:
        return {"to": [value]} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sections_agree(self) -> Recipe:
        # Site names in other sections must be keys of data.sites.
        unknown = sorted(set(self.training.batch.per_site) - set(self.data.sites))
        if unknown:
            raise ValueError(f"training.batch.per_site names {', '.join(unknown)}, which data.sites does not contain")
        joining = sorted(set(self.federation.joins) - set(self.data.sites))
        if joining:
            raise ValueError(f"federation.joins names {', '.join(joining)}, which data.sites does not contain")
        if min(self.federation.joins.get(name, 1) for name in self.data.sites) > 1:
            raise ValueError("federation.joins leaves no site for the first round")
        # Held-out figures exist only where a site evaluates them.
        watches = self.evaluation.keep == "best" or self.training.early_stop is not None
        if watches and self.evaluation.every == 0:
            raise ValueError(
                "keep: best and early_stop need evaluation.every ≥ 1, which scores held-out images at the sites"
            )
        if self.input.size < 32 and self.runtime.precision != "fp32":
            raise ValueError(
                "input.size below 32 needs runtime.precision: fp32; bf16 convolutions are unreliable on maps this small"
            )
        # Every round must be able to reach its quorum and the minimum of its combination rule.
        per_round = self.federation.asks(len(self.data.sites))
        if self.federation.quorum > per_round:
            raise ValueError(f"federation.quorum is {self.federation.quorum}, but each round samples {per_round} sites")
        combine = self.federation.combine
        if combine.least > per_round:
            raise ValueError(
                f"federation.combine: {combine.rule} needs {combine.least} uploads, but rounds sample {per_round} sites"
            )
        strangers = set(self.federation.poisoned.sites if self.federation.poisoned else ()) - set(self.data.sites)
        if strangers:
            raise ValueError(
                f"federation.poisoned.sites names {', '.join(sorted(strangers))}, which data.sites does not contain"
            )
        if self.federation.secure is not None and per_round < 2:
            raise ValueError(
                "federation.secure needs at least two sites per round: the sum of one upload hides nothing"
            )
        if self.evaluation.features and self.data.target is None:
            raise ValueError("evaluation.features compares the sites with a target; set data.target")
        return self
