"""Rates of attack detection and recognition together, against loops over presentations written from the definitions."""

import math

import numpy as np
import pytest

from fedvisage.metrics.presentations import Point, Presentations, evaluate_presentations, figures

AT = Point(pad=0.0, recognition=0.5)


def draw_presentations(seed: int = 0, count: int = 120, people: int = 7) -> Presentations:
    rng = np.random.default_rng(seed)
    subject = np.array([f"p{number}" for number in rng.integers(0, people, count)])
    species = np.array(["", "", "print", "replay"])[rng.integers(0, 4, count)]
    live = rng.normal(size=count) + (species == "") - 0.5 * (species == "print")
    live[rng.random(count) < 0.1] = np.nan
    enrolled = np.array([f"p{number}" for number in range(people - 1)])  # the last one is not
    similarity = rng.normal(0.3, 0.2, (count, people - 1)) + 0.4 * (subject[:, None] == enrolled[None, :])
    similarity[rng.random(count) < 0.1] = np.nan
    subject[3] = ""
    item = np.array([f"i{number}" for number in range(count)])
    return Presentations(item, subject, species, live, similarity, enrolled)


def share(values: list[bool]) -> float:
    return sum(values) / len(values)


def test_attack_detection_by_species_counts_missing_answers() -> None:
    sample, report = draw_presentations(), evaluate_presentations(draw_presentations(), AT)["pad"]
    for name in ("print", "replay"):
        logits = [live for live, species in zip(sample.live, sample.species, strict=True) if species == name]
        answered = [live for live in logits if not math.isnan(live)]
        row = report["species"][name]
        assert (row["presented"], row["answered"]) == (len(logits), len(answered))
        assert row["apnrr"]["value"] == pytest.approx(1 - len(answered) / len(logits))
        assert row["apcer"]["value"] == pytest.approx(share([live >= 0 for live in answered]))
    logits = [live for live, species in zip(sample.live, sample.species, strict=True) if not species]
    answered = [live for live in logits if not math.isnan(live)]
    assert report["bona_fide"]["bpcer"]["value"] == pytest.approx(share([live < 0 for live in answered]))
    assert report["bona_fide"]["bpnrr"]["value"] == pytest.approx(1 - len(answered) / len(logits))
    assert report["apcer_max"]["value"] == max(row["apcer"]["value"] for row in report["species"].values())


@pytest.mark.parametrize(("name", "most"), [("10pct", 0.1), ("5pct", 0.05), ("1pct", 0.01)])
def test_bpcer_at_the_allowed_apcer_of_every_species(name: str, most: float) -> None:
    sample = draw_presentations()
    answered = sample.live[~np.isnan(sample.live)]
    least = []
    for threshold in [*answered, np.inf]:
        rates = [
            share([live >= threshold for live in sample.live[(sample.species == one) & ~np.isnan(sample.live)]])
            for one in ("print", "replay")
        ]
        if max(rates) <= most:
            least.append(
                share([live < threshold for live in sample.live[(sample.species == "") & ~np.isnan(sample.live)]])
            )
    assert evaluate_presentations(sample, AT)["pad"]["bpcer_at_apcer"][name]["value"] == pytest.approx(min(least))


