"""The directory of a run, its refusals, and the options around training."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save
from tests.methods.interrupting import InterruptingReporter
from tests.refusals import failed, refused
from tests.runs.linear_detector import linear_detector
from tests.toy import (
    ROUNDS,
    SITES,
    NewRun,
    Sets,
    deterministic_files,
    make_set,
    quiet_reporter,
    recipe_of,
    run_toy,
    sent_once,
    tree,
    weights,
)

import fedvisage as fv
from fedvisage.base.errors import RunFailed, UserError
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.store import CHECKPOINTS, read_sealed, write_sealed
from fedvisage.methods import METHODS
from fedvisage.nn.compute import resolve_compute
from fedvisage.report.page import write_report
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.runs.train import adoption
from fedvisage.tasks.heldout_counts import read_counts
from fedvisage.tasks.scoring import Scorer


@pytest.fixture(scope="module")
def finished_run(sets: Sets, new_run: NewRun) -> Path:
    return new_run(tree(sets, training__rounds=5, evaluation__keep="best"))


def test_finished_run_is_recognised_although_its_recipe_lacks_newer_keys(
    finished_run: Path, sets: Sets, tmp_path: Path
) -> None:
    shutil.copytree(finished_run, tmp_path / "older")
    recorded = yaml.safe_load((finished_run / "recipe.yaml").read_text())
    del recorded["federation"]["combine"], recorded["federation"]["secure"]
    (tmp_path / "older" / "recipe.yaml").write_text(yaml.safe_dump(recorded))
    content = tree(sets, training__rounds=5, evaluation__keep="best")
    assert run_toy(content, tmp_path / "older", resume=True) == json.loads((finished_run / "metrics.json").read_text())
    content["federation"] = {"combine": "median"}
    with refused("older", "recipe", "--out"):
        run_toy(content, tmp_path / "older", resume=True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedavg", "of-my-own"])
def test_resuming_a_finished_run_does_not_open_its_public_set(name: str, sets: Sets, tmp_path: Path) -> None:
    public = Path(shutil.copytree(sets["A"].parent / "people-P", tmp_path / "public"))
    content = tree(sets, "fedavg", training__rounds=1)
    content["data"] |= {"public": str(public), "public_identities": None}
    content["method"]["name"] = name
    method = None if name in METHODS else replace(METHODS["fedavg"], name=name)
    metrics = run_toy(content, tmp_path / "run", method=method)
    shutil.rmtree(public)
    assert run_toy(content, tmp_path / "run", method=method, resume=True) == metrics


def test_finished_run_has_the_documented_files_and_metrics(finished_run: Path) -> None:
    files = {path.name for path in finished_run.iterdir() if not path.name.startswith(".")}
    assert files >= {"recipe.yaml", "environment.json", "rounds.jsonl", "ledger.jsonl", "checkpoints", "metrics.json"}
    assert files >= {"model.safetensors", "model.json", "scores.csv"}
    metrics = json.loads((finished_run / "metrics.json").read_text())
    named = "method task sites target seed rounds threshold_rule threshold hter eer auc tpr_at_fpr_1pct bpcer acer"
    assert set(metrics) >= {*named.split(), "bytes_up", "bytes_down", "seconds", "peak_rss_mb"}
    assert {name for name in metrics if name.startswith("apcer.")} == {"apcer.print", "apcer.replay"}
    assert len(list((finished_run / "checkpoints").iterdir())) == 2


def test_rounds_record_losses_sites_and_bytes(finished_run: Path) -> None:
    rounds, metrics = read_lines(finished_run / "rounds.jsonl"), json.loads((finished_run / "metrics.json").read_text())
    assert [row["round"] for row in rounds] == [1, 2, 3, 4, 5]
    for row in rounds:
        assert set(row["loss"]) == {"A", "B", "C"}
        assert row["asked"] == row["replied"] == ["A", "B", "C"]
    lines = read_lines(finished_run / "ledger.jsonl")
    last = lines[-18:]  # per site: one histogram, and scatter with counts by type and people; and the model twice
    rest = sum(line["bytes"] for line in last if line["direction"] == "up")
    assert sum(row["bytes_up"] for row in rounds) + rest == metrics["bytes_up"]


@pytest.mark.long
def test_best_round_is_chosen_by_the_sites_held_out_error(finished_run: Path, sets: Sets, tmp_path: Path) -> None:
    errors = [row["heldout"]["eer"] for row in read_lines(finished_run / "rounds.jsonl")]
    best = errors.index(min(errors)) + 1
    run_toy(tree(sets, training__rounds=best), tmp_path / "until-best")
    assert weights(finished_run) == weights(tmp_path / "until-best")


@pytest.mark.long
def test_checkpoint_interval_does_not_change_the_result(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, runtime__checkpoint_every=2), tmp_path / "seldom")
    run_toy(tree(sets), tmp_path / "always")
    names = ("model.safetensors", "ledger.jsonl", "scores.csv")
    assert deterministic_files(tmp_path / "seldom", names=names) == deterministic_files(
        tmp_path / "always", names=names
    )
    assert sorted(path.stem for path in (tmp_path / "seldom" / "checkpoints").iterdir()) == ["000002", "000003"]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"evaluation__keep": "best", "training__early_stop": {"patience": 2}}])
def test_run_interrupted_after_every_round_resumes_to_the_same_bytes(
    options: dict[str, Any], sets: Sets, tmp_path: Path
) -> None:
    content = tree(sets, training__rounds=5, **options)
    run_toy(content, tmp_path / "whole")
    for number in range(2, len(read_lines(tmp_path / "whole" / "rounds.jsonl")) + 1):
        with pytest.raises(KeyboardInterrupt):
            run_toy(content, tmp_path / "run", resume=True, reporter=InterruptingReporter(number))
    run_toy(content, tmp_path / "run", resume=True)
    assert deterministic_files(tmp_path / "run") == deterministic_files(tmp_path / "whole")


def test_checkpoint_without_one_of_the_sites_is_refused(finished_run: Path, sets: Sets, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    checkpoint = max((tmp_path / "run" / CHECKPOINTS).iterdir())
    tensors, values = read_sealed(checkpoint, "")
    del values["generations"]["B"]
    write_sealed(checkpoint, tensors, values)
    with refused(CHECKPOINTS, "site B", "--out"):
        run_toy(tree(sets, training__rounds=5, evaluation__keep="best"), tmp_path / "run", resume=True)


def test_rounds_without_a_quorum_are_counted_across_interruptions(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__rounds=9, federation={"offline": 1.0, "give_up_after": 3}, evaluation__every=0)
    with pytest.raises(KeyboardInterrupt):
        run_toy(content, tmp_path / "run", reporter=InterruptingReporter(2))
    with failed(RunFailed, "3 rounds", "quorum"):
        run_toy(content, tmp_path / "run", resume=True)
    assert [row["round"] for row in read_lines(tmp_path / "run" / "rounds.jsonl")] == [1, 2]


def test_nonempty_output_directory_is_refused(sets: Sets, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("notes")
    (tmp_path / "file").write_text("x")
    for out, resume, keyword in (
        (finished_run, False, "--resume"),
        (tmp_path / "notes", False, "empty"),
        (tmp_path / "notes", True, "resume"),
        (tmp_path / "file", False, "file"),
    ):
        with refused(out, keyword):
            run_toy(tree(sets), out, resume=resume)


@pytest.mark.long
def test_resume_in_a_missing_or_empty_directory_starts_a_run(sets: Sets, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        assert run_toy(tree(sets, training__rounds=1), tmp_path / name, resume=True)["rounds"] == 1


def test_training_starts_from_the_weights_of_a_file(sets: Sets, finished_run: Path, tmp_path: Path) -> None:
    start = finished_run / "model.safetensors"
    slow: dict[str, Any] = {"training__optimizer": {"lr": 1e-12, "name": "sgd"}, "training__rounds": 1}
    run_toy(tree(sets, training__start=str(start), **slow), tmp_path / "run")
    start_weights, trained = load_file(start), load_file(tmp_path / "run" / "model.safetensors")
    for name, value in start_weights.items():
        if "running" not in name and "num_batches" not in name:
            assert torch.allclose(trained[name], value, atol=1e-6), name


def test_start_weights_of_another_shape_are_refused(sets: Sets, finished_run: Path, tmp_path: Path) -> None:
    content = tree(sets, training__start=str(finished_run / "model.safetensors"))
    content["method"]["network"] = {"width": 16}
    with refused("recipe.training.start", "model.fc.weight", "(1, 64)", "(1, 128)"):
        run_toy(content, tmp_path / "run")


@pytest.mark.long
def test_run_without_a_target_writes_a_model_and_its_threshold(sets: Sets, tmp_path: Path) -> None:
    metrics = run_toy(tree(sets, data__target=None), tmp_path / "run")
    assert metrics["target"] is None
    assert metrics.parts("sites_heldout").keys() == {"A", "B", "C"}
    model = json.loads((tmp_path / "run" / "model.json").read_text())
    assert metrics["threshold"] == model["thresholds"][""]["logit"]
    page = write_report(tmp_path / "run").read_text()
    assert f"Threshold {metrics['threshold']:+.3f} (logit), rule source-eer" in page
    with refused("run", "no scores", "data.target"):
        _ = fv.Run(tmp_path / "run").scores


@pytest.mark.long
def test_run_accepts_batch_sizes_per_site_and_weights_by_examples(sets: Sets, tmp_path: Path) -> None:
    batch = {"default": 8, "per_site": {"B": 4}}
    run_toy(
        tree(sets, training__batch=batch, training__local={"epochs": 1}, method__weight="examples"), tmp_path / "run"
    )
    assert len(read_lines(tmp_path / "run" / "rounds.jsonl")) == ROUNDS


@pytest.mark.long
def test_half_precision_is_deterministic(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, runtime__precision="bf16", training__rounds=2)
    run_toy(content, tmp_path / "one")
    run_toy(content, tmp_path / "two")
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    assert json.loads((tmp_path / "one" / "environment.json").read_text())["precision"] == "bf16"


def test_missing_cuda_device_is_refused(sets: Sets, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with refused("recipe.runtime.device", "CUDA"):
        run_toy(tree(sets, runtime__device="cuda"), tmp_path / "run")


@pytest.mark.long
def test_adopting_members_twice_gives_the_same_files(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "single"), tmp_path / "single")
    recipe, out = recipe_of(tree(sets, "fused")), tmp_path / "fused"
    request = Request(recipe, out, tmp_path, resume=True, training=adoption(tmp_path / "single"))
    run(request, quiet_reporter())
    first = (out / "ledger.jsonl").read_bytes()
    lines = len(first.splitlines())
    (out / "metrics.json").unlink()  # like a run that was killed just before its end
    run(request, quiet_reporter())
    assert sent_once(out) == first
    assert len((out / "ledger.jsonl").read_bytes().splitlines()) == 2 * lines
    run_toy(tree(sets, "fused"), tmp_path / "trained")
    assert weights(out) == weights(tmp_path / "trained")
    assert (out / "scores.csv").read_bytes() == (tmp_path / "trained" / "scores.csv").read_bytes()


@pytest.mark.long
def test_members_trained_with_other_settings_are_not_adopted(sets: Sets, tmp_path: Path) -> None:
    """At this learning rate errors stay equal, so training stops after the second round."""
    fused = linear_detector("fused")
    stopping = {"training__early_stop": {"patience": 1}, "training__optimizer": {"lr": 1e-30}, "training__rounds": 6}
    assert (
        run_toy(tree(sets, "single", **stopping), tmp_path / "single", method=linear_detector("single"))["rounds"] == 2
    )
    same = recipe_of(tree(sets, "fused", **stopping))
    request = Request(same, tmp_path / "fused", tmp_path, fused, training=adoption(tmp_path / "single"))
    assert run(request, quiet_reporter())["rounds"] == 2
    for change in ({"federation__offline": 0.5}, {"evaluation__keep": "best"}, {"runtime__seed": 3}):
        other = recipe_of(tree(sets, "fused", training__rounds=6, **change))
        with refused("single", "fused"):
            run(replace(request, recipe=other, out=tmp_path / next(iter(change))), quiet_reporter())


@pytest.mark.long
def test_resume_with_other_data_is_refused(sets: Sets, tmp_path: Path) -> None:
    site = make_set(tmp_path / "A", "A", 0)
    content = tree({**sets, "A": site}, training__rounds=2)
    run_toy(content, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    shutil.rmtree(site)
    make_set(site, "A", 99)
    with refused("data.sites.A", "data"):
        run_toy(content, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"federation__quorum": 2}, "recipe.federation"),
        ({"training__batch": {"default": 8, "per_site": {"A": 4}}}, "recipe.training.batch.per_site"),
    ],
)
def test_pooled_refuses_options_that_it_would_ignore(
    change: dict[str, Any], place: str, sets: Sets, tmp_path: Path
) -> None:
    with refused(place, "pooled"):
        run_toy(tree(sets, "pooled", **change), tmp_path / "run")


def test_model_without_one_of_its_parts_is_refused(sets: Sets, tmp_path: Path) -> None:
    recipe = recipe_of(tree(sets, "fedgpad"))
    scorer = Scorer(METHODS["fedgpad"], recipe, resolve_compute("cpu", "fp32"))
    classifier = {f"classifier.{k}": v for k, v in scorer.net["classifier"].state_dict().items()}
    with refused("model", "encoder"):
        scorer.load(classifier)


def test_stored_held_out_counts_give_the_sites_metrics(finished_run: Path) -> None:
    metrics, counts = json.loads((finished_run / "metrics.json").read_text()), read_counts(finished_run)
    assert sorted(counts) == sorted(metrics["sites"])
    for site, (attack, live) in counts.items():
        above = sum(int(live[at]) * (int(attack[:at].sum()) + int(attack[at]) / 2) for at in np.flatnonzero(live))
        assert metrics[f"sites_heldout.{site}.auc"] == pytest.approx(above / (attack.sum() * live.sum()))


@pytest.mark.parametrize("changes", [{"training__optimizer": {"lr": 1e30}}, {"federation": {"offline": 1.0}}])
def test_run_without_any_upload_fails_and_writes_no_model(changes: dict[str, Any], sets: Sets, tmp_path: Path) -> None:
    for resume in (False, True):
        with failed(RunFailed, "3", "quorum", "method", "--out"):
            run_toy(tree(sets, **changes), tmp_path / "run", resume=resume)
    assert not list((tmp_path / "run").glob("model*")) + list((tmp_path / "run").glob("metrics*"))


def test_method_that_trains_without_uploads_finishes(sets: Sets, tmp_path: Path) -> None:
    """Sites receive orders about the finished model only, and their replies do not affect its weights."""
    content = tree(sets, "pretrained", training__rounds=1, federation={"offline": 1.0})
    metrics = run_toy(content, tmp_path / "run")
    assert metrics["attendance"] == {"rounds": {}, "missed": {}, "lost": []}


@pytest.mark.long
def test_metrics_record_the_rounds_of_each_site(sets: Sets, tmp_path: Path) -> None:
    attendance = run_toy(tree(sets, federation={"offline": 0.5}, training__rounds=4), tmp_path / "run")["attendance"]
    for name in SITES:
        rounds = [row["round"] for row in read_lines(tmp_path / "run" / "rounds.jsonl") if name in row["loss"]]
        assert attendance["rounds"].get(name, 0) == len(rounds)
        assert set(attendance["missed"].get(name, [])) == {1, 2, 3, 4} - set(rounds) - set(attendance["lost"])


def test_truncated_metrics_are_named_and_recomputed_after_removal(
    finished_run: Path, sets: Sets, tmp_path: Path
) -> None:
    run, content = (
        shutil.copytree(finished_run, tmp_path / "run"),
        tree(sets, training__rounds=5, evaluation__keep="best"),
    )
    (run / "metrics.json").write_bytes((finished_run / "metrics.json").read_bytes()[:200])
    with refused(run / "metrics.json", "JSON", "--resume"):
        run_toy(content, run, resume=True)
    (run / "metrics.json").unlink()
    run_toy(content, run, resume=True)
    assert deterministic_files(run) == deterministic_files(finished_run)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rounds.jsonl", "ledger.jsonl"])
def test_resume_repairs_a_truncated_last_line(name: str, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets)
    run_toy(content, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_toy(content, tmp_path / "run", reporter=InterruptingReporter(2))
    with (tmp_path / "run" / name).open("ab") as file:
        file.write(b'{"round": 2, "half')
    run_toy(content, tmp_path / "run", resume=True)
    assert deterministic_files(tmp_path / "run") == deterministic_files(tmp_path / "whole")


def test_failed_start_leaves_an_empty_directory(sets: Sets, tmp_path: Path) -> None:
    bad = tmp_path / "start.safetensors"
    for content in (b"no tensors", save({"nothing.like": torch.zeros(2)})):
        bad.write_bytes(content)
        with pytest.raises(UserError):
            run_toy(tree(sets, training__start=str(bad)), tmp_path / "run")
        assert not [path.name for path in (tmp_path / "run").glob("[!.]*")]
    run_toy(tree(sets, training__rounds=1), tmp_path / "run")


@pytest.mark.long
def test_refused_resume_removes_no_file(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__rounds=1)
    run_toy(content, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    (tmp_path / "run" / "rounds.jsonl").write_bytes(b"")
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with refused("rounds.jsonl", "checkpoint"):
        run_toy(content, tmp_path / "run", resume=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
