"""Prometheus' text format: hostile labels, and bounds."""

from tests.prometheus_text import read_metrics, values_of

from fedvisage.base.prometheus import LETTERS, MOST, text_of


def test_hostile_label_stays_one_label_of_one_line() -> None:
    names = ['a"} 1\nfedvisage_up 0', "back\\slash\\", "\\n", "\ud800 half", "x" * 1000, "ünïcode"]
    text = text_of([("fedvisage_up", "Up.", [({"site": name, "n": n}, n) for n, name in enumerate(names)])])
    assert [len(values_of(text, "fedvisage_up")), text.count("\n")] == [len(names), len(names) + 2]
    shown = [labels[0][1] for _, labels in read_metrics(text)]
    assert shown[0] == 'a"} 1 fedvisage_up 0'
    assert shown[1:3] == names[1:3]
    assert len(shown[4]) == LETTERS
    assert shown[5] == names[5]
    assert text.encode().decode() == text


def test_labels_that_look_alike_are_one_value() -> None:
    text = text_of([("fedvisage_up", "Up.", [({"site": "a\x00"}, 1), ({"site": "a\x01"}, 2)])])
    assert list(values_of(text, "fedvisage_up").values()) == [2]


def test_number_of_values_is_bounded_and_an_empty_family_is_named() -> None:
    many = (({"site": n}, n) for n in range(10 * MOST))
    text = text_of([("fedvisage_up", "Up.", many), ("fedvisage_seen_total", "Seen.", [])])
    assert len(values_of(text, "fedvisage_up")) == MOST
    assert text.endswith("# HELP fedvisage_seen_total Seen.\n# TYPE fedvisage_seen_total counter\n")


def test_times_keep_their_digits() -> None:
    moment = 1764309600.123
    assert values_of(text_of([("t", "A time.", [({}, moment)])]), "t") == {"": moment}
