"""Compute the protocol's table and verdicts from recorded cells alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from benchmarks.real.cells import FUSED, SOURCE, Figures, Records
from benchmarks.real.protocol import Cell, Plan, Row, Setting
from benchmarks.real.sign_flip import LEVEL, detectable, fewest, holm, interval, p_value
from fedvisage.report.compare import difference

PERMUTED = "FedPAD, permuted labels"
"""The null run: without labels, nothing may be learned."""

ByTarget = Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """The difference of two rows over targets."""

    name: str
    differences: Sequence[float]
    p: float
    by_family: Sequence[float] = ()
    """The mean difference of each family, if the targets are sites."""

    @property
    def mean(self) -> float:
        """The mean over targets."""
        return fmean(self.differences)

    def line(self, ending: str) -> str:
        """Return mean, intervals and p-value."""
        low, high = interval(self.differences)
        student = f", t {bracket(t)}" if (t := t_interval(self.differences)) else ""
        positive = sum(gap > 0 for gap in self.differences)
        return (
            f"{self.name}: {self.mean:+.3f} {bracket((low, high))}{student}, positive at {positive} of "
            f"{len(self.differences)} ({min(self.differences):+.3f} to {max(self.differences):+.3f}), "
            f"p = {self.p:.4f}{ending}"
        )


class Table:
    """Figures by row and target, as far as all runs of a row have ended."""

    def __init__(self, plan: Plan, records: Records) -> None:
        """Read the records."""
        self.plan, self.records = plan, records

    def ended(self, row: str) -> tuple[int, int]:
        """Return the number of recorded runs of a row, and of all its runs."""
        cells = self.plan.cells_of(row)
        return sum(self.records.get(cell) is not None for cell in cells), len(cells)

    @property
    def complete(self) -> bool:
        """True if all runs of the plan have ended."""
        return all(self.records.get(cell) is not None for cell in self.plan.cells())

    def figures(self, row: str, figure: str = "auc") -> ByTarget | None:
        """Return a row's figure by target, averaged over seeds at the setting that is best at home; None if unended."""
        if self.ended(row)[0] < self.ended(row)[1]:
            return None
        cells = self._by_setting(row)
        return {target: self._figure(row, by_setting, figure) for target, by_setting in cells.items()}

    def _by_setting(self, row: str) -> Mapping[str, Mapping[int, Sequence[Cell]]]:
        cells: dict[str, dict[int, list[Cell]]] = {}
        for cell in self.plan.cells_of(row):
            cells.setdefault(cell.target, {}).setdefault(cell.setting, []).append(cell)
        return cells

    def choices(self) -> Iterator[str]:
        """Yield, per training with several settings whose runs have ended, how many targets chose which."""
        rows: dict[str, str] = {}
        for row in self.plan.rows:
            rows.setdefault(self.plan.rows[row].training, row)
        for name, row in rows.items():
            settings, (ended, planned) = self.plan.trainings[name].settings, self.ended(row)
            if len(settings) > 1 and ended == planned:
                counts = Counter(self._chosen(by_setting) for by_setting in self._by_setting(row).values())
                named = [f"{describe(settings[chosen], settings)} ({counts[chosen]})" for chosen in sorted(counts)]
                yield f"- {name}: {', '.join(named)}"

    def _figure(self, row: str, by_setting: Mapping[int, Sequence[Cell]], figure: str) -> float:
        models = [self._models(cell) for cell in by_setting[self._chosen(by_setting)]]
        return fmean(figure_of(self.plan.rows[row], seed, figure) for seed in models)

    def _chosen(self, by_setting: Mapping[int, Sequence[Cell]]) -> int:
        at_home = {
            setting: fmean(home_of(self._models(cell)) for cell in cells) for setting, cells in by_setting.items()
        }
        return max(at_home, key=lambda setting: at_home[setting])  # the first of equal ones

    def _models(self, cell: Cell) -> Mapping[str, Figures]:
        record = self.records.get(cell)
        if record is None:
            raise ValueError(f"{cell} has no record")
        models: Mapping[str, Figures] = record["models"]
        return models

    def verdict(self, pair: tuple[str, str], figure: str = "auc") -> Verdict | None:
        """Return the difference of two rows over the plan's sites, of rows without a family over families."""
        first, second = (self.figures(row, figure) for row in pair)
        if first is None or second is None:
            return None
        gaps = {target: first[target] - second[target] for target in self.plan.sites}
        by_family = [*family_means(gaps, self.plan.sites).values()]
        if self.plan.trainings[self.plan.rows[pair[0]].training].without_family:
            differences, by_family = by_family, []
        else:
            differences = [*gaps.values()]
        name = f"{pair[0]} - {pair[1]}{'' if figure == 'auc' else f' ({figure.upper()})'}"
        return Verdict(name, differences, p_value(differences), by_family)

    # Lines.

    def lines(self, *, blind: bool = False) -> Iterator[str]:
        """Yield the table, then the verdicts."""
        if blind and not self.complete:
            yield from self.progress()
            yield "target figures are hidden until all runs have ended (--blind)"
            return
        yield from self.table()
        yield ""
        if len(self.records.commits) > 1:
            yield f"the runs come from {len(self.records.commits)} commits: {', '.join(self.records.commits)}"
        yield from self.verdicts()
        yield "settings chosen at home, with their numbers of targets:"
        yield from self.choices()

    def progress(self) -> Iterator[str]:
        """Yield, per row, the ended runs."""
        for row in self.plan.rows:
            ended, planned = self.ended(row)
            yield f"{row}: {ended} of {planned} runs"

    def table(self) -> Iterator[str]:
        """Yield figures over targets and by family."""
        families = [*dict.fromkeys(self.plan.sites.values())]
        yield f"| row | runs | AUC mean | median | worst | EER mean | {' | '.join(families)} |"
        yield f"|---|{'---:|' * (5 + len(families))}"
        for row in self.plan.rows:
            ended, planned = self.ended(row)
            auc, eer = self.figures(row), self.figures(row, "eer")
            if auc is None or eer is None:
                cells = ["–"] * (4 + len(families))
            else:
                own, means = [*auc.values()], family_means(auc, self.plan.sites)
                values = [fmean(own), median(own), min(own), fmean(eer.values())]
                cells = [f"{value:.3f}" for value in (*values, *(means[family] for family in families))]
            yield f"| {row} | {ended} of {planned} | {' | '.join(cells)} |"

    def verdicts(self) -> Iterator[str]:
        """Yield the null run, the primary differences, then the secondary ones."""
        if len(self.plan.sites) < fewest():
            yield f"too few sites for a test: {len(self.plan.sites)}, needs {fewest()}"
            return
        null = self.figures(PERMUTED) if PERMUTED in self.plan.rows else None
        if null is not None:
            low, high = (0.5 + bound for bound in interval([value - 0.5 for value in null.values()]))
            note = ": contains 0.5" if low <= 0.5 <= high else ": excludes 0.5, so no verdict counts"
            yield f"null run, mean AUC {fmean(null.values()):.3f} [{low:.3f}, {high:.3f}]{note}"
        yield from self.primary(self.plan)
        yield "secondary differences, uncorrected, without verdict:"
        for first, second, *figure in self.plan.secondary:
            gap = self.verdict((first, second), *figure)
            if gap is None:
                continue
            if (count := len(gap.differences)) < fewest():
                yield f"- {gap.name}: {gap.mean:+.3f}; too few families for a test: {count}, needs {fewest()}"
            else:
                yield "- " + gap.line("")

    def primary(self, plan: Plan) -> Iterator[str]:
        """Yield a plan's primary differences with Holm's correction, those of an earlier plan until all have ended."""
        found = {pair: self.verdict(pair) for pair in plan.primary}
        if waiting := ", ".join(" - ".join(pair) for pair, verdict in found.items() if verdict is None):
            if plan.extends:
                yield f"verdicts of the earlier plan, because runs of {waiting} have not ended"
                yield from self.primary(plan.extends)
            else:
                yield f"primary differences: no verdict before all their runs have ended (missing: {waiting})"
            return
        verdicts = {pair: verdict for pair, verdict in found.items() if verdict is not None}
        adjusted = holm({verdict.name: verdict.p for verdict in verdicts.values()})
        yield f"primary differences of AUC over {len(self.plan.sites)} sites (Holm over {len(verdicts)}):"
        for pair, verdict in verdicts.items():
            corrected = adjusted[verdict.name]
            word, t = word_at_sites(verdict, corrected, len(verdicts)), t_interval(verdict.by_family)
            remark = f"; over {len(verdict.by_family)} families t {bracket(t)}" if t else ""
            remark += self.about_resolution(pair, verdict, word)
            yield "- " + verdict.line(f", Holm {corrected:.4f}: {word}{remark}")

    def about_resolution(self, pair: tuple[str, str], verdict: Verdict, word: str) -> str:
        """Return a remark if the difference has the opposite sign where both classes have the same resolution."""
        first, second = (f"{row}, matched" for row in pair)
        if first not in self.plan.rows or second not in self.plan.rows:
            return ""
        matched = self.verdict((first, second))
        if matched is None or matched.mean * verdict.mean >= 0:
            return ""
        conclusion = ", so it is about resolution" if word.startswith("holds") else ""
        return f"; {matched.mean:+.3f} on matched sets{conclusion}"


