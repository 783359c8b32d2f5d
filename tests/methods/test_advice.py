"""Advice on when to use which method: complete, short, and the same on the page as on the command line."""

import re
from dataclasses import replace

from tests.documented import ROOT

from fedvisage.methods import ALGORITHMS, METHODS, MODELS, advice_lines, on
from fedvisage.methods.catalogue import GROUPS

PAGE = ROOT / "docs" / "choosing-a-method.md"


def test_every_method_and_model_has_one_line_of_advice() -> None:
    advice = [method.advice for method in METHODS.values()]
    for line in (*advice, *(model.advice for model in MODELS.values())):
        assert line.endswith(".")
        assert len(line) <= 130
    assert len(set(advice)) == len(advice)


def test_simulations_are_marked() -> None:
    for method in METHODS.values():
        assert method.advice.startswith("Simulation only: ") is method.pooled


def test_methods_of_other_packages_are_listed_last() -> None:
    mine = replace(METHODS["fedpad"], name="mine", advice="")
    assert list(advice_lines({**METHODS, "mine": mine}))[-3:] == ["Other packages", "  mine", ""]


def test_methods_page_has_the_same_advice() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for title, group in GROUPS.items():
        section = page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
        assert section.startswith(f"{group.condition}\n")
        rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, flags=re.MULTILINE))
        assert rows == {method.name: method.advice for method in group.methods}
    algorithms = {name: on(name, "resnet18").advice for name in ALGORITHMS}
    for name, line in (algorithms | {name: model.advice for name, model in MODELS.items()}).items():
        assert f"| `{name}` | {line} |" in page
