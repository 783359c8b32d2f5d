"""Behaviour of the score table."""

import math
from pathlib import Path

import numpy as np
import pytest
from tests.metrics.examples import random_scores, scores_of
from tests.refusals import refused

from fedvisage.metrics.scores import by_video, concatenate, from_columns, read_scores, spread_of, write_scores


def test_scores_survive_the_file_bit_for_bit_with_awkward_names(tmp_path: Path) -> None:
    scores = from_columns(
        [1 / 3, -1e-17, 19.999999999],
        [1, 0, 0],
        item=["a,b", 'quote"', "two\nlines"],
        video=["", "v", "é"],
        subject=["1", "<b>", " "],
        species=["", "print", "=1+1"],
        site="U",
        model=["", "M", "M"],
    )
    write_scores(tmp_path / "scores.csv", scores)
    again = read_scores(tmp_path / "scores.csv")
    for name in ("live", "label", "item", "video", "subject", "species", "site", "model"):
        assert getattr(again, name).tolist() == getattr(scores, name).tolist(), name


def test_a_table_without_model_column_reads_as_one_model(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("item,video,subject,species,site,label,logit,probability\na,v,s,,U,1,0.5,0.62\n")
    assert read_scores(path).model.tolist() == [""]


@pytest.mark.parametrize(
    ("content", "keyword"),
    [
        ("item,label\na,1\n", "logit"),
        ("item,video,subject,species,site,label,logit\na,v,s,,U,1,high\n", "'high'"),
        ("item,video,subject,species,site,label,logit\na,v,s,,U,2,0.1\n", "labels"),
        ("item,video,subject,species,site,label,logit\na,v,s,,U,1,nan\n", "finite"),
        ("item,video,subject,species,site,label,logit\na,v,s\n", "complete"),
    ],
)
def test_a_broken_table_is_refused_with_its_path(tmp_path: Path, content: str, keyword: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(content)
    with refused(path, keyword):
        read_scores(path)


def test_video_score_is_the_mean_of_frame_probabilities() -> None:
    frames = from_columns(
        [2.0, -1.0, 0.0, 5.0],
        [1, 1, 1, 0],
        item=["a", "b", "c", "d"],
        video=["v1", "v1", "v1", "v2"],
        subject=["s"] * 4,
        species=["", "", "", "print"],
    )
    videos = by_video(frames)
    mean = sum(1 / (1 + math.exp(-x)) for x in (2.0, -1.0, 0.0)) / 3
    assert videos.video.tolist() == ["v1", "v2"]
    assert videos.live == pytest.approx([math.log(mean / (1 - mean)), 5.0])
    assert videos.species.tolist() == ["", "print"]


def test_videos_of_the_same_name_stay_apart_by_model_and_set() -> None:
    one = from_columns([1.0, 3.0], [1, 1], item=["a", "b"], video=["v", "v"], subject=["s"] * 2, species=[""] * 2)
    other = from_columns(
        [-1.0, -3.0], [1, 1], item=["a", "b"], video=["v"] * 2, subject=["s"] * 2, species=[""] * 2, model="M"
    )
    assert np.sign(by_video(concatenate([one, other])).live).tolist() == [1, -1]


def test_saturated_frames_do_not_overflow() -> None:
    frames = from_columns(
        [800.0, 700.0, -800.0, -900.0],
        [1, 1, 0, 0],
        item=list("abcd"),
        video=["v", "v", "w", "w"],
        subject=["s"] * 4,
        species=["", "", "print", "print"],
    )
    # Σσ(x) → 2 and Σσ(−x) → e^−700, so the logit is log 2 + 700; and −800 − log 2 on the other side.
    assert by_video(frames).live == pytest.approx([700 + math.log(2), -800 - math.log(2)])


def test_items_without_video_are_videos_of_their_own() -> None:
    frames = from_columns([1.0, 2.0], [1, 1], item=["a", "b"], video=["", ""], subject=["s"] * 2, species=[""] * 2)
    assert by_video(frames).live == pytest.approx([1.0, 2.0])


def test_a_video_with_both_labels_is_an_error() -> None:
    frames = from_columns(
        [1.0, 2.0], [1, 0], item=["a", "b"], video=["v", "v"], subject=["s"] * 2, species=["", "print"]
    )
    with pytest.raises(ValueError, match="'v'"):
        by_video(frames)


def test_selection_keeps_rows_together() -> None:
    scores = random_scores(1)
    prints = scores.where(scores.species == "print")
    assert set(prints.label.tolist()) == {0}
    assert len(prints) == (scores.species == "print").sum()


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        from_columns([1.0], [1, 0], item=["a"], video=["v"], subject=["s"], species=[""])


def test_an_empty_table_is_possible() -> None:
    assert len(by_video(concatenate([]))) == 0
    assert len(scores_of([], {})) == 0


def test_spread_is_that_of_four_accuracies_worked_out_by_hand() -> None:
    """Errors of 2, 4, 4 and 6 per cent: the mean is 4, squares of deviations sum up to 8, the ratio is 3."""
    actual = spread_of([0.98, 0.96, 0.96, 0.94])
    assert actual == {
        "mean": pytest.approx(0.96),
        "std": pytest.approx((0.0008 / 3) ** 0.5),
        "skewed_error_ratio": pytest.approx(3.0),
    }


def test_without_an_error_in_a_group_there_is_no_ratio() -> None:
    assert spread_of([1.0, 0.9])["skewed_error_ratio"] is None
