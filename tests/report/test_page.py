"""The report page: completeness, hostile names, and damaged files."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.data.small_sets import write_set
from tests.refusals import refused
from tests.report.pages import Page
from tests.report.run_files import THRESHOLD, make_run, write_features, write_metrics

from fedvisage.base.errors import UserError
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.metrics.scores import read_scores
from fedvisage.metrics.threshold import histogram
from fedvisage.report.page import write_report
from fedvisage.tasks.heldout_counts import read_counts, write_counts

HOSTILE = '</text></svg><script>alert("x")</script><img src=x onerror=alert(1)>'


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.mark.long
def test_page_repeats_figures_recounted_from_the_scores(finished_run: Path) -> None:
    page = read(write_report(finished_run)).text
    scores = read_scores(finished_run / "scores.csv")
    accepted = (scores.attack >= THRESHOLD).sum() / len(scores.attack)
    rejected = (scores.bona_fide < THRESHOLD).sum() / len(scores.bona_fide)
    assert f"{100 * (accepted + rejected) / 2:.2f}" in page
    cut = scores.live[scores.species == "cut"]
    assert f"{100 * (cut >= THRESHOLD).sum() / len(cut):.2f}" in page
    assert "source-eer" in page
    assert "Averaging is not differential privacy" in page
    assert "histogram" in page
    assert "offline" in page


@pytest.mark.long
def test_page_is_well_formed_and_self_contained(finished_run: Path) -> None:
    reader = read(write_report(finished_run))
    assert reader.disorder == []
    assert reader.open == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & reader.tags
    assert not [value for name, value in reader.attributes if name in {"src", "srcset", "action"}]
    references = [value or "" for name, value in reader.attributes if name.endswith("href")]
    assert all(value.startswith("#") for value in references)


@pytest.mark.long
def test_page_has_every_figure_with_unique_ids(finished_run: Path) -> None:
    reader = read(write_report(finished_run))
    titles = {value for name, value in reader.attributes if name == "aria-label"}
    held_out = "Held-out subjects of the sites"
    assert titles == {"ROC", "DET", "Scores", "Training loss", held_out, "Features (t-SNE)"}
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) > 6
    assert len(ids) == len(set(ids))


@pytest.mark.long
def test_hostile_names_stay_text(tmp_path: Path) -> None:
    sites = (HOSTILE, "$x_{$", "_hidden", "\x00\x1b[31m")
    run = make_run(tmp_path / "run", sites=sites, target=HOSTILE, title=HOSTILE, rounds=2, resamples=0)
    write_metrics(run, read_metrics(run / "metrics.json") | {f"apcer.{HOSTILE}": 0.5})
    table = (run / "scores.csv").read_text()
    (run / "scores.csv").write_text(table.replace(",print,", ",<script>alert(2)</script>,"))
    reader = read(write_report(run))
    assert reader.disorder == []
    assert not {"script", "img"} & reader.tags
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert 'alert("x")' in reader.text


@pytest.mark.long
def test_redrawing_gives_the_same_page(run: Path) -> None:
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


@pytest.mark.long
def test_model_of_each_site_has_a_row_a_curve_and_a_histogram(tmp_path: Path) -> None:
    run = make_run(tmp_path / "single", method="single", members=True, rounds=2)
    reader = read(write_report(run))
    assert "Each site's own model" in reader.text
    titles = [value for name, value in reader.attributes if name == "aria-label"]
    assert [title for title in titles if title and title.startswith("Scores")] == [
        "Scores, model of C",
        "Scores, model of I",
        "Scores, model of O",
    ]


@pytest.mark.long
def test_page_counts_the_models_that_it_does_not_draw(tmp_path: Path) -> None:
    run = make_run(tmp_path / "single", method="single", members=True, sites="ABCDEFGH", rounds=1, resamples=0)
    reader = read(write_report(run))
    titles = [value or "" for name, value in reader.attributes if name == "aria-label"]
    drawn = sum(title.startswith("Scores, model of ") for title in titles)
    assert drawn < 8
    assert f"Drawn: the first {drawn} of 8 models" in reader.text


def test_run_without_target_and_rounds_has_a_page(tmp_path: Path) -> None:
    run = tmp_path / "bare"
    run.mkdir()
    write_metrics(run, {"method": "fedpad", "task": "pad", "sites": ["A"], "target": None})
    assert "no target was named" in read(write_report(run)).text


BARE = {"method": "fedpad", "task": "pad", "sites": ["A"], "target": None}
RECOUNTED = "scores.csv has every score of the target"


def write_bare(run: Path, environment: str = "{}", **metrics: Any) -> str:
    """Write the report of a run with these metrics and no target, and return the report's text."""
    run.mkdir(exist_ok=True)
    write_metrics(run, BARE | metrics)
    (run / "environment.json").write_text(environment)
    return read(write_report(run)).text


