"""Fuse detectors at several crops into one export: the sum of weight × log-odds / scale, with its own threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.files import replaced_when_complete
from fedvisage.base.progress import Say, discard
from fedvisage.base.version import VERSION
from fedvisage.data.batches import View
from fedvisage.device.exported import (
    CARD,
    CONFIG,
    INT8_GRAPH,
    Exported,
    OperatingPoint,
    check_free,
    entry_of,
    is_export,
    point_of,
)
from fedvisage.device.fused import (
    LARGEST_FACTOR,
    MOST,
    Fused,
    FusedConfig,
    FusedMember,
    copy_member,
    digest_of,
    folder_of,
    open_export,
    write_fused,
)
from fedvisage.device.predict import probability
from fedvisage.metrics.operating_point import BONA_FIDE, CLASSES, average_curves, count_by_type
from fedvisage.metrics.pad import curve_auc, error_curve
from fedvisage.metrics.scores import FloatArray
from fedvisage.metrics.threshold import (
    BINS,
    EDGES,
    FIXED,
    LIMIT,
    NEAR_END,
    OF_PICTURES,
    Histogram,
    describe_rule,
    histogram,
    threshold_from_histograms,
)
from fedvisage.runs.evaluate import NamedSet, check_set, open_named, score_set
from fedvisage.runs.export.card import write_fused_card
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.heldout_counts import read_counts

RULE = "source-eer"
"""The rule of a threshold that is measured on a set."""

EVEN_ODDS = "no set measured the threshold: it is at even odds; give --on SET to choose it on a set's held-out people"


@dataclass(frozen=True)
class Term:
    """One exported member of the sum: where it lies, its name for people, its weight and, if known, its scale."""

    directory: Path
    name: str
    weight: float
    scale: float | None


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The held-out people of a set, and the members' log-odds for them."""

    entry: str
    view: View
    logits: tuple[FloatArray, ...]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The classes of the images: 1 is bona fide."""
        return self.view.labels.astype(np.int64)


@dataclass(frozen=True)
class FusionResult:
    """A fused model, its members' names, and the AUCs of the members, then of the sum, by set."""

    directory: Path
    config: FusedConfig
    names: tuple[str, ...]
    aucs: Mapping[str, tuple[float, ...]]

    @property
    def notices(self) -> list[str]:
        """Notices about a threshold at even odds, and about sets where the first model alone is better."""
        lines = [EVEN_ODDS] if self.config.threshold.rule == "fixed" else []
        lines += [
            f"on {entry} the first model alone has an AUC of {first:.4f}, the sum {total:.4f}: try lower weights for"
            " the others"
            for entry, (first, *_, total) in self.aucs.items()
            if total < first
        ]
        return lines

    def as_values(self) -> dict[str, Any]:
        """Return the result as plain values, for programs."""
        aucs = {entry: list(values) for entry, values in self.aucs.items()}
        return {"directory": str(self.directory), **self.config.model_dump(mode="json"), "auc": aucs}

    def lines(self) -> list[str]:
        """Return the result as lines, for people."""
        lines = [
            f"{name}: weight {member.weight:g}, scale {member.scale:.4g}"
            for name, member in zip(self.names, self.config.members, strict=True)
        ]
        for entry, (*members, total) in self.aucs.items():
            lines.append(f"AUC on {entry}: {', '.join(f'{auc:.4f}' for auc in members)}; sum {total:.4f}")
        point = self.config.threshold
        return [
            *lines,
            f"{self.directory}: threshold: score {probability(point.value):.4f}, {describe_rule(point.rule)}",
        ]


