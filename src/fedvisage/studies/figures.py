"""The figures that a study can put into columns, and where a run's metrics.json has them.

Attack detection's stand at the top: `hter`. Recognition's are named by model, rate and error rate: `generic.tar@1e-3`,
`personal.tpir@1e-2`, and `personal.local.tar@1e-3` for one of the models by which a site can know its people;
`published.hter_target_eer` is by a rule of papers (`metrics/published`), where the recipe says `evaluation.published`.
`impostors.across.tar@1e-3` counts pairs of two people of different groups alone, `impostors.within` of one group;
`group.African.accuracy` is the accuracy on ten folds of pairs within a group of the user's set. `heldout.eer` and
`heldout.auc` are of the sites' held-out images, the mean over sites: no figure of the user. What a run cost:
`seconds`, `peak_rss_mb`, `megabytes_up`, `megabytes_down`, `steps_per_epoch`; bytes that an interrupted run sent twice
count once.

A further benchmark's begin with its name: `lfw.accuracy` and `lfw.tar@1e-3` on its only list of pairs,
`rfw.african.accuracy` on one of several, `ijb-c.tar@1e-4`, `ijb-c.tpir@1e-2` and `ijb-c.rank@1` on templates as
released code reads them, `ijb-c.conservative.tar@1e-4` in the other reading. Without lists they are those of a user.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from fedvisage.recipe import SITE_NAME
from fedvisage.report.compared import PLACES, TABLES

PERCENT = 100.0
OWN = ("generic", "personal", "group", "impostors", "heldout")
"""What figures that are of no further benchmark begin with."""
USUAL = ("published", "all")
"""The reading of templates and the list of pairs that a benchmark's figure means if it names none."""

_RATE = re.compile(r"(generic|personal)(?:\.(generic|local|own))?\.(tar|tpir)@(\d+e-\d+)")
_PUBLISHED = re.compile(r"published\.(hter_target_eer|hter_train_eer|tpr_bona_fide_1pct)")
_IMPOSTORS = re.compile(r"impostors\.(within|across)\.tar@(\d+e-\d+)")
_HELDOUT = re.compile(r"heldout\.(eer|auc)")
_GROUP = re.compile(r"group\.([A-Za-z0-9_-]+)\.accuracy")
_BENCHMARK = re.compile(
    rf"({SITE_NAME.pattern})(?:\.([A-Za-z0-9_-]+))?\.(?:(accuracy)|(tar|tpir|rank)@(\d+e-\d+|[1-9]\d*))"
)
_KINDS = {**TABLES, "rank": "rank"}

BLIND = ("heldout.eer", "heldout.auc")
"""What may be looked at while a choice is being made."""

COSTS: Mapping[str, tuple[str, float]] = {
    "seconds": ("seconds", 1.0),
    "peak_rss_mb": ("peak_rss_mb", 1.0),
    "megabytes_up": ("bytes_up", 1e-6),
    "megabytes_down": ("bytes_down", 1e-6),
    "steps_per_epoch": ("steps_per_epoch", 1.0),
}
"""What a run cost: its name in metrics.json, and what it is multiplied with."""

HEADINGS: Mapping[str, str] = {
    "published.hter_target_eer": "HTER at the user's EER threshold (as published)",
    "published.hter_train_eer": "HTER at the training scores' EER threshold (as published)",
    "published.tpr_bona_fide_1pct": "bona fide accepted at 1 % of attacks (as published)",
    "tpr_at_fpr_1pct": "TPR at FPR 1 %",
    "apcer_pooled": "pooled APCER",
    "seconds": "seconds",
    "peak_rss_mb": "peak memory (MB)",
    "megabytes_up": "MB up",
    "megabytes_down": "MB down",
    "steps_per_epoch": "steps per epoch",
}
"""Columns whose names do not say enough."""
WORDS = ("accuracy", "rank")
"""Measures that are no abbreviations."""

