"""The choice of a detector to add to the published pair, from gains by family."""

import pytest
from benchmarks.real.additions import choose, lines
from benchmarks.real.families import SOURCES

TUTORIAL, SQUARE, PRINT, PHONE = "tutorial", "square", "webcam-print", "webcam-phone"
FAMILIES = (TUTORIAL, SQUARE, PRINT, PHONE)


def by_family(*gains: float) -> dict[str, float]:
    return dict(zip(FAMILIES, gains, strict=True))


GAINS = {
    ("safe", 0.25): by_family(0.01, 0.01, 0.02, 0.0),
    ("large", 1.0): by_family(0.10, 0.05, 0.03, -0.02),
    ("slight loss", 0.5): by_family(0.03, 0.03, 0.02, -0.003),
}


def test_choice_has_the_largest_mean_gain_of_those_that_lose_in_no_family() -> None:
    assert choose(GAINS, FAMILIES) == ("slight loss", 0.5)
    assert choose(GAINS, (TUTORIAL, SQUARE, PRINT)) == ("large", 1.0)


def test_pair_stays_alone_if_nothing_gains_without_a_loss() -> None:
    assert choose({("a", 1.0): by_family(0.5, 0.5, 0.5, -0.1)}, FAMILIES) is None
    assert choose({("a", 1.0): by_family(-0.001, 0.0, 0.0, 0.0)}, FAMILIES) is None


def test_nested_estimate_uses_the_choice_of_the_other_families() -> None:
    start = dict.fromkeys(SOURCES, 0.9)
    text = [*lines(GAINS, start, {"large": by_family(0.5, 0.6, 0.7, 0.8)})]
    # Without the last family, `large` is chosen and loses 0.02 there; without another one, `slight loss` is.
    assert "chosen without webcam-phone: ('large', 1.0), gain there -0.020" in text
    gained = {line.split(":")[0]: float(line.split()[-1]) for line in text if line.startswith("chosen without")}
    assert gained == {
        "chosen without tutorial": pytest.approx(0.03),
        "chosen without square": pytest.approx(0.03),
        "chosen without webcam-print": pytest.approx(0.02),
        "chosen without webcam-phone": pytest.approx(-0.02),
    }
    assert text[-1] == "nested estimate of the gain at an unseen family: +0.015"
    assert "| large alone, AUC | | 0.650 | 0.500 | 0.600 | 0.700 | 0.800 |" in text
