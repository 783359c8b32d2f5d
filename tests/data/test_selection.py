"""Parts of prepared sets: halves, kinds of attacks, nine tenths and the other tenth, and splits by subject."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.small_sets import pixels, write_set
from tests.refusals import refused
from tests.toy import make_set, open_run_data, run_toy, tree

from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import select, split_entry, splits_of
from fedvisage.data.splits import split_subjects


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty subjects, twenty of them for training, with three kinds of images and two frames of each."""
    return make_set(tmp_path_factory.mktemp("parts") / "M", "M", 3, subjects=30)


def part(path: Path, words: str, split: str | None = "train") -> View:
    source, selection = split_entry(f"{path} only: {words}")
    assert source == str(path)
    return select(View.of(PreparedSet.open(path), split), selection, "here")


def items(view: View) -> set[str]:
    return set(view.items.tolist())


def test_sites_may_share_no_image_of_one_set(path: Path) -> None:
    printed, replayed = (
        part(path, f"attacks={kind} bonafide={half}") for kind, half in (("print", "1/2"), ("replay", "2/2"))
    )
    assert set(printed.species.tolist()) == {"bonafide", "print"}
    assert set(replayed.species.tolist()) == {"bonafide", "replay"}
    assert not items(printed) & items(replayed)
    assert items(printed) | items(replayed) == items(View.of(PreparedSet.open(path), "train"))
    assert (printed.labels == 1).sum() == (replayed.labels == 1).sum() == 20
    assert (printed.labels == 0).sum() == (replayed.labels == 0).sum() == 40


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_nine_tenths_and_the_other_tenth_have_no_subject_in_common(path: Path, split: str) -> None:
    most, rest = (part(path, f"subjects={ends}", split) for ends in ("0-90", "90-100"))
    whole = View.of(PreparedSet.open(path), split)
    assert not set(most.subjects.tolist()) & set(rest.subjects.tolist())
    assert items(most) | items(rest) == items(whole)
    assert len(set(rest.subjects.tolist())) == {"train": 2, "heldout": 1}[split]


def test_entry_without_selection_is_the_whole_set(path: Path) -> None:
    source, selection = split_entry(str(path))
    view = View.of(PreparedSet.open(Path(source)), "train")
    assert select(view, selection, "here") is view


@pytest.mark.parametrize(
    "words",
    [
        *("attacks", "attacks=", "bonafide=3/2", "bonafide=0/2", "subjects=90-10", "subjects=0-101", "half", ""),
        *("frames=0", "frames=x", "by=videos", "bonafide=1/2 by=people", "without=", "heldout=", "attack.=1"),
    ],
)
def test_unreadable_selection_is_refused(words: str) -> None:
    entry = f"data/M only: {words}"
    with refused(entry, "bonafide=1/2"):
        split_entry(entry)


def test_missing_attack_type_is_refused(path: Path) -> None:
    with refused("here", "mask", "print, replay"):
        part(path, "attacks=mask")


