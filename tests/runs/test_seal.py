"""The seal of a finished run: five commands and the Python API refuse a run with a foreign file."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.refusals import Command, refused
from tests.toy import Sets, remove_seal, run_toy, tree

import fedvisage as fv

Change = Callable[[Path, Path], None]
Call = Callable[[str, Path], tuple[int, str]]
VERBS = ("report", "compare", "evaluate", "export", "audit")


@pytest.fixture(scope="module")
def runs(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs that differ in their seed."""
    place = tmp_path_factory.mktemp("sealed")
    for seed, name in enumerate(("a", "b")):
        run_toy(tree(sets, runtime__seed=seed, evaluation__features=20), place / name)
    return place


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(runs / "a", tmp_path / "a")


@pytest.fixture
def call(command: Command) -> Call:
    """Call a verb on a run; return its exit code and what it printed to standard error."""

    def run(verb: str, run: Path) -> tuple[int, str]:
        cache = [] if verb == "compare" else ["--cache", str(run.parent / "cache")]
        code, _, error = command(verb, str(run), *([str(run.parent / "export")] if verb == "export" else []), *cache)
        return code, error

    return run


def take_other(*names: str) -> Change:
    """Return a change that takes files of the other run."""

    def change(run: Path, another: Path) -> None:
        for name in names:
            shutil.copyfile(another / name, run / name)

    return change


def remove(name: str) -> Change:
    return lambda run, _: (run / name).unlink()


def shorten(name: str, lines: int) -> Change:
    """Return a change that keeps only the first lines of a file."""

    def change(run: Path, _: Path) -> None:
        (run / name).write_text("".join((run / name).read_text().splitlines(keepends=True)[:lines]))

    return change