def fuse(
    models: Sequence[Path],
    out: Path,
    *,
    weights: Sequence[float] = (),
    scales: Sequence[float] = (),
    on: Sequence[str] = (),
    cache: Path,
    say: Say = discard,
) -> FusionResult:
    """Write a new directory with the models as members, whose log-odds are summed; leave nothing on failure.

    ``weights`` without one for the first model give it 1; without any, all are 1. ``scales`` are those of the first
    models. A further one's is the standard deviation of its log-odds on its sites' held-out people, or else on those of
    the sets ``on``, which also measure the threshold. All sites, and all these sets, have equal weight.
    """
    check_free(out)
    if len(models) < 2:
        raise UserError("MODEL", "one model needs no fusion; name at least two")
    if len(weights) not in (0, len(models) - 1, len(models)):
        raise UserError(
            "--weight",
            f"is given {len(weights)} times for {len(models)} models; give one per model, or one per model after the "
            "first, which then has 1",
        )
    factors = [1.0] * (len(models) - len(weights)) + list(weights)
    if len(scales) > len(models):
        raise UserError("--scale", f"is given {len(scales)} times for {len(models)} models; give at most one per model")
    _check_factors("--weight", factors)
    _check_factors("--scale", scales)
    named = [open_named(entry, cache, say=say, course=say) for entry in on]
    # One set may have several spellings.
    if len({(each.digest, each.view.slices[0].indices.tobytes()) for each in named}) < len(named):
        raise UserError("--on", "names a set twice; name each once")
    with replaced_when_complete(out) as directory:
        terms = list[Term]()
        for model, weight, scale in zip(models, factors, [*scales, *[None] * (len(models) - len(scales))], strict=True):
            term = Term(model, str(model), weight, scale)
            terms += _add_members(directory, len(terms) + 1, term, next(iter(on), None), cache, say)
        if len(terms) > MOST:
            raise UserError("MODEL", f"a fused model has at most {MOST} members, got {len(terms)}; leave some out")
        sets = [_score(terms, named_set) for named_set in named]
        members = [_member(term, [scored.logits[number] for scored in sets]) for number, term in enumerate(terms)]
        config = FusedConfig(
            members=tuple(members),
            model_sha256=digest_of(members, [Exported.open(term.directory).digest for term in terms]),
            threshold=OperatingPoint(value=FIXED, rule="fixed"),
            version=VERSION,
        )
        config = _with_thresholds(directory, config, terms, sets)
        # The AUC of each member and of the sum; both classes are held out, so all have one.
        aucs = {}
        for scored in sets:
            values = [*scored.logits, score_set(Fused.open(directory), scored.view)]
            curves = [error_curve(logits, scored.labels) for logits in values]
            aucs[scored.entry] = tuple(float(curve_auc(curve.far, curve.frr)) for curve in curves)
        result = FusionResult(out, config, tuple(term.name for term in terms), aucs)
        measured_on = ", ".join(named_set.prepared.name for named_set in named)
        write_fused_card(directory / CARD, result.names, config, result.notices, measured_on)
        Fused.open(directory)
    return result


def _check_factors(option: str, factors: Sequence[float]) -> None:
    for factor in factors:
        if not 0 < factor <= LARGEST_FACTOR:
            raise UserError(option, f"must be a number above 0, at most {LARGEST_FACTOR:g}; got {factor:g}")


def _add_members(directory: Path, number: int, term: Term, on: str | None, cache: Path, say: Say) -> list[Term]:
    """Copy or export a model into the folder of a member; a fused model gives all its members, with their factors."""
    source, place = term.directory, folder_of(directory, number)
    if not is_export(source):
        model = open_model(source)
        if model.task != "pad":
            raise UserError(str(source), "recognises people; only models that detect attacks are fused")
        if model.setup.method.members == "each":
            raise UserError(str(source), "has one model per site; export one with --member, and fuse the export")
        say(f"exporting {source}")
        place.parent.mkdir(exist_ok=True)
        try:
            export(model, place, data=on, cache=cache, say=say)
        except UserError as error:
            if error.place != "--data":
                raise
            raise UserError("--on", error.message) from error
        counts = {} if source.is_file() else read_counts(source)
        return [replace(term, directory=place, scale=term.scale or spread_of(list(counts.values())))]
    opened = open_export(source)
    for notice in opened.notices:
        say(notice)
    if opened.task != "pad":
        raise UserError(str(source), "recognises people; only models that detect attacks are fused")
    if opened.threshold is not None and OF_PICTURES in opened.threshold.estimates:
        say(f"{source}: its calibration does not apply to the sum; calibrate the result")
    if isinstance(opened, Exported):
        copy_member(opened, place)
        return [replace(term, directory=place)]
    if term.scale is None:
        raise UserError(
            "--scale", f"{source} is a fused model, whose scale is 1; give one for each model up to this: --scale 1"
        )
    # The factors of nested sums multiply.
    terms = []
    for offset, (member, recorded) in enumerate(zip(opened.members, opened.config.members, strict=True)):
        place = folder_of(directory, number + offset)
        copy_member(member, place)
        weight, scale = term.weight * recorded.weight, term.scale * recorded.scale
        terms.append(Term(place, f"{source}, member {offset + 1}", weight, scale))
    return terms


