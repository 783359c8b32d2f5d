"""The documentation's examples and commands run, and its names, links and tables exist."""

import csv
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml
from docs import keys, reference
from PIL import Image
from pydantic import BaseModel
from safetensors.torch import load_file
from tests.documented import ROOT, block, code_blocks, example, files, read_page, snippets
from tests.refusals import Command, refused
from tests.toy import Sets, recipe_of, run_toy, tree, weights
from typer.main import get_command

import fedvisage as fv
from fedvisage.base import extensions
from fedvisage.cli import app
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.options import ImportOptions
from fedvisage.methods import ALGORITHMS, METHODS, MODELS, find, on, read_method
from fedvisage.metrics import threshold
from fedvisage.recipe import MethodOptions, Recipe, load
from fedvisage.render.identities import Identities, photograph_person, photographs_of
from fedvisage.studies.grid import cells_of
from fedvisage.studies.shipped import locate
from fedvisage.studies.study import load_study

OF_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")
PAGES = [*(ROOT / name for name in OF_ROOT), *sorted((ROOT / "docs").rglob("*.md"))]

OWN_FILES = {"mine.yaml", "recipe.yaml", "rows.yaml", "start.yaml"}
"""Recipes in commands that a reader has written or copied before."""


@pytest.fixture
def directory(sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with ``toy.yaml`` and the photographs that the README assumes."""
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(yaml.safe_dump(tree(sets, training__rounds=1)))
    Path("photos").mkdir()
    faces = photograph_person(photographs_of(Identities(images=2, size=112), 0), 112)[0]
    for name, face in zip(("one", "two"), faces, strict=True):
        Image.fromarray(face).resize((224, 224)).save(f"photos/{name}.png")
    return tmp_path


SMALLER = {
    '"demo/fedpad"': '"toy.yaml"',
    '"face", 96': '"face", 32',
    "96, 96": "32, 32",
    "subjects=10 size=96": "subjects=2 frames=1 size=32",
    "subjects=people": 'subjects=people, cache="cache"',
    '{"O": own}': '{"A": own}',
    "run demo/fedpad data.sites.O=sets/mine": "run toy.yaml training.rounds=1 data.sites.A=sets/mine --allow-overlap",
    "run demo/fedpad": "run toy.yaml training.rounds=1",
    "run demo/fedfr": "run people.yaml training.rounds=1",
    " training.rounds=4": "",
    "sets/mine --size 96": "sets/mine --size 32 --crop none",
}
"""Replacements in code and commands of pages for quick tests."""


def shrink(text: str) -> str:
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return text


def execute(code: str) -> dict[str, Any]:
    """Execute the code of a page at a small size, and return its names."""
    exec(compile(shrink(code), "documentation", "exec"), names := dict[str, Any](__name__="reader"))
    return names


@pytest.mark.long
def test_example_method_trains(sets: Sets, tmp_path: Path) -> None:
    smoothed = example("smoothed").METHOD
    content = tree(sets, smoothed, training__rounds=1)
    first = run_toy(content, tmp_path / "smoothed", method=smoothed)
    content["method"]["smoothing"] = 0
    run_toy(content, tmp_path / "null", method=smoothed)
    run_toy(tree(sets, training__rounds=1), tmp_path / "fedpad")
    assert first["method"] == "smoothed"
    assert weights(tmp_path / "null") == weights(tmp_path / "fedpad")
    assert weights(tmp_path / "smoothed") != weights(tmp_path / "fedpad")


@pytest.mark.long
def test_example_of_scaffold_computes_the_packages_model(sets: Sets, tmp_path: Path) -> None:
    """In rounds with and without a correction, and with absent sites: option II is the mean gradient."""
    scaffold = example("my_scaffold").METHOD
    changes: dict[str, Any] = {"training__optimizer": {"name": "sgd", "lr": 0.05}, "federation__participation": 0.6}
    run_toy(tree(sets, scaffold, **changes), tmp_path / "example", method=scaffold)
    run_toy(tree(sets, "scaffold", **changes), tmp_path / "package")
    run_toy(tree(sets, **changes), tmp_path / "fedpad")
    own, package, plain = (
        load_file(tmp_path / name / "model.safetensors") for name in ("example", "package", "fedpad")
    )
    assert max(float((package[name] - value).abs().max()) for name, value in own.items()) < 1e-4
    assert max(float((package[name] - value).abs().max()) for name, value in plain.items()) > 1e-3
    with refused("recipe.training.optimizer", "sgd"):
        scaffold.check(recipe_of(tree(sets, scaffold), scaffold))


@pytest.mark.long
def test_snippets_about_the_examples_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block runs unchanged on a recipe of toy size, and prints the text of the comment beside it."""
    for name in files():
        example(name)
    for snippet in snippets():
        capsys.readouterr()
        execute(snippet)
        printed = capsys.readouterr().out.splitlines()
        for comment in re.findall(r"^print\(.*\)  # (\{.*)$", snippet, flags=re.MULTILINE):
            assert comment == printed[-1]
    assert {path.name for path in Path("runs").iterdir()} == {"smoothed", "my-scaffold", "small"}
    with refused("runs/smoothed/model.json", "'smoothed'"):
        fv.open("runs/smoothed").score(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    model = fv.open("runs/smoothed", method=example("smoothed").METHOD)
    assert model.score(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape == (1,)


def test_recipe_section_for_a_network_of_timm_is_valid(sets: Sets) -> None:
    recipe = fv.load({**tree(sets), **yaml.safe_load(block("yaml"))})
    assert find(recipe.method).title == "FedProx (timm)"
    assert recipe.method.network.arch == "mobilenetv3_small_100"  # type: ignore[attr-defined]


def test_page_on_recipes_lists_every_algorithm_and_every_model(sets: Sets) -> None:
    page = read_page("docs/recipes.md")
    section = page[page.index("## Algorithms and models") : page.index("## Several cores")]
    first = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert {name for cell in first for name in re.findall(r"`([\w-]+)`", cell)} == {*ALGORITHMS, *MODELS}
    (shown,) = code_blocks(section, "yaml")
    sgd = {"training.optimizer": {"name": "sgd"}}
    recipe = fv.load({**tree(sets), **yaml.safe_load(shown)}, sgd)
    find(recipe.method).check(recipe)
    assert find(recipe.method).title == "SCAFFOLD (ViT-H)"


def test_data_entry_on_the_command_line_is_read_as_the_page_on_recipes_shows() -> None:
    page = read_page("docs/recipes.md")
    section = page[page.index("## Your own recipe") : page.index("## Algorithms and models")]
    (command,) = code_blocks(section, "console")
    _, verb, name, change = shlex.split(command)
    assert verb == "run"
    assert load(locate(name), [change], read_method).data.sites["O"] == change.partition("=")[2]


def test_checkpoint_is_converted_as_the_page_on_starts_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = torch.nn.Linear(3, 2).state_dict() | {"shared": torch.arange(6.0).view(2, 3).T}
    torch.save(state, "weights.pt")
    execute(*code_blocks(read_page("docs/starts.md")))
    converted = load_file("weights.safetensors")
    assert converted.keys() == state.keys()
    assert all(torch.equal(converted[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("name", ["afl", "scaffold", "fednova", "fedsis", "festa"])
def test_methods_without_a_server_step_do_not_support_a_server_optimizer(name: str) -> None:
    assert "server_optimizer" not in METHODS[name].supports


@pytest.mark.long
def test_examples_are_found_by_the_entry_points_of_the_page(
    sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and metadata on the path, which Python treats as an installed package."""
    groups = tomllib.loads(block("toml"))["project"]["entry-points"]
    metadata = tmp_path / "mine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    lines = [(f"[{group}]", *(f"{name} = {value}" for name, value in names.items())) for group, names in groups.items()]
    (metadata / "entry_points.txt").write_text("\n".join(line for group in lines for line in group))
    for name, text in files().items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions._entries.cache_clear()
    try:
        assert {"smoothed", "my-scaffold"} < set(fv.methods())
        assert "small" in fv.models()
        recipe = fv.load(tree(sets), {"method": {"name": "fedprox", "model": "small"}})
        assert find(recipe.method).title == "FedProx (Small)"
        assert extensions.load("datasets", "table").__name__ == "import_table"
        run_toy(tree(sets, tracking="sheet", training__rounds=2), tmp_path / "tracked")
        with (tmp_path / "tracked/tracking/fedvisage-tracked.csv").open() as sheet:
            rows = {(row["round"], row["figure"]): float(row["value"]) for row in csv.DictReader(sheet)}
        metrics = json.loads((tmp_path / "tracked/metrics.json").read_text())
        assert rows["2", "target/hter"] == metrics["hter"]
        assert ("1", "loss/A") in rows
    finally:
        extensions._entries.cache_clear()
        on.cache_clear()
        for name in files():
            sys.modules.pop(name, None)


def test_example_importer_writes_a_prepared_set(tmp_path: Path) -> None:
    source, rng = tmp_path / "source", np.random.default_rng(0)
    source.mkdir()
    rows = [("1.png", "live", "", "ann", "train"), ("2.png", "spoof", "print", "bob", "heldout")]
    for name, *_ in rows:
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(source / name)
    with (source / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "label", "kind", "person", "part"), *rows])
    import_table, options = example("table").import_table, ImportOptions(size=32, crop="centre")
    import_table(source, tmp_path / "set", name="T", options=options, progress=lambda done, total: None)
    prepared = PreparedSet.open(tmp_path / "set", verify=True)
    assert prepared.rows.label.tolist() == [1, 0]
    assert prepared.rows.species.tolist() == ["bonafide", "print"]
    (source / "table.csv").write_text("file,label,kind,person,part\n1.png,genuine,,ann,train\n")
    with refused("source/table.csv", "'genuine'"):
        import_table(source, tmp_path / "other", name="T", options=options, progress=lambda done, total: None)
    assert not (tmp_path / "other").exists()


@pytest.mark.long
def test_examples_of_the_reference_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each runs unchanged on a recipe of toy size."""
    results = [execute(code)["run"] for code in code_blocks(read_page("docs/reference.md"))]
    runs: dict[str, fv.Run] = {run.directory.name: run for run in results}
    assert {name: run.metrics["method"] for name, run in runs.items()} == {
        "own": "fedpad",
        "timm": "fedprox",
        "printed": "fedpad",
        "nearby": "nearby",
    }
    assert Path(runs["own"].recipe.data.sites["A"]).parent == (directory / "cache").resolve()
    assert re.search(r"^A train \d+ tensors$", capsys.readouterr().out, flags=re.MULTILINE)


def test_reference_page_is_up_to_date() -> None:
    """``make reference`` writes it."""
    assert read_page("docs/reference.md") == reference.page()


def test_every_linked_file_exists() -> None:
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#]+)\)", prose):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_command_in_the_documentation_exists() -> None:
    commands = vars(get_command(app))["commands"]
    targets = set(re.findall(r"^([a-z-]+):", read_page("Makefile"), flags=re.MULTILINE))
    for page in PAGES:
        for verb in re.findall(r"^\s*(?:\.venv/bin/)?fedvisage ([a-z]+)", page.read_text(), flags=re.MULTILINE):
            assert verb in commands, f"{page.name}: fedvisage {verb}"
        for target in re.findall(r"`make ([a-z-]+)`", page.read_text()):
            assert target in targets, f"{page.name}: make {target}"


def test_every_study_and_recipe_in_a_command_is_shipped() -> None:
    shown = [
        (page.name, verb, name)
        for page in PAGES
        for verb, name in re.findall(
            r"^\s*(?:\.venv/bin/)?fedvisage (run|study) ([a-z0-9/.-]+)(?= |$)", page.read_text(), flags=re.MULTILINE
        )
    ]
    assert len(shown) > 50
    for page, verb, name in shown:
        if name not in OWN_FILES:
            assert locate(name, Path("/nowhere"), verb=verb).is_file(), f"{page}: fedvisage {verb} {name}"


def test_the_python_of_the_readme_runs(directory: Path) -> None:
    """Unchanged except for the recipe and the sizes."""
    names = execute(*code_blocks(read_page("README.md")))
    assert names["run"].metrics["rounds"] == 4
    assert names["photo"].shape == (32, 32, 3)
    assert names["model"].is_live(names["faces"]).shape == (1,)
    assert fv.load("demo/fedpad").input.size == 96


@pytest.mark.long
def test_the_commands_of_the_readme_run_one_after_another(sets: Sets, directory: Path, command: Command) -> None:
    lines = "".join(code_blocks(read_page("README.md"), "console")).splitlines()
    commands = [line for line in lines if line.startswith("fedvisage ")]
    others = [line for line in lines if not line.startswith(("fedvisage ", "make "))]
    assert others == ["source .venv/bin/activate"]
    commands = [line for line in commands if "--on nvflare" not in line]  # tests/distributed rehearses federations
    assert len(commands) >= 11
    Path("people.yaml").write_text(yaml.safe_dump(tree(sets, "fedfr")))
    target = PreparedSet.open(sets["U"])
    for index in range(len(target)):
        kind, subject = str(target.rows.species[index]), str(target.rows.subject[index])
        folder = directory / "PHOTOS" / ("real" if kind == "bonafide" else f"attack/{kind}") / subject
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(target.images[index])).save(folder / f"{index}.png")
    for line in commands:
        assert command(*shlex.split(shrink(line))[1:])[0] == 0, line


@pytest.mark.parametrize(("name", "most"), [("README.md", 150), ("AGENTS.md", 60)])
def test_pages_of_the_root_have_the_agreed_length(name: str, most: int) -> None:
    lines = read_page(name).splitlines()
    assert len(lines) <= most
    assert all(len(line) <= 160 for line in lines if not line.startswith("|"))


@pytest.mark.long
def test_the_commands_about_shipped_recipes_work_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Recipes and studies are validated cell by cell and not run."""
    shown, own = (code_blocks(read_page("docs/recipes.md"), kind)[0] for kind in ("console", "yaml"))
    monkeypatch.chdir(tmp_path)
    for line in shown.splitlines():
        words, _, target = line.partition(" > ")
        _, verb, *rest = shlex.split(words)
        if verb == "run":
            load(locate(rest[0]), rest[1:], read_method)
        elif verb == "study":
            assert cells_of(load_study(locate(rest[0])), Path("cells"))
        else:
            code, output, _ = command(verb, *rest)
            assert code == 0, line
            if target:
                Path(target).write_text(output)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.yaml", "recipe.schema.json", "study.schema.json"}
    assert Path(own.splitlines()[0].partition("$schema=")[2]).is_file()
    assert fv.load(yaml.safe_load(own)).data.target_name == "gate"


def test_federation_of_the_readme_can_run_between_machines() -> None:
    """The rehearsals of tests/distributed have other recipes."""
    pytest.importorskip("nvflare")
    from fedvisage.nvflare.job import check_travels

    (command,) = re.findall(r"^fedvisage run (.*) --on nvflare", read_page("README.md"), flags=re.MULTILINE)
    recipe, *overrides = shlex.split(command)
    check_travels(load(locate(Path(recipe)), overrides, read_method))


def keys_of(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every key of a recipe that is not a section."""
    for name, field in section.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        inner = [kind for kind in kinds if issubclass(kind, BaseModel) and kind is not MethodOptions]
        for kind in inner:
            yield from keys_of(kind, f"{prefix}{name}.")
        if not inner:
            yield f"{prefix}{name}"


def test_every_key_of_a_recipe_is_explained_on_one_page() -> None:
    """In a table whose texts are the docstrings below the keys in the code."""
    blocks = [block[0] for text in keys.pages().values() for block in keys.BLOCK.finditer(text)]
    rows = [line for block in blocks for line in block.splitlines() if line.startswith("| `")]
    for key in keys_of(Recipe):
        (row,) = [row for row in rows if keys.covers(row, key)]
        assert row.split(" | ")[-1].strip(" |"), f"write a text below the key {key}, then call make reference"
        if not row.startswith(f"| `{key}` |"):
            section = row.partition("` |")[0].removeprefix("| `")
            like = row.split(" | ")[2].removeprefix("like ")
            assert sum(row.startswith(f"| {keys.sibling(f'`{key}`', f'`{section}`', like)} |") for row in rows) == 1


def test_a_section_like_an_earlier_one_is_a_row_with_its_own_defaults() -> None:
    table = keys.table_of("training")
    (row,) = [row for row in table.splitlines() if row.startswith("| `training.pretrain.optimizer` |")]
    assert "| like `training.optimizer` |" in row
    assert "Other defaults: `name` `sgd`, `lr` `0.1`, `weight_decay` `0.0005`, `momentum` `0.9`, `state` `kept`." in row
    assert "`training.pretrain.optimizer.lr`" not in table
    assert "| `training.augment.margin.least` | depends |" in table
    assert "| `training.augment.jpeg` | none | like `training.augment.margin` |" in table


@pytest.mark.long
def test_thresholds_of_other_rules_are_computed_as_the_page_shows(
    sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's own rule results in the threshold of the run."""
    metrics = run_toy(tree(sets, training__rounds=1), tmp_path / "runs/first")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    execute(*code_blocks(read_page("docs/thresholds.md")))
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["source-eer", *threshold.SOURCE_BPCER]
    assert printed[0].startswith(f"source-eer: logit {metrics['threshold']:+.3f}, FAR ")


@pytest.mark.parametrize(("page", "rows"), [("studies.md", 2 * 3 * 3), ("thresholds.md", 2)])
def test_first_study_of_a_page_is_valid(page: str, rows: int, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(code_blocks(read_page(f"docs/{page}"), "yaml")[0])
    assert len(cells_of(load_study(tmp_path / "study.yaml"), tmp_path)) == rows


def test_every_study_in_the_table_of_shipped_studies_exists() -> None:
    text = read_page("docs/studies.md")
    section = text[text.index("## Shipped studies") : text.index("## A folder of datasets")]
    for row in (row for row in section.splitlines() if row.startswith("| `")):
        names = re.findall(r"`([\w-]+)`( \(demo only\))?", row.split("|")[1])
        family = names[0][0].partition("-")[0]
        for name, demo_only in names:
            whole = name if name[0] != "-" else f"{family}{name}"
            assert locate(f"studies/{whole}-demo", Path("/nowhere"), verb="study").is_file()
            assert demo_only or locate(f"studies/{whole}", Path("/nowhere"), verb="study").is_file()


@pytest.mark.long
def test_every_key_of_a_method_is_explained() -> None:
    for row in keys.of_methods().splitlines():
        if row.startswith("| `") and "| section |" not in row:
            assert row.split(" | ")[-1].strip(" |"), f"write a text below the key, then call make reference: {row}"


@pytest.mark.long
def test_tables_of_keys_are_up_to_date() -> None:
    """``make reference`` writes them."""
    assert len(keys.pages()) >= 3
    for path, text in keys.pages().items():
        assert keys.fill(text) == text, path.name
    assert keys.OF_METHODS.read_text(encoding="utf-8") == keys.of_methods()


def test_messages_of_the_page_on_troubleshooting_are_in_the_code() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "src" / "fedvisage").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)
    lines = read_page("docs/troubleshooting.md").splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    assert len(rows) >= 15
    for fragment in re.findall(r"`([^`]+)`", " ".join(rows)):
        assert fragment in joined, fragment


@pytest.mark.parametrize("page", sorted(page.name for page in PAGES if page.parent.name == "results"))
def test_page_of_results_names_commits_and_date(page: str) -> None:
    text = " ".join(read_page(f"docs/results/{page}").split())
    assert re.search(r"Recorded 2\d{3}-\d\d-\d\d( to \d\d)? in commits? [0-9a-f]{8}\b", text)


def test_documentation_has_no_placeholder() -> None:
    for page in PAGES:
        assert "@@" not in page.read_text(), page.name
