"""Advice on when to use which method: complete, short, and the same on the page as on the command line."""

from __future__ import annotations

import re

from tests.documented import ROOT

from fedvisage import methods
from fedvisage.methods import advice

PAGE = ROOT / "docs" / "choosing-a-method.md"


def test_every_method_has_one_line_of_advice() -> None:
    names = [name for _, lines in advice.GROUPS.values() for name in lines]
    assert sorted(names) == sorted(methods.METHODS)
    assert advice.ALGORITHMS.keys() == methods.ALGORITHMS.keys()
    assert advice.MODELS.keys() == methods.MODELS.keys()
    for line in (*advice.METHODS.values(), *advice.ALGORITHMS.values(), *advice.MODELS.values()):
        assert line.endswith(".")
        assert len(line) <= 130


def test_simulations_are_marked() -> None:
    pooled = {name for name, method in methods.METHODS.items() if method.pooled}
    assert pooled == {name for name, line in advice.METHODS.items() if line.startswith("Simulation only: ")}


def test_advice_on_an_algorithm_with_a_model_names_both() -> None:
    both = advice.advice_on("fedprox", "vit-h")
    assert both == f"{advice.ALGORITHMS['fedprox']} {advice.MODELS['vit-h']}"
    assert advice.advice_on("fedpad") == advice.METHODS["fedpad"]
    assert advice.advice_on("of another package") == ""


def test_methods_of_other_packages_are_listed_last() -> None:
    lines = list(advice.as_lines([*methods.METHODS, "mine"]))
    assert lines[-3:] == ["Other packages", "  mine", ""]


def test_methods_page_has_the_same_advice() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for title, (condition, lines) in advice.GROUPS.items():
        section = page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
        assert section.startswith(f"{condition}\n")
        assert dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, flags=re.MULTILINE)) == lines
    for table in (advice.ALGORITHMS, advice.MODELS):
        for name, line in table.items():
            assert f"| `{name}` | {line} |" in page
