"""Protocols on whole copies of datasets: counts as published, no person at two places, and recipes that run."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.commands import output_of
from tests.datasets.imports import import_attacks
from tests.datasets.protocols.whole import WMCA_FILES, make_set
from tests.documented import ROOT
from tests.refusals import refused
from tests.toy import run_toy

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import select, split_entry, splits_of
from fedvisage.datasets.catalogue import SCANNERS, all_kinds
from fedvisage.datasets.protocols.across import KINDS
from fedvisage.datasets.protocols.catalogue import PEOPLE, PROTOCOLS, describe_protocol, list_protocols
from fedvisage.datasets.small_copies import write_copy
from fedvisage.methods import read_method
from fedvisage.recipe import Recipe, validate

OCIM_TRAIN = {"O": (720, 2880), "C": (150, 450), "I": (140, 700), "M": (70, 210)}
"""Published videos of the four, their dev parts left out."""

Sets = Callable[[str, str], PreparedSet]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """Sets with two frames of each video of a dataset, made when they are first asked for."""
    root, opened = tmp_path_factory.mktemp("sets"), dict[str, PreparedSet]()

    def of(name: str, kind: str) -> PreparedSet:
        if name not in opened:
            frames, released = (1 if kind == "celeba-spoof" else 2), name.endswith("-released")
            opened[name] = make_set(kind, root / name, frames, released=released)
        return opened[name]

    return of


class DividedFold:
    """The sites and the target of a fold of a protocol."""

    def __init__(self, sets: Sets, protocol: str, fold: str) -> None:
        one = PROTOCOLS[protocol]
        self.sites: dict[str, tuple[View, View]] = {}
        for site, entry in one.folds[fold].sites.items():
            name, selection = split_entry(entry)
            self.sites[site] = splits_of(sets(name, one.sets[name].kind), selection, site)
        name, selection = split_entry(one.folds[fold].target)
        self.target = select(View.of(sets(name, one.sets[name].kind)), selection, "target")

    def training(self) -> dict[str, tuple[int, int]]:
        return {site: count_images(train) for site, (train, _) in self.sites.items()}


def count_images(view: View) -> tuple[int, int]:
    """Count bona fide images and attacks."""
    return int(view.labels.sum()), int((view.labels == 0).sum())


def videos(view: View) -> tuple[int, int]:
    """Count bona fide videos and those of attacks."""
    bona_fide = {video for video, label in zip(view.videos.tolist(), view.labels.tolist(), strict=True) if label}
    return len(bona_fide), len(set(view.videos.tolist())) - len(bona_fide)


def people(*views: View) -> set[str]:
    return {subject for view in views for subject in view.subjects.tolist()}


FOLDS = [(name, fold) for name, one in PROTOCOLS.items() for fold in one.folds]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocol_prints_a_valid_recipe_and_its_imports(name: str, tmp_path: Path) -> None:
    protocol = PROTOCOLS[name]
    for fold in protocol.folds:
        lines = describe_protocol(name, tmp_path, fold)
        tree = yaml.safe_load("\n".join(lines))
        recipe = validate({**tree, "method": "fedpad", "training": {"rounds": 1}}, read_method)
        assert isinstance(recipe, Recipe)
        commands = [line for line in lines if line.startswith("# fedvisage data import")]
        assert {Path(line.split()[6]).name for line in commands} == {
            Path(split_entry(entry)[0]).name for entry in recipe.data.entries
        }
        assert all(line.split()[4] in all_kinds() for line in commands)
        held_out = [split_entry(entry)[1].heldout for entry in recipe.data.sites.values()]
        if recipe.evaluation.threshold == "source-train-eer":
            assert set(held_out) == {()}
        else:
            assert set(held_out) == {("dev",)}


@pytest.mark.parametrize(("name", "fold"), FOLDS)
def test_targets_are_unseen_people_and_sites_have_both_classes(sets: Sets, name: str, fold: str) -> None:
    divided = DividedFold(sets, name, fold)
    assert all(count_images(divided.target))
    seen = set[str]()
    for train, heldout in divided.sites.values():
        assert all(count_images(train))
        assert not people(train) & people(heldout)
        seen |= people(train, heldout)
    if name != "masks+h":
        assert not people(divided.target) & seen


@pytest.mark.parametrize(
    ("name", "train", "dev", "test"),
    [
        ("oulu-1", (240, 960), (180, 720), (120, 480)),
        ("oulu-2", (360, 720), (270, 540), (360, 720)),
        ("oulu-3", (300, 1200), (225, 900), (60, 240)),
        ("oulu-4", (200, 400), (150, 300), (20, 40)),
    ],
)
def test_oulu_has_the_published_numbers_of_videos(
    sets: Sets, name: str, train: tuple[int, int], dev: tuple[int, int], test: tuple[int, int]
) -> None:
    assert len(PROTOCOLS[name].folds) == (6 if name in ("oulu-3", "oulu-4") else 1)
    for fold in PROTOCOLS[name].folds:
        divided = DividedFold(sets, name, fold)
        ((trained, heldout),) = divided.sites.values()
        assert (videos(trained), videos(heldout), videos(divided.target)) == (train, dev, test)


def test_oulu_targets_have_unseen_values(sets: Sets) -> None:
    for fold in "25":
        divided = DividedFold(sets, "oulu-4", fold)
        trained, heldout = divided.sites["O"]
        for column, tested in (("phone", {fold}), ("session", {"3"}), ("file", {"1", "3", "5"})):
            assert set(divided.target.column(column).tolist()) == tested
            both = {*trained.column(column).tolist(), *heldout.column(column).tolist()}
            assert both & tested == ({"1"} if column == "file" else set())  # file 1 is bona fide


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize(("name", "frames"), [("ocim-maddog", 2), ("ocim-flip", 1), ("ocim-fedsis", 2)])
def test_ocim_sites_train_on_all_but_dev(sets: Sets, name: str, frames: int, target: str) -> None:
    divided = DividedFold(sets, name, target)
    wanted = {site: (live * frames, attacks * frames) for site, (live, attacks) in OCIM_TRAIN.items() if site != target}
    assert divided.training() == wanted
    live, attacks = OCIM_TRAIN[target]
    left_out = 0 if name == "ocim-maddog" else 10
    assert videos(divided.target) == (live - left_out, attacks - left_out)
    assert count_images(divided.target) == (2 * (live - left_out), 2 * (attacks - left_out))


def test_one_frame_of_a_video_is_the_first(sets: Sets) -> None:
    train, _ = DividedFold(sets, "ocim-ssdg", "O").sites["M"]
    assert all(item.endswith("/0") for item in train.items.tolist())


def test_limited_sources_are_the_two_small_sets(sets: Sets) -> None:
    for target in "CO":
        assert set(DividedFold(sets, "limited", target).sites) == {"M", "I"}


PHOTO_VIDEO = {"C": (300, 150), "M": (70, 140), "O": (1440, 1440), "I": (420, 280)}


@pytest.mark.parametrize("name", ["one-attack", "one-attack-clips", "one-attack-shared"])
def test_sites_with_one_kind_of_attack(sets: Sets, name: str) -> None:
    folds = (DividedFold(sets, name, "M"), DividedFold(sets, name, "C"))
    sites = folds[0].sites | folds[1].sites
    for dataset, (photo, video) in PHOTO_VIDEO.items():
        first, second = (sites[f"{dataset}-{kind}"][0] for kind in ("photo", "video"))
        assert (count_images(first)[1], count_images(second)[1]) == (photo, video)
        assert set(second.species.tolist()) == {"bonafide", "replay"}
        assert "replay" not in first.species.tolist()
        live = [view.subset((view.labels == 1).nonzero()[0]) for view in (first, second)]
        whole = OCIM_TRAIN[dataset][0]
        shared = set(live[0].videos.tolist()) & set(live[1].videos.tolist())
        if name == "one-attack-shared":
            assert len(shared) == len(live[0]) == len(live[1]) == whole
        else:
            assert not shared
            assert len(live[0]) + len(live[1]) == whole
        assert bool(people(live[0]) & people(live[1])) == (name != "one-attack")


def test_released_label_bug_affects_sites_only(sets: Sets) -> None:
    """Fifty people with the clips 1, 2, HR_1 and HR_4 as bona fide, 100 replays; the target C is as it should be."""
    divided = DividedFold(sets, "fedsis-released", "M")
    photo, video = (divided.sites[f"C-{kind}"][0] for kind in ("photo", "video"))
    assert (count_images(photo), count_images(video)) == ((100, 300), (100, 100))
    live = {clip for view in (photo, video) for clip in view.column("clip")[view.labels == 1].tolist()}
    assert live == {"1", "2", "HR_1", "HR_4"}
    assert "HR_4" not in video.column("clip")[video.labels == 0]
    target = DividedFold(sets, "fedsis-released", "C")
    assert videos(target.target) == (140, 440)
    assert {*target.target.column("clip")[target.target.labels == 1].tolist()} == {"1", "2", "HR_1"}
    right = DividedFold(sets, "one-attack-clips", "M")
    assert {site: count_images(train) for site, (train, _) in right.sites.items() if site[0] != "C"} == {
        site: count_images(train) for site, (train, _) in divided.sites.items() if site[0] != "C"
    }


def test_fedgpad_sites_have_one_attack_type(sets: Sets) -> None:
    divided = DividedFold(sets, "one-attack-fedgpad", "M")
    kinds = {site: set(train.species.tolist()) for site, (train, _) in divided.sites.items()}
    assert kinds == {"I": {"bonafide", "print"}, "O": {"bonafide", "replay"}}
    assert videos(divided.target) == OCIM_TRAIN["M"]


def test_masks_are_seen_by_no_site_but_h(sets: Sets) -> None:
    for name, masked in (("masks", set()), ("masks+h", {"H"})):
        divided = DividedFold(sets, name, "3")
        assert {site for site, (train, _) in divided.sites.items() if "mask_rigid" in train.species} == masked
        assert videos(divided.target) == (170, 85)
        assert set(divided.target.species.tolist()) == {"bonafide", "mask_rigid"}


def test_siw_protocols(sets: Sets) -> None:
    """Nine people train and six test, before two cameras: four live videos, and a video of each print and display."""
    first = DividedFold(sets, "siw-1", "S")
    assert (videos(first.sites["S"][0]), videos(first.target)) == ((9 * 8, 9 * 12), (6 * 8, 6 * 12))
    for medium in "1234":
        divided = DividedFold(sets, "siw-2", medium)
        train, _ = divided.sites["S"]
        assert (videos(train), videos(divided.target)) == ((9 * 8, 9 * 2 * 3), (6 * 8, 6 * 2))
        unseen = divided.target.column("medium")[divided.target.labels == 0]
        assert set(unseen.tolist()) == {medium}
        assert medium not in train.column("medium")[train.labels == 0]
    for unseen, seen in (("replay", "print"), ("print", "replay")):
        divided = DividedFold(sets, "siw-3", unseen)
        assert set(divided.sites["S"][0].species.tolist()) == {"bonafide", seen}
        assert set(divided.target.species.tolist()) == {"bonafide", unseen}


def test_wmca_protocols(sets: Sets) -> None:
    """Two clients in each part, with the same files."""
    by_species = Counter(WMCA_FILES.values())
    attacks = sum(by_species.values()) - by_species["bonafide"]
    divided = DividedFold(sets, "wmca-grandtest", "W")
    for view in (*divided.sites["W"], divided.target):
        assert videos(view) == (2 * by_species["bonafide"], 2 * attacks)
    for unseen in PROTOCOLS["wmca-unseen"].folds:
        divided = DividedFold(sets, "wmca-unseen", unseen)
        assert set(divided.target.species.tolist()) == {"bonafide", unseen}
        assert videos(divided.target)[1] == 2 * by_species[unseen]
        for view in divided.sites["W"]:
            assert set(view.species.tolist()) == set(by_species) - {unseen}


def test_protocols_of_wmca_cefa_and_surf(sets: Sets) -> None:
    targets = {target: DividedFold(sets, "wcs", target) for target in "WEF"}
    assert set(targets["W"].target.species.tolist()) == {"bonafide", "print", "replay"}
    assert videos(targets["W"].target) == (6 * 2, 6 * 3)
    assert videos(targets["E"].target) == (9, 27)  # three people of dev, of three ethnicities
    assert videos(targets["F"].sites["E"][0]) == (30, 90)  # without masks
    assert videos(targets["F"].target) == (100, 300)
    assert videos(targets["E"].sites["F"][0]) == (1000, 2991)


def test_celeba_spoof_protocols(sets: Sets) -> None:
    intra = DividedFold(sets, "celeba-intra", "A")
    assert (count_images(intra.sites["A"][0]), count_images(intra.target)) == ((20, 40), (6, 12))
    assert count_images(DividedFold(sets, "celeba-cross", "C").target) == (300, 900)
    for name, fold, trained in (
        ("celeba-mediums", "A", (20, 40)),
        ("celeba-sensors", "high", (10, 20)),
        ("celeba-sensors", "low", (20, 40)),
    ):
        divided = DividedFold(sets, name, fold)
        assert (count_images(divided.sites["A"][0]), count_images(divided.target)) == (trained, (6, 12))
    tenth, _ = DividedFold(sets, "ocim-flip+s", "M").sites["A"]
    assert len(people(tenth)) == 3  # of 26
    assert len(PROTOCOLS["1-to-11"].folds) == 11


def test_protocols_page_has_a_row_for_each() -> None:
    page = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    table = page[page.index("| protocols |") :].split("\n\n")[0]
    assert re.findall(r"`([^`]+)`", "".join(row.split("|")[1] for row in table.splitlines())) == [*PROTOCOLS, *PEOPLE]


def test_protocols_are_listed_and_unknown_names_refused() -> None:
    assert output_of("data", "protocols").splitlines() == list_protocols()
    with refused("NAME", "'ocim'", "ocim-ssdg"):
        describe_protocol("ocim", Path("sets"))
    with refused("NAME", "oulu-4"):
        describe_protocol("oulu", Path("sets"))
    with refused("--target", "O, C, I, M"):
        describe_protocol("ocim-flip", Path("sets"))
    with refused("--target", "'U'", "O, C, I, M"):
        describe_protocol("ocim-flip", Path("sets"), "U")


@pytest.mark.long
def test_printed_protocol_runs_on_small_copies(tmp_path: Path) -> None:
    for name, kind in KINDS.items():
        write_copy(SCANNERS[kind], tmp_path / kind)
        import_attacks(kind, tmp_path / kind, tmp_path / "sets" / name, size=32, frames="2")
    output = output_of("data", "protocols", "ocim-ssdg", "--sets", tmp_path / "sets", "--target", "M")
    tree = yaml.safe_load(output)
    tree |= {
        "method": {"name": "fedpad", "network": {"width": 8}},
        "input": {"size": 32},
        "training": {"rounds": 1, "batch": 4, "local": {"batches": 1}},
        "runtime": {"precision": "fp32", "threads": 1, "device": "cpu"},
    }
    tree["evaluation"]["resamples"] = 0
    metrics = run_toy(tree, tmp_path / "run")
    assert metrics["threshold_rule"] == "source-train-eer"
    assert set(metrics.parts("sites_training")) == {"O", "C", "I"}
