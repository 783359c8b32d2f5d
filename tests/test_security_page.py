"""The tests that the threat model names exist."""

import ast
import re
from pathlib import Path

import pytest
from campaigns.hostile.kinds import KINDS

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_every_test_in_the_threat_model_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 40
    for file, name in named:
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}, (
            f"{file}::{name}"
        )


def test_every_attack_has_a_test_or_no_defence() -> None:
    attacks = re.split(r"\n\n(?=\*\*)", PAGE[PAGE.index("## Attacks") : PAGE.index("## The campaign")])[1:]
    assert len(attacks) >= 13
    for attack in attacks:
        assert "::test_" in attack or "nothing keeps" in attack, attack[:60]


def test_number_of_cases_of_the_campaign_is_up_to_date() -> None:
    assert f"tries {sum(entry.count for entry in KINDS.values()):,} cases" in PAGE
