"""Progress of long commands: lines of text, JSON objects, or none."""

import io
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.commands import call, output_of
from tests.refusals import refused
from tests.toy import SITES, run_toy, tree

from fedvisage.base.progress import JsonReporter
from fedvisage.cli.options import line_printers


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedpad", "fedsis", "privacyface"])
def test_every_site_reports_its_batches_in_each_round(sets: Mapping[str, Path], tmp_path: Path, method: str) -> None:
    stream, minutes = io.StringIO(), itertools.count(step=60)
    reporter = JsonReporter(stream, clock=lambda: float(next(minutes)))
    run_toy(tree(sets, method, training__rounds=2), tmp_path / "run", reporter=reporter)
    batches = [row for row in rows(stream.getvalue()) if row["event"] == "batch"]
    assert {(row["round"], row["site"]) for row in batches} == {(number, site) for number in (1, 2) for site in SITES}
    assert all(0 <= row["done"] < row["of"] for row in batches)


@pytest.fixture(scope="module")
def recipe(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("life") / "toy.yaml"
    path.write_text(yaml.safe_dump(tree(sets, training__rounds=2)))
    return path


@pytest.mark.long
def test_json_progress_writes_rounds_to_stderr(recipe: Path, tmp_path: Path) -> None:
    result = call("run", recipe, "--out", tmp_path / "run", "--log-format", "json")
    rounds = [row for row in rows(result.stderr) if row["event"] == "round"]
    assert [(row["round"], row["of"]) for row in rounds] == [(1, 2), (2, 2)]
    assert "loss" not in result.stdout
    assert "report:" in result.stdout


@pytest.mark.long
def test_quiet_prints_only_the_result(recipe: Path, tmp_path: Path) -> None:
    quiet = call("run", recipe, "--out", tmp_path / "quiet", "--quiet")
    loud = call("run", recipe, "--out", tmp_path / "loud")
    assert quiet.stderr == ""
    assert quiet.stdout.replace(str(tmp_path / "quiet"), str(tmp_path / "loud")) in loud.stdout
    assert "round 2/2" in loud.stdout
    assert "loss" not in quiet.stdout


def test_rendering_reports_json_progress_unless_quiet(tmp_path: Path) -> None:
    words = ("--domain", "O", "--subjects", 1, "--videos", 1, "--frames", 1, "--size", 32, "--workers", 1)
    quiet = call("data", "synth", tmp_path / "quiet", *words, "--quiet")
    objects = call("data", "synth", tmp_path / "objects", *words, "--log-format", "json")
    assert quiet.stdout == objects.stdout
    assert quiet.stderr == ""
    assert all(row["event"] == "progress" for row in rows(objects.stderr))  # empty below three seconds


def test_server_and_site_report_progress_and_errors_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    say, complain = line_printers(False, "json")
    say("connected to fed.example.org:8002, waiting for runs")
    complain("the kit is in use")
    out, error = capfd.readouterr()
    message, complaint = error.splitlines()
    assert (json.loads(message)["event"], json.loads(message)["message"].split()[0]) == ("said", "connected")
    assert out == ""
    assert (json.loads(complaint)["event"], json.loads(complaint)["message"]) == ("error", "the kit is in use")


def test_quiet_server_and_site_print_only_errors(capfd: pytest.CaptureFixture[str]) -> None:
    say, complain = line_printers(True, "text")
    say("connected")
    complain("the kit is in use")
    assert capfd.readouterr() == ("", "fedvisage: the kit is in use\n")


@pytest.mark.parametrize("words", [("server", "kit"), ("site", "kit", "--data", "set")])
def test_unknown_progress_format_is_refused_before_the_kit_is_opened(words: tuple[str, ...]) -> None:
    with refused("--log-format", "xml", "json"):
        output_of(*words, "--log-format", "xml")