def test_page_names_the_file_of_scores_only_if_it_has_scores(run: Path, tmp_path: Path) -> None:
    assert RECOUNTED in read(write_report(run)).text
    assert "scores.csv" not in write_bare(tmp_path / "without")
    (tmp_path / "without" / "scores.csv").write_text("first,second,same,similarity\n")
    assert "scores.csv" not in write_bare(tmp_path / "without", task="recognition")


def test_page_states_whether_a_second_run_gives_the_same_figures(tmp_path: Path) -> None:
    noise = {"epsilon": 8.0, "delta": 1e-5, "tight_epsilon": 8.0, "at_delta": 1e-5, "relation": ["site"]}
    noise |= {"noise_multiplier": 0.6, "clip": 1.0, "releases": 1}
    assert "recipe.yaml gives the same figures" in write_bare(tmp_path / "run")
    assert "gives the same figures" in write_bare(tmp_path / "run", privacy=noise | {"noise": "derived"})
    drawn = write_bare(tmp_path / "run", privacy=noise | {"noise": "system"})
    assert "recipe.yaml draws other noise and gives other figures" in drawn
    assert "the same figures" not in drawn


def test_page_names_the_call_for_a_method_that_was_passed_in(tmp_path: Path) -> None:
    assert "fedvisage run recipe.yaml" in write_bare(tmp_path / "run")
    page = write_bare(tmp_path / "run", environment='{"method": {"name": "smoothed"}}')
    assert 'fv.run("recipe.yaml", method=METHOD)' in page
    assert "fedvisage run recipe.yaml" not in page


def test_page_of_merged_sites_does_not_promise_that_images_stayed(tmp_path: Path) -> None:
    stayed = "No image, label or identity left a site"
    merged = write_bare(tmp_path / "run", attendance={"rounds": {"all": 1}, "missed": {}, "lost": []})
    assert stayed not in merged
    assert "merged the data of all sites in one place" in merged
    assert stayed in write_bare(tmp_path / "run", attendance={"rounds": {"A": 1}, "missed": {}, "lost": []})
    assert stayed in write_bare(tmp_path / "run")


def test_target_without_attacks_has_its_bpcer_and_no_empty_headlines(tmp_path: Path) -> None:
    page = write_bare(tmp_path / "run", target="M", bpcer=0.125, hter=None, auc=None)
    assert "BPCER 12.50" in page
    assert "– %" not in page


def test_table_of_failures_counts_those_that_it_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    failed = {f"site{number:02d}": "offline" for number in range(50)}
    (tmp_path / "run" / "rounds.jsonl").write_text(json.dumps({"round": 1, "replied": [], "failed": failed}) + "\n")
    page = write_bare(tmp_path / "run")
    shown = len(re.findall(r"site\d\d offline", page))
    assert 0 < shown < 50
    assert f"{50 - shown} more are in rounds.jsonl" in page


def test_errors_at_a_fixed_threshold_name_their_images(run: Path) -> None:
    metrics = read_metrics(run / "metrics.json")
    assert "3.10 % of attacks and rejects 3.40 % of bona fide there" in read(write_report(run)).text
    write_metrics(run, {**metrics, "threshold_rule": "fixed"})
    assert "rejects 3.40 % of bona fide on the sites' held-out subjects" in read(write_report(run)).text


@pytest.mark.long
def test_undefined_figures_are_dashes(run: Path) -> None:
    metrics = read_metrics(run / "metrics.json")
    undefined = dict.fromkeys(["eer", "auc", "tpr_at_fpr_1pct", "bpcer", "acer"])
    write_metrics(run, {name: value for name, value in metrics.items() if "intervals" not in name} | undefined)
    page = read(write_report(run)).text
    assert "nan" not in page.lower().split()
    assert "–" in page


@pytest.mark.parametrize(
    ("name", "content", "keyword"),
    [
        ("rounds.jsonl", "{}\nnot json\n", "line 2"),
        ("features.safetensors", "short", "safetensors"),
        ("scores.csv", "a,b\n", "column"),
    ],
)
def test_damaged_file_of_a_report_is_named(run: Path, name: str, content: str, keyword: str) -> None:
    (run / name).write_text(content)
    with refused(run / name, keyword):
        write_report(run)