def edit(name: str, old: str, new: str) -> Change:
    def change(run: Path, _: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return change


def write(name: str, text: str) -> Change:
    def change(run: Path, _: Path) -> None:
        (run / name).write_text(text)

    return change


CHANGES: dict[str, tuple[str, Change]] = {
    "a shortened ledger": ("ledger.jsonl", shorten("ledger.jsonl", 20)),
    "shortened rounds": ("rounds.jsonl", shorten("rounds.jsonl", 2)),
    "no ledger": ("ledger.jsonl", remove("ledger.jsonl")),
    "scores of another run": ("scores.csv", take_other("scores.csv")),
    "no scores": ("scores.csv", remove("scores.csv")),
    "metrics of another run": ("metrics.json", take_other("metrics.json")),
    "empty metrics": ("metrics.json", write("metrics.json", "{}")),
    "an edited recipe": ("recipe.yaml", edit("recipe.yaml", "rounds: 3", "rounds: 9")),
    "no recipe": ("recipe.yaml", remove("recipe.yaml")),
    "weights of another run": ("model.safetensors", take_other("model.safetensors")),
    "a whole model of another run": ("model.safetensors", take_other("model.safetensors", "model.json")),
    "another threshold": ("model.json", edit("model.json", '"logit": ', '"logit": 1')),
    "counts of another run": ("heldout.safetensors", take_other("heldout.safetensors")),
    "features of another run": ("features.safetensors", take_other("features.safetensors")),
    "edited digests of the data": ("data.json", edit("data.json", "data.target", "data.targets")),
    "an additional file": ("start.json", write("start.json", "{}")),
    "the seal of another run": ("seal.json", take_other("seal.json")),
    "an edited seal": ("seal.json", edit("seal.json", '"bytes": ', '"bytes": 1')),
    "no seal": ("seal.json", remove("seal.json")),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", CHANGES)
def test_command_names_the_foreign_file(what: str, verb: str, run: Path, runs: Path, call: Call) -> None:
    name, change = CHANGES[what]
    before = (run / "report.html").exists()
    change(run, runs / "b")
    code, error = call(verb, run)
    assert (code, len(error.splitlines())) == (2, 1), error
    assert str(run / name) in error
    assert any(remedy in error for remedy in ("restore", "remove"))
    assert (run / "report.html").exists() == before


@pytest.mark.parametrize("what", CHANGES)
def test_python_api_names_the_foreign_file(what: str, run: Path, runs: Path) -> None:
    name, change = CHANGES[what]
    change(run, runs / "b")
    for call in (fv.open, fv.evaluate, lambda run: fv.compare([run])):
        with refused(run / name):
            call(run)


def test_all_foreign_files_are_named(run: Path, runs: Path) -> None:
    take_other("scores.csv", "ledger.jsonl")(run, runs / "b")
    with refused("ledger.jsonl", "seal.json", "scores.csv"):
        fv.open(run)


def test_truncated_file_is_reported_with_its_size(run: Path) -> None:
    size = (run / "model.safetensors").stat().st_size
    with (run / "model.safetensors").open("r+b") as file:
        file.truncate(size - 4)
    with refused("model.safetensors", f"{size - 4:,} bytes", f"{size:,}"):
        fv.open(run)


@pytest.mark.long
@pytest.mark.parametrize("verb", ["report", "compare", "evaluate"])
def test_unchanged_run_is_accepted(verb: str, run: Path, call: Call) -> None:
    assert call(verb, run) == (0, "")
    assert call(verb, run) == (0, "")  # also with its report


def test_seal_has_the_digest_of_every_file_and_of_the_chain(run: Path) -> None:
    seal = json.loads((run / "seal.json").read_text())
    not_sealed = {"seal.json", "report.html", "checkpoints", "sites", "tensorboard"}
    assert seal["files"].keys() == {path.name for path in run.iterdir() if path.name[0] != "."} - not_sealed
    link = "fedvisage run 1"
    for name in sorted(seal["files"]):
        data, entry = (run / name).read_bytes(), seal["files"][name]
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        link = hashlib.sha256(f"{link}\n{name}\n{len(data)}\n{entry['sha256']}".encode()).hexdigest()
    assert seal["chain"] == link


@pytest.mark.long
def test_resume_finishes_a_run_without_metrics(run: Path, sets: Sets, call: Call) -> None:
    (run / "metrics.json").unlink()
    assert "not finished" in call("report", run)[1]
    run_toy(tree(sets, evaluation__features=20), run, resume=True)
    assert call("report", run) == (0, "")
    assert "left the sites before an interruption" in (run / "report.html").read_text()


def test_output_of_evaluate_is_sealed(run: Path, sets: Sets, tmp_path: Path, call: Call) -> None:
    fv.evaluate(run, str(sets["A"]), out=tmp_path / "evaluated", allow_overlap=True)
    assert call("compare", tmp_path / "evaluated")[0] == 0
    shutil.copyfile(run / "scores.csv", tmp_path / "evaluated" / "scores.csv")
    assert str(tmp_path / "evaluated" / "scores.csv") in call("compare", tmp_path / "evaluated")[1]


@pytest.mark.long
def test_audit_of_another_run_is_refused(run: Path, runs: Path, call: Call) -> None:
    def report_audit(of: Path) -> str:
        chain = json.loads((of / "seal.json").read_text())["chain"]
        (run / "audit").mkdir(exist_ok=True)
        (run / "audit" / "audit.json").write_text(json.dumps({"run": "a", "seal": chain, "audits": []}))
        return call("report", run)[1]

    assert str(run / "audit" / "audit.json") in report_audit(runs / "b")
    assert report_audit(runs / "a") == ""


@pytest.mark.long
def test_run_without_a_seal_opens_and_its_report_states_it(run: Path, call: Call) -> None:
    remove_seal(run)
    for verb in ("report", "compare", "evaluate"):
        assert call(verb, run) == (0, "")
    assert "This run has no seal.json" in (run / "report.html").read_text()


def test_metrics_without_a_method_are_refused_without_a_seal(run: Path, call: Call) -> None:
    remove_seal(run)
    (run / "metrics.json").write_text("{}")
    code, error = call("report", run)
    assert (code, len(error.splitlines())) == (2, 1)
    assert str(run / "metrics.json") in error