@pytest.fixture(scope="module")
def with_columns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight subjects in two sessions; the first half is the authors' training part; some videos enrol."""
    numbers = range(16)
    further = {
        "official": ["train" if n < 8 else "test" for n in numbers],
        "session": [str(1 + n // 2 % 2) for n in numbers],
        "purpose": ["enroll" if n in (0, 8) else "" for n in numbers],
    }
    species, subjects = ["print" if n % 2 else "bonafide" for n in numbers], [f"s{n // 2}" for n in numbers]
    items = [f"{n}.png" for n in numbers]
    path = tmp_path_factory.mktemp("columns") / "R"
    return write_set(path, pixels(16), species=species, subject=subjects, item=items, further=further).path


def test_further_columns_select_by_their_values(with_columns: Path) -> None:
    assert items(part(with_columns, "session=2 official=train")) == {"2.png", "3.png", "6.png", "7.png"}
    assert len(part(with_columns, "session=1,2 attacks=print")) == 14  # but for what enrols
    assert items(part(with_columns, "official=test session=1")) == {"9.png", "12.png", "13.png"}


def test_enrolment_videos_are_excluded_by_default(with_columns: Path) -> None:
    plain = View.of(PreparedSet.open(with_columns), "train")
    everything = items(plain)
    assert items(select(plain, split_entry(str(with_columns))[1], "here")) == everything - {"0.png", "8.png"}
    assert items(part(with_columns, "purpose=enroll bonafide=1/1")) == {"0.png", "8.png"}


def test_attack_prefix_restricts_a_column_to_attacks(with_columns: Path) -> None:
    assert items(part(with_columns, "attack.session=2")) == {f"{n}.png" for n in range(2, 16, 2) if n != 8} | {
        f"{n}.png" for n in (3, 7, 11, 15)
    }
    with refused("here", "device"):
        part(with_columns, "attack.device=1")


def test_without_excludes_videos_by_path_ends(tmp_path: Path) -> None:
    names = ["train/1/3", "train/11/3", "test/1/3", "test/2/3"]
    write_set(tmp_path / "V", pixels(4), item=names)
    assert items(part(tmp_path / "V", "without=1/3")) == {"train/11/3", "test/2/3"}
    assert items(part(tmp_path / "V", "without=train/1/3,test/2/3,nothing")) == {"train/11/3", "test/1/3"}


def test_the_first_frames_of_each_video(path: Path) -> None:
    first, whole = part(path, "frames=1"), part(path, "subjects=0-100")
    assert len(first) == len(whole) / 2
    assert all(item.endswith("/0.png") for item in items(first))
    assert items(part(path, "frames=2")) == items(part(path, "frames=9")) == items(whole)


def test_halves_by_videos_share_subjects_and_no_image(with_columns: Path) -> None:
    halves = [part(with_columns, f"bonafide={half} by=videos attacks=print") for half in ("1/2", "2/2")]
    live = [items(half) & {f"{n}.png" for n in range(0, 16, 2)} for half in halves]
    assert not live[0] & live[1]
    assert len(live[0] | live[1]) == 6
    assert all(len(half) >= 8 for half in halves)


def test_site_holds_out_the_authors_split_or_nothing(with_columns: Path) -> None:
    def splits(words: str) -> tuple[set[str], set[str]]:
        source, selection = split_entry(f"{with_columns} only: {words}")
        train, heldout = splits_of(PreparedSet.open(Path(source)), selection, "here")
        return items(train), items(heldout)

    first, second = ({f"{n}.png" for n in half if n not in (0, 8)} for half in (range(8), range(8, 16)))
    assert splits("heldout=test") == (first, second)
    assert splits("heldout=none") == (first | second, set())
    assert splits("heldout=none official=test") == (second, set())
    assert splits("heldout=test session=1")[1] == {"9.png", "12.png", "13.png"}
    assert splits("session=1,2") == (first | second, set())  # of those that were drawn: here all for training
    with refused("here", "official=dev", "'test', 'train'"):
        splits("heldout=dev")
    with refused("here", "heldout="):
        part(with_columns, "heldout=none")


def test_missing_column_or_value_is_refused(with_columns: Path) -> None:
    with refused("here", "device", "official, session, purpose"):
        part(with_columns, "device=1")
    with refused("here", "session=3", "'1', '2'"):
        part(with_columns, "session=3")


@pytest.mark.long
def test_run_with_split_sites_evaluates_an_unseen_attack(sets: Mapping[str, Path], tmp_path: Path) -> None:
    """Two sites of one set each, an auxiliary tenth with its own batch size, and a target with replays only."""
    aux = make_set(tmp_path / "aux", "X", 9, subjects=30)
    content = tree(sets, "fedsis", training__rounds=1, evaluation__every=0)
    content["data"]["sites"] = {
        "A-first": f"{sets['A']} only: attacks=print bonafide=1/2",
        "A-second": f"{sets['A']} only: attacks=replay bonafide=2/2",
        "X": f"{aux} only: subjects=90-100",
    }
    content["data"]["target"] = f"{sets['U']} only: attacks=replay"
    content["training"]["batch"] = {"default": 8, "per_site": {"X": 4}}
    metrics = run_toy(content, tmp_path / "run")
    assert metrics["sites"] == ["A-first", "A-second", "X"]
    assert list(metrics.part("apcer")) == ["replay"]
    assert np.isfinite(metrics["hter"])


def test_target_may_not_share_a_part_of_a_sites_set(sets: Mapping[str, Path], tmp_path: Path) -> None:
    content = tree(sets, "fedpad")
    content["data"]["target"] = f"{sets['A']} only: attacks=replay"
    with refused("data.target", "site A", "--allow-overlap"):
        run_toy(content, tmp_path / "run")


@pytest.mark.long
def test_training_may_start_from_the_other_nine_tenths(sets: Mapping[str, Path], tmp_path: Path) -> None:
    """The central pre-training's file is what FedSIS starts from; both have the same parts."""
    aux = make_set(tmp_path / "aux", "X", 9, subjects=30)
    before = tree(sets, "vit-h-is", training__rounds=1, evaluation__every=0)
    before["data"]["sites"] = {"X": f"{aux} only: subjects=0-90"}
    run_toy(before, tmp_path / "before")
    after = tree(sets, "fedsis", training__rounds=1, evaluation__every=0)
    after["data"]["sites"]["X"] = f"{aux} only: subjects=90-100"
    after["training"] |= {"start": str(tmp_path / "before" / "model.safetensors"), "optimizer": {"lr": 1e-12}}
    run_toy(after, tmp_path / "after")
    from safetensors.numpy import load_file

    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "after"))
    assert one.keys() == other.keys()
    for name in (key for key in one if "running" not in key and "tracked" not in key):
        np.testing.assert_allclose(other[name], one[name], atol=1e-6)


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize(
    ("words", "subjects", "share", "attacks"),
    [
        ("attacks=print bonafide=2/3 subjects=20-70", (20, 70), (2, 3), {"print"}),
        ("subjects=5-95", (5, 95), (1, 1), {"print", "replay"}),
        ("attacks=replay bonafide=1/4", (0, 100), (1, 4), {"replay"}),
    ],
)
def test_selection_equals_a_loop_over_the_images(
    path: Path, split: str, words: str, subjects: tuple[int, int], share: tuple[int, int], attacks: set[str]
) -> None:
    whole = View.of(PreparedSet.open(path), split)
    names = sorted(set(whole.subjects.tolist()))
    order = [names[number] for number in numpy_rng(0, "selection").permutation(len(names))]
    first, last = (len(order) * percent // 100 for percent in subjects)
    expected = [
        item
        for item, subject, species in zip(whole.items, whole.subjects, whole.species, strict=True)
        if subject in order[first:last]
        and (species in attacks or (species == "bonafide" and subject in order[share[0] - 1 :: share[1]]))
    ]
    assert part(path, words, split).items.tolist() == expected


def test_shared_set_is_opened_once(path: Path, tmp_path: Path) -> None:
    entries = {f"S{n}": f"{path} only: subjects={10 * n}-{10 * n + 10}" for n in range(9)}
    content = tree(dict.fromkeys(("A", "B", "C", "U"), path))
    content["data"] = {"sites": entries, "target": f"{path} only: subjects=90-100"}
    data = open_run_data(content, tmp_path / "cache")
    assert data.target is not None
    views = [data.target, *(view for site in data.sites.values() for view in (site.train, site.heldout))]
    assert len(views) == 19
    assert len({id(part.set) for view in views for part in view.slices}) == 1


IMAGES = st.lists(st.tuples(st.sampled_from([f"s{n}" for n in range(12)]), st.integers(0, 1)), max_size=80)
SHARES = st.floats(0, 0.99)


def split(images: list[tuple[str, int]], share: float, seed: int = 0) -> dict[str, str]:
    subjects, labels = [subject for subject, _ in images], [label for _, label in images]
    return split_subjects(subjects, labels, share, np.random.default_rng(seed))


@given(IMAGES, SHARES)
def test_every_subject_has_exactly_one_split(images: list[tuple[str, int]], share: float) -> None:
    split_of = split(images, share)
    assert set(split_of) == {subject for subject, _ in images}
    assert set(split_of.values()) <= {"train", "heldout"}


@given(IMAGES, st.floats(0.01, 0.99))
def test_both_splits_have_every_kind_of_two_subjects(images: list[tuple[str, int]], share: float) -> None:
    split_of = split(images, share)
    classes = {subject: frozenset(label for who, label in images if who == subject) for subject in split_of}
    for kind in set(classes.values()):
        alike = [subject for subject in split_of if classes[subject] == kind]
        assert len({split_of[subject] for subject in alike}) == min(len(alike), 2)


@given(IMAGES, SHARES, st.randoms(use_true_random=False))
def test_the_order_of_the_images_is_irrelevant(images: list[tuple[str, int]], share: float, shuffler: Random) -> None:
    shuffled = list(images)
    shuffler.shuffle(shuffled)
    assert split(images, share) == split(shuffled, share)


def test_share_is_met_and_drawn_by_the_generator() -> None:
    images = [(f"s{n}", label) for n in range(40) for label in (0, 1)]
    first, second = split(images, 0.25, seed=1), split(images, 0.25, seed=2)
    assert list(first.values()).count("heldout") == 10
    assert first == split(images, 0.25, seed=1)
    assert first != second


def test_share_of_zero_holds_out_no_subject() -> None:
    assert set(split([("a", 0), ("b", 0)], 0).values()) == {"train"}


def test_impossible_share_is_refused() -> None:
    with pytest.raises(ValueError, match="share must be"):
        split([("a", 0)], 1)