def spread_of(histograms: Sequence[Histogram]) -> float | None:
    """Return the standard deviation of held-out log-odds, with equal weight per site; None without any scores."""
    shares = [counts.sum(axis=0) / total for counts in histograms if (total := int(counts.sum()))]
    if not shares:
        return None
    share, middles = np.mean(shares, axis=0), (EDGES[:BINS] + EDGES[1:]) / 2
    return float(np.sqrt(share @ (middles - share @ middles) ** 2)) or None


def _score(terms: Sequence[Term], named: NamedSet) -> HeldOut:
    """Score a set's held-out images with each member; refuse a set without both classes there."""
    (part,) = named.view.slices
    view = named.view.subset(np.flatnonzero(part.set.rows.split[part.indices] == "heldout").astype(np.int64))
    if len(np.unique(view.labels)) < 2:
        raise UserError("--on", f"{named.prepared.name} does not hold out both classes; import it with --heldout")
    logits = []
    for term in terms:
        model = Exported.open(term.directory)
        check_set(replace(model, directory=Path(term.name)), view.slices[0].set, named.entry)
        logits.append(score_set(model, view))
    return HeldOut(named.entry, view, tuple(logits))


def _member(term: Term, logits: Sequence[FloatArray]) -> FusedMember:
    """Return the record of a member; its scale is the given one, its own, or the one measured on the sets."""
    scale = term.scale
    if not scale and logits:  # the standard deviation of log-odds on sets of equal weight; zero is no scale
        mean = np.mean([values.mean() for values in logits])
        scale = float(np.sqrt(np.mean([((values - mean) ** 2).mean() for values in logits])))
    if not scale:
        raise UserError(
            "--scale", f"{term.name} has no held-out scores to measure it; give --scale up to this model, or --on SET"
        )
    _check_factors("--weight", [term.weight])
    _check_factors("--scale", [scale])
    return FusedMember(config=entry_of(term.directory / CONFIG), weight=term.weight, scale=scale)


def _with_thresholds(
    directory: Path, config: FusedConfig, terms: Sequence[Term], sets: Sequence[HeldOut]
) -> FusedConfig:
    """Measure thresholds and error rates on the sets, or leave the threshold at even odds; write the description."""
    has_int8 = all((term.directory / INT8_GRAPH).is_file() for term in terms)
    config = config.model_copy(update={"int8_threshold": config.threshold if has_int8 else None})
    config = write_fused(directory, config)
    if not sets:
        return config

    def scores_and_threshold(*, int8: bool) -> tuple[list[FloatArray], OperatingPoint]:
        model = Fused.open(directory, int8=int8)
        scores = [score_set(model, scored.view) for scored in sets]
        counts = [histogram(values, scored.labels) for values, scored in zip(scores, sets, strict=True)]
        threshold = threshold_from_histograms(counts, RULE)
        if abs(threshold.value) > NEAR_END:
            fault = f"gives sums with a threshold near ±{LIMIT:g} or beyond, where scores are not counted"
            raise UserError("--scale", f"{fault}; give every model a larger --scale")
        return scores, point_of(threshold)

    scores, threshold = scores_and_threshold(int8=False)
    # Average the error rates of the sum over the sets; there are none if fewer than three sets have both classes.
    sites = [
        count_by_type(values, scored.view.species, scored.view.subjects, scored.view.videos)
        for values, scored in zip(scores, sets, strict=True)
    ]
    classes = {name: [site[name] for site in sites] for name in CLASSES}
    curves = average_curves(classes.pop(BONA_FIDE), classes, pooled=False)
    measured: dict[str, Any] = {"threshold": threshold, "curves": curves}
    if has_int8:
        measured["int8_threshold"] = scores_and_threshold(int8=True)[1]
    return write_fused(directory, config.model_copy(update=measured))
