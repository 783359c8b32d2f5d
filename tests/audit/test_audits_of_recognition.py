"""The audits of recognition on a small run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image
from tests.toy import Sets, discard, run_toy, tree

from fedvisage.audit.audit import audit_run
from fedvisage.audit.released import CENTRES, MEANS, ReleasedVectors, SitePeople
from fedvisage.audit.reversion import side_of

pytestmark = pytest.mark.long

OWN = ("privacy-claim", "softmax-shares", "noise-on-clusters", "nearest-neighbour", "reversion", "membership")


def audit_toy_run(content: dict[str, Any], out: Path) -> dict[str, dict[str, Any]]:
    run_toy(content, out)
    records = audit_run(out, None, out.parent / "cache", discard)
    return {record["name"]: record for record in records}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audited") / "run"


@pytest.fixture(scope="module")
def records(sets: Sets, out: Path) -> dict[str, dict[str, Any]]:
    return audit_toy_run(tree(sets, "privacyface"), out)


def test_all_audits_apply(records: dict[str, dict[str, Any]]) -> None:
    assert all(records[name]["applies"] for name in OWN)


def test_claim_holds_and_broken_mechanisms_are_refuted(records: dict[str, dict[str, Any]]) -> None:
    rows = {row["mechanism"]: row["claim"] for row in records["privacy-claim"]["rows"]}
    assert {claim for name, claim in rows.items() if name.startswith("private")} == {"stands"}
    assert {claim for name, claim in rows.items() if not name.startswith("private")} == {"proved wrong"}


@pytest.mark.parametrize("name", ["nearest-neighbour", "reversion"])
def test_class_centres_means_and_noisy_clusters_of_several_epsilon_are_attacked(
    name: str, records: dict[str, dict[str, Any]]
) -> None:
    kinds = [row["told"] for row in records[name]["rows"]]
    assert kinds[:2] == [CENTRES, MEANS]
    for epsilon in ("0.3", "1", "8"):
        assert f"p̂ of Algorithm 1, ε {epsilon}" in kinds


def test_softmax_shares_of_own_class_others_and_clusters_add_up(records: dict[str, dict[str, Any]]) -> None:
    for row in records["softmax-shares"]["rows"]:
        assert sum(row[name] for name in ("own class", "own site's others", "clusters")) == pytest.approx(1)
    assert records["softmax-shares"]["rows"][-1]["clusters"] >= records["softmax-shares"]["rows"][0]["clusters"]


def test_rates_lie_between_0_and_1_with_their_chance(records: dict[str, dict[str, Any]]) -> None:
    for row in records["nearest-neighbour"]["rows"]:
        rates = [row[key] for key in ("top-1", "by chance, top-1", "top-5", "by chance, top-5")]
        assert all(0 <= rate <= 1 for rate in rates)
        assert row["top-1"] <= row["top-5"]


@pytest.mark.parametrize("name", ["noise-on-clusters", "nearest-neighbour", "reversion"])
def test_report_shows_the_pictures(name: str, records: dict[str, dict[str, Any]], out: Path) -> None:
    pictures = records[name]["pictures"]
    assert len(pictures) == (2 if name == "noise-on-clusters" else 1)
    for picture in pictures:
        assert Image.open(out / "audit" / picture["file"]).size[1] > 32
        assert escape(picture["caption"]) in (out / "report.html").read_text()


def test_vectors_belong_to_the_people_of_centres_and_cluster_margins() -> None:
    """Four people on a circle, each of one grey; one vector at 10°, and one at 200° that is close to no person."""
    turns = np.radians([0, 30, 60, 120])
    centres = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    greys = np.array([0.1, 0.2, 0.4, 0.8])
    people = SitePeople(
        torch.from_numpy(centres).float(),
        torch.from_numpy(greys).float().view(4, 1, 1, 1).expand(4, 3, 2, 2),
        float(np.cos(np.radians(35))),
    )
    own = people.behind(ReleasedVectors(CENTRES, "A", centres.astype(np.float32), []))
    np.testing.assert_allclose(own[:, 0, 0, 0], greys, rtol=1e-6)
    angles = np.radians([10, 200])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    images = people.behind(ReleasedVectors(MEANS, "A", vectors, []))
    assert images.shape == (2, 3, 2, 2)
    np.testing.assert_allclose(images[:, 1, 1, 1], [(0.1 + 0.2) / 2, 0], rtol=1e-6)


def test_method_without_releases_has_no_lower_bound(sets: Sets, tmp_path: Path) -> None:
    records = audit_toy_run(tree(sets, "conventional", training__rounds=1), tmp_path / "run")
    assert records["privacy-claim"]["why"] == "sites release no clusters, and training.privacy adds no noise"
    assert records["nearest-neighbour"]["applies"]
    assert "sites send none of these" in records["nearest-neighbour"]["says"]


def test_attack_detection_has_no_identification_audit(sets: Sets, tmp_path: Path) -> None:
    records = audit_toy_run(tree(sets, "fedpad", training__rounds=1), tmp_path / "run")
    assert {records[name].get("why") for name in OWN[1:]} == {"nobody's identity is learned"}


@pytest.mark.parametrize("name", ["nearest-neighbour", "reversion"])
def test_audit_names_the_values_that_sites_send(name: str, records: dict[str, dict[str, Any]]) -> None:
    assert records[name]["says"].endswith("In this run sites send clusters.")


def test_fedface_sends_its_class_centres(sets: Sets, tmp_path: Path) -> None:
    records = audit_toy_run(tree(sets, "fedface", training__rounds=1), tmp_path / "run")
    assert records["nearest-neighbour"]["says"].endswith("In this run sites send class centres.")
    assert records["membership"]["applies"]


@pytest.mark.parametrize(("size", "side"), [(112, 128), (128, 128), (256, 128), (64, 64), (48, 32), (32, 32)])
def test_faces_of_the_papers_size_are_reconstructed_at_table_5s_size(size: int, side: int) -> None:
    assert side_of(size) == side
