"""Output and exit codes of the command line."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.commands import output_of
from tests.refusals import Command, check_output
from tests.toy import SITES, deterministic_files, tree

from fedvisage import cli
from fedvisage.base.progress import Reporter
from fedvisage.cli.options import QualityOptions
from fedvisage.data.prepared import PreparedSet
from fedvisage.faces.quality import Settings
from fedvisage.methods import METHODS


def check_refused(result: tuple[int, str, str], place: str | Path, *keywords: str) -> None:
    """Check that a command exited with 2 and one line that has this place and every keyword."""
    assert result[0] == 2
    check_output(result[2], place, *keywords)


@pytest.fixture(scope="module")
def recipe_file(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "toy.yaml"
    path.write_text(yaml.safe_dump(tree(sets)))
    return path


@pytest.fixture(scope="module")
def finished_run(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, made through the command line."""
    out = tmp_path_factory.mktemp("finished") / "run"
    output_of("run", recipe_file, "--out", out)
    return out


def test_duplicate_site_is_refused_unless_allowed(
    command: Command, recipe_file: Path, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    again = shutil.copytree(sets["A"], tmp_path / "again")
    changes = (f"data.sites.D={again}", "training.rounds=1")
    words = ("run", recipe_file, *changes, "--cache", tmp_path / "cache", "--verify")
    code, _, err = command(*words, "--out", tmp_path / "run")
    assert code == 2
    assert "data.sites.A: shares 24 of 24 pictures with site D" in err
    assert not (tmp_path / "run").exists()
    code, out, _ = command(*words, "--out", tmp_path / "run", "--allow-overlap")
    assert code == 0
    assert "note: site A shares 24 of 24 pictures with site D" in out


def test_override_changes_the_resolved_recipe(command: Command, recipe_file: Path, tmp_path: Path) -> None:
    code, out, _ = command("run", recipe_file, "training.rounds=1", "runtime.seed=7", "--out", tmp_path / "run")
    resolved = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert code == 0
    assert (resolved["training"]["rounds"], resolved["runtime"]["seed"]) == (1, 7)
    assert "round 1/1" in out


def test_run_refuses_to_overwrite_a_finished_run(command: Command, recipe_file: Path, finished_run: Path) -> None:
    code, _, err = command("run", recipe_file, "--out", finished_run)
    assert code == 2
    assert "--resume" in err


def test_resume_prints_that_the_run_is_finished(command: Command, recipe_file: Path, finished_run: Path) -> None:
    code, out, _ = command("run", recipe_file, "--out", finished_run, "--resume")
    assert code == 0
    assert "finished already" in out


@pytest.mark.parametrize(
    ("words", "place", "keyword"),
    [
        (["training.rouns=1"], "recipe.training.rouns", "rounds"),
        (["training.rounds=0"], "recipe.training.rounds", "0"),
        (["method.name=nothing"], "recipe.method.name", "'nothing'"),
        (["data.target=/nowhere"], "recipe.data.target", "/nowhere"),
        (["runtime.device=cuda:7"], "recipe.runtime.device", "cuda"),
        (["input.size=64"], "recipe.data.sites.A", "64"),
        (["--on", "pigeon"], "--on", "pigeon"),
        (["rounds"], "rounds", "key=value"),
        (["data.sites.C=synth: NoSuch"], "recipe.data.sites.C", "NoSuch"),
        (["data.sites.C=synth: O species=paper"], "recipe.data.sites.C", "paper"),
        (["data.sites.C=synth: O subjects=100000000"], "recipe.data.sites.C", "100,000"),
        (["data.sites.C=synth: O size=64"], "recipe.data.sites.C", "64"),
        (["data.sites.C=sets/no only: attacks=paper=1 x"], "recipe.data.sites.C", "'x'"),
        (["data.sites.C=/nowhere"], "recipe.data.sites.C", "/nowhere"),
        (["training.start=/nowhere.safetensors"], "recipe.training.start", "/nowhere.safetensors"),
    ],
)
def test_user_errors_have_no_traceback(
    command: Command, recipe_file: Path, tmp_path: Path, words: list[str], place: str, keyword: str
) -> None:
    check_refused(command("run", recipe_file, *words, "--out", tmp_path / "run"), place, keyword)


@pytest.mark.parametrize(
    ("words", "verb", "missing"),
    [
        (["run"], "run", "RECIPE"),
        (["export", "runs/first"], "export", "DIR"),
        (["compare"], "compare", "RUNS"),
        (["data", "import"], "data import", "KIND"),
    ],
)
def test_missing_argument_is_named_as_in_usage(command: Command, words: list[str], verb: str, missing: str) -> None:
    code, _, err = command(*words)
    assert (code, err) == (2, f"fedvisage: Missing argument '{missing}'; try: fedvisage {verb} -h\n")


def test_errors_keep_urls_and_name_exports(command: Command, tmp_path: Path) -> None:
    assert "https://example.org/a.jpg: does not exist" in command("predict", tmp_path, "https://example.org/a.jpg")[2]
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    check_refused(command("predict", tmp_path / "empty", tmp_path / "a.png"), "model.json", "run", "export")


@pytest.mark.parametrize(("verb", "default"), [("run", "runs/RECIPE-seedSEED"), ("study", "runs/STUDY")])
def test_help_shows_the_default_directory(command: Command, verb: str, default: str) -> None:
    assert default in "".join(command(verb, "-h")[1].split())


@pytest.mark.parametrize("words", [["export", "nowhere", "out"], ["compare", "nowhere"]])
def test_missing_run_is_named(command: Command, words: list[str]) -> None:
    check_refused(command(*words), "nowhere", "directory not found")


def test_evaluate_repeats_the_figures_of_the_run(command: Command, finished_run: Path) -> None:
    code, out, _ = command("evaluate", finished_run, "--json")
    again, first = json.loads(out), json.loads((finished_run / "metrics.json").read_text())
    assert code == 0
    for key in ("hter", "eer", "auc", "threshold", "apcer.print", "apcer.replay"):
        assert again[key] == first[key]


def test_evaluate_uses_the_stored_threshold_on_other_data(
    command: Command, finished_run: Path, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    code, _, err = command("evaluate", finished_run, "--data", sets["A"], "--out", tmp_path / "evaluated")
    assert code == 2
    assert "--allow-overlap" in err
    code, out, err = command(
        "evaluate", finished_run, "--data", sets["A"], "--out", tmp_path / "evaluated", "--allow-overlap"
    )
    metrics = json.loads((tmp_path / "evaluated" / "metrics.json").read_text())
    assert code == 0
    assert metrics["threshold"] == json.loads((finished_run / "metrics.json").read_text())["threshold"]
    assert len((tmp_path / "evaluated" / "scores.csv").read_text().splitlines()) == 1 + len(PreparedSet.open(sets["A"]))
    assert "at target A" in out
    assert "36 of 36 pictures with site A" in err


def test_evaluate_adapts_and_reports_the_outcome(command: Command, finished_run: Path, tmp_path: Path) -> None:
    code, out, _ = command("evaluate", finished_run, "--adapt", "paper", "--out", tmp_path / "adapted")
    assert code == 0
    assert "adaptation of model: 36 images adapted to" in out
    adapted, plain = ((path / "scores.csv").read_text() for path in (tmp_path / "adapted", finished_run))
    assert adapted != plain
    code, _, _ = command("evaluate", finished_run, "--adapt", "none", "--out", tmp_path / "plain")
    assert code == 0
    assert (tmp_path / "plain" / "scores.csv").read_text() == plain


def test_unknown_adaptation_is_named(command: Command, finished_run: Path) -> None:
    check_refused(command("evaluate", finished_run, "--adapt", "tent"), "recipe.evaluation.adapt", "'tent'", "episodic")


def test_evaluate_refuses_to_overwrite_a_run(command: Command, finished_run: Path) -> None:
    before = (finished_run / "metrics.json").read_bytes()
    check_refused(command("evaluate", finished_run, "--out", finished_run), finished_run, "empty")
    assert (finished_run / "metrics.json").read_bytes() == before


def test_unwritable_output_is_named_without_a_traceback(command: Command, recipe_file: Path) -> None:
    check_refused(command("run", recipe_file, "--out", "/proc/nowhere/run"), "/proc/nowhere")


def test_predict_gives_the_score_of_the_run_and_its_operating_point(
    command: Command, finished_run: Path, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    target = PreparedSet.open(sets["U"])
    Image.fromarray(np.asarray(target.images[0])).save(tmp_path / "face.png")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    code, out, _ = command("predict", finished_run, tmp_path, "--crop", "none", "--json")
    answer = {Path(row["path"]).name: row for row in json.loads(out)["images"]}
    first = (finished_run / "scores.csv").read_text().splitlines()[1].split(",")
    assert code == 0
    assert answer["face.png"]["logit"] == pytest.approx(float(first[-2]), abs=1e-4)
    assert (answer["face.png"]["logit"] >= json.loads(out)["threshold"]["logit"]) == (
        answer["face.png"]["decision"] == "live"
    )
    assert answer["broken.jpg"]["decision"] == "rejected"
    assert answer["broken.jpg"]["reason"]
    assert "chosen by source-eer" in command("predict", finished_run, tmp_path, "--crop", "none")[1]


def test_methods_lists_the_values_that_leave_a_site(command: Command) -> None:
    code, out, _ = command("methods", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    fields = {field["field"]: field["kind"] for field in rows["fedpad"]["leaves_a_site"]}
    assert code == 0
    statistics = ("examples", "loss", "histogram", "scatter", "by_type", "people")
    assert fields == {"weights": "weights"} | dict.fromkeys(statistics, "statistic")
    assert rows["pooled"]["simulation_only"]
    assert {name: bool(rows[name]["sees_in_secure_sums"]) for name in ("fedpad", "fedsis", "afl", "pooled")} == {
        "fedpad": True,
        "fedsis": False,
        "afl": False,
        "pooled": False,
    }
    assert "leaves a site  weights (weights): model" in command("methods", "fedpad")[1]
    assert [row["name"] for row in json.loads(command("methods", "fedpad", "--json")[1])] == ["fedpad"]


def test_methods_lists_one_line_per_method_with_advice(command: Command) -> None:
    code, out, _ = command("methods")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert code == 0
    assert lines.keys() == METHODS.keys()
    assert all(line.endswith(METHODS[name].advice) for name, line in lines.items())
    assert f"when to use    {METHODS['fedpad'].advice}" in command("methods", "fedpad")[1]
    code, _, err = command("methods", "fedpaad")
    assert (code, err) == (2, "fedvisage: methods: unknown method 'fedpaad'; did you mean fedpad?\n")


@pytest.mark.parametrize(
    "option",
    ["--address=a:1", "--gpus-per-worker=0.5", "--gpus-per-run=0.5", "--copy-data", "--allow-different-machines"],
)
def test_option_of_a_cluster_without_ray_is_named(command: Command, option: str) -> None:
    start = ("study", "studies/table3-demo") if "run" in option else ("run", "demo/fedpad")
    code, _, err = command(*start, option)
    assert (code, err) == (2, f"fedvisage: {option.partition('=')[0]}: belongs to a Ray cluster; add --on ray\n")


def test_help_lists_every_command_in_one_of_five_sections(command: Command) -> None:
    code, out, _ = command("-h")
    sections = dict(re.findall(r"^([A-Z][a-z ]+):\n((?:  .*\n)+)", out, flags=re.MULTILINE))
    assert code == 0
    assert list(sections) == ["Options", *cli.PANELS]
    for title, verbs in cli.PANELS.items():
        assert re.findall(r"^  (\S+)", sections[title], flags=re.MULTILINE) == list(verbs)


@pytest.mark.parametrize("words", [("run",), ("data",), ("data", "import"), ("gallery", "create"), ("methods",)])
def test_short_help_option_works_for_every_command(command: Command, words: tuple[str, ...]) -> None:
    code, out, _ = command(*words, "-h")
    assert code == 0
    assert f"fedvisage {' '.join(words)} " in out.splitlines()[0]
    assert out == command(*words, "--help")[1]


def test_synth_import_and_show_work_together(command: Command, tmp_path: Path) -> None:
    code, out, _ = command(
        "data", "synth", tmp_path / "O", "--domain", "O", "--size", 32, "--subjects", 3, "--frames", 1, "--workers", 1
    )
    assert code == 0
    assert "30 images of 32×32" in out
    synthesised = PreparedSet.open(tmp_path / "O")
    for index in range(len(synthesised)):
        kind, subject = str(synthesised.rows.species[index]), str(synthesised.rows.subject[index])
        folder = tmp_path / "raw" / ("real" if kind == "bonafide" else f"attack/{kind}") / subject
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(synthesised.images[index])).save(folder / f"{index}.png")
    code, out, _ = command(
        "data", "import", "folder", tmp_path / "raw", tmp_path / "again", "--size", 32, "--crop", "none"
    )
    assert code == 0
    assert f"{len(synthesised)} images of 3 subjects" in out
    code, _, _ = command("data", "show", tmp_path / "again", "--sheet", tmp_path / "sheet.png", "--verify")
    assert code == 0
    assert Image.open(tmp_path / "sheet.png").size[0] > 100


def test_import_of_missing_depth_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "raw/real").mkdir(parents=True)
    arguments = ("data", "import", "folder", tmp_path / "raw", tmp_path / "set", "--crop", "none", "--depth")
    for choice, keyword in (("canonical", "crop=none"), ("nowhere", "'nowhere'")):
        check_refused(command(*arguments, choice), "depth", keyword)


def test_compare_and_report_read_finished_runs(command: Command, finished_run: Path) -> None:
    code, out, _ = command("compare", finished_run)
    assert code == 0
    assert "fedpad" in out.lower()
    assert "| --- |" not in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = command("compare", finished_run, "--markdown")
    assert code == 0
    assert "| --- |" in out
    (finished_run / "report.html").unlink()
    assert command("report", finished_run)[0] == 0
    assert all(site in (finished_run / "report.html").read_text() for site in SITES)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (["run", "RECIPE", "training.rounds=0"], "recipe.training.rounds"),
        (["run", "RECIPE", "--ot", "run"], "--ot"),
        (["data", "import", "folder", ".", "set", "--workers", "9999"], "256"),
    ],
)
def test_json_progress_prints_errors_as_one_object(
    words: list[str], keyword: str, command: Command, recipe_file: Path
) -> None:
    words = [str(recipe_file) if word == "RECIPE" else word for word in words]
    code, out, err = command(*words, "--log-format", "json")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    error = json.loads(err)
    assert (error["event"], error["code"]) == ("error", 2)
    assert keyword in error["message"]


