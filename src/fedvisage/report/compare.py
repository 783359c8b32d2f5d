"""Compare runs: mean ± standard deviation over seeds, and paired differences over targets.

Runs belong to one group when their recipes differ only in seed, title and data (``NOT_SETTINGS``). Runs with the same
seed and target but different training data belong to different groups. Two runs are the same run when their content is
the same, whatever the names of their directories. Targets differ far more than methods,
so a difference is taken between runs with the same sites, target and seed. Seeds of one target share its images: their
differences are averaged, and the interval is Student's t over targets. The verdict follows from the interval alone.
With one target there is no verdict, and the interval is over its seeds.

The digests in ``data.json`` identify the data behind a figure: the target's data for most figures; for the personal
figures of recognition, the sites' data and the public people that the sites' models must reject.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from string import ascii_uppercase
from typing import Any, NamedTuple

from fedvisage.base.errors import UserError
from fedvisage.base.files import flatten, json_key, pieces_of
from fedvisage.data.overlap import PUBLIC, SITE, TARGET
from fedvisage.data.selection import split_entry
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.metrics.scores import LARGEST
from fedvisage.recipe.recipe import rename_in_recipe, rename_places
from fedvisage.report.run_files import Row, check_finished, damaged_files_are_errors, read_mapping
from fedvisage.tasks.seal import check_seal

# Compared figures, by task and by table. Names of recognition figures are those of studies: `generic.tar@1e-3`,
# `personal.tpir@1e-2`.

ATTACKS = {"hter": "HTER %", "eer": "EER %", "auc": "AUC %", "tpr_at_fpr_1pct": "TPR at FPR 1 %", "acer": "ACER %"}
MODELS = {"generic": "the generic model", "personal": "the sites' own models"}
_TITLES = {"tar": "TAR % at FAR", "tpir": "TPIR % at FPIR"}
_ACCURACY = {"ten-folds": "ten folds %", "list": "listed pairs %"}

ERRORS = frozenset({"hter", "eer", "acer", "bpcer", "apcer_pooled", "hter_target_eer", "hter_train_eer"})
"""Last words of the figures for which lower is better."""

Columns = dict[str, str]


def figures_of(metrics: Metrics) -> dict[str, float]:
    """Return the compared figures of a run."""
    names = {name: name for name in ATTACKS}
    if metrics.get("task") == "recognition":
        starts = tuple(f"{model}.{kind}@" for model in MODELS for kind in _TITLES)
        names = {name: name for name in metrics if name.startswith(starts)}
        names |= {"generic.ten-folds": "generic.accuracy", "generic.list": "generic.listed_pairs.accuracy"}
    values = {figure: metrics.number(name) for figure, name in names.items()}
    return {figure: float(value) for figure, value in values.items() if value is not None}


def lower_is_better(figure: str) -> bool:
    """Return whether a figure is an error rate; all others are rates of success."""
    return figure.rpartition(".")[2] in ERRORS


def tables_by_model(names: Iterable[str]) -> list[tuple[str, Columns]]:
    """Return one table per model: its subject (empty for a single table) and its column titles by figure."""
    available = set(names)
    if not any("." in name for name in available):
        return [("", ATTACKS)]
    tables = []
    for place, model in MODELS.items():
        columns: Columns = {}
        for short, title in _TITLES.items():  # rates from the strictest on, then accuracies
            rates = [name.rpartition("@")[2] for name in available if name.startswith(f"{place}.{short}@")]
            columns |= {f"{place}.{short}@{rate}": f"{title} {rate}" for rate in sorted(rates, key=float)}
        columns |= {f"{place}.{name}": title for name, title in _ACCURACY.items() if f"{place}.{name}" in available}
        tables += [(model, columns)] if columns else []
    return tables


# Members of a comparison: the settings, evaluation data and figures of each run.

Settings = tuple[tuple[str, str], ...]
NOT_SETTINGS = (
    *("title", "data", "report", "tracking", "evaluation.features", "evaluation.resamples"),
    "evaluation.snapshots",
    *("runtime.seed", "runtime.threads", "runtime.device", "runtime.checkpoint_every", "runtime.workers"),
)
"""Recipe keys that do not separate groups: names, data, seeds, and settings that affect no figure."""
PERSONAL = "personal"
"""The model whose recognition figures concern the sites' own people."""
SHOWN_DIGITS = 6


@dataclass(frozen=True)
class EvaluationData:
    """The data behind a figure: a name for readers, and a digest that identifies it (empty: unknown).

    ``target`` is the digest of the whole set. The data may be only a part of it: parts of one set are one target.
    """

    name: str
    digest: str
    target: str = ""


