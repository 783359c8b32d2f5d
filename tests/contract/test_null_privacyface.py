"""PrivacyFace with what is special about it switched off is its baseline; and where its budget ends, the run ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.comparing import run_to_weights
from tests.refusals import failed, refused
from tests.toy import Sets, make_people, set_of_task, tree

from fedvisage.federation.privacy.accountant import BudgetSpent
from fedvisage.federation.record.ledger import read_lines

PLAIN = {"loss": "cosface", "scale": 30.0, "margin": 0.4, "weight": "examples"}
SGD = {"name": "sgd", "lr": 0.05}
NO_CLUSTERS = {"clustering": "paper", "rho": 1e-3, "minimum": 3}


@pytest.mark.long
def test_privacyface_without_clusters_is_fedavg_with_public_fine_tuning(sets: Sets, tmp_path: Path) -> None:
    conventional = run_to_weights(tree(sets, "conventional"), tmp_path / "conventional")
    assert run_to_weights(tree(sets, "privacyface"), tmp_path / "null", **NO_CLUSTERS) == conventional
    assert run_to_weights(tree(sets, "privacyface"), tmp_path / "on") != conventional


@pytest.mark.long
def test_privacyface_without_clusters_and_public_fine_tuning_is_fedavg(sets: Sets, tmp_path: Path) -> None:
    fedavg = run_to_weights(tree(sets, "fedavg"), tmp_path / "fedavg")
    null = run_to_weights(tree(sets, "conventional"), tmp_path / "null", **(PLAIN | {"public_epochs": 0}))
    tuned = run_to_weights(tree(sets, "conventional"), tmp_path / "tuned", **PLAIN)
    assert null == fedavg
    assert tuned != fedavg


@pytest.mark.long
def test_fedface_without_spreadout_is_conventional_training(sets: Sets, tmp_path: Path) -> None:
    """With λ = 0 the centres come back as they were sent: loss, scale and public fine-tuning are the baseline's."""
    conventional = run_to_weights(tree(sets, "conventional", training__rounds=2), tmp_path / "conventional")
    still, moved = (
        run_to_weights(
            tree(sets, "privacyface-fedface", training__rounds=2), tmp_path / f"{weight}", spreadout={"weight": weight}
        )
        for weight in (0.0, 10.0)
    )
    assert still == conventional
    assert moved != conventional


@pytest.mark.long
def test_own_clusters_of_a_site_are_not_its_negatives(sets: Sets, tmp_path: Path) -> None:
    alone = {"data__sites": {"A": str(set_of_task(sets["A"], "privacyface"))}}
    plain = run_to_weights(tree(sets, "conventional", **alone), tmp_path / "plain")
    assert run_to_weights(tree(sets, "privacyface", **alone), tmp_path / "alone") == plain


@pytest.mark.long
@pytest.mark.parametrize("backbone", ["sphere20", "iresnet18"])
def test_fedsgd_on_one_batch_is_fedavg_on_one_batch(backbone: str, sets: Sets, tmp_path: Path) -> None:
    one = {"training__local": {"batches": 1}, "training__optimizer": SGD}
    avg = {"network": {"name": backbone, "width": 8, "embedding": 16}}
    sgd = avg | {"algorithm": "fedsgd"}
    assert run_to_weights(tree(sets, "conventional", **one), tmp_path / "a", **sgd) == run_to_weights(
        tree(sets, "conventional", **one), tmp_path / "b", **avg
    )


@pytest.mark.long
def test_spent_budget_keeps_the_model_of_the_last_paid_round(sets: Sets, tmp_path: Path) -> None:
    spent = run_to_weights(tree(sets, "privacyface", privacy__epsilon=2.0), tmp_path / "spent")
    short = run_to_weights(tree(sets, "privacyface", training__rounds=2), tmp_path / "short")
    assert spent == short
    metrics = json.loads((tmp_path / "spent" / "metrics.json").read_text())
    assert metrics["rounds"] == 2
    assert metrics["privacy"]["epsilon"] == pytest.approx(2.0)
    assert metrics["ended"]["cause"] == "budget"
    assert "would raise the cost to ε 3" in metrics["ended"]["reason"]
    assert "ended" not in json.loads((tmp_path / "short" / "metrics.json").read_text())


def test_a_budget_that_does_not_allow_one_round_is_refused(sets: Sets, tmp_path: Path) -> None:
    with failed(BudgetSpent, "round 1", "ε 1", "ε 0.5"):
        run_to_weights(tree(sets, "privacyface", privacy__epsilon=0.5), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.long
def test_clusters_released_once_are_paid_for_once_and_used_in_every_round(sets: Sets, tmp_path: Path) -> None:
    run_to_weights(tree(sets, "privacyface"), tmp_path / "once", releases="once", project=4)
    lines = read_lines(tmp_path / "once" / "ledger.jsonl")
    clusters = [
        line for line in lines if line["field"] == "clusters" and line["site"] == "A" and line["direction"] == "up"
    ]
    assert len(clusters) == 3
    assert len({line["digest"] for line in clusters}) == 1
    assert clusters[-1]["cost"]["total"]["epsilon"] == pytest.approx(1.0)


@pytest.mark.long
def test_released_message_has_the_same_size_for_any_clusters(sets: Sets, tmp_path: Path) -> None:
    many = make_people(tmp_path / "six people", "A", 5, identities=6)
    sizes = []
    for name, path in (("few", set_of_task(sets["A"], "privacyface")), ("many", many)):
        run_to_weights(tree(sets, "privacyface", data__sites__A=str(path)), tmp_path / name, queries=3)
        lines = read_lines(tmp_path / name / "ledger.jsonl")
        sizes.append({line["bytes"] for line in lines if line["call"] == "cluster" and line["direction"] == "up"})
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("own", "place", "keyword"),
    [
        ({"minimum": 4}, "data.sites.A", "method.minimum"),
        ({"rho": 0.0}, "recipe.method.rho", "0.0"),
        ({"rho": 1.6}, "recipe.method.rho", "1.6"),
        ({"epsilon": 0.0}, "recipe.method.epsilon", "0.0"),
        ({"delta": 1.0}, "recipe.method.delta", "1.0"),
        ({"delta": None}, "recipe.method", "delta"),
        ({"project": 17}, "recipe.method", "17"),
        ({"project": 4, "clustering": "paper"}, "recipe.method", "project"),
        ({"queries": 5}, "queries", "5"),
    ],
)
def test_settings_without_a_guarantee_are_refused_with_the_reason(
    own: dict[str, Any], place: str, keyword: str, sets: Sets, tmp_path: Path
) -> None:
    with refused(place, keyword):
        run_to_weights(tree(sets, "privacyface"), tmp_path / "run", **own)
