"""The language and length of docstrings, comments and pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_PER_THOUSAND_WORDS = 1.0
CONSTRUCTIONS = (
    r"^(What|Whether|Who|How|Whose|Where|That)\b(?!.*\?)",  # a statement that begins like a question
    r"\b(of who|who has|who have|whoever|whom|nobody|somebody|everybody|nothing that|that is none)\b",
    r"\bwhat (\w+ ){1,5}(is|are|was|were|has|have)\b",
    r"\b(is|are|was|were) (told|said|asked|looked|spoken|heard)\b",
    r"\b(a|an|one) (line|row|file|object|number|image|method|site|field|page|process|batch) (a|an|each) \w+",  # "per"
    r"\b(so many|so much|so long as it|for good)\b",
    r"\b(stands? (in|beside|behind|there|for itself)|lies (in|beside|there)|goes (up|down|with))\b",
    r"\bjudg(e|es|ed|ing|ement)\b",  # evaluate
    r"\bthe user('s)?\b(?!.*\b(command|terminal|keyboard)\b)",  # the target
)
MOST_WORDS = 57_000
MOST_WORDS_WITHOUT_MEASUREMENTS = 40_000
MOST_WORDS_OF_A_PAGE = 2_500
MEASUREMENTS = ("docs/results", "docs/benchmarks.md")
GENERATED_PAGES = {"method-keys.md", "reference.md"}
GENERATED_TABLE = re.compile(
    r"<!-- keys: .*?<!-- end of keys -->|<!-- below: written by .*?(<!-- above: written by [^>]*-->|\Z)", re.DOTALL
)
PATTERNS = [re.compile(pattern, re.IGNORECASE) for pattern in CONSTRUCTIONS]


def prose_of_module(source: str) -> Iterator[str]:
    """Yield the first paragraphs of docstrings, the attribute docstrings and the comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value.replace("\n", " ")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def prose_of_page(text: str) -> Iterator[str]:
    """Yield the lines of a page outside of code and tables."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return (line for line in text.splitlines() if line.strip() and not line.startswith("|"))


def pages() -> list[Path]:
    """Return README and the pages of the documentation, except decisions, which stay as they were written."""
    every = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    return [path for path in every if path.parent.name != "decisions"]


def words_of_page(text: str) -> int:
    """Count the words of a page, code and tables included, outside of tables that commands of the Makefile write."""
    return len(GENERATED_TABLE.sub("", text).split())


def count(texts: Iterator[str]) -> tuple[int, list[str]]:
    """Return the number of words, and the texts that contain one of the constructions."""
    words, hits = 0, []
    for text in texts:
        words += len(text.split())
        hits += [text for pattern in PATTERNS for _ in pattern.finditer(text)]
    return words, hits


@pytest.mark.parametrize("kind", ["docstrings and comments", "pages"])
def test_constructions_that_read_as_translated_are_rare(kind: str) -> None:
    paths, prose = (pages(), prose_of_page) if kind == "pages" else ((ROOT / "src").rglob("*.py"), prose_of_module)
    words, hits = count(text for path in sorted(paths) for text in prose(path.read_text(encoding="utf-8")))
    assert words > 10_000
    assert 1000 * len(hits) / words <= MOST_PER_THOUSAND_WORDS, hits[:20]


def words_by_page() -> dict[str, int]:
    """Count the words of each page, except generated pages, which are for reference."""
    written = [path for path in pages() if path.name not in GENERATED_PAGES]
    return {str(path.relative_to(ROOT)): words_of_page(path.read_text(encoding="utf-8")) for path in written}


def test_the_documentation_stays_short() -> None:
    words = words_by_page()
    guides = {page: number for page, number in words.items() if not page.startswith(MEASUREMENTS)}
    assert len(guides) > 30
    assert {page: number for page, number in words.items() if number > MOST_WORDS_OF_A_PAGE} == {}
    assert sum(words.values()) <= MOST_WORDS
    assert sum(guides.values()) <= MOST_WORDS_WITHOUT_MEASUREMENTS


def test_words_of_generated_tables_do_not_count() -> None:
    page = (
        "Three words here.\n<!-- keys: data -->\n| key |\n<!-- end of keys -->\n`two more`\n"
        "<!-- below: written by `make soak` -->\n| fault |\n<!-- above: written by `make soak` -->\nOne.\n"
    )
    assert words_of_page(page) == 6


def test_each_construction_matches_an_example() -> None:
    examples = (
        "What the server combines.",
        "A note for whoever reads it.",
        "It changes what the site has.",
        "The server is told.",
        "It prints a line a field.",
        "It takes so many images.",
        "The name stands beside it.",
        "Models are judged.",
        "The images of the user.",
    )
    for example, pattern in zip(examples, PATTERNS, strict=True):
        assert pattern.search(example), pattern.pattern
    assert count(iter(["The server combines the uploads of all sites."]))[1] == []