INTERRUPT_AT_IMPORT = """
import runpy, signal, sys
module = sys.argv.pop(1)

def interrupt(event, arguments):
    if event == "import" and arguments[0] == module:
        signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
sys.addaudithook(interrupt)
runpy.run_module("fedvisage", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["typer", "fedvisage.recipe"])
def test_ctrl_c_while_modules_load_prints_one_line(module: str, recipe_file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPT_AT_IMPORT, module, "run", str(recipe_file), "--out", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (130, "")
    assert re.fullmatch("fedvisage: interrupted\n", process.stderr)


def test_an_interrupted_run_can_be_resumed(
    command: Command, recipe_file: Path, tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Reporter, "advance", _interrupt)
        code, _, err = command("run", recipe_file, "--out", tmp_path / "run")
    assert code == 130
    assert "--resume" in err
    code, _, err = command("run", recipe_file, "--out", tmp_path / "run", "--resume")
    assert code == 0
    assert "new run" not in err
    assert deterministic_files(tmp_path / "run") == deterministic_files(finished_run)


@pytest.mark.long
def test_resume_in_an_empty_directory_starts_the_run_and_prints_it(
    command: Command, recipe_file: Path, tmp_path: Path
) -> None:
    code, out, _ = command("run", recipe_file, "training.rounds=1", "--out", tmp_path / "typo", "--resume")
    assert code == 0
    assert "contains no run to resume, so a new run starts there" in " ".join(out.split())
    assert (tmp_path / "typo" / "metrics.json").exists()


@pytest.mark.parametrize("verb", ["report", "audit"])
@pytest.mark.parametrize(("place", "keyword"), [("missing", "not found"), ("photographs", "no run")])
def test_directory_without_a_run_is_named(
    verb: str, place: str, keyword: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs" / "face.jpg").write_bytes(b"")
    code, out, err = command(verb, tmp_path / place)
    assert (code, out) == (2, "")
    check_output(err, tmp_path / place, keyword, "give the directory")
    assert "--resume" not in err


@pytest.mark.parametrize(
    ("subjects", "change", "place", "keyword"),
    [
        (2, "data.target=synth: X", "recipe.data.target", "'X'"),
        (1, "training.rounds=1", "recipe.data.sites.A", "subjects=2"),
    ],
)
def test_data_is_checked_before_rendering_or_writing(
    command: Command, recipe_file: Path, tmp_path: Path, subjects: int, change: str, place: str, keyword: str
) -> None:
    small = f"data.sites.A=synth: O subjects={subjects} videos=1 frames=1 size=32"
    words = ("run", recipe_file, small, change, "--out", tmp_path / "run")
    check_refused(command(*words, "--cache", tmp_path / "cache"), place, keyword)
    assert not list(tmp_path.iterdir())


def test_recognition_method_is_refused_for_detection(command: Command, recipe_file: Path, tmp_path: Path) -> None:
    changes = ("method={name: fedfr}", "input.colour=rgb+hsv")
    check_refused(
        command("run", recipe_file, *changes, "--out", tmp_path / "run"),
        "recipe.input.colour",
        "fedfr",
        "method of recognition",
        "fedvisage methods",
    )


@pytest.mark.parametrize(
    ("name", "content", "keyword"),
    [
        ("weights.pt", b"PK\3\4 torch", "PyTorch"),
        ("weights", b"\x80\2 pickled", "PyTorch"),
        ("weights.bin", b"whatever", "PyTorch"),
        ("weights.onnx", b"\x08\x07", "ONNX"),
        ("weights.safetensors", b"whatever else", "safetensors"),
    ],
)
def test_weights_in_another_format_name_the_conversion(
    command: Command, recipe_file: Path, tmp_path: Path, name: str, content: bytes, keyword: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    result = command("run", recipe_file, f"training.start={path}", "--out", tmp_path / "run")
    check_refused(result, "recipe.training.start", str(path), keyword)
    assert "docs/starts.md" in result[2] or "safetensors" in name
    assert not (tmp_path / "run").exists()


def test_output_without_a_name_is_refused(command: Command, recipe_file: Path) -> None:
    code, _, err = command("run", recipe_file, "--out", "")
    assert code == 2
    assert err.startswith("fedvisage: --out: ")


def test_sigterm_handler_of_the_caller_is_restored(command: Command) -> None:
    before = signal.getsignal(signal.SIGTERM)
    command("report", "/nope")
    assert signal.getsignal(signal.SIGTERM) is before


def test_quality_options_have_the_defaults_of_the_pipeline() -> None:
    assert asdict(QualityOptions()).items() <= asdict(Settings()).items()


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("--rounds", "training.rounds=VALUE"),
        ("--training.rounds", "training.rounds=VALUE"),
        ("--quorum", "federation.quorum=VALUE"),
        ("--set", "KEY=VALUE"),
    ],
)
def test_recipe_key_as_option_suggests_an_override(command: Command, option: str, remedy: str) -> None:
    code, _, error = command("run", "demo/fedpad", option, "3")
    check_output(error, option, "not an option")
    assert (code, remedy in error) == (2, True), error


def test_unknown_option_keeps_the_usual_error(command: Command) -> None:
    code, _, error = command("run", "demo/fedpad", "--resum")
    assert (code, "--resume" in error) == (2, True)


def test_list_of_shipped_recipes_is_filtered_by_a_text(command: Command) -> None:
    everything, demo = (json.loads(command("recipes", *words, "--json")[1]) for words in ((), ("DEMO",)))
    assert 0 < len(demo) < len(everything)
    assert all("demo" in f"{entry['name']} {entry['title']}".lower() for entry in demo)
    assert command("recipes", "list", "demo")[1] == command("recipes", "demo")[1]
    check_refused(command("recipes", "nothing-like-it"), "nothing-like-it", "fedvisage recipes")


def test_status_takes_the_kit_like_other_commands(command: Command, tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    earlier, now = (command("status", *words, tmp_path / "kit") for words in ((), ("--kit",)))
    assert earlier == now
    check_output(now[2], "kit", "kit")
    check_refused(command("status"), "--kit", "missing")
