"""The website's generated pages, and the conversion of pages for MkDocs; ``make docs`` builds all."""

import ast
import importlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import yaml
from docs import recording
from docs.drawings import FOLDER, pictures
from docs.website import (
    check,
    cli,
    costs,
    execute,
    hooks,
    llms,
    markdown,
    methods,
    models,
    modules,
    notebooks,
    papers,
    sections,
)
from markdown import Markdown
from mkdocs.config.defaults import MkDocsConfig
from pydantic import Field
from tests.documented import ROOT
from tests.toy import recipe_of, tree

import fedvisage as fv
from fedvisage.cli import PANELS
from fedvisage.methods import METHODS, MODELS
from fedvisage.recipe import Section
from fedvisage.recipe.plain_yaml import parse

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))


class Inner(Section):
    """A section in a section."""

    rate: float = Field(0.5, gt=0, le=1)


class Outer(Section):
    """Keys of each kind."""

    name: Literal["a", "b"] = "a"
    count: int = Field(ge=2)
    inner: Inner = Inner(rate=0.25)
    off: Inner | None = None
    names: tuple[str, ...] = ("x", "y")


def test_rows_of_keys_have_defaults_and_valid_values() -> None:
    rows = {key.strip("`"): (default, values) for key, default, values, _ in sections.rows(Outer)}
    assert rows["name"] == ("`a`", "`a`, `b`")
    assert rows["count"] == ("required", "integer ≥ 2")
    assert rows["inner.rate"] == ("`0.25`", "number > 0, ≤ 1")
    assert rows["off"][0] == "none"
    assert rows["off.rate"][0] == "`0.5`"
    assert rows["names"] == ("`[x, y]`", "list of text")


def test_list_and_table_directly_below_a_paragraph_get_a_blank_line_and_code_does_not() -> None:
    page = "What follows:\n- one\n  more of it\n- two\n\n```\na:\n- b\n```\nA table:\n| a |\n|---|\nend\n"
    lines = markdown.for_site(page, "docs/x.md").splitlines()
    assert lines[:3] == ["What follows:", "", "- one"]
    assert "\n".join(lines).count("\n\n") == 4
    assert "a:\n- b" in "\n".join(lines)
    assert lines[-2:] == ["", "end"]


def test_links_are_relative_to_the_page_in_the_site() -> None:
    assert markdown.target_in_site("docs/results/fedfr.md", "README.md") == "results/fedfr.md"
    assert markdown.target_in_site("../README.md", "docs/datasets.md") == "index.md"
    assert markdown.target_in_site("../../CHANGELOG.md", "docs/decisions/0001-signatures.md") == "../CHANGELOG.md"
    assert markdown.target_in_site("first-1-1.png", "notebooks/first.ipynb") == "first-1-1.png"
    assert markdown.target_in_site("../docs/api.md", "notebooks/first.ipynb") == "../api.md"
    line = "see [a](docs/api.md#asking), [b](https://example.org/docs/api.md) and [c](#here)"
    assert markdown.resolve_links(line, "README.md") == line.replace("(docs/api.md#", "(api.md#")


def test_bytes_of_a_call_are_those_of_the_sent_tensors(sets: dict[str, Path]) -> None:
    recipe = recipe_of(tree(sets))
    net = METHODS["fedpad"].network(recipe)
    sizes = {field.name: field.size for field in costs.fields(METHODS["fedpad"], recipe, net)}
    sent = [value.numpy().nbytes for value in net["model"].state_dict().values()]
    assert sizes == {"weights": sum(sent), "examples": 8, "loss": 8}
    assert costs.bytes_lent(METHODS["fedpad"], net) == sum(sent)


def test_every_method_and_model_has_a_module_with_a_title() -> None:
    for method in METHODS.values():
        assert all(papers.account(module).title for module in papers.files_of(method)), method.name
    assert all(papers.account(papers.file_of(model)).title for model in MODELS.values())
    deviating = papers.account(papers.files_of(METHODS["fedgpad"])[0]).deviations
    assert deviating[0].startswith("Eq. 4 is printed without")


def test_page_of_a_method_lists_equations_and_uploads() -> None:
    page = methods.page(METHODS["fedgpad"])
    assert "`loss` in `src/fedvisage/methods/pad/fedgpad.py` | Eq. 8" in page
    assert "`difference` in `src/fedvisage/nn/losses/disentanglement.py`" in page
    for heading in ("Deviations from the paper", "Options", "Commands", "Recorded results", "In the code"):
        assert f"## {heading}" in page
    uploads = page[page.index("## What leaves") : page.index("## Commands")]
    for upload in METHODS["fedgpad"].calls["train"].uploads:
        assert f"`{upload.name}` | {upload.kind}" in uploads
    assert "results/fedpad.md#" in page
    assert "fedvisage run demo/fedgpad" in page


