"""The files of a finished run belong together: five verbs and the Python door refuse a run with a foreign file."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.refusals import refused
from tests.toy import remove_seal, run_toy, tree

import fedvisage as fv
from fedvisage import cli

Change = Callable[[Path, Path], None]
VERBS = ("report", "compare", "evaluate", "export", "audit")


@pytest.fixture(scope="module")
def runs(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs that differ in their seed."""
    place = tmp_path_factory.mktemp("sealed")
    for seed, name in enumerate(("a", "b")):
        run_toy(tree(sets, runtime__seed=seed, evaluation__features=20), place / name)
    return place


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(runs / "a", tmp_path / "a")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str, Path], tuple[int, str]]:
    """Call a verb on a run; return its exit code and what it printed to standard error."""

    def run(verb: str, run: Path) -> tuple[int, str]:
        cache = [] if verb == "compare" else ["--cache", str(run.parent / "cache")]
        words = [verb, str(run), *([str(run.parent / "export")] if verb == "export" else []), *cache]
        monkeypatch.setattr("sys.argv", ["fedvisage", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def other(*names: str) -> Change:
    """Return a change that takes files of the other run."""

    def change(run: Path, another: Path) -> None:
        for name in names:
            shutil.copyfile(another / name, run / name)

    return change


def removed(name: str) -> Change:
    return lambda run, _: (run / name).unlink()


def kept(name: str, lines: int) -> Change:
    """Return a change that keeps the first lines of a file."""

    def change(run: Path, _: Path) -> None:
        (run / name).write_text("".join((run / name).read_text().splitlines(keepends=True)[:lines]))

    return change


def replaced(name: str, old: str, new: str) -> Change:
    def change(run: Path, _: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return change


def written(name: str, text: str) -> Change:
    def change(run: Path, _: Path) -> None:
        (run / name).write_text(text)

    return change


CHANGES: dict[str, tuple[str, Change]] = {
    "a shortened ledger": ("ledger.jsonl", kept("ledger.jsonl", 20)),
    "shortened rounds": ("rounds.jsonl", kept("rounds.jsonl", 2)),
    "no ledger": ("ledger.jsonl", removed("ledger.jsonl")),
    "scores of another run": ("scores.csv", other("scores.csv")),
    "no scores": ("scores.csv", removed("scores.csv")),
    "figures of another run": ("metrics.json", other("metrics.json")),
    "no figures in the file": ("metrics.json", written("metrics.json", "{}")),
    "an edited recipe": ("recipe.yaml", replaced("recipe.yaml", "rounds: 3", "rounds: 9")),
    "no recipe": ("recipe.yaml", removed("recipe.yaml")),
    "weights of another run": ("model.safetensors", other("model.safetensors")),
    "a whole model of another run": ("model.safetensors", other("model.safetensors", "model.json")),
    "another threshold": ("model.json", replaced("model.json", '"logit": ', '"logit": 1')),
    "counts of another run": ("heldout.safetensors", other("heldout.safetensors")),
    "features of another run": ("features.safetensors", other("features.safetensors")),
    "edited digests of the data": ("data.json", replaced("data.json", "data.target", "data.targets")),
    "a file that the run has not": ("start.json", written("start.json", "{}")),
    "the seal of another run": ("seal.json", other("seal.json")),
    "an edited seal": ("seal.json", replaced("seal.json", '"bytes": ', '"bytes": 1')),
    "no seal": ("seal.json", removed("seal.json")),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", CHANGES)
def test_a_verb_names_the_file_that_is_not_of_the_run(
    what: str, verb: str, run: Path, runs: Path, call: Callable[[str, Path], tuple[int, str]]
) -> None:
    name, change = CHANGES[what]
    before = (run / "report.html").exists()
    change(run, runs / "b")
    code, said = call(verb, run)
    assert (code, len(said.splitlines())) == (2, 1), said
    assert str(run / name) in said
    assert any(remedy in said for remedy in ("restore", "remove"))
    assert (run / "report.html").exists() == before


@pytest.mark.parametrize("what", CHANGES)
def test_the_python_door_names_the_file_too(what: str, run: Path, runs: Path) -> None:
    name, change = CHANGES[what]
    change(run, runs / "b")
    for take in (fv.open, fv.evaluate, lambda run: fv.compare([run])):
        with refused(run / name):
            take(run)


def test_all_files_that_do_not_belong_to_the_run_are_named(run: Path, runs: Path) -> None:
    other("scores.csv", "ledger.jsonl")(run, runs / "b")
    with refused("ledger.jsonl", "seal.json", "scores.csv"):
        fv.open(run)


def test_a_cut_file_is_told_by_its_size(run: Path) -> None:
    size = (run / "model.safetensors").stat().st_size
    with (run / "model.safetensors").open("r+b") as file:
        file.truncate(size - 4)
    with refused("model.safetensors", f"{size - 4:,} bytes", f"{size:,}"):
        fv.open(run)


@pytest.mark.parametrize("verb", ["report", "compare", "evaluate"])
def test_the_run_itself_passes(verb: str, run: Path, call: Callable[[str, Path], tuple[int, str]]) -> None:
    assert call(verb, run) == (0, "")
    assert call(verb, run) == (0, "")  # also when its report lies there


def test_the_seal_has_the_digest_of_every_file_and_of_the_chain(run: Path) -> None:
    seal = json.loads((run / "seal.json").read_text())
    remove_seal = {"seal.json", "report.html", "checkpoints", "sites", "tensorboard"}
    assert seal["files"].keys() == {path.name for path in run.iterdir() if path.name[0] != "."} - remove_seal
    link = "fedvisage run 1"
    for name in sorted(seal["files"]):
        data, entry = (run / name).read_bytes(), seal["files"][name]
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        link = hashlib.sha256(f"{link}\n{name}\n{len(data)}\n{entry['sha256']}".encode()).hexdigest()
    assert seal["chain"] == link


def test_a_run_that_was_killed_before_its_figures_were_written_is_finished_by_a_resume(
    run: Path, sets: Mapping[str, Path], call: Callable[[str, Path], tuple[int, str]]
) -> None:
    (run / "metrics.json").unlink()
    assert "not finished" in call("report", run)[1]
    run_toy(tree(sets, evaluation__features=20), run, resume=True)
    assert call("report", run) == (0, "")
    assert "left the sites before an interruption" in (run / "report.html").read_text()


def test_what_evaluate_writes_is_sealed_as_well(
    run: Path, sets: Mapping[str, Path], tmp_path: Path, call: Callable[[str, Path], tuple[int, str]]
) -> None:
    fv.evaluate(run, str(sets["A"]), out=tmp_path / "judged", allow_overlap=True)
    assert call("compare", tmp_path / "judged")[0] == 0
    shutil.copyfile(run / "scores.csv", tmp_path / "judged" / "scores.csv")
    assert str(tmp_path / "judged" / "scores.csv") in call("compare", tmp_path / "judged")[1]


def test_an_audit_of_another_run_is_refused(
    run: Path, runs: Path, call: Callable[[str, Path], tuple[int, str]]
) -> None:
    def audited(by: Path) -> str:
        chain = json.loads((by / "seal.json").read_text())["chain"]
        (run / "audit").mkdir(exist_ok=True)
        (run / "audit" / "audit.json").write_text(json.dumps({"run": "a", "seal": chain, "audits": []}))
        return call("report", run)[1]

    assert str(run / "audit" / "audit.json") in audited(runs / "b")
    assert audited(runs / "a") == ""


def test_a_run_of_an_earlier_version_opens_and_its_report_says_that_it_has_no_seal(
    run: Path, call: Callable[[str, Path], tuple[int, str]]
) -> None:
    remove_seal(run)
    for verb in ("report", "compare", "evaluate"):
        assert call(verb, run) == (0, "")
    assert "This run has no seal.json" in (run / "report.html").read_text()


def test_figures_without_a_method_are_refused_without_a_seal_too(
    run: Path, call: Callable[[str, Path], tuple[int, str]]
) -> None:
    remove_seal(run)
    (run / "metrics.json").write_text("{}")
    code, said = call("report", run)
    assert (code, len(said.splitlines())) == (2, 1)
    assert str(run / "metrics.json") in said
