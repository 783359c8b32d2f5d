"""The shipped studies and recipes are valid, quote the printed figures, and run end to end."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.toy import discard

from fedvisage import recipe as recipes
from fedvisage.methods import read_method
from fedvisage.studies.conduct import run_study, shrink_for_smoke
from fedvisage.studies.grid import cells_of
from fedvisage.studies.study import load_study, printing_errors, quoted_figures, quoted_mean

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes" / "studies"
STUDIES = [path for path in sorted(FOLDER.glob("*.yaml")) if not path.stem.endswith("-size")]
DEMO_ONLY = {
    "fedsis-leakage-demo",
    "personal-demo",
    "privacy-per-person-demo",
    "unseen-cameras-demo",
    "unseen-media-demo",
}
"""Lengths of cut tokens depend on the network, unseen media are rendered, and no paper compares all these personal
models or guarantees, so there are no studies at paper size."""
DEMOS = [path for path in STUDIES if path.stem.endswith("-demo") and path.stem not in DEMO_ONLY]
RECIPES = sorted(path for folder in ("demo", "paper", "real") for path in (ROOT / "recipes" / folder).glob("*.yaml"))
OWN_ROWS = {
    "FedPAD + TTA, 2D sites",
    "FedPAD + gated TTA, 2D and 3D sites",
    "FedPAD + gated TTA",
    "FedGPAD + TTA",
    "FedGPAD + gated TTA",
    "FedAvg on FedMA's network",
    "FedPAD + online TTA",
    "FedPAD + TTA, sorted by class",
    "FedPAD + settled TTA",
    "blocks 1–6",
    "blocks 6–12",
    "FedSIS, bf16",
    "FedSIS, int8",
    "FedSIS, shuffled",
    "ε 500,000",
    "ε 100,000",
    "ε 10,000",
    *(
        f"{rule}, {state}"
        for rule in ("mean", "norm clip", "trimmed mean", "median", "Krum", "multi-Krum")
        for state in ("clean", "sign flip", "scaling", "label flip")
    ),
    *(f"block {number}" for number in range(1, 13)),
    *(f"every {rounds} rounds" for rounds in (2, 4, 6, 8, 12)),
    *(f"{name} on ResNet-18" for name in ("FedProx", "MOON", "FedBN", "AFL")),
    "FedGPAD, epochs",
    "FedMA, growing",
    "FedFR, raw means",
    "FedFR, mirrored",
    "FedFR, NIST's TPIR",
    "FedAvg + TTA by LayerNorm",
    "FedAvg + online TTA by LayerNorm",
    "all public images",
    *(f"t_HN 0.{tenth}" for tenth in range(2, 7)),
    *(f"{name}, {count}" for name in ("FedFace", "FedFR") for count in (40, 20, 10, 1)),
    *(f"Centralised, {count}" for count in (40, 20, 10, 1)),
    "Pre-trained, 1",
    *(f"{name}, private" for name in ("CosFace", "ArcFace", "FedSGD", "φ0", "φ1", "φ2", "φ3")),
    "private",
    "nothing told",
    "no noise",
    *(f"ε {value}" for value in (0.1, 1, 8, 32)),
    *(f"ρ {value}" for value in (1.1, 1.2, 1.3, 1.4, 1.5)),
    "3 queries",
    *(f"printed, ε {value}" for value in (0.1, 0.3, 1, 3, 8)),
    *(f"printed, ρ 1.{tenth}" for tenth in range(1, 6)),
    "3 queries of Algorithm 1",
    "ε 1, 16 directions",
    "clusters of mean features",
    *(f"{name}, {noise}" for name in ("models", "both") for noise in ("ε 8", "noise 1e-4")),
    *(f"{name}, {share} %" for name in ("conventional", "Algorithm 1", "private") for share in (25, 50, 75, 100)),
    "Federated texture",
    *(f"Federated texture, {sites} sites" for sites in (2, 3, 4, "2D", "2D and 3D")),
    *(f"texture, {auxiliary}, {sites}" for auxiliary in ("excluded", "included") for sites in ("combined", "split")),
    *(f"FedFace, λ {weight}, v {margin}" for weight in (0.5, 1, 1.5, 5, 10, 15) for margin in (0.3, 0.6, 0.9)),
}
"""Rows that no paper has printed."""


def stem_of(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", [*STUDIES, *sorted((ROOT / "src/fedvisage/studies").glob("*.yaml"))], ids=stem_of)
def test_every_cell_of_a_study_is_a_valid_recipe(path: Path) -> None:
    study = load_study(path)
    cells = cells_of(study, Path("cells"))
    assert len(cells) == len(study.rows) * len(study.targets) * len(study.seeds)
    assert len({cell.out for cell in cells}) == len(cells)
    for cell in cells:
        assert study.sets[cell.target] == cell.recipe.data.target
        assert study.sets[cell.target] not in cell.recipe.data.sites.values()


@pytest.mark.parametrize("path", STUDIES, ids=stem_of)
def test_every_cell_at_smoke_size_is_a_valid_recipe(path: Path) -> None:
    assert cells_of(shrink_for_smoke(load_study(path)), Path("cells"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_is_valid(path: Path) -> None:
    assert recipes.load(path, [], read_method).title


def without_start(changes: list[str]) -> list[str]:
    """Return a row's changes without the file of weights, which a demo does not have."""
    begins = "training.start=" in "".join(change for change in changes if change != "training.start=null")
    return [
        change
        for change in changes
        if not (begins and change.startswith(("training.start=", "method.network.weights=")))
    ]


