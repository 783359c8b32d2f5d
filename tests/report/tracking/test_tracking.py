"""Trackers: the values that they receive, the names that they never receive, and their independence of the run."""

import io
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.refusals import refused
from tests.toy import ROUNDS, SITES, deterministic_files, recipe_of, run_toy, tree

from fedvisage import recipe as recipes
from fedvisage.base import extensions
from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.progress import Reporter
from fedvisage.nvflare.job import without_local_parts
from fedvisage.report.tracking.tracker import scalars, settings_of
from fedvisage.runs.train import training_of

NAMED = ("recorded", "at-start", "at-log", "at-end")
ENTRIES = """[fedvisage.trackers]
recorded = tests.report.tracking.recording_tracker:RecordingTracker
at-start = tests.report.tracking.recording_tracker:BreaksAtStart
at-log = tests.report.tracking.recording_tracker:BreaksAtLog
at-end = tests.report.tracking.recording_tracker:BreaksAtEnd
gone = tests.report.tracking.recording_tracker:NotThere
"""


@pytest.fixture(scope="module", autouse=True)
def trackers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    place = tmp_path_factory.mktemp("site")
    metadata = place / "trackers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: trackers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        extensions._entries.cache_clear()
        yield
    extensions._entries.cache_clear()


def calls_of(out: Path, kind: str = "RecordingTracker") -> list[list[Any]]:
    path = out / "tracking" / f"{kind}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reported_rounds(calls: list[list[Any]]) -> list[int]:
    """Return the reported rounds; the figures of the finished run come last, with the number of the last round."""
    return [call[1] for call in calls if call[0] == "log" and "bytes_up" in call[2]]