class Pair(NamedTuple):
    """The values that two runs must share to be paired: target, seed, evaluation data and sites."""

    target: str
    seed: int
    digest: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class ComparedRun:
    """One run in a comparison: its settings, evaluation data and figures."""

    path: Path
    method: str
    settings: Settings
    sites: tuple[str, ...]
    """The sites' training data: the digests of their sets and the selections from them. A site whose set was on another
    machine has its name in place of the digest."""
    training: tuple[str, ...]
    """The training data for readers, from the shortest description to a unique one."""
    seed: int
    target: EvaluationData
    people: EvaluationData
    """Recognition: the data of the sites' own people and of the impostors that the sites' models must reject."""
    figures: dict[str, float] = field(repr=False)
    content: str = ""

    def data_of(self, figure: str) -> EvaluationData:
        """Return the data on which a figure was evaluated."""
        return self.people if figure.startswith(f"{PERSONAL}.") else self.target

    def pair(self, figure: str) -> Pair:
        """Return the key that another run must share to be paired with this one."""
        data = self.data_of(figure)
        return Pair(data.target, self.seed, data.digest, self.sites)


def read_compared_runs(paths: Sequence[Path]) -> tuple[list[ComparedRun], list[str]]:
    """Read runs, each once, and return notes on the duplicates."""
    members: dict[str, ComparedRun] = {}
    first_paths: dict[Path, Path] = {}
    notes = []
    for path in paths:
        place = path.resolve()
        if place in first_paths:
            notes.append(f"{path} was given twice; it is counted once")
            continue
        first_paths[place] = path
        if not path.is_dir():
            raise UserError(str(path), "directory not found; give the directories of finished runs")
        check_finished(path)
        check_seal(path)
        with damaged_files_are_errors(path):
            member = _read_figures(path)
        twin = members.setdefault(member.content, member)
        if twin is not member:
            notes.append(f"{path} has the recipe, data and scores of {twin.path}; they count as one run")
    return list(members.values()), notes


def _read_figures(path: Path) -> ComparedRun:
    """Read a run's figures and settings; a run without figures on a target cannot be compared."""
    metrics = read_metrics(path / "metrics.json")
    recipe = rename_in_recipe(read_mapping(path / "recipe.yaml"))
    digests = rename_places(read_mapping(path / "data.json"))
    figures = figures_of(metrics)
    if not figures:
        raise UserError(str(path), "has no metrics at a target in metrics.json; give runs with a target")
    method = str(metrics.get("method"))
    settings = tuple(
        (key, value)
        for key, value in flatten(recipe)
        if not any(key == name or key.startswith(f"{name}.") for name in NOT_SETTINGS)
    ) or (("method.name", method),)
    # The digest of a method passed in from Python keeps different sources in different groups.
    sha256 = _section(read_mapping(path / "environment.json"), "method").get("sha256")
    if sha256 is not None:
        settings += (("method.source", str(sha256)[:SHOWN_DIGITS]),)
    seed, target, people = int(metrics.get("seed") or 0), _target(metrics, recipe, digests), _people(metrics, digests)
    sites, training = _training_data(metrics, recipe, digests)
    content_key = json_key([settings, sites, seed, target.digest, people.digest, sorted(figures.items())])
    # Content and scores identify a run, whatever its directory is called.
    digest, scores = hashlib.sha256(content_key.encode()), path / "scores.csv"
    for piece in pieces_of(scores, LARGEST) if scores.exists() else ():
        digest.update(piece)
    return ComparedRun(path, method, settings, sites, training, seed, target, people, figures, digest.hexdigest())


def names_of(data_sets: Iterable[EvaluationData]) -> dict[EvaluationData, str]:
    """Return a name for each dataset: its own, followed by the start of its digest where several share the name."""
    distinct = set(data_sets)
    titles = [data_set.name for data_set in distinct]
    return {
        data_set: f"{data_set.name} ({data_set.digest[:SHOWN_DIGITS] or 'unknown'})"
        if titles.count(data_set.name) > 1
        else data_set.name
        for data_set in distinct
    }