@pytest.mark.slow
def test_commands_on_every_page_of_a_method_and_model_are_valid() -> None:
    for text in (methods.pages() | models.pages()).values():
        for name, changes in re.findall(r"^fedvisage run (\S+)(?: (.*))?$", text, flags=re.MULTILINE):
            key, _, value = changes.strip("'").partition("=")
            change = {key: parse(value, key)} if value.startswith("{") else {key: value} if key else {}
            assert fv.load(name, change)


def test_each_page_of_results_starts_with_three_lines_of_summary() -> None:
    assert len(RESULTS) >= 5
    for page in RESULTS:
        title, empty, *lines = page.read_text(encoding="utf-8").splitlines()
        assert title.startswith("# Results: ")
        assert not empty
        assert [line.startswith("- ") for line in lines[:4]] == [True, True, True, False], page.name
        assert all(len(line) < 260 for line in lines[:3]), page.name


def test_drawings_are_up_to_date() -> None:
    """``make reference`` draws them."""
    for name, svg in pictures().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == svg, name


def test_recording_of_the_demo_is_up_to_date() -> None:
    stored = recording.STORED.read_text(encoding="utf-8")
    svg = recording.svg(stored)
    assert (FOLDER / "demo.svg").read_text(encoding="utf-8") == svg
    assert recording.lines_of(stored) == stored.splitlines()
    assert not [word for word in stored.split() if word.startswith(("/", "~"))], "no path of the machine"
    for line in stored.splitlines():
        texts = re.findall(r"<text[^>]*>([^<]*)</text>", "".join(recording.drawn(recording.pieces(line), 0)))
        assert "".join("".join(texts).split()) == "".join(line.split())
    assert len(svg) < 60_000


def test_recording_omits_lines_that_depend_on_speed() -> None:
    output = "Rendering faces.\nFedPAD: in round 1: site C, batch 0 of 9\n1/4  FedPAD target M  hter 1.0\n| a |\n"
    assert recording.lines_of(output) == ["Rendering faces.", "1/4  FedPAD target M  hter 1.0"]
    assert recording.folded("1/4  FedPAD  auc 95") == ["1/4  FedPAD  auc 95"]
    assert recording.folded(" ".join(["a" * 40] * 3)) == ["a" * 40, *[" " * recording.INDENT + "a" * 40] * 2]
    assert [*recording.pieces("1/4  FedPAD target M  hter 1.0")] == [
        ("soft", "1/4  "),
        ("ink name", "FedPAD"),
        ("ink", " target M  "),
        ("mark", "hter 1.0"),
    ]


def test_arrows_of_the_first_picture_do_not_cross() -> None:
    lines = [
        [tuple(map(int, point.split())) for point in path.split("L")]
        for path in re.findall(r'<path class="line" d="M([^"]+)"', pictures()["round.svg"])
    ]
    assert len(lines) == 10
    assert all(len(line) == 2 for line in lines)
    boxes = [(*map(min, line[0], line[1]), *map(max, line[0], line[1])) for line in lines]
    assert all(left == right or top == bottom for left, top, right, bottom in boxes), "each is straight"
    for one, other in itertools.combinations(boxes, 2):
        assert one[0] > other[2] or other[0] > one[2] or one[1] > other[3] or other[1] > one[3], (one, other)


def test_command_line_reference_has_every_verb_and_option() -> None:
    page = cli.page()
    blocks = dict(re.findall(r"^#{3,4} (fedvisage .+)\n((?:(?!^#).*\n)*)", page, flags=re.MULTILINE))
    assert {"fedvisage run", "fedvisage data import", "fedvisage gallery rotate-key"} <= blocks.keys()
    assert {name.split()[1] for name in blocks} == {verb for verbs in PANELS.values() for verb in verbs}
    assert "| `--resume` | Continue a run that was interrupted. |" in blocks["fedvisage run"]
    assert "| `NAME" in blocks["fedvisage methods"]
    assert str(Path.home()) not in page


def test_code_in_a_table_shows_pipes_without_backslashes() -> None:
    text = markdown.table(("signature", "meaning"), [("`at: str | None`", "a | b")])
    shown = hooks.on_page_content(Markdown(extensions=["tables"]).convert(text), *[None] * 3)  # type: ignore[arg-type]
    assert "<td><code>at: str | None</code></td>" in shown
    assert "<td>a | b</td>" in shown


def test_summary_of_a_page_is_its_first_sentence() -> None:
    assert llms.sentence("# A\nOne [link](b.md) here. Two.\n") == "One link here."
    assert llms.sentence("# A\n\n| a |\n|---|\n\n*One*, e.g. two.\n\nThree.") == "One, e.g. two."
    text = llms.text(
        [{"Part": ["index.md", {"Generated": "generated.md"}, "methods/a.md"]}], {"generated.md": "# `M`\n\nText."}
    )
    assert text.splitlines()[-1] == "- [M](generated.html): Text."
    assert "- [fedvisage](index.html): Train face models together" in text


