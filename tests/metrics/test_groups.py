"""Rates by group: shares, pairs and intervals against loops over items, and refused columns."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from tests.metrics.faces import people
from tests.metrics.test_presentations import draw_presentations
from tests.refusals import refused

from fedvisage.metrics.groups import (
    LEAST_PEOPLE,
    MOST_GROUPS,
    RESAMPLES,
    GroupRates,
    attack_rates,
    compare_groups,
    pair_rates,
    presentation_rates,
    read_groups,
    variation,
)
from fedvisage.metrics.presentations import Point
from fedvisage.metrics.scores import Scores, from_columns
from fedvisage.metrics.threshold import Estimate

TONES = np.array(["dark"] * 4 + [""] + ["light"] * 3)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def draw_scores(seed: int, subjects: int, kinds: tuple[str, ...] = ("", "print", "mask"), each: int = 4) -> Scores:
    """Return scores in which people differ, so that their frames are not independent."""
    generator = np.random.default_rng(seed)
    rows = [(subject, kind) for subject in range(subjects) for kind in kinds for _ in range(each)]
    mood = generator.normal(0, 1, subjects)
    names = [f"i{number}" for number in range(len(rows))]
    return from_columns(
        [float(mood[subject] + generator.normal(0, 1) + (not kind)) for subject, kind in rows],
        [int(not kind) for _, kind in rows],
        item=names,
        video=names,
        subject=[f"s{subject}" for subject, _ in rows],
        species=[kind for _, kind in rows],
    )


def rates_of(row: GroupRates) -> dict[str, float | None]:
    return {name: None if estimate is None else estimate.rate for name, estimate in row.rates.items()}


def share(flags: list[bool]) -> float:
    return sum(flags) / len(flags)


# Groups of a column.


def test_images_are_grouped_by_value_and_an_empty_text_is_no_value() -> None:
    groups = read_groups("tone", {"tone": TONES}, "U")
    assert groups.names == ("dark", "light")
    assert groups.number.tolist() == [0, 0, 0, 0, -1, 1, 1, 1]


def test_edges_divide_numbers_and_a_lower_edge_belongs_to_its_range() -> None:
    ages = np.array(["8", "30", "29.9", "", "100", "60"])
    groups = read_groups("age=30,45,60", {"age": ages}, "U")
    assert groups.names == ("below 30", "30 to below 45", "60 and above")
    assert groups.number.tolist() == [0, 1, 0, -1, 2, 2]


@pytest.mark.parametrize(
    ("by", "values", "keywords"),
    [
        ("tune", TONES, ("tune", "tone")),
        ("tone", np.array(["dark", "", "dark"]), ("tone", "1")),
        ("tone", np.array(["", ""]), ("tone", "0")),
        ("tone", np.array([f"v{number}" for number in range(MOST_GROUPS + 1)]), ("21", "20")),
        ("tone=30", TONES, ("tone=30", "numbers")),
        ("tone=x", np.array(["1", "2"]), ("tone=x", "numbers")),
        ("tone=60,30", np.array(["1", "70"]), ("ascending",)),
        ("tone=", np.array(["1", "70"]), ("numbers",)),
        ("tone=100", np.array(["1", "70"]), ("1",)),
    ],
)
def test_column_without_groups_is_refused_in_one_line(by: str, values: np.ndarray, keywords: tuple[str, ...]) -> None:
    with refused("--by", *keywords):
        read_groups(by, {"tone": values}, "U")


def test_set_without_further_columns_is_refused() -> None:
    with refused("--by", "none"):
        read_groups("tone", {}, "U")


# Rates.


def test_rates_of_attack_detection_are_shares_of_the_groups_items() -> None:
    scores, threshold = draw_scores(0, 9), 0.3
    expected = {"bpcer": share([live < threshold for live in scores.live[scores.label == 1]])}
    by_species = [
        share([live >= threshold for live in scores.live[scores.species == name]]) for name in ("print", "mask")
    ]
    expected |= {"apcer_worst": max(by_species), "apcer_pooled": sum(by_species) / 2}
    assert rates_of(attack_rates(scores, threshold, rng())) == pytest.approx(expected)


def test_interval_is_the_spread_over_repeated_people() -> None:
    """People are drawn as the code draws them, but every draw is evaluated as a list of repeated items."""
    scores, threshold = draw_scores(1, 12), 0.3
    subjects = sorted({*scores.subject.tolist()})
    rejected = {
        name: [live < threshold for live in scores.live[(scores.subject == name) & (scores.label == 1)]]
        for name in subjects
    }
    draws = rng().multinomial(len(subjects), [1 / len(subjects)] * len(subjects), size=RESAMPLES)
    rates = [
        share([flag for name, times in zip(subjects, draw, strict=True) for flag in rejected[name] * times])
        for draw in draws
    ]
    estimate = attack_rates(scores, threshold, rng()).rates["bpcer"]
    assert estimate is not None
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(rates, [0.025, 0.975])))
    assert estimate.low < estimate.rate < estimate.high


def test_group_without_errors_has_wilsons_interval_for_its_people() -> None:
    scores, z = draw_scores(2, 8), NormalDist().inv_cdf(0.975)
    estimate = attack_rates(scores, -50.0, rng()).rates["bpcer"]
    assert estimate is not None
    assert (estimate.rate, estimate.low) == (0, 0)
    assert estimate.high == pytest.approx(z**2 / (8 + z**2), abs=1e-4)


def test_rate_of_too_few_people_is_undefined() -> None:
    few = draw_scores(3, LEAST_PEOPLE - 1)
    assert set(rates_of(attack_rates(few, 0.3, rng())).values()) == {None}
    more = draw_scores(3, LEAST_PEOPLE)
    assert None not in rates_of(attack_rates(more, 0.3, rng())).values()


def test_worst_species_is_one_that_enough_people_presented() -> None:
    scores = draw_scores(4, 9)
    rare = (scores.species == "mask") & ~np.isin(scores.subject, ["s0", "s1"])
    kept = scores.where(~rare)
    prints = kept.live[kept.species == "print"]
    high = np.where(kept.species == "mask", 9.0, kept.live)
    changed = from_columns(
        high, kept.label, **{name: getattr(kept, name) for name in ("item", "video", "subject", "species")}
    )
    row = rates_of(attack_rates(changed, 0.3, rng()))
    assert row["apcer_worst"] == pytest.approx(share([live >= 0.3 for live in prints]))
    assert row["apcer_pooled"] == pytest.approx(share([*(live >= 0.3 for live in prints), *[True] * 8]))


def test_group_of_one_class_has_the_rates_of_that_class() -> None:
    row = rates_of(attack_rates(draw_scores(5, 8, kinds=("",)), 0.3, rng()))
    assert row["bpcer"] is not None
    assert (row["apcer_worst"], row["apcer_pooled"]) == (None, None)


@pytest.mark.parametrize("threshold", [0.35, -1.5, 2.0])
def test_rates_of_recognition_are_shares_of_the_groups_pairs(threshold: float) -> None:
    faces = people(0, identities=7, images=5)
    similarity = faces.features @ faces.features.T
    genuine, impostor = [], []
    for i, j in itertools.combinations(range(len(faces)), 2):
        if faces.identity[i] == faces.identity[j]:
            genuine.append(bool(similarity[i, j] < threshold))
        else:
            impostor.append(bool(similarity[i, j] >= threshold))
    expected = {"fnmr": share(genuine), "fmr": share(impostor)}
    assert rates_of(pair_rates(faces, threshold, rng())) == pytest.approx(expected)


def test_draw_counts_a_pair_as_often_as_both_people() -> None:
    faces, threshold = people(1, identities=6, images=4), 0.3
    similarity = faces.features @ faces.features.T
    generator = rng()
    generator.multinomial(6, [1 / 6] * 6, size=RESAMPLES)  # the draws of FNMR come first
    rates = []
    for draw in generator.multinomial(6, [1 / 6] * 6, size=RESAMPLES):
        hits = total = 0
        for i, j in itertools.combinations(range(len(faces)), 2):
            first, second = faces.identity[i], faces.identity[j]
            if first != second:
                total += draw[first] * draw[second]
                hits += draw[first] * draw[second] * bool(similarity[i, j] >= threshold)
        rates += [hits / total] if total else []
    estimate = pair_rates(faces, threshold, rng()).rates["fmr"]
    assert estimate is not None
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(rates, [0.025, 0.975])))


def test_people_with_one_image_have_no_genuine_pair() -> None:
    row = rates_of(pair_rates(people(2, identities=8, images=1), 0.3, rng()))
    assert row["fnmr"] is None
    assert row["fmr"] is not None


def test_rates_of_presentations_leave_out_those_without_an_answer() -> None:
    sample, at = draw_presentations(people=9), Point(0.0, 0.5)
    answered, compared = ~np.isnan(sample.live), ~np.isnan(sample.similarity)
    mated: list[bool] = []
    others: list[bool] = []
    for row, column in itertools.product(range(len(sample)), range(len(sample.enrolled))):
        if compared[row, column] and not sample.species[row] and sample.subject[row]:
            match = bool(sample.similarity[row, column] >= 0.5)
            (mated if sample.subject[row] == sample.enrolled[column] else others).append(match)
    by_species = [share(list(sample.live[answered & (sample.species == name)] >= 0)) for name in ("print", "replay")]
    expected = {
        "bpcer": share(list(sample.live[answered & (sample.species == "")] < 0)),
        "apcer_worst": max(by_species),
        "fnmr": 1 - share(mated),
        "fmr": share(others),
    }
    assert rates_of(presentation_rates(sample, at, rng())) == pytest.approx(expected)


# Differences between groups.


def test_difference_has_newcombes_interval() -> None:
    """The example of Newcombe's paper: 56 of 70 against 48 of 80, by method 10: 0.2000, 0.0524 to 0.3339."""
    from fedvisage.metrics.operating_point import wilson

    rates = {"a": Estimate(48 / 80, *wilson(48 / 80, 80)), "b": Estimate(56 / 70, *wilson(56 / 70, 70))}
    row = variation(rates)
    assert (row["worst"], row["best"]) == ("b", "a")
    assert row["ratio"] == pytest.approx(4 / 3)
    assert row["difference"] == pytest.approx(0.2)
    assert row["interval"] == pytest.approx([0.0524, 0.3339], abs=1e-4)


