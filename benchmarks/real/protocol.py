"""The plans of decisions 0045, 0058 and 0064 as data: trainings, settings, rows, differences, and their cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.real.families import DEPTH_SIZE, MATCHED, PLAIN, SOURCES, WITH_DEPTH

RECIPE = Path(__file__).parent / "recipe.yaml"
"""A copy of recipes/real/texture.yaml as it was when the runs were planned: the shipped one may change."""
ALONE = "single"
"""The method that trains a network at each site alone."""

CUES = "cues"
"""The training that fits no network: a logistic regression on the twelve cues."""

Setting = Mapping[str, Any]
RATES: Sequence[Setting] = ({"training.optimizer.lr": 0.01}, {"training.optimizer.lr": 0.05})
PROXIMAL: Sequence[Setting] = tuple(dict(rate) | {"method.mu": mu} for rate in RATES for mu in (0.01, 1.0))
NONE: Sequence[Setting] = ({},)


@dataclass(frozen=True)
class Training:
    """A method that is trained for each target and seed, at each of its settings; ``adapt`` evaluates finished models.

    ``trained_by`` names the training whose models are adapted to the target's images.
    """

    method: str
    settings: Sequence[Setting] = RATES
    sets: str = PLAIN
    without_family: bool = False
    permuted: bool = False
    adapt: str = ""
    trained_by: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the table: a training, and which of its models are evaluated."""

    training: str
    models: str = "one"
    """``one`` model, the ``mean`` figure of the sites' models, the ``best`` of them at home, the ``fused`` one, or the
    ``source`` of an adapted one."""
    control: bool = False


@dataclass(frozen=True)
class Cell:
    """One training at one setting, without one target, with one seed."""

    training: str
    setting: int
    target: str
    seed: int

    @property
    def file(self) -> str:
        """The name of the file with the records of this training and setting."""
        return f"{self.training}-{self.setting}.json"

    @property
    def key(self) -> str:
        """The name of the record in that file."""
        return f"{self.target}/{self.seed}"


@dataclass(frozen=True)
class Plan:
    """Everything that decides which figures are computed from which pictures."""

    sites: Mapping[str, str]
    """Family by site; each site is a target, and trains for the others."""
    trainings: Mapping[str, Training]
    rows: Mapping[str, Row]
    primary: Sequence[tuple[str, str]]
    """Pairs of rows whose differences form the Holm family."""
    secondary: Sequence[tuple[str, ...]] = ()
    """Pairs of rows, with the name of the figure if it is not the AUC."""
    seeds: Sequence[int] = (0, 1, 2)
    changes: Setting = field(default_factory=dict)
    """Changes to the recipe in all trainings."""
    extends: Plan | None = None
    """The earlier plan to which this one adds rows; its records count."""

    @property
    def digest(self) -> str:
        """The digest of the plan and of the recipe that it changes; keys of later plans count where they are used."""
        tree = {key: value for key, value in asdict(self).items() if key != "extends"}
        for training in tree["trainings"].values():
            if not training["adapt"]:
                del training["adapt"], training["trained_by"]
        tree["recipe"] = RECIPE.read_text()
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()

    @property
    def digests(self) -> tuple[str, ...]:
        """The first characters of the digests of this plan and of those that it extends."""
        return (self.digest[:16], *(self.extends.digests if self.extends else ()))

    def cells(self) -> Iterator[Cell]:
        """Yield the cells in the order of the plan."""
        for name, training in self.trainings.items():
            seeds = self.seeds if training.method != CUES else self.seeds[:1]
            for setting, target, seed in product(range(len(training.settings)), self.sites, seeds):
                yield Cell(name, setting, target, seed)

    def cells_of(self, row: str) -> list[Cell]:
        """Return the cells that a row needs."""
        return [cell for cell in self.cells() if cell.training == self.rows[row].training]

    def training_sites(self, cell: Cell) -> tuple[str, ...]:
        """Return the sites that train in a cell."""
        family = self.sites[cell.target]
        left_out = [family] if self.trainings[cell.training].without_family else []
        return tuple(site for site, kind in self.sites.items() if site != cell.target and kind not in left_out)