def _target(metrics: Metrics, recipe: Row, digests: Row) -> EvaluationData:
    """Identify the target data: the digest of its set, and the selection, split and pairs in use."""
    digest, name = digests.get(TARGET), str(metrics.get("target"))
    if digest is None:
        return EvaluationData(name, "")
    data, evaluation = _section(recipe, "data"), _section(recipe, "evaluation")
    selection = split_entry(str(data.get("target") or ""))[1]
    pairs = _section(evaluation, "recognition").get("pairs")
    parts = [repr(selection), str(data.get("target_split") or "all"), str(pairs or "")]
    return EvaluationData(name, f"{digest} {hashlib.sha256(json_key(parts).encode()).hexdigest()}", str(digest))


def _people(metrics: Metrics, digests: Row) -> EvaluationData:
    """Identify the sites' own people: the digests of their sets, and of the public set with the impostors."""
    sites = [str(name) for name in metrics.get("sites", ())]
    site_digests = [digests.get(f"{SITE}{name}") for name in sites]
    if not site_digests or None in site_digests:
        return EvaluationData("the sites", "")
    people = " ".join([*sorted(map(str, site_digests)), str(digests.get(PUBLIC, ""))])
    return EvaluationData("the sites", people, people)


def _training_data(metrics: Metrics, recipe: Row, digests: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Identify the training data of the sites, and describe it for readers."""
    data, names = _section(recipe, "data"), sorted(str(name) for name in metrics.get("sites", ()))
    entries = {name: str(_section(data, "sites").get(name) or name) for name in names}
    sites = tuple(
        sorted(f"{digests.get(f'{SITE}{name}') or name} {split_entry(entry)[1]}" for name, entry in entries.items())
    )
    entries |= {PUBLIC: str(data["public"])} if data.get("public") else {}
    in_full = ", ".join(f"{name}: {entry}" for name, entry in entries.items())
    return sites, (str(len(names)), ", ".join(names), in_full, " ".join([*sites, str(digests.get(PUBLIC, ""))]))


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = tree.get(name)
    return section if isinstance(section, Mapping) else {}


# Labels of groups: the method and the settings that differ. The legend explains shortened labels.

LONG = 32
WITHOUT_MEANING = ("name", "default")
"""Last words of keys that mean nothing alone: `training.optimizer.name` is shortened to `optimizer`."""
_WORDS = {"None": "none", "True": "true", "False": "false"}


@dataclass(frozen=True)
class Label:
    """The name of a group, and the settings that a shortened name leaves out."""

    text: str
    stands_for: str = ""


def labels_of(groups: Sequence[Settings]) -> dict[Settings, Label]:
    """Name each group by its method and the settings in which groups differ.

    A method's own options are compared only among groups of that method, because other methods lack them.
    """
    trees = {settings: dict(settings) for settings in groups}
    method = {settings: tree.get("method.name", "run") for settings, tree in trees.items()}
    shared = [key for key in _differing_keys(list(trees.values())) if not key.startswith("method.")]
    labels, shortened = {}, []
    for settings, tree in trees.items():
        peers = [trees[peer] for peer in groups if method[peer] == method[settings]]
        options = [key for key in _differing_keys(peers) if key.startswith("method.")]
        names = {key: name for key, name in short_names([*options, *shared]).items() if key in tree}
        differences = ", ".join(f"{name} {_WORDS.get(tree[key], tree[key])}" for key, name in names.items())
        label = Label(f"{method[settings]} · {differences}" if differences else method[settings])
        if len(label.text) > LONG:  # the settings move to the legend
            shortened.append(settings)
            label = Label(method[settings], ", ".join(f"{key}={tree[key]}" for key in names))
        labels[settings] = label
    # Letters distinguish groups whose shortened labels are equal.
    texts = [label.text for label in labels.values()]
    letters = iter([*ascii_uppercase, *map(str, range(1, len(labels) + 1))])
    for settings in shortened:
        label = labels[settings]
        if texts.count(label.text) > 1:
            labels[settings] = Label(f"{label.text} · {next(letters)}", label.stands_for)
    return labels


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the shortest end of each dotted key that no other key has."""
    parts = {key: key.split(".") for key in keys}
    parts = {key: words[:-1] if words[1:] and words[-1] in WITHOUT_MEANING else words for key, words in parts.items()}
    names = {}
    for key, words in parts.items():
        ends = (words[-length:] for length in range(1, len(words) + 1))
        rivals = [rival for name, rival in parts.items() if name != key]
        unique = (end for end in ends if all(rival[-len(end) :] != end for rival in rivals))
        names[key] = ".".join(next(unique, key.split(".")))
    return names


def _differing_keys(trees: Sequence[Mapping[str, str]]) -> list[str]:
    keys = sorted({key for tree in trees for key in tree})
    return [key for key in keys if key != "method.name" and len({tree.get(key) for tree in trees}) > 1]


FEWEST_TARGETS, FEWEST_SEEDS = 2, 3  # for an interval
CONFIDENCE = 0.95
CLOSE = 1e-12  # rounding of means; a bound this near zero excludes nothing
HOLDS, NOT_SHOWN, OTHER_WAY = "holds", "not shown", "holds the other way"


@dataclass(frozen=True)
class Figure:
    """A mean over seeds (of each seed's mean over targets) and its standard deviation, None with one seed."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Difference:
    """Mean difference to the first group over targets, its 95 % t interval, and the verdict on "better than the first".

    With one target the interval is over its seeds, if there are enough, and there is no verdict. ``seeds`` is the
    smallest number of seeds of a target, and ``over`` names what the interval is over: targets, seeds, or nothing.
    """

    mean: float
    low: float | None
    high: float | None
    verdict: str | None
    targets: int
    seeds: int
    over: str = ""


@dataclass(frozen=True)
class Comparison:
    """One group of runs."""

    label: str
    method: str
    runs: int
    targets: tuple[str, ...]
    seeds: tuple[int, ...]
    figures: dict[str, Figure]
    differences: dict[str, Difference]  # empty for the first group, or without common pairs
    stands_for: str = ""
    """The settings that a shortened label leaves out."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: duplicate runs, and runs that other data keeps from being paired."""


def compare(runs: Sequence[Path]) -> list[Comparison]:
    """Compare runs in groups of equal settings; all other groups are paired with the first run's group."""
    members, twice = read_compared_runs(runs)
    recognise = [any("." in name for name in member.figures) for member in members]
    if len(set(recognise)) > 1:  # runs of different tasks share no figures
        stranger = members[recognise.index(not recognise[0])].path
        raise UserError(str(stranger), "has a different task from the first run; compare runs of one task")
    available = {name for member in members for name in member.figures}
    names = [name for _, columns in tables_by_model(available) for name in columns]
    groups: dict[Settings, list[ComparedRun]] = {}
    for member in _with_training_data(members):
        groups.setdefault(member.settings, []).append(member)
    labels, first = labels_of(list(groups)), next(iter(groups.values()), [])
    called = names_of(member.target for member in members)
    return [
        Comparison(
            label=labels[settings].text,
            method=group[0].method,
            runs=len(group),
            targets=tuple(sorted({called[member.target] for member in group})),
            seeds=tuple(sorted({member.seed for member in group})),
            figures={name: figure for name in names if (figure := over_seeds(group, name))},
            differences={}
            if group is first
            else {name: gap for name in names if (gap := paired_difference(first, group, name))},
            stands_for=labels[settings].stands_for,
            notes=(
                *(twice if group is first else _unpaired_note(first, group, called, labels)),
                *_unbalanced_note(group, labels),
            ),
        )
        for settings, group in groups.items()
    ]


def _with_training_data(members: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Add the training data to the settings of runs that differ in nothing else, for the same seed and target.

    Their mean would hide the difference. Runs on targets in turn, each trained at the other sites, stay one group.
    """
    described: dict[str, tuple[str, ...]] = {}
    trained: dict[Settings, dict[tuple[int, EvaluationData], set[str]]] = {}
    for member in members:
        described.setdefault(member.training[-1], member.training)
        trained.setdefault(member.settings, {}).setdefault((member.seed, member.target), set()).add(member.training[-1])
    separated = []
    for member in members:
        alternatives = trained[member.settings].values()
        if any(len(data) > 1 for data in alternatives):
            # The shortest description that tells all alternatives apart.
            level = next(
                level
                for level in range(len(member.training))
                if all(len({described[one][level] for one in data}) == len(data) for data in alternatives)
            )
            text = described[member.training[-1]][level]
            separated.append(replace(member, settings=(*member.settings, ("data.sites", text))))
        else:
            separated.append(member)
    return separated


def _unpaired_note(
    first: Sequence[ComparedRun],
    group: Sequence[ComparedRun],
    called: dict[EvaluationData, str],
    labels: dict[Settings, Label],
) -> tuple[str, ...]:
    """Return a note for all data of a group that cannot be paired with the first group's."""
    notes = []
    for member in (*first, *group):
        unknown = {member.data_of(figure).name for figure in member.figures if not member.data_of(figure).digest}
        notes += [
            f"{member.path}: data.json has no digest of the data of {name}, so its evaluations are not paired"
            for name in sorted(unknown)
        ]
    # Digests tell whether two groups were evaluated on the same pictures.
    first_data = {member.target for member in first}
    foreign = {member.target for member in group if member.target.digest} - first_data
    group_label, first_label = labels[group[0].settings].text, labels[first[0].settings].text
    first_names = ", ".join(sorted(called[data] for data in first_data))
    notes += [
        f"{group_label} was evaluated on {name}, {first_label} on {first_names}: different data, so these runs are not "
        "paired"
        for name in sorted(called[data] for data in foreign)
    ]
    # Runs on the same pictures need a common seed, too, and the same training data.
    for data in sorted({member.target for member in group} & first_data, key=called.__getitem__):
        ours, theirs = (
            {(member.seed, member.sites) for member in members if member.target == data} for members in (group, first)
        )
        if data.digest and not ours & theirs:
            common = {seed for seed, _ in ours} & {seed for seed, _ in theirs}
            reason = "different training data" if common else "no seed in common"
            notes.append(
                f"{group_label} and {first_label} have {reason} at {called[data]}, so these runs are not paired"
            )
    return tuple(notes)


def _unbalanced_note(group: Sequence[ComparedRun], labels: dict[Settings, Label]) -> tuple[str, ...]:
    """Return a note if a group's standard deviation over seeds contains differences between targets."""
    targets: dict[int, set[EvaluationData]] = {}
    for member in group:
        targets.setdefault(member.seed, set()).add(member.target)
    first, *others = targets.values()
    if all(other == first for other in others):
        return ()
    label = labels[group[0].settings].text
    return (f"{label}: its seeds have different targets, so mean and standard deviation also reflect the targets",)


def over_seeds(group: Sequence[ComparedRun], figure: str) -> Figure | None:
    """Average a figure over targets within each seed, then return mean and standard deviation over seeds."""
    by_seed: dict[int, list[float]] = {}
    for member in group:
        if figure in member.figures:
            by_seed.setdefault(member.seed, []).append(member.figures[figure])
    means = [fmean(values) for values in by_seed.values()]
    return Figure(fmean(means), stdev(means) if len(means) > 1 else None) if means else None


def paired_difference(first: Sequence[ComparedRun], other: Sequence[ComparedRun], figure: str) -> Difference | None:
    """Return the difference other − first over their common targets, from their common seeds on each target."""
    groups = []
    for group in (first, other):
        values: dict[Pair, list[float]] = {}
        for member in group:
            if figure in member.figures and member.data_of(figure).digest:
                values.setdefault(member.pair(figure), []).append(member.figures[figure])
        groups.append({pair: fmean(figures) for pair, figures in values.items()})  # runs with the same key are averaged
    base, compared = groups
    gaps = [(pair.target, pair.seed, compared[pair] - base[pair]) for pair in sorted(compared.keys() & base.keys())]
    return difference(gaps, lower_is_better=lower_is_better(figure))


def difference(gaps: Iterable[tuple[str, int, float]], *, lower_is_better: bool = False) -> Difference | None:
    """Return the mean over targets of gaps by target and seed, with the t interval over targets and the verdict.

    The interval of one target is over its seeds, and has no verdict.
    """
    by_target: dict[str, dict[int, list[float]]] = {}
    for target, seed, gap in gaps:
        by_target.setdefault(target, {}).setdefault(seed, []).append(gap)
    means = [fmean(map(fmean, by_seed.values())) for by_seed in by_target.values()]
    if not means:
        return None
    mean, targets, seeds = fmean(means), len(means), min(map(len, by_target.values()))
    over = "targets" if targets >= FEWEST_TARGETS else "seeds" if seeds >= FEWEST_SEEDS else ""
    if not over:
        return Difference(mean, None, None, None, targets, seeds)
    if over == "seeds":
        means = [fmean(values) for by_seed in by_target.values() for values in by_seed.values()]
    from scipy.special import stdtrit  # here, because importing scipy takes long and most commands do not need it

    quantile = float(stdtrit(len(means) - 1, (1 + CONFIDENCE) / 2))
    half = quantile * stdev(means) / len(means) ** 0.5
    low, high = mean - half, mean + half
    verdict = None
    if over == "targets":  # on the claim that a row is better than the first
        better = HOLDS if (high < 0) == lower_is_better else OTHER_WAY
        verdict = NOT_SHOWN if low <= CLOSE and high >= -CLOSE else better
    return Difference(mean, low, high, verdict, targets, seeds, over)


def as_values(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a comparison as plain values, for programs."""
    return [asdict(row) for row in rows]