def test_ratio_to_a_group_without_errors_is_undefined() -> None:
    row = variation({"a": Estimate(0.0, 0.0, 0.2), "b": Estimate(0.1, 0.05, 0.3)})
    assert row["ratio"] is None
    assert row["interval"] == pytest.approx([0.1 - math.hypot(0.05, 0.2), 0.3])


def test_equal_groups_have_no_worst_one() -> None:
    row = variation({"a": Estimate(0.0, 0.0, 0.2), "b": Estimate(0.0, 0.0, 0.3)})
    assert (row["worst"], row["difference"]) == (None, 0)


def test_small_groups_are_counted_and_not_named() -> None:
    scores = draw_scores(6, 16)
    number = np.array([int(name[1:]) for name in scores.subject.tolist()])
    tone = np.where(number < 7, "dark", np.where(number < 14, "light", "the only albino"))
    groups = read_groups("tone", {"tone": np.where(number == 15, "", tone)}, "U")
    figures = compare_groups(groups, lambda mask, draws: attack_rates(scores.where(mask), 0.3, draws))
    assert {name: row["people"] for name, row in figures["groups"].items()} == {"dark": 7, "light": 7}
    assert (figures["too_few"], figures["without_value"]) == (1, int((number == 15).sum()))
    assert "albino" not in str(figures)
    rejected = {
        name: share(list(scores.live[(tone == name) & (scores.label == 1)] < 0.3)) for name in ("dark", "light")
    }
    row = figures["variation"]["bpcer"]
    assert row["worst"] == max(rejected, key=lambda name: rejected[name])
    assert row["difference"] == pytest.approx(abs(rejected["dark"] - rejected["light"]))
    assert row["ratio"] == pytest.approx(max(rejected.values()) / min(rejected.values()))


def test_draws_of_a_group_do_not_depend_on_other_groups() -> None:
    scores = draw_scores(8, 15)
    number = np.array([int(name[1:]) for name in scores.subject.tolist()])
    three = np.array(["a", "b", "c"])[number % 3]
    two = np.where(three == "c", "", three)
    rows = [
        compare_groups(
            read_groups("x", {"x": values}, "U"), lambda mask, draws: attack_rates(scores.where(mask), 0.3, draws)
        )
        for values in (three, two)
    ]
    assert rows[0]["groups"]["a"] == rows[1]["groups"]["a"]
