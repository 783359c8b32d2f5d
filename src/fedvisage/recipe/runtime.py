"""The sections ``privacy``, ``runtime``, ``report`` and ``tracking``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedvisage.base.processes import MOST_PROCESSES
from fedvisage.recipe.federation import LARGEST_DELTA, LEAST_EPSILON
from fedvisage.recipe.section import Section


class Privacy(Section):
    """The privacy budget of a site over all its releases, and the source of their noise."""

    epsilon: float | None = Field(None, ge=LEAST_EPSILON, le=1e6)
    """The ε that all releases of a site under differential privacy may cost together; the run stops there."""
    delta: float | None = Field(None, gt=0, lt=1)
    """The δ that all releases of a site may cost together; at most 0.1, unless ``noise`` is derived."""
    count: Literal["sum", "tight"] = "sum"
    """The figure that must stay within the budget: the ``sum`` of ε and δ over all releases, or the ``tight`` ε at δ.
    """
    noise: Literal["system", "derived"] = "system"
    """``system``: noise from the operating system's entropy; ``derived``: noise from the seed, for repeatable
    simulations; it protects nothing."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Privacy:
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("a budget needs both epsilon and delta")
        if self.noise == "system" and self.delta is not None and self.delta > LARGEST_DELTA:
            raise ValueError(f"delta is {self.delta:g} and protects nobody; give {LARGEST_DELTA:g} or less")
        return self


class Runtime(Section):
    """Settings of the execution on which the numbers of a run depend, such as seed, precision and threads."""

    unset: ClassVar[frozenset[str]] = frozenset({"workers", "compile", "deterministic"})

    seed: int = Field(0, ge=0)
    """The seed of every random stream."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of training. ``auto``: bf16 on GPUs and CPUs with AMX, else fp32; the resolved recipe records the
    choice. ``bf16`` works on every CPU; with AVX512_BF16, most networks train 1.1 to 2.1 times as fast. Evaluation,
    thresholds and exact statistics are always in fp32."""
    layout: Literal["auto", "first", "last"] = "auto"
    """Memory layout of channels. ``auto``: the faster one by a rule on network, processor and number format; the
    resolved recipe records the choice."""
    threads: int = Field(2, ge=1, le=256)
    """Threads of torch and of every linear algebra library in the process; overrides ``OMP_NUM_THREADS``. Part of the
    result: another number changes the last bits. Use 1 on a busy or shared machine."""
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_PROCESSES)] | None = None
    """Processes that train a simulation's sites in parallel, each with ``threads``; no byte depends on the number.
    ``auto`` uses as many as fit the machine's cores. Unset, and in the resolved recipe, the number is 1."""
    compile: Literal[True] | None = None
    """``true``: compile the networks' blocks in the first steps (torch.compile), for GPUs and long runs. This changes
    the last bits; CPUs need a C++ compiler."""
    deterministic: Literal[True] | None = None
    """``true``: use only algorithms that give the same bits in each run on the same GPU; slower, and an error for
    operations without one. Changes last bits. CPUs are repeatable without it."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """The device for training and evaluation. With ``auto`` or ``cuda``, workers use all GPUs in turn."""
    checkpoint_every: int = Field(1, ge=1)
    """Rounds between checkpoints."""


class Report(Section):
    """Contents of a run's report page. Pages are shared, and faces should not leave their owner with a page."""

    images: bool | None = None
    """Show the worst images of the target's set, with their scores, in ``report.html``: ``true`` includes photographs
    (mind who gets the page), ``false`` shows none; by default, rendered people only. Simulations only. ``fedvisage
    report RUN --images`` or ``--no-images`` draws the page again either way."""


class Tracking(Section):
    """Trackers that receive a run's figures, and the directory of those that write files."""

    to: tuple[str, ...] = Field(min_length=1)
    """``tensorboard``, ``mlflow``, ``wandb``, or a tracker that another package adds."""
    project: str = Field("fedvisage", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """The name of MLflow's experiment and of W&B's project."""
    directory: str | None = Field(None, min_length=1)
    """The directory in which trackers keep their files; unset, ``tracking`` in the run's directory."""

    @field_validator("to")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a tracker twice")
        return value
