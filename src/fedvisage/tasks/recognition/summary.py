"""The headline figures of a recognition model, as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvisage.progress import percent


def summary_lines(figures: Mapping[str, Any]) -> list[str]:
    """Return verification and identification rates, generic and personal."""
    generic, personal = figures.get("generic") or {}, figures.get("personalised") or {}
    user = figures.get("user")
    lines = [f"{figures['method']} on benchmark {user}" if user is not None else f"{figures['method']} on benchmarks"]
    if figures.get("threshold") is not None:
        lines[0] += f" (threshold {figures['threshold']:.4f} by rule {figures['threshold_rule']})"
    for name, measured in (("generic", generic), (f"personal, {personal.get('model')} model", personal)):
        for kind, title in (("tar_at_far", "TAR@FAR"), ("tpir_at_fpir", "TPIR@FPIR")):
            rates = [
                f"{rate} {percent(value)}" for rate, value in (measured.get(kind) or {}).items() if value is not None
            ]
            lines += [f"  {name}: {title} {'  '.join(rates)}"] if rates else []
    if generic.get("accuracy_on_ten_folds") is not None:
        lines.append(f"  ten folds: {percent(generic['accuracy_on_ten_folds'])}")
    if (listed := generic.get("listed_pairs")) is not None:
        said = f"{listed['pairs']} pairs of {listed['list']} ({listed['left_out']} left out: no such image)"
        lines.append(f"  {said}: {percent(listed['accuracy'])} on {listed['folds']} folds")
    for name, judged in (figures.get("benchmarks") or {}).items():
        lines += [f"  {name}: {line}" for line in _benchmark_lines(judged)]
    return lines


def _benchmark_lines(judged: Mapping[str, Any]) -> list[str]:
    """Return what there is to say of one benchmark."""
    lines = []
    for which, listed in (judged.get("lists") or {}).items():
        said = f"{which}, {listed['pairs']} pairs ({listed['left_out']} left out)"
        lines.append(f"{said}: {percent(listed['accuracy'])} on {listed['folds']} folds")
    if (spread := judged.get("spread")) is not None:
        ratio = (
            "" if spread["skewed_error_ratio"] is None else f", skewed error ratio {spread['skewed_error_ratio']:.2f}"
        )
        lines.append(
            f"mean of the groups {percent(spread['mean'])}, standard deviation {percent(spread['std'])}{ratio}"
        )
    tables = {**(judged.get("readings") or {}), **({"all images": judged["generic"]} if "generic" in judged else {})}
    for reading, rates in tables.items():
        for kind, title in (("tar_at_far", "TAR@FAR"), ("tpir_at_fpir", "TPIR@FPIR"), ("rank", "rank")):
            known = [f"{rate} {percent(value)}" for rate, value in (rates.get(kind) or {}).items() if value is not None]
            lines += [f"{reading}: {title} {'  '.join(known)}"] if known else []
    return lines
