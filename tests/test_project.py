"""The citation and the licence agree with the code."""

import ast
import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedvisage

ROOT = Path(__file__).parents[1]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FIVE_PAPERS = (
    "methods/pad/fedpad.py",
    "methods/recognition/fedfr.py",
    "methods/pad/fedsis.py",
    "methods/recognition/privacyface.py",
    "tasks/pad/adaptation.py",
)


def test_citation_has_the_required_fields_and_this_version() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    assert {"message", "title", "abstract", "authors", "keywords"} <= CITATION.keys()
    assert CITATION["version"] == fedvisage.__version__
    assert CITATION["license"] == PROJECT["license"] == "Apache-2.0"
    assert set(CITATION["keywords"]) <= set(PROJECT["keywords"])


def normalise(text: str) -> str:
    return " ".join(text.lower().split())


@pytest.mark.parametrize("module", FIVE_PAPERS)
def test_citation_of_each_paper_agrees_with_its_module(module: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / "src/fedvisage" / module).read_text(encoding="utf-8")))
    text = normalise(docstring or "")
    (paper,) = [entry for entry in CITATION["references"] if normalise(entry["title"]) in text]
    assert str(paper["year"]) in text
    assert normalise(paper.get("collection-title", "")) in text
    for author in paper["authors"]:
        assert normalise(author["family-names"]) in text
    assert len(CITATION["references"]) == len(FIVE_PAPERS)


def test_licence_is_the_unchanged_text_of_apache_2() -> None:
    """The digest is that of https://www.apache.org/licenses/LICENSE-2.0.txt."""
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