def test_recognition_alone_and_the_whole_system_are_both_reported() -> None:
    sample, report = draw_presentations(), evaluate_presentations(draw_presentations(), AT)
    alone: dict[str, list[bool]] = {"fnmr": [], "fmr": [], "print": [], "replay": []}
    whole: dict[str, list[bool]] = {"frr": [], "far": [], "print": [], "replay": []}
    for row, (subject, species, live) in enumerate(zip(sample.subject, sample.species, sample.live, strict=True)):
        for column, person in enumerate(sample.enrolled):
            value = sample.similarity[row, column]
            match = bool(value >= 0.5)
            passes = match and bool(live >= 0)
            if species and subject == person:
                alone[species].append(match)
                whole[species].append(passes)
            elif not species and subject == person:
                whole["frr"].append(not passes)
                alone["fnmr"] += [] if math.isnan(value) else [not match]
            elif not species and subject:
                whole["far"].append(passes)
                alone["fmr"] += [] if math.isnan(value) else [match]
    for part, counted, missed, false in (
        (report["recognition"], alone, "fnmr", "fmr"),
        (report["system"], whole, "frr", "far"),
    ):
        assert part[missed]["value"] == pytest.approx(share(counted[missed]))
        assert part[false]["value"] == pytest.approx(share(counted[false]))
        assert (part["mated"], part["non_mated"]) == (len(counted[missed]), len(counted[false]))
        for name in ("print", "replay"):
            row = part["species"][name]
            assert row["presented"] == len(counted[name])
            assert row["iapar"]["value"] == pytest.approx(share(counted[name]))
            assert row["riapar"]["value"] == pytest.approx(share(counted[name]) + share(counted[missed]))
        assert part["riapar_max"]["value"] == max(row["riapar"]["value"] for row in part["species"].values())


def test_draw_counts_people_and_pairs_with_multiplicity() -> None:
    sample = draw_presentations(1, people=5)
    sample.subject[3] = "p0"
    draw = [2, 0, 1, 3, 1]
    report = figures(sample, AT, np.array([draw], np.float64))
    rows = [
        (row, times)
        for number, times in enumerate(draw)
        for row in np.flatnonzero(sample.subject == f"p{number}")
        for _ in range(times)
    ]
    prints = [
        sample.live[row] >= 0 for row, _ in rows if sample.species[row] == "print" and not np.isnan(sample.live[row])
    ]
    assert report["pad", "species", "print", "apcer"][0] == pytest.approx(share(prints))
    false = [
        bool(sample.similarity[row, column] >= 0.5)
        for row, _ in rows
        for column, times in enumerate(draw[:4])
        for _ in range(times)
        if not sample.species[row]
        and sample.subject[row] != f"p{column}"
        and not np.isnan(sample.similarity[row, column])
    ]
    assert report["recognition", "fmr"][0] == pytest.approx(share(false))


def test_intervals_redraw_people_instead_of_presentations() -> None:
    """If all presentations of a person get one decision, many presentations of few people narrow no interval."""

    def width(people: int, each: int) -> float:
        whose = np.repeat(np.arange(people), each)
        names, none = np.array([f"p{number}" for number in whose]), np.zeros((len(whose), 0))
        items, live = np.array([str(number) for number in range(len(whose))]), np.where(whose % 2, 1.0, -1.0)
        sample = Presentations(items, names, np.full(len(whose), ""), live, none, np.array([], str))
        row = evaluate_presentations(sample, Point(0.0), 500, np.random.default_rng(0))["pad"]["bona_fide"]["bpcer"]
        low, high = row["interval"]
        assert low <= row["value"] <= high
        return float(high - low)

    assert width(10, 40) == pytest.approx(width(10, 1), abs=0.01)
    assert width(100, 4) < 0.5 * width(10, 40)


def test_without_recognition_there_is_only_attack_detection() -> None:
    report = evaluate_presentations(draw_presentations(), Point(0.0), 20, np.random.default_rng(0))
    assert set(report) == {"pad"}


def test_undefined_figures_are_missing() -> None:
    sample = Presentations(
        np.array(["a"]), np.array(["p"]), np.array(["print"]), np.array([np.nan]), np.zeros((1, 0)), np.array([], str)
    )
    report = evaluate_presentations(sample, AT, 5, np.random.default_rng(0))
    assert report["pad"]["species"]["print"]["apnrr"]["value"] == 1
    assert report["pad"]["species"]["print"]["apcer"] == {"value": None}
    assert report["recognition"]["fnmr"] == {"value": None}


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="similarity"):
        Presentations(
            np.array(["a"]), np.array(["p"]), np.array([""]), np.array([0.0]), np.zeros((2, 1)), np.array(["p"])
        )