def describe(setting: Setting, among: Sequence[Setting]) -> str:
    """Return what distinguishes a setting from the others, such as ``lr 0.05``."""
    differs = [key for key in setting if len({str(other.get(key)) for other in among}) > 1]
    return " ".join(f"{key.rpartition('.')[2]} {setting[key]}" for key in differs)


def home_of(models: Mapping[str, Figures]) -> float:
    """Return the mean AUC at home of a training's models."""
    return fmean(figures["home"] for name, figures in models.items() if name != FUSED)


def figure_of(row: Row, models: Mapping[str, Figures], figure: str) -> float:
    """Return a row's figure of one training: of its model, the mean, the best at home, or the fused score.

    Many models are perfect at home: the figure is the mean over all that share the best AUC there.
    """
    sites = {name: figures for name, figures in models.items() if name != FUSED}
    if row.models == "mean":
        return fmean(figures[figure] for figures in sites.values())
    if row.models == "best":
        best = max(figures["home"] for figures in sites.values())
        return fmean(figures[figure] for figures in sites.values() if figures["home"] == best)
    return models[{"fused": FUSED, "source": SOURCE}.get(row.models, "")][figure]


def family_means(values: ByTarget, families: Mapping[str, str]) -> dict[str, float]:
    """Return the mean of each family's targets."""
    members: dict[str, list[float]] = {}
    for target, value in values.items():
        members.setdefault(families[target], []).append(value)
    return {family: float(np.mean(found)) for family, found in members.items()}


def word_of(verdict: Verdict, adjusted: float, comparisons: int) -> str:
    """Return the verdict on the claim that the first row is better; ``comparisons`` is the number of primary ones."""
    if adjusted <= LEVEL:
        return "holds" if verdict.mean > 0 else "holds the other way"
    needed = detectable(verdict.differences, comparisons)
    return f"undecided (80 % power at 5 % / {comparisons} needs {needed:.3f})"


def word_at_sites(verdict: Verdict, adjusted: float, comparisons: int) -> str:
    """Return the verdict; it is limited to these sites if the interval over families contains zero."""
    word, t = word_of(verdict, adjusted, comparisons), t_interval(verdict.by_family)
    return f"{word} at these sites" if word.startswith("holds") and t and t[0] <= 0 <= t[1] else word


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95 % interval of the mean, None of a single value."""
    t = difference([(str(number), 0, value) for number, value in enumerate(values)])
    return (t.low, t.high) if t and t.low is not None and t.high is not None else None


def bracket(bounds: tuple[float, float]) -> str:
    """Return an interval as text."""
    return f"[{bounds[0]:+.3f}, {bounds[1]:+.3f}]"