@pytest.fixture(scope="module")
def tracked_run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a run with four trackers, of which three fail, and its output."""
    out, heard = tmp_path_factory.mktemp("runs") / "tracked", io.StringIO()
    reporter = Reporter(Console(file=heard, width=1000))
    run_toy(tree(sets, tracking={"to": [*NAMED, "gone"], "project": "faces"}), out, reporter=reporter)
    return out, heard.getvalue()


@pytest.fixture(scope="module")
def plain_run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "run"
    run_toy(tree(sets), out)
    return out


def test_tracker_receives_start_rounds_result_and_end(tracked_run: tuple[Path, str]) -> None:
    out, _ = tracked_run
    calls = calls_of(out)
    assert [call[0] for call in calls] == ["start", *["log"] * ROUNDS, "log", "artefact", "end"]
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    for line, (_, step, figures) in zip(lines, calls[1:], strict=False):
        assert step == line["round"]
        assert {name: figures[f"loss/{name}"] for name in SITES} == line["loss"]
        assert (figures["bytes_up"], figures["sites_replied"]) == (line["bytes_up"], len(SITES))
    metrics = json.loads((out / "metrics.json").read_text())
    assert calls[-3][2]["target/hter"] == metrics["hter"]
    assert calls[-3][2]["target/apcer/print"] == metrics["apcer.print"]
    assert calls[-2][2]["figures"] == calls[-3][2]
    assert calls[0][1:3] == ["tracked", "faces"]
    assert calls[0][3]["training.rounds"] == ROUNDS
    assert calls[0][3]["method.name"] == "fedpad"
    assert calls[-1] == ["end", "finished"]


def test_tracker_receives_no_names_of_people_pictures_or_paths(
    tracked_run: tuple[Path, str], sets: Mapping[str, Path]
) -> None:
    """Every name in these sets begins with "secret"; sets lie below one directory."""
    text = json.dumps(calls_of(tracked_run[0]))
    assert "secret" in (tracked_run[0] / "scores.csv").read_text()
    assert "secret" not in text
    assert str(sets["A"].parent) not in text
    assert "/" not in {key[:1] for call in calls_of(tracked_run[0]) if call[0] == "log" for key in call[2]}
    values = [value for call in calls_of(tracked_run[0]) if call[0] == "log" for value in call[2].values()]
    assert all(isinstance(value, float) for value in values)


def test_broken_tracker_is_named_once_and_changes_no_result(tracked_run: tuple[Path, str], plain_run: Path) -> None:
    out, output = tracked_run
    for name, word in (("at-start", "no start"), ("at-log", "no log"), ("at-end", "no end"), ("gone", "NotThere")):
        (line,) = [line for line in output.splitlines() if line.startswith(f"warning: {name} ")]
        assert word in line
    bare = ("model.safetensors", "ledger.jsonl", "scores.csv")
    assert deterministic_files(out, names=bare) == deterministic_files(plain_run, names=bare)
    assert "tracking" not in (plain_run / "recipe.yaml").read_text()
    assert not (plain_run / "tracking").exists()


class StopsInRoundTwo(Reporter):
    """Simulate Ctrl-C when round two is reported."""

    def advance(self, done: int, total: int, note: str) -> None:
        if done == 2:
            raise KeyboardInterrupt


@pytest.mark.long
def test_stopped_and_resumed_run_reports_each_round_once(sets: Mapping[str, Path], tmp_path: Path) -> None:
    content = tree(sets, tracking="recorded", training__rounds=4, runtime__checkpoint_every=3)
    with pytest.raises(KeyboardInterrupt):
        run_toy(content, tmp_path / "run", reporter=StopsInRoundTwo(Console(file=io.StringIO())))
    assert calls_of(tmp_path / "run")[-1] == ["end", "stopped"]
    run_toy(content, tmp_path / "run", resume=True)  # from round 0: there is no checkpoint yet
    calls = calls_of(tmp_path / "run")
    assert reported_rounds(calls) == [1, 2, 3, 4]
    assert [call[4] for call in calls if call[0] == "start"] == ["", "first"]
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    run_toy(content, tmp_path / "run", resume=True)
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("note", ['{"recorded": 3}', '{"recorded": {"run": "x"', '{"at-log": {"run": "a"}}'])
def test_resuming_a_finished_run_reports_it_to_a_new_tracker(
    plain_run: Path, sets: Mapping[str, Path], tmp_path: Path, note: str
) -> None:
    content = tree(sets, tracking="recorded")
    shutil.copytree(plain_run, tmp_path / "run")
    (tmp_path / "run/recipe.yaml").write_text(recipes.text_of(recipe_of(content)))  # as if it had not been installed
    (tmp_path / "run/tracking").mkdir()
    (tmp_path / "run/tracking/told.json").write_text(note)
    run_toy(content, tmp_path / "run", resume=True)
    calls = calls_of(tmp_path / "run")
    assert reported_rounds(calls) == [1, 2, 3]
    assert calls[-1] == ["end", "finished"]


@pytest.mark.parametrize(
    ("tracking", "place", "keyword"),
    [
        ("mlfow", "recipe.tracking.to", "mlflow"),
        ({"to": []}, "recipe.tracking.to", "1"),
        ({"to": ["mlflow", "mlflow"]}, "recipe.tracking.to", "twice"),
        ({"too": 1}, "recipe.tracking.to", "recipe.tracking.too"),
        ({"to": ["mlflow"], "project": "../up"}, "recipe.tracking.project", "../up"),
    ],
)
def test_mistake_in_the_section_is_refused_before_writing(
    sets: Mapping[str, Path], tmp_path: Path, tracking: Any, place: str, keyword: str
) -> None:
    with refused(place, keyword):
        run_toy(tree(sets, tracking=tracking), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_run_that_fails_before_its_first_round_starts_no_tracker(sets: Mapping[str, Path], tmp_path: Path) -> None:
    content = tree(sets, tracking="recorded", federation__offline=1, federation__give_up_after=1)
    with pytest.raises((RunFailed, UserError)):
        run_toy(content, tmp_path / "run")
    assert [call[0] for call in calls_of(tmp_path / "run")] in ([], ["start", "log", "end"])


def test_trackers_are_absent_from_orders_and_digests(sets: Mapping[str, Path]) -> None:
    plain_run, with_one = recipe_of(tree(sets)), recipe_of(tree(sets, tracking="mlflow"))
    assert recipes.text_of(without_local_parts(with_one)) == recipes.text_of(without_local_parts(plain_run))
    assert training_of(recipes.tree_of(with_one), False) == training_of(recipes.tree_of(plain_run), False)


def test_settings_are_numbers_and_chosen_words(sets: Mapping[str, Path]) -> None:
    content = recipes.tree_of(recipe_of(tree(sets, title="secret title", training__start="secret.safetensors")))
    settings = settings_of(content)
    assert (settings["training.optimizer.lr"], settings["training.optimizer.name"]) == (0.01, "adam")
    assert "secret" not in json.dumps(settings)
    assert not [key for key in settings if key.startswith("data")]


def test_values_that_are_no_numbers_are_not_reported() -> None:
    tree = {"a": {"b": 1, "c": float("nan"), "d": True, "e": "word", "f": [1, 2]}, "g": None}
    assert scalars(tree) == {"a/b": 1.0}