PLAN = Plan(
    sites={site: source.family for site, source in SOURCES.items()},
    changes={"training.augment.strong": False},
    trainings={
        "cues": Training(CUES, NONE),
        "fedpad": Training("fedpad"),
        "single": Training(ALONE),
        "pooled": Training("pooled"),
        "fedbn": Training("fedbn"),
        "fedprox": Training("fedprox", PROXIMAL),
        "scaffold": Training("scaffold"),
        "fedpad-permuted": Training("fedpad", RATES[1:], permuted=True),
        "fedpad-matched": Training("fedpad", sets=MATCHED),
        "single-matched": Training(ALONE, sets=MATCHED),
        "pooled-matched": Training("pooled", sets=MATCHED),
        "cues-matched": Training(CUES, NONE, sets=MATCHED),
        "fedpad-families": Training("fedpad", without_family=True),
        "single-families": Training(ALONE, without_family=True),
        "pooled-families": Training("pooled", without_family=True),
    },
    rows={
        "Single (mean)": Row("single", "mean"),
        "Single (best at home)": Row("single", "best"),
        "Fused": Row("single", "fused"),
        "FedPAD": Row("fedpad"),
        "All": Row("pooled"),
        "FedBN": Row("fedbn"),
        "FedProx": Row("fedprox"),
        "SCAFFOLD": Row("scaffold"),
        "twelve cues": Row("cues", control=True),
        "FedPAD, permuted labels": Row("fedpad-permuted", control=True),
        "Single (mean), matched": Row("single-matched", "mean", control=True),
        "Fused, matched": Row("single-matched", "fused", control=True),
        "FedPAD, matched": Row("fedpad-matched", control=True),
        "All, matched": Row("pooled-matched", control=True),
        "twelve cues, matched": Row("cues-matched", control=True),
        "Single (mean), family left out": Row("single-families", "mean"),
        "Fused, family left out": Row("single-families", "fused"),
        "FedPAD, family left out": Row("fedpad-families"),
        "All, family left out": Row("pooled-families"),
    },
    primary=(
        ("FedPAD", "Single (mean)"),
        ("FedPAD", "Single (best at home)"),
        ("FedPAD", "Fused"),
        ("FedPAD", "All"),
        ("FedPAD", "twelve cues"),
    ),
    secondary=(
        ("Fused", "Single (mean)"),
        ("FedBN", "FedPAD"),
        ("FedProx", "FedPAD"),
        ("SCAFFOLD", "FedPAD"),
        ("FedPAD, matched", "Single (mean), matched"),
        ("FedPAD, matched", "Fused, matched"),
        ("FedPAD, matched", "All, matched"),
        ("FedPAD, matched", "twelve cues, matched"),
        ("FedPAD, family left out", "Single (mean), family left out"),
        ("FedPAD, family left out", "Fused, family left out"),
        ("FedPAD, family left out", "All, family left out"),
    ),
)

ADAPTED = tuple(product({"FedPAD": "fedpad", "All": "pooled"}.items(), ("statistics", "paper", "gated")))
"""Row and training, with a form of adaptation: BatchNorm's statistics alone, the paper's loop, or the gated one."""

EXTENDED = replace(
    PLAN,
    extends=PLAN,
    trainings={
        **PLAN.trainings,
        **{
            f"{training}-{adapt}": replace(PLAN.trainings[training], adapt=adapt, trained_by=training)
            for (_, training), adapt in ADAPTED
        },
    },
    rows={
        **PLAN.rows,
        "FedPAD, unadapted": Row("fedpad-paper", "source"),
        "All, unadapted": Row("pooled-paper", "source"),
        **{f"{row}, {adapt}": Row(f"{training}-{adapt}") for (row, training), adapt in ADAPTED},
    },
    primary=(*PLAN.primary, ("FedPAD, paper", "FedPAD"), ("FedPAD, gated", "FedPAD")),
    secondary=(
        *PLAN.secondary,
        ("FedPAD, statistics", "FedPAD"),
        ("All, statistics", "All"),
        ("All, paper", "All"),
        ("All, gated", "All"),
        ("FedPAD, statistics", "All, statistics"),
        ("FedPAD, paper", "All, paper"),
        ("FedPAD, gated", "All, gated"),
        *((f"{row}, {adapt}", f"{row}, unadapted", "hter") for (row, _), adapt in ADAPTED),
    ),
)
"""The plan of decision 0058: PLAN with the models of FedPAD and All adapted to each target."""

OTHER_METHODS: Mapping[str, tuple[str, Setting]] = {
    "GroupNorm": ("fedpad", {"method.network.norm": "group"}),
    "FedWon": ("fedpad", {"method.network.norm": "weight-standardised"}),
    "MixStyle": ("mixstyle", {}),
    "GA": ("ga", {}),
    "FedSR": ("fedsr", {}),
    "SSDG": ("ssdg", {}),
    "FedDF": ("feddf", {}),
}
"""Methods for unseen domains by row: the method and its settings."""

LARGER: Setting = {"input.size": DEPTH_SIZE}
DISENTANGLED: Setting = {
    **LARGER,
    "method.network": {"encoder": "resnet18", "width": 16, "classifier": "linear"},
    "training.optimizer.lr": 0.05,
}
"""FedGPAD on FedPAD's network."""

FURTHER = replace(
    EXTENDED,
    extends=EXTENDED,
    trainings={
        **EXTENDED.trainings,
        **{
            row.lower(): Training(method, [{**rate, **setting} for rate in RATES])
            for row, (method, setting) in OTHER_METHODS.items()
        },
        "fedpad-96": Training("fedpad", [{**LARGER, **rate} for rate in RATES], WITH_DEPTH),
        "fedgpad": Training(
            "fedgpad",
            [
                {**DISENTANGLED, "method.difference": products, "method.weights.depth": depth}
                for products, depth in product(("batch", "image"), (1.0, 10.0))
            ],
            WITH_DEPTH,
        ),
        "fedgpad-without-depth": Training("fedgpad", [{**DISENTANGLED, "method.weights.depth": 0.0}], WITH_DEPTH),
    },
    rows={
        **EXTENDED.rows,
        **{row: Row(row.lower()) for row in OTHER_METHODS},
        "FedPAD, 96 pixels": Row("fedpad-96"),
        "FedGPAD, 96 pixels": Row("fedgpad"),
        "FedGPAD without depth, 96 pixels": Row("fedgpad-without-depth"),
    },
    primary=(*EXTENDED.primary, ("FedGPAD, 96 pixels", "FedPAD, 96 pixels")),
    secondary=(
        *EXTENDED.secondary,
        *((row, "FedPAD") for row in OTHER_METHODS),
        ("FedGPAD without depth, 96 pixels", "FedPAD, 96 pixels"),
        ("FedPAD, 96 pixels", "FedPAD"),
        ("FedPAD, paper", "All"),
        ("FedPAD, gated", "All"),
    ),
)
"""The plan of decision 0064."""