def test_unfinished_run_names_the_way_to_resume(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    with refused(tmp_path, "--resume"):
        write_report(tmp_path)
    with refused("absent", "directory"):
        write_report(tmp_path / "absent")


@pytest.mark.long
def test_page_of_two_hundred_sites_is_readable(tmp_path: Path) -> None:
    run = make_run(tmp_path / "many", sites=[f"site{number:03d}" for number in range(200)], rounds=2, resamples=0)
    page = write_report(run)
    assert "160 more sites" in read(page).text
    assert page.stat().st_size < 2_000_000


def decisions(reader: str, kind: str) -> list[str]:
    table = reader[reader.index("Decisions at the threshold") :]
    row = re.search(rf"<td>{kind}</td>(.*?)</tr>", table)
    assert row is not None
    return re.findall(r">([^<]*)</td>", row[1])


@pytest.mark.long
def test_decisions_are_counted_by_species_with_their_rates(finished_run: Path) -> None:
    page = write_report(finished_run).read_text()
    scores = read_scores(finished_run / "scores.csv")
    for name, mask in (
        ("bona fide", scores.label == 1),
        ("cut", scores.species == "cut"),
        ("all attacks", scores.label == 0),
    ):
        live = sum(score >= THRESHOLD for score in scores.live[mask].tolist())
        count = int(mask.sum())
        expected = [
            f"{live} ({100 * live / count:.2f} %)",
            f"{count - live} ({100 - 100 * live / count:.2f} %)",
            str(count),
        ]
        assert decisions(page, name) == expected


@pytest.mark.long
def test_decisions_are_counted_by_video_if_the_headline_is(run: Path) -> None:
    metrics = read_metrics(run / "metrics.json")
    write_metrics(run, {**metrics, "level": "video", **Metrics.of({"frame": metrics})})
    assert decisions(write_report(run).read_text(), "bona fide")[-1] == "40"


@pytest.mark.long
def test_wide_tables_can_become_cards_with_titles(finished_run: Path) -> None:
    page = write_report(finished_run).read_text()
    wide = re.findall(r'<table class="wide">.*?</table>', page)
    assert wide
    for table in wide:
        titles = re.findall(r"<th[^>]*>([^<]*)</th>", table)
        for row in re.findall(r"<tr>(<td.*?)</tr>", table):
            assert re.findall(r'data-title="([^"]*)"', row) == titles[1:]
    assert "@media (max-width: 40rem)" in page


@pytest.mark.long
def test_each_site_with_known_counts_has_a_curve(run: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    histograms = {site: histogram(rng.normal(labels * gap, 1), labels) for site, gap in (("C", 1.0), ("O", 3.0))}
    write_counts(run, histograms)
    for site, counts in read_counts(run).items():
        assert np.array_equal(counts, histograms[site])
    reader = read(write_report(run))
    assert "ROC by site" in {value for name, value in reader.attributes if name == "aria-label"}


@pytest.mark.long
def test_too_few_features_are_reported(run: Path) -> None:
    write_features(run, ("C", "M"), np.random.default_rng(0), each=4)
    reader = read(write_report(run))
    assert "8 images are too few" in reader.text
    assert "Features (t-SNE)" not in {value for name, value in reader.attributes if name == "aria-label"}


@pytest.fixture
def run_with_images(run: Path, tmp_path: Path) -> Path:
    """Return a run beside the set of its target's images, whose source says that people are rendered."""
    scores = read_scores(run / "scores.csv")
    images = np.stack([np.full((16, 16, 3), index % 256, np.uint8) for index in range(len(scores))])
    columns = {name: getattr(scores, name).tolist() for name in ("subject", "video", "item")}
    species = [kind or "bonafide" for kind in scores.species.tolist()]
    prepared = write_set(tmp_path / "M", images, source="synthetic test", species=species, **columns)
    (run / "features.safetensors").unlink()  # placing them takes longest
    digests = {"data.target": prepared.digest, "data.sites.C": "c"}
    (run / "data.json").write_text(json.dumps(digests))
    return with_recipe(run, target=str(tmp_path / "M"))


def with_recipe(run: Path, target: str | None = None, **report: object) -> Path:
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"]["target"] = target or recipe["data"]["target"]
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe | ({"report": report} if report else {})))
    return run