Attacks = Literal["hter", "eer", "auc", "tpr_at_fpr_1pct", "bpcer", "apcer_pooled", "acer"]
_OWN = (_RATE, _PUBLISHED, _GROUP, _IMPOSTORS, _HELDOUT)
_NAMES = "|".join([*(one.pattern for one in _OWN), *COSTS, _BENCHMARK.pattern])
Figure = Attacks | Annotated[str, Field(pattern=f"^({_NAMES})$")]


def benchmark_of(figure: str) -> str | None:
    """Return the further benchmark that a figure is of; None for what a run has of itself."""
    own = any(one.fullmatch(figure) for one in _OWN)
    found = None if own else _BENCHMARK.fullmatch(figure)
    return None if found is None else found[1]


def value_of(metrics: Mapping[str, Any], figure: str) -> float | None:
    """Return a figure of a run; None where it could not be measured."""
    if (benchmark := benchmark_of(figure)) is not None:
        return _of_benchmark((metrics.get("benchmarks") or {}).get(benchmark) or {}, figure)
    if (group := _GROUP.fullmatch(figure)) is not None:
        return _of_group(metrics, group[1])
    if (rule := _PUBLISHED.fullmatch(figure)) is not None:
        by_papers: float | None = (metrics.get("published") or {}).get(rule[1])
        return by_papers
    if (heldout := _HELDOUT.fullmatch(figure)) is not None:
        return _mean([site.get(heldout[1]) for site in (metrics.get("sites_heldout") or {}).values()])
    if (impostors := _IMPOSTORS.fullmatch(figure)) is not None:
        kinds = (metrics.get("generic") or {}).get("tar_by_impostors") or {}
        return (kinds.get(f"{impostors[1]} groups") or {}).get(impostors[2])
    found = _RATE.fullmatch(figure)
    if found is None:
        key = COSTS[figure][0] if figure in COSTS else figure
        value: float | None = metrics.get(key)
        again: int | None = (metrics.get("repeated") or {}).get(key)  # bytes that only an interruption cost
        return value if value is None or again is None else value - again
    place, model, kind, rate = found.groups()
    table = metrics.get(PLACES[place]) or {}
    if model is not None:
        table = (table.get("models") or {}).get(model) or {}
    value = (table.get(TABLES[kind]) or {}).get(rate)
    return value


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _of_benchmark(judged: Mapping[str, Any], figure: str) -> float | None:
    """Return a figure of a further benchmark; of a group, that of the group's own site's model where there is one."""
    found = _BENCHMARK.fullmatch(figure)
    assert found is not None, "what is of a benchmark has its form"
    _, part, accuracy, kind, rate = found.groups()
    if (generic := judged.get("generic")) is not None:
        if accuracy and part:
            return _of_group({"generic": generic}, part)
        tables = {"": {**generic, "accuracy": generic.get("accuracy_on_ten_folds")}}
    else:
        own = {name.lower(): one for name, one in (judged.get("members") or {}).items()}.get(part or "", judged)
        tables = own.get("lists") or own.get("readings") or {}
    table = next((tables[name] for name in ((part,) if part else ("", *USUAL)) if name in tables), {})
    value: float | None = table.get("accuracy") if accuracy else (table.get(_KINDS[kind]) or {}).get(rate)
    return value


def _of_group(metrics: Mapping[str, Any], group: str) -> float | None:
    """Return the accuracy on a group's pairs: of the group's own site's model, where each site has one."""
    generic = metrics.get("generic") or {}
    judged = (generic.get("members") or {}).get(group) or generic
    value: float | None = ((judged.get("groups") or {}).get(group) or {}).get("accuracy_on_ten_folds")
    return value


def heading(figure: str) -> str:
    """Return what stands above a figure's column."""
    if figure in HEADINGS:
        return HEADINGS[figure]
    *whose, what = figure.split(".")
    measure, *rate = what.split("@")
    words = ["held-out" if word == "heldout" else word for word in whose]
    return " ".join([*words, "@".join([measure if measure in WORDS else measure.upper(), *rate])])


def scale(figure: str) -> float:
    """Return what a figure is multiplied with in tables: rates are shown in per cent, costs in their own units."""
    return COSTS[figure][1] if figure in COSTS else PERCENT
