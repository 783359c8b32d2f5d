"""What releases may cost, what numbers depend on besides the recipe proper, what a report shows, and who tracks."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedvisage.recipe.section import Section


class Privacy(Section):
    """What all releases of a site under differential privacy may cost together, and where their noise comes from.

    ``count`` says which figure must stay within ε and δ. ``derived`` noise follows from the seed: for simulations.
    """

    epsilon: float | None = Field(None, gt=0, le=1e6)
    """What all releases of a site under differential privacy may cost together; the run stops there."""
    delta: float | None = Field(None, gt=0, lt=1)
    """The same of δ."""
    count: Literal["sum", "tight"] = "sum"
    """The figure that must stay within the budget: the ``sum`` of ε and δ over all releases, or the ``tight`` ε at δ.
    """
    noise: Literal["system", "derived"] = "system"
    """``system``: the operating system's entropy; ``derived``: from the seed, for repeatable simulations, protects
    nobody."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Privacy:
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("a budget is epsilon and delta; give both")
        return self


class Runtime(Section):
    """What the numbers depend on besides the recipe proper."""

    unset: ClassVar[frozenset[str]] = frozenset({"layout", "workers", "compile"})

    seed: int = Field(0, ge=0)
    """Every random stream is derived from it."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """``auto``: bf16 where it pays (CPU with AMX, CUDA)."""
    layout: Literal["auto", "first", "last"] | None = None
    """Where channels lie in memory; unset, last. ``auto``: a step of the run's network is timed in both (with
    ``precision: auto`` also in both number formats, where the device has bf16) before the run begins, and the resolved
    recipe says what was chosen."""
    threads: int = Field(2, ge=1, le=256)
    """For torch and for every library of linear algebra in the process, whatever ``OMP_NUM_THREADS`` says. Part of a
    result: another number gives other last bits. On a busy or shared machine give 1."""
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] | None = None
    """Processes in which a simulation's sites train side by side, each with ``threads``; no byte depends on it.
    ``auto`` is as many as fit the machine's cores. Unset, and in what a run writes down, there is one."""
    compile: Literal[True] | None = None
    """``true``: the networks' blocks are compiled in the first steps (torch.compile), for GPUs and long runs. Last bits
    are others; CPUs need a C++ compiler."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where it is computed."""
    checkpoint_every: int = Field(1, ge=1)
    """Rounds between checkpoints."""


class Report(Section):
    """What the page about a run shows.

    ``images`` says whether the worst images of the user's set are on it: a page is shared, and faces should not leave
    their owner with it. Unset, those of rendered people are, and photographs are not.
    """

    images: bool | None = None
    """The worst images of the user's set, with their scores, in ``report.html``: ``true`` for photographs too (mind who
    gets the page), ``false`` for none; by default of rendered people only. Simulations only. ``fedvisage report RUN
    --images`` or ``--no-images`` draws the page again either way."""


class Tracking(Section):
    """Which trackers are told a run's figures, and where those that are files lie."""

    to: tuple[str, ...] = Field(min_length=1)
    """tensorboard, mlflow, wandb, or what another package adds."""
    project: str = Field("fedvisage", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """MLflow's experiment, W&B's project."""
    directory: str | None = Field(None, min_length=1)
    """Where trackers keep their files; unset, in the run's directory ``tracking``."""

    @field_validator("to")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a tracker twice")
        return value