@pytest.mark.long
def test_worst_images_are_the_furthest_errors_of_each_subject(run_with_images: Path) -> None:
    page = write_report(run_with_images).read_text()
    scores = read_scores(run_with_images / "scores.csv")
    for kind, species, worst in (("bona fide", "", min), ("cut", "cut", max)):
        of = {
            str(who): worst(scores.live[(scores.subject == who) & (scores.species == species)])
            for who in scores.subject
        }
        expected = [f"{value:+.2f}" for value in sorted(of.values(), reverse=worst is max)[:4]]
        assert re.findall(rf'alt="{kind}, score ([^"]*)"', page) == expected
    assert page.count('src="data:image/png;base64,') == 16
    assert "Set M" in page


@pytest.mark.long
@pytest.mark.parametrize(
    ("in_recipe", "in_call", "shown"),
    [
        (None, None, True),
        (False, None, False),
        (False, True, True),
        (True, False, False),
        (True, None, True),
    ],
)
def test_rendered_people_are_shown_by_default(
    run_with_images: Path, in_recipe: bool | None, in_call: bool | None, shown: bool
) -> None:
    run = run_with_images if in_recipe is None else with_recipe(run_with_images, images=in_recipe)
    assert ("data:image/png" in write_report(run, images=in_call).read_text()) is shown


@pytest.mark.long
def test_photographs_are_shown_only_on_request(run_with_images: Path) -> None:
    """Give the set the source of an import."""
    place = run_with_images.parent / "M"
    note = json.loads((place / "set.json").read_text())
    (place / "set.json").write_text(json.dumps(note | {"source": "folder phones crop=face"}))
    assert "data:image" not in write_report(run_with_images).read_text()
    page = write_report(with_recipe(run_with_images, images=True)).read_text()
    assert "data:image/png" in page
    assert "Photographs" in page


@pytest.mark.long
def test_images_of_another_set_and_of_a_federation_are_not_shown(run_with_images: Path) -> None:
    digests = json.loads((run_with_images / "data.json").read_text())
    (run_with_images / "data.json").write_text(json.dumps({"data.target": digests["data.target"]}))
    assert "data:image" not in write_report(run_with_images, images=True).read_text()
    (run_with_images / "data.json").write_text(json.dumps(digests | {"data.target": "another"}))
    page = write_report(run_with_images, images=True).read_text()
    assert "data:image" not in page
    assert "not available" in page


@pytest.mark.long
def test_lost_ledger_is_not_reported_as_zero_traffic(run: Path) -> None:
    (run / "ledger.jsonl").unlink()
    page = write_report(run).read_text()
    assert "nothing left a site" not in page
    assert "ledger.jsonl is missing" in page
    (run / "ledger.jsonl").touch()
    page = write_report(run).read_text()
    assert "nothing left a site" not in page
    assert "lines are lost" in page


@pytest.mark.long
@pytest.mark.parametrize("name", ["ledger.jsonl", "rounds.jsonl"])
def test_truncated_last_line_is_skipped_and_reported(name: str, run: Path) -> None:
    (run / name).write_bytes((run / name).read_bytes()[:-5])
    assert f"last line of {name} was cut off" in write_report(run).read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.json", '{"format": 2, "method": "fedpad", "hter": "low"}'),
        ("metrics.json", '{"format": 2, "method": "fedpad", "hter": 0.1, "intervals.frame.hter": ["a", "b"]}'),
        ("metrics.json", '{"format": 2, "method": "fedpad", "video": {"hter": 0.1}}'),
        ("metrics.json", '{"format": 3, "method": "fedpad"}'),
        ("metrics.json", '{"method": "fedpad", "hter": "low", "level": []}'),
        ("metrics.json", '{"format": 2, "method": "fedfr", "task": "recognition", "generic.tar@0": 1}'),
        ("rounds.jsonl", '{"loss": {"C": 1.0}}\n'),
        ("ledger.jsonl", '{"direction": "up", "bytes": "many"}\n'),
        ("ledger.jsonl", '{"direction": "up", "cost": {}}\n'),
    ],
)
def test_malformed_files_end_a_report_in_one_line(name: str, content: str, run: Path) -> None:
    (run / name).write_text(content)
    with pytest.raises(UserError) as caught:
        write_report(run)
    assert str(run) in caught.value.place
    assert "\n" not in str(caught.value)


def test_truncated_scores_are_refused(run: Path) -> None:
    (run / "scores.csv").write_bytes((run / "scores.csv").read_bytes()[:-3])
    with refused(run / "scores.csv", "last line"):
        write_report(run)