@pytest.mark.slow
def test_llms_txt_lists_the_pages_of_the_menu() -> None:
    config = MkDocsConfig()
    config.load_dict(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader))
    menu = hooks.on_config(config).nav
    text = config.extra["made"]["llms.txt"]
    parts = ["Get started", "Guides", "Deploy", "Reference", "Privacy and security", "Evidence"]
    assert [next(iter(part)) for part in menu or ()][:6] == parts
    for path in hooks.paths(menu or []):
        listed = not path.startswith(llms.FOLDERS) or path.endswith("index.md")
        assert (f"]({path.removesuffix('.md')}.html)" in text) == listed, path


def test_picture_of_the_packages_has_every_package() -> None:
    packages = {path.name for path in (ROOT / "src" / "fedvisage").iterdir() if (path / "__init__.py").exists()}
    words = set(re.findall(r"[a-z]+", " ".join(re.findall(r">([^<]*)</text>", pictures()["house.svg"]))))
    assert packages <= words


def test_page_of_a_notebook_has_its_text_code_and_outputs(tmp_path: Path) -> None:
    notebook = tmp_path / "first.ipynb"
    notebook.write_text(
        '{"cells": [{"cell_type": "markdown", "source": ["# Title\\n", "\\n", "Text"]},'
        '{"cell_type": "code", "source": '
        '["print(1)"], "outputs": [{"text": ["1\\n"]}, {"data": {"image/png": "aGk=", "text/plain": "<Figure>"}}]}]}'
    )
    pictures: dict[str, bytes] = {}
    page = notebooks.page(notebook, pictures)
    assert page.startswith("# Title\n\n")
    assert "```python\nprint(1)\n```\n\n```text\n1\n```" in page
    assert pictures == {"tutorials/first-1-1.png": b"hi"}
    assert "(first-1-1.png)" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_outputs_and_uses_existing_names(path: Path) -> None:
    """``make notebooks`` executes them."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    # The first line of a cell may be a command of IPython, which writes the cell into a file.
    source = re.sub(r"(?m)^%%writefile .*$", "", "\n".join("".join(cell["source"]) for cell in cells))
    tree = ast.parse(source)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "fv"}
    assert used <= {*fv.__all__, "__file__"}
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)):
        if str(node.module).startswith("fedvisage"):
            module = importlib.import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert all(importlib.util.find_spec(f"{node.module}.{name}") for name in missing)  # modules
    outputs = json.dumps([cell["outputs"] for cell in cells])
    assert any(cell["outputs"] for cell in cells)
    assert "Traceback" not in outputs
    assert not re.search(r"/(tmp|home|root|work)/", outputs), "no path of the machine"
    assert path.stat().st_size < execute.LARGEST


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT / "src", ROOT))))
    outputs = json.dumps([cell.get("outputs") for cell in execute.execute(path).cells])
    assert re.search(r"AUC|TAR|SSIM", outputs)


def test_check_reports_missing_and_external_targets(tmp_path: Path) -> None:
    (tmp_path / "there.png").touch()
    page = '<a href="https://example.org"></a><img src="there.png"><img src="gone.png"><script src="https://cdn/x.js">'
    (tmp_path / "index.html").write_text(f'{page}</script><a href="other.html#here"></a>')
    assert [line.split(": ")[1] for line in check.find_faults(tmp_path)] == [
        "gone.png is not there",
        "https://cdn/x.js is elsewhere",
        "other.html#here is linked and not there",
    ]


@pytest.mark.slow
def test_website_is_built_strictly_without_faults(tmp_path: Path) -> None:
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert list(check.find_faults(tmp_path / "site")) == []
    assert (tmp_path / "site" / "methods" / "fedsis.html").is_file()


def test_link_to_a_file_outside_of_the_site_becomes_the_file_name() -> None:
    path = "src/fedvisage/methods/pad/fedgpad.py"
    assert markdown.resolve_links(f"see [its code](../{path}#L3).", "docs/fidelity.md") == f"see its code (`{path}`)."
    assert markdown.resolve_links(f"see [`fedgpad.py`](../{path})", "docs/fidelity.md") == "see `fedgpad.py`"
    assert markdown.resolve_links("![all](pictures/wire.svg)", "docs/privacy.md") == "![all](pictures/wire.svg)"


@pytest.mark.long
def test_index_lists_every_module_with_the_first_line_of_its_docstring() -> None:
    page = modules.index_page()
    paths = [path for path in (ROOT / "src" / "fedvisage").rglob("*.py") if path.read_text(encoding="utf-8").strip()]
    assert sum(line.startswith("| `") for line in page.splitlines()) == len(paths)
    assert "| `fedavg.py` | " in page
