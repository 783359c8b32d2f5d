"""Progress messages, and numbers in words."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import nbformat
import pytest
from nbclient import NotebookClient
from rich.console import Console

from fedvisage.base.progress import EVERY, FIRST, JsonReporter, Reporter, duration_in_words, format_count, in_steps


class ManualClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_reporter(clock: ManualClock, *, quiet: bool = False) -> tuple[Reporter, io.StringIO]:
    output = io.StringIO()
    return Reporter(Console(file=output, width=200), quiet, clock=clock), output


@contextmanager
def training(reporter: Reporter, rounds: int = 4) -> Iterator[None]:
    with reporter.course("FedPAD", 0, rounds):
        yield


def train(reporter: Reporter, clock: ManualClock, site: str, batches: int, seconds: float) -> None:
    for done in range(batches):
        reporter.batch(site, done, batches)
        clock.now += seconds


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (1, ("file",), "1 file"),
        (0, ("file",), "0 files"),
        (12_345, ("subject",), "12,345 subjects"),
        (1, ("person", "people"), "1 person"),
        (2, ("person", "people"), "2 people"),
    ],
)
def test_singular_is_used_only_for_one(number: int, words: tuple[str, ...], text: str) -> None:
    assert format_count(number, *words) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (240, "4 min"), (7800, "2 h 10 min"), (90_000, "25 h 0 min")]
)
def test_durations_are_written_in_words(seconds: float, text: str) -> None:
    assert duration_in_words(seconds) == text


def test_slow_round_reports_after_seconds_and_then_once_per_minute() -> None:
    clock = ManualClock()
    reporter, output = make_reporter(clock)
    with training(reporter):
        train(reporter, clock, "A", 150, 1.0)
    first, second, third = output.getvalue().splitlines()
    for line, done in ((first, FIRST), (second, FIRST + EVERY), (third, FIRST + 2 * EVERY)):
        for word in ("round 1", "site A", f"batch {done:.0f} of 150", "1.0 per second", "left"):
            assert word in line
    assert "27 s left" in third  # 150 batches, 123 done, one a second


def test_quick_rounds_print_one_line_each() -> None:
    clock = ManualClock()
    reporter, output = make_reporter(clock)
    with training(reporter):
        for number in (1, 2, 3):
            train(reporter, clock, "A", 10, 0.2)
            reporter.advance(number, 4, "loss 0.5")
    assert [line.split("  ")[0] for line in output.getvalue().splitlines()] == ["round 1/4", "round 2/4", "round 3/4"]


def test_alternating_sites_have_separate_rates() -> None:
    clock, output = ManualClock(), io.StringIO()
    reporter = JsonReporter(output, clock=clock)
    with training(reporter):
        for done in range(100):
            reporter.batch("A", done, 100)
            reporter.batch("B", done, 200)
            clock.now += 2.0
    last = json.loads(output.getvalue().splitlines()[-1])
    assert last["per_second"] == pytest.approx(0.5)
    assert last["seconds_left"] == pytest.approx((last["of"] - last["done"]) * 2.0)


def test_json_progress_has_one_object_per_line() -> None:
    clock, output = ManualClock(), io.StringIO()
    reporter = JsonReporter(output, clock=clock)
    with training(reporter):
        train(reporter, clock, "A", 5, 1.0)
        reporter.advance(1, 4, "loss 0.5")
    reporter.say("two\nlines")
    with in_steps("rendering O", reporter) as steps:
        clock.now += 10
        steps(24, 576)
    rows = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [row["event"] for row in rows] == ["batch", "round", "said", "progress"]
    assert all({"time", "message"} <= row.keys() for row in rows)
    assert (rows[0]["site"], rows[0]["round"], rows[0]["of"]) == ("A", 1, 5)
    assert (rows[1]["round"], rows[1]["of"]) == (1, 4)
    assert rows[2]["message"] == "two\nlines"
    assert (rows[3]["what"], rows[3]["done"], rows[3]["of"]) == ("rendering O", 24, 576)


def test_quiet_reporter_prints_nothing() -> None:
    clock = ManualClock()
    reporter, output = make_reporter(clock, quiet=True)
    with training(reporter), in_steps("rendering O", reporter) as steps:
        train(reporter, clock, "A", 150, 1.0)
        reporter.advance(1, 4, "")
        steps(1, 2)
        reporter.part("cell").batch("A", 1, 2)
    assert output.getvalue() == ""


def test_work_before_a_resume_does_not_count_as_speed() -> None:
    clock = ManualClock()
    reporter, output = make_reporter(clock)
    with in_steps("importing", reporter) as steps:
        for done in range(501, 505):  # an earlier attempt completed 500; this one completes one in 20 seconds
            clock.now += 20
            steps(done, 10_000)
    first, second = output.getvalue().splitlines()
    assert first == "importing: 501 of 10000"
    assert second == "importing: 504 of 10000, 3.0 per minute, 52 h 45 min left"


def test_parallel_runs_report_progress_once_a_minute() -> None:
    clock = ManualClock()
    reporter, output = make_reporter(clock)
    for name in ("fedpad M 0", "pooled M 0", "fedpad M 1"):
        part = reporter.part(name)
        with training(part):
            train(part, clock, "A", 30, 1.0)
            part.advance(1, 4, "loss 0.5")
    lines = output.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("fedpad M 0: in round 1")
    assert lines[1].startswith("fedpad M 1: in round 1")


def test_terminal_bars_move_and_disappear_after_an_error() -> None:
    clock, output = ManualClock(), io.StringIO()
    reporter = Reporter(Console(file=output, force_terminal=True, width=120), clock=clock)
    with suppress(ValueError), in_steps("reading", reporter) as first:
        first(1, 2)
        with in_steps("rendering", reporter) as second:
            second(2, 2)
            raise ValueError
    with training(reporter):
        clock.now += 9
        reporter.advance(1, 4, "loss 0.5")
        clock.now += 1
        reporter.batch("A", 3, 10)
    for shown in ("reading", "rendering", "27 s left", "loss 0.5", "site A", " 3/10"):
        assert shown in output.getvalue()
    hidden, shown_again = "\x1b[?25l", "\x1b[?25h"
    assert output.getvalue().count(hidden) == output.getvalue().count(shown_again) == 2


@pytest.mark.parametrize("terminal", [True, False], ids=["bars", "lines"])
def test_text_of_a_site_is_printed_without_markup_or_control_characters(terminal: bool) -> None:
    output = io.StringIO()
    reporter = Reporter(Console(file=output, force_terminal=terminal, width=120), clock=ManualClock())
    row = {"round": 1, "loss": {}, "seconds": 1.0, "failed": {"B": "[/b] full\x1b[2J\nround 2/4"}}
    with training(reporter):
        reporter.ended_round(row, 4)
        reporter.say("[/b] full\x1b[2J\nround 2/4")
    shown = "[/b] full\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}round 2/4"
    assert f"1.0 s  B: {shown}" in output.getvalue()
    assert f"{shown}\n" in output.getvalue()
    assert "\x1b[2J" not in output.getvalue()


@pytest.mark.long
def test_notebook_shows_lines_without_ipywidgets() -> None:
    """A kernel claims a terminal, and rich's own output for notebooks needs ipywidgets."""
    code = """
from fedvisage.base.progress import reporter_on_stdout
reporter = reporter_on_stdout()
with reporter.course("training", 0, 2):
    for number in (1, 2):
        reporter.advance(number, 2, "loss 0.5")
reporter.say("done")
reporter_on_stdout(quiet=True).say("quiet")
"""
    cell = nbformat.v4.new_code_cell(code)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    assert {(output.output_type, output.get("name")) for output in outputs} == {("stream", "stdout")}
    assert "".join(output.text for output in outputs) == "round 1/2  loss 0.5\nround 2/2  loss 0.5\ndone\n"
