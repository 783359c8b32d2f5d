"""Several benchmarks of one model: by the lists beside each set, in a run and of a finished model, without training."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.listed import RACES, write_listed, write_set, write_templates
from tests.refusals import refused
from tests.toy import DETERMINISTIC_FILES, NewRun, Sets, recipe_of, run_toy, tree
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.data.batches import View
from fedvisage.data.lists import TemplateLists, write_lists
from fedvisage.data.prepared import PreparedSet
from fedvisage.metrics.identification import nearest_tar
from fedvisage.metrics.recorded import read_metrics
from fedvisage.report.page import write_report
from fedvisage.runs.evaluate import evaluate
from fedvisage.tasks.finished_model import FinishedModel, open_model
from fedvisage.tasks.opened import named_benchmarks
from fedvisage.tasks.recognition import benchmarks as benchmark_module

FAR = 0.1


@pytest.fixture(scope="module")
def benchmarks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("benchmarks")
    return {"rfw": write_listed(root), "ijb": write_templates(root)}


def recipe(sets: Sets, **data: Any) -> dict[str, Any]:
    outcome = tree(sets, "fedavg", training__rounds=1, training__pretrain=None, evaluation__every=0)
    outcome["data"] |= {"public": None, "public_identities": None, **data}
    return outcome


@pytest.fixture(scope="module")
def finished_run(sets: Sets, new_run: NewRun) -> Path:
    return new_run(recipe(sets))


@pytest.fixture(scope="module")
def model(finished_run: Path) -> FinishedModel:
    return open_model(finished_run)


def as_text(benchmarks: Mapping[str, Path]) -> dict[str, str]:
    return {name: str(path) for name, path in benchmarks.items()}


@pytest.mark.long
def test_run_evaluates_benchmarks_like_a_finished_model_and_changes_nothing_else(
    sets: Sets, finished_run: Path, model: FinishedModel, benchmarks: dict[str, Path], tmp_path: Path
) -> None:
    metrics = run_toy(recipe(sets, benchmarks=as_text(benchmarks)), tmp_path / "run")
    again = evaluate(model, None, tmp_path, tmp_path / "again", benchmarks=as_text(benchmarks))
    assert metrics.part("benchmarks") == again.part("benchmarks")
    assert not again.part("generic"), "only what was asked for is judged"
    assert json.loads((tmp_path / "again" / "data.json").read_text()).keys() == {
        "data.benchmarks.ijb",
        "data.benchmarks.rfw",
    }
    for name in DETERMINISTIC_FILES:
        same = (tmp_path / "run" / name).read_bytes() == (finished_run / name).read_bytes()
        assert same == (name not in ("recipe.yaml", "model.json")), name
    assert "benchmarks" not in (finished_run / "recipe.yaml").read_text()
    assert read_metrics(finished_run / "metrics.json").part("generic") == metrics.part("generic")
    page = write_report(tmp_path / "run").read_text()
    for words in ("lists of pairs", "skewed error ratio", "conservative", "rank 1"):
        assert words in page
    summary = "\n".join(model.setup.task.summarise(again))
    assert "rfw: south, 8 pairs" in summary
    assert "ijb: published: TAR@FAR" in summary


def features_of(model: FinishedModel, path: Path) -> tuple[np.ndarray, PreparedSet]:
    outcome = PreparedSet.open(path)
    model.scorer.load(model.saved.finished)
    return model.scorer.embeddings(View.of(outcome)).numpy().astype(np.float64), outcome


def by_hand(model: FinishedModel, path: Path, published: bool) -> dict[int, np.ndarray]:
    """Return each template step by step: weighted images, means of media, their mean, unit length."""
    features, outcome = features_of(model, path)
    whose = {name: outcome.rows.further[name] for name in ("template", "media", "confidence")}
    joined = {}
    for template in sorted({int(entry) for entry in whose["template"]}):
        media: dict[str, list[np.ndarray]] = {}
        for place in np.flatnonzero(whose["template"] == str(template)):
            vector = features[place]
            vector = vector * float(whose["confidence"][place]) if published else vector / np.linalg.norm(vector)
            media.setdefault(str(whose["media"][place]), []).append(vector)
        total = np.mean([np.mean(some, axis=0) for some in media.values()], axis=0)
        joined[template] = total / np.linalg.norm(total)
    return joined


@pytest.mark.parametrize("portion", [1, 8192])
def test_templates_are_compared_in_both_readings(
    model: FinishedModel, benchmarks: dict[str, Path], tmp_path: Path, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_module, "PORTION", portion)
    outcome = evaluate(model, None, tmp_path, benchmarks=as_text(benchmarks)).part("benchmarks.ijb")
    counts = {name: outcome[name] for name in ("templates", "pairs", "genuine_pairs", "pairs_left_out", "probes")}
    assert counts == {"templates": 16, "pairs": 64, "genuine_pairs": 8, "pairs_left_out": 0, "probes": 8}
    assert (outcome.part("galleries"), outcome["searches_left_out"]) == ({"g1": 4, "g2": 4}, 0)
    for reading in ("published", "conservative"):
        own = by_hand(model, benchmarks["ijb"], reading == "published")
        matrix = np.array([[own[2 * entry] @ own[2 * other + 1] for other in range(8)] for entry in range(8)])
        same = np.eye(8, dtype=bool)
        if reading == "published":
            tar = nearest_tar(matrix.ravel(), same.ravel(), (FAR,))[FAR]
        else:
            lines = [line for line in [*matrix.ravel(), 9.0] if (matrix[~same] >= line).mean() <= FAR]
            tar = max((matrix[same] >= line).mean() for line in lines)
        assert outcome.part(f"readings.{reading}").rates("tar") == {"1e-1": pytest.approx(tar)}
        parts = [range(8)] if reading == "published" else [range(0, 8, 2), range(1, 8, 2)]
        firsts = [
            np.mean([matrix[entry, entry] == max(matrix[other, entry] for other in part) for entry in part])
            for part in parts
        ]
        assert outcome[f"readings.{reading}.rank@1"] == pytest.approx(np.mean(firsts))


def test_missing_templates_are_left_out_and_counted(model: FinishedModel, tmp_path: Path) -> None:
    path = write_templates(tmp_path)
    extra = {"pairs": "0 99 0\n", "gallery-g1": "98 9\n", "probes": "99 9\n"}
    for name, line in extra.items():
        with path.with_name(f"ijb-templates-{name}.txt").open("a") as file:
            file.write(line)
    outcome = evaluate(model, None, tmp_path, benchmarks={"I": str(path)}).part("benchmarks.I")
    assert (outcome["pairs"], outcome["pairs_left_out"], outcome["searches_left_out"]) == (64, 1, 2)
    for name in ("gallery-g1", "gallery-g2", "probes"):
        path.with_name(f"ijb-templates-{name}.txt").unlink()
    alone = evaluate(model, None, tmp_path, benchmarks={"I": str(path)}).part("benchmarks.I")
    assert alone["readings.conservative.tar@1e-1"] == outcome["readings.conservative.tar@1e-1"]
    assert alone.part("readings.conservative").rates("rank") == {}
    assert "probes" not in alone


def test_lists_of_groups_have_a_spread(model: FinishedModel, benchmarks: dict[str, Path], tmp_path: Path) -> None:
    outcome = evaluate(model, None, tmp_path, benchmarks=as_text(benchmarks)).part("benchmarks.rfw")
    lists = outcome.parts("lists")
    assert {name: (entry["pairs"], entry["folds"]) for name, entry in lists.items()} == dict.fromkeys(RACES, (8, 4))
    north, south = (lists[race]["accuracy"] for race in RACES)
    assert outcome["spread.mean"] == pytest.approx((north + south) / 2)
    assert outcome["spread.std"] == pytest.approx(abs(north - south) / 2**0.5)
    alone = evaluate(model, str(benchmarks["rfw"]), tmp_path)
    listed = open_model(model.directory, pairs=benchmarks["rfw"].with_name("listed-pairs-north.txt"))
    once = evaluate(listed, str(benchmarks["rfw"]), tmp_path).part("generic.listed_pairs")
    assert lists["north"] == once, "as with --data and --pairs"
    assert not alone.part("benchmarks")


def test_set_without_lists_is_evaluated_like_a_target(model: FinishedModel, tmp_path: Path) -> None:
    people = write_set(
        tmp_path / "plain", [f"{n}.png" for n in range(8)], [f"who{n // 2}" for n in range(8)], ["g"] * 8
    )
    outcome = evaluate(model, None, tmp_path, benchmarks={"plain": str(people)})
    assert outcome.part("benchmarks.plain.generic") == evaluate(model, str(people), tmp_path).part("generic")


def test_training_data_and_foreign_lists_are_refused_as_benchmarks(
    sets: Sets, model: FinishedModel, benchmarks: dict[str, Path], tmp_path: Path
) -> None:
    own = str(sets["A"].with_name("people-A"))
    with refused("data.benchmarks.own", "secret-person-A0", "data.sites.A"):
        run_toy(recipe(sets, benchmarks={"own": own}), tmp_path / "run")
    with refused("data.benchmarks.own", "3 subjects", "site A"):
        evaluate(model, None, tmp_path, benchmarks={"own": own})
    path = write_templates(tmp_path / "other")
    path.with_name("ijb-templates-probes.txt").write_text("900 1\n")
    with refused("data.benchmarks.I", "probes", "16"):
        run_toy(recipe(sets, benchmarks={"I": str(path)}), tmp_path / "run")
    path.with_name("ijb-templates-probes.txt").write_text("1 1 1\n")
    with refused("ijb-templates-probes.txt", "template"):
        run_toy(recipe(sets, benchmarks={"I": str(path)}), tmp_path / "run")
    with refused("recipe.data.benchmarks.I", "directory"):
        run_toy(recipe(sets, benchmarks={"I": str(tmp_path / "nowhere")}), tmp_path / "run")
    with refused("recipe.data.benchmarks", "'a b'"):
        recipe_of(recipe(sets, benchmarks={"a b": own}))
    assert not (tmp_path / "run").exists()


def test_attack_detection_has_one_set_at_a_time(sets: Sets, tmp_path: Path) -> None:
    with refused("recipe.data.benchmarks", "fedpad", "fedvisage evaluate RUN --data SET"):
        run_toy(tree(sets, training__rounds=1, data__benchmarks={"x": str(sets["U"])}), tmp_path / "run")


def test_benchmarks_of_the_command_line_have_a_name_or_that_of_their_directory() -> None:
    assert named_benchmarks(["sets/lfw", "a=sets/rfw part=1/2", "b=synth: people identities=4"]) == {
        "lfw": "sets/lfw",
        "a": "sets/rfw part=1/2",
        "b": "synth: people identities=4",
    }
    for texts, word in (
        (["x/lfw", "y/lfw"], "lfw"),
        (["synth: people images=2"], "needs a name"),
        (["a="], "does not name a set"),
    ):
        with refused("--benchmark", word):
            named_benchmarks(texts)


def test_template_without_detector_confidence_is_refused(model: FinishedModel, tmp_path: Path) -> None:
    path = write_set(tmp_path / "t", ["a.png"], ["A"], ["g"], template=["5"], media=["1"], confidence=["0"])
    write_lists(path, TemplateLists(np.array([[5, 5, 1]], np.int32)))
    with refused("data.benchmarks.t", "5", "detector"):
        evaluate(model, None, tmp_path, benchmarks={"t": str(path)})


def test_command_line_evaluates_several_sets(finished_run: Path, benchmarks: dict[str, Path], tmp_path: Path) -> None:
    words = ["evaluate", str(finished_run), "--cache", str(tmp_path), "--out", str(tmp_path / "out"), "--quiet"]
    words += ["--benchmark", str(benchmarks["ijb"]), "--benchmark", f"races={benchmarks['rfw']}"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "races: north, 8 pairs" in result.output
    assert read_metrics(tmp_path / "out" / "metrics.json").parts("benchmarks").keys() == {"ijb", "races"}