@pytest.mark.parametrize("path", DEMOS, ids=stem_of)
def test_demo_study_has_the_rows_and_targets_of_the_paper_study(path: Path) -> None:
    demo, paper = load_study(path), load_study(path.with_name(f"{path.stem.removesuffix('-demo')}.yaml"))
    own = {name: row.model_copy(update={"set": without_start(row.set)}) for name, row in paper.rows.items()}
    assert [row.model_copy(update={"sites": None}) for row in demo.rows.values()] == [
        row.model_copy(update={"sites": None}) for row in own.values()
    ]
    assert list(demo.rows) == list(paper.rows)
    if "figure4" not in path.stem:  # FedFR's has a hundred sites at paper size
        assert demo.rows == own
    assert demo.targets == paper.targets
    assert demo.paper == paper.paper
    assert all(entry.startswith("synth:") for entry in demo.sets.values())
    assert not any(entry.startswith("synth:") for entry in paper.sets.values())


@pytest.mark.parametrize("path", STUDIES, ids=stem_of)
def test_every_printed_row_is_quoted_at_every_target(path: Path) -> None:
    study = load_study(path)
    for name, row in study.rows.items():
        missing = [target for target in study.targets if not quoted_figures(study.paper, row.quotes or name, target)]
        own = name in OWN_ROWS or path.stem.startswith(
            ("claims-", "personal-", "privacy-per-", "unseen-")
        )  # without printed figures
        assert missing == (study.targets if own else []), name


@pytest.mark.long
def test_every_printed_row_is_quoted_by_a_study() -> None:
    used = {row.quotes or name for path in STUDIES for name, row in load_study(path).rows.items()}
    for path in (FOLDER / "printed").glob("*.yaml"):
        assert set(yaml.safe_load(path.read_text())["rows"]) <= used, path.name


@pytest.mark.parametrize("path", STUDIES, ids=stem_of)
def test_printed_rows_are_unique(path: Path) -> None:
    lines = [
        (row, target) for table in load_study(path).paper for row, targets in table.rows.items() for target in targets
    ]
    assert len(set(lines)) == len(lines)


@pytest.mark.long
def test_footnotes_mark_the_inconsistent_printed_averages() -> None:
    studies = [load_study(path) for path in STUDIES]
    notes = [note for study in studies for note in printing_errors(study.paper, list(study.rows), study.targets)]
    assert {tuple(word for word in note.split() if word[0].isdigit()) for note in notes} == {
        ("2022,", "36.43", "40.44,"),
        ("2022,", "34.31", "34.21,"),  # FedGPAD's Table III, Single
        ("2021,", "41.61", "40.44,"),
        ("2021,", "36.66", "34.21,"),
        ("2021,", "67.07", "70.36,"),  # the same rows in a later table
        ("2023,", "1,", "3.91", "3.87,"),
        ("2023,", "2,", "6.43", "6.52,"),  # FedSIS, its Tables 1 and 2
        ("2023,", "6,", "6.43", "6.52,"),
        ("2023,", "6,", "6.94", "7.05,"),
        ("2023,", "6,", "3.91", "3.87,"),
        ("2023,", "6,", "4.74", "4.72,"),  # its Table 6
        ("2023,", "3,", "14.25", "19.00,"),  # FedProx, its Table 3
        ("2021,", "35.09", "33.97,"),
        ("2021,", "36.43", "34.96,"),
        ("2021,", "68.00", "69.69,"),  # Single + TTA
    }


def test_printed_mean_is_independent_of_the_order_of_targets() -> None:
    """Another order of summation gave Single + TTA an AUC of 69.70 instead of 69.69."""
    tables = load_study(FOLDER / "adaptation.yaml").paper
    orders = itertools.permutations("OCIM")
    assert len({quoted_mean(tables, "Single + TTA", order)["auc"] for order in orders}) == 1


UNMEASURED = {
    "FedFR, other sites' people": {"personal.tar@1e-3", "personal.tar@1e-2", "personal.tpir@1e-2"},
    "FedFR, NIST's TPIR": {"generic.tpir@1e-2"},
}
"""The figures of rows that need more impostors than a smoke test has."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [*DEMOS, *(FOLDER / f"{name}.yaml" for name in ("personal-demo", "privacy-per-person-demo"))], ids=stem_of
)
def test_study_runs_end_to_end_at_smoke_size(path: Path, tmp_path: Path) -> None:
    cache = tmp_path.parent / "smoke-sets"
    table = run_study(path, tmp_path / "out", cache, discard, smoke=True)
    study = shrink_for_smoke(load_study(path))
    assert list(table["rows"]) == list(study.rows)
    for name, row in table["rows"].items():
        assert list(row["targets"]) == study.targets
        measured = set(study.figures) - UNMEASURED.get(name, set())
        assert all(np.isfinite(figures[figure]).all() for figures in row["targets"].values() for figure in measured)
    assert "SMOKE" in (tmp_path / "out" / "table.md").read_text()
