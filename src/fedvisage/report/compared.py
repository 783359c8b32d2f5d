"""Which figures of a run are compared, by task, and which of them stand in one table.

Names of recognition's are those of studies: `generic.tar@1e-3`, `personal.tpir@1e-2`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

ATTACKS = {"hter": "HTER %", "eer": "EER %", "auc": "AUC %", "tpr_at_fpr_1pct": "TPR at FPR 1 %", "acer": "ACER %"}
MODELS = {"generic": "the generic model", "personal": "the sites' own models"}
PLACES = {"generic": "generic", "personal": "personalised"}
TABLES = {"tar": "tar_at_far", "tpir": "tpir_at_fpir"}
"""Where metrics.json has recognition's rates, by model and by kind."""

_TITLES = {"tar": "TAR % at FAR", "tpir": "TPIR % at FPIR"}
_ACCURACY = {"ten-folds": "ten folds %", "list": "listed pairs %"}

ERRORS = frozenset({"hter", "eer", "acer", "bpcer", "apcer_pooled", "hter_target_eer", "hter_train_eer"})
"""Last words of the figures of which less is better."""

Columns = dict[str, str]


def figures_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return what a run's metrics.json has of the figures that are compared."""
    figures = (
        _of_recognition(metrics)
        if metrics.get("task") == "recognition"
        else {name: metrics.get(name) for name in ATTACKS}
    )
    return {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}


def lower_is_better(figure: str) -> bool:
    """Return whether a figure is an error rate; all others are rates of success."""
    return figure.rpartition(".")[2] in ERRORS


def sheets_of(names: Iterable[str]) -> list[tuple[str, Columns]]:
    """Return the tables that figures stand in: what each is about (nothing if it is all), and titles by figure."""
    known = set(names)
    if not any("." in name for name in known):
        return [("", ATTACKS)]
    return [(model, columns) for place, model in MODELS.items() if (columns := _columns(place, known))]


def _of_recognition(metrics: Mapping[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for place, section in PLACES.items():
        table = metrics.get(section) or {}
        for short, kind in TABLES.items():
            figures |= {f"{place}.{short}@{rate}": value for rate, value in (table.get(kind) or {}).items()}
    generic = metrics.get("generic") or {}
    listed = generic.get("listed_pairs") or {}
    return figures | {
        "generic.ten-folds": generic.get("accuracy_on_ten_folds"), "generic.list": listed.get("accuracy"),
    }  # fmt: skip


def _columns(place: str, known: set[str]) -> Columns:
    """Return a model's columns: rates from the strictest on, then accuracies."""
    columns: Columns = {}
    for short, title in _TITLES.items():
        rates = [name.rpartition("@")[2] for name in known if name.startswith(f"{place}.{short}@")]
        columns |= {f"{place}.{short}@{rate}": f"{title} {rate}" for rate in sorted(rates, key=float)}
    return columns | {f"{place}.{name}": title for name, title in _ACCURACY.items() if f"{place}.{name}" in known}
