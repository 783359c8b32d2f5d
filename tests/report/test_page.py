"""The report page: complete, self-contained, safe with hostile names, and drawn from files alone."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.report.making import THRESHOLD, make_run

from fedvisage.errors import UserError
from fedvisage.metrics.scores import read_scores
from fedvisage.report.page import write_report

HOSTILE = '</text></svg><script>alert("x")</script><img src=x onerror=alert(1)>'
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Collects tags, attributes and text, and notices tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.disorder: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.disorder.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def words(reader: Reader) -> str:
    return " ".join(" ".join(reader.text).split())


def test_the_page_holds_the_figures_counted_anew_from_the_scores(finished: Path) -> None:
    page = words(read(write_report(finished)))
    scores = read_scores(finished / "scores.csv")
    accepted = (scores.attack >= THRESHOLD).sum() / len(scores.attack)
    rejected = (scores.bona_fide < THRESHOLD).sum() / len(scores.bona_fide)
    assert f"{100 * (accepted + rejected) / 2:.2f}" in page
    cut = scores.live[scores.species == "cut"]
    assert f"{100 * (cut >= THRESHOLD).sum() / len(cut):.2f}" in page
    assert "source-eer" in page
    assert "Averaging is not differential privacy" in page
    assert "histogram" in page
    assert "offline" in page


def test_the_page_is_well_formed_and_asks_for_nothing_outside(finished: Path) -> None:
    reader = read(write_report(finished))
    assert reader.disorder == []
    assert reader.open == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(reader.tags)
    assert not [value for name, value in reader.attributes if name in {"src", "srcset", "action"}]
    references = [value or "" for name, value in reader.attributes if name.endswith("href")]
    assert all(value.startswith("#") for value in references)


def test_every_figure_is_there_and_ids_are_not_shared_between_figures(finished: Path) -> None:
    reader = read(write_report(finished))
    titles = {value for name, value in reader.attributes if name == "aria-label"}
    held_out = "Held-out subjects of the sites"
    assert titles == {"ROC", "DET", "Scores", "Training loss", held_out, "Features (t-SNE)"}
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) > 6
    assert len(ids) == len(set(ids))


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    sites = (HOSTILE, "$x_{$", "_hidden", "\x00\x1b[31m")
    run = make_run(tmp_path / "run", sites=sites, user=HOSTILE, title=HOSTILE, rounds=2, resamples=0)
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["apcer"] = {HOSTILE: 0.5}
    (run / "metrics.json").write_text(json.dumps(metrics))
    table = (run / "scores.csv").read_text()
    (run / "scores.csv").write_text(table.replace(",print,", ",<script>alert(2)</script>,"))
    reader = read(write_report(run))
    assert reader.disorder == []
    assert not {"script", "img"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert 'alert("x")' in words(reader)


def test_drawing_again_gives_the_same_page(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / finished.name)
    first = write_report(copy).read_bytes()
    assert write_report(copy).read_bytes() == first


def test_each_sites_own_model_has_its_row_its_curve_and_its_histogram(tmp_path: Path) -> None:
    run = make_run(tmp_path / "single", method="single", members=True, rounds=2)
    reader = read(write_report(run))
    assert "Each site's own model" in words(reader)
    titles = [value for name, value in reader.attributes if name == "aria-label"]
    assert [title for title in titles if title and title.startswith("Scores")] == [
        "Scores, model of C",
        "Scores, model of I",
        "Scores, model of O",
    ]


def test_a_run_without_a_user_and_without_rounds_still_has_a_page(tmp_path: Path) -> None:
    run = tmp_path / "bare"
    run.mkdir()
    (run / "metrics.json").write_text(json.dumps({"method": "fedpad", "task": "pad", "sites": ["A"], "user": None}))
    assert "no user was named" in words(read(write_report(run)))


def test_figures_that_are_undefined_are_dashes(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    metrics = json.loads((run / "metrics.json").read_text())
    metrics |= {"eer": None, "auc": None, "tpr_at_fpr_1pct": None, "bpcer": None, "acer": None, "intervals": {}}
    (run / "metrics.json").write_text(json.dumps(metrics))
    page = words(read(write_report(run)))
    assert "nan" not in page.lower().split()
    assert "–" in page


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.json", "{", "not whole JSON"),
        ("metrics.json", "[]", "no mapping"),
        ("rounds.jsonl", "{}\nnot json\n", "line 2 is not"),
        ("features.safetensors", "short", "safetensors"),
        ("scores.csv", "a,b\n", "has no column"),
    ],
)
def test_a_damaged_file_is_named(finished: Path, tmp_path: Path, name: str, content: str, message: str) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        write_report(run)
    assert caught.value.place == str(run / name)


def test_an_unfinished_run_is_told_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume"):
        write_report(tmp_path)
    with pytest.raises(UserError, match="not a directory"):
        write_report(tmp_path / "absent")


def test_two_hundred_sites_make_a_readable_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "many", sites=[f"site{number:03d}" for number in range(200)], rounds=2, resamples=0)
    page = write_report(run)
    assert "160 more sites" in words(read(page))
    assert page.stat().st_size < 2_000_000


def test_a_lost_ledger_is_never_taken_for_nothing_left_a_site(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "ledger.jsonl").unlink()
    page = write_report(run).read_text()
    assert "nothing left a site" not in page
    assert "ledger.jsonl is missing" in page
    (run / "ledger.jsonl").touch()
    page = write_report(run).read_text()
    assert "nothing left a site" not in page
    assert "lines are lost" in page


@pytest.mark.parametrize("name", ["ledger.jsonl", "rounds.jsonl"])
def test_a_last_line_that_was_cut_off_is_left_out_and_said(name: str, finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / name).write_bytes((run / name).read_bytes()[:-5])
    assert f"last line of {name} was cut off" in write_report(run).read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.json", '{"hter": "low", "level": []}'),
        ("metrics.json", '{"hter": 0.1, "intervals": {"frame": {"hter": ["a", "b"]}}}'),
        ("metrics.json", "[" * 100_000),
        ("metrics.json", '{"task": "recognition", "generic": {"tar_at_far": {"0": 1}}}'),
        ("rounds.jsonl", '{"loss": {"C": 1.0}}\n'),
        ("ledger.jsonl", '{"direction": "up", "bytes": "many"}\n'),
        ("ledger.jsonl", '{"direction": "up", "cost": {}}\n'),
        ("recipe.yaml", "[" * 5_000),
    ],
)
def test_files_that_no_run_writes_end_a_report_in_one_line(
    name: str, content: str, finished: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / name).write_text(content)
    with pytest.raises(UserError) as caught:
        write_report(run)
    assert str(run) in caught.value.place
    assert "\n" not in str(caught.value)


def test_scores_that_were_cut_off_are_refused_though_half_a_number_is_one(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "scores.csv").write_bytes((run / "scores.csv").read_bytes()[:-3])
    with pytest.raises(UserError, match="cut off") as caught:
        write_report(run)
    assert caught.value.place == str(run / "scores.csv")
