"""The same picture is found in another set, and independent pictures are not."""

import io
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from tests.data.small_sets import write_set

from fedvisage.data import duplicates
from fedvisage.data.batches import View
from fedvisage.data.duplicates import NEAR, compute_contents, contents_of, find_copies
from fedvisage.data.prepared import PreparedSet
from fedvisage.render.sets import parse_synthesis, synthesise

Pictures = npt.NDArray[np.uint8]


def write(path: Path, images: Pictures, **columns: Any) -> View:
    return View.of(write_set(path, images, **columns))


def draw_pictures(count: int, seed: int, size: int = 48) -> Pictures:
    """Draw pictures of smooth shapes: noise of few pixels, made larger."""
    few = np.random.default_rng(seed).integers(20, 235, (count, 12, 12, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(one).resize((size, size), Image.Resampling.BICUBIC)) for one in few])


def save_again(picture: Image.Image) -> Image.Image:
    packed = io.BytesIO()
    picture.save(packed, "JPEG", quality=60)
    return Image.open(packed).convert("RGB")


def shrink_and_enlarge(picture: Image.Image) -> Image.Image:
    return picture.resize((picture.width // 2,) * 2, Image.Resampling.BICUBIC).resize(picture.size)


def brighten(picture: Image.Image) -> Image.Image:
    return Image.fromarray(np.clip(np.asarray(picture) * 1.15 + 8, 0, 255).astype(np.uint8))


def slow_hash(picture: Pictures) -> list[bool]:
    """Work out a picture's signs by the sum over its pixels, which are those of the grid at 32 pixels."""
    grey = picture.astype(np.float64) @ [0.299, 0.587, 0.114]
    turns = np.pi * (np.arange(32) + 0.5) / 32
    signs = [
        float((grey * np.outer(np.cos(down * turns), np.cos(across * turns))).sum()) > 0
        for down in range(16)
        for across in range(16)
    ]
    return [*signs[1:], False]


def test_hash_has_the_signs_of_the_lowest_coefficients() -> None:
    images = draw_pictures(3, 0, size=32)
    signs = np.unpackbits(compute_contents(images).hashes.view(np.uint8), axis=1, bitorder="little").astype(bool)
    assert signs.tolist() == [slow_hash(picture) for picture in images]


@pytest.mark.parametrize("change", [save_again, shrink_and_enlarge, brighten])
def test_slightly_changed_picture_is_near(change: Callable[[Image.Image], Image.Image], tmp_path: Path) -> None:
    images = draw_pictures(30, 1)
    variants = np.stack([np.asarray(change(Image.fromarray(picture))) for picture in images[:20]])
    places = {"site": [write(tmp_path / "site", images)], "user": [write(tmp_path / "user", variants)]}
    pairs, anywhere = find_copies(places, tmp_path / "cache")
    counts = {(pair.place, pair.other): pair.exact + pair.near for pair in pairs}
    assert counts == {("site", "user"): 20, ("user", "site"): 20}
    assert (anywhere["user"].of, anywhere["site"].of) == (20, 30)


def test_equal_pictures_are_counted_per_place(tmp_path: Path) -> None:
    images = draw_pictures(12, 2)
    places = {
        "a": [write(tmp_path / "a", images[:8])],
        "b": [write(tmp_path / "b", images[2:])],
        "c": [write(tmp_path / "c", draw_pictures(5, 3))],
    }
    pairs, anywhere = find_copies(places, tmp_path / "cache")
    assert {(one.place, one.other): (one.exact, one.near, one.of) for one in pairs} == {
        ("a", "b"): (6, 0, 8),
        ("b", "a"): (6, 0, 10),
    }
    assert anywhere["c"].share == 0
    assert anywhere["a"].share == 6 / 8


def test_near_frames_of_one_subject_are_no_copies(tmp_path: Path) -> None:
    """Two sites may have halves of one set; frames of a person who is at both are near each other."""
    images = draw_pictures(4, 4)
    twice = np.concatenate([images, np.stack([np.asarray(brighten(Image.fromarray(one))) for one in images])])
    whole = write(tmp_path / "one", twice, subject=["s0", "s1", "s2", "s3", "s0", "s1", "s2", "other"])
    first, second = (whole.subset(np.arange(start, start + 4)) for start in (0, 4))
    pairs, _ = find_copies({"first": [first], "second": [second]}, tmp_path / "cache")
    assert {(one.place, one.other): one.near for one in pairs} == {("first", "second"): 1, ("second", "first"): 1}


def test_plain_pictures_are_copies_of_nothing(tmp_path: Path) -> None:
    black = np.zeros((3, 48, 48, 3), np.uint8)
    places = {"a": [write(tmp_path / "a", black)], "b": [write(tmp_path / "b", black + 1 - 1)]}
    pairs, anywhere = find_copies(places, tmp_path / "cache")
    assert pairs == []
    assert anywhere["a"].of == 0


def test_large_collections_are_sampled(tmp_path: Path) -> None:
    images = draw_pictures(40, 5)
    variants = np.stack([np.asarray(brighten(Image.fromarray(picture))) for picture in images])
    places = {"a": [write(tmp_path / "a", images)], "b": [write(tmp_path / "b", variants)]}
    _, anywhere = find_copies(places, tmp_path / "cache", most=80 * 80 // 4)
    assert (anywhere["a"].looked_at, anywhere["a"].near, anywhere["a"].share) == (10, 10, 1.0)


def test_table_of_hashes_is_cached(tmp_path: Path) -> None:
    view = write(tmp_path / "a", draw_pictures(4, 6))
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    first = contents_of(view.slices[0].set, tmp_path / "cache")
    table = next((tmp_path / "cache" / duplicates.FOLDER).iterdir())
    times = table.stat().st_mtime_ns
    again = contents_of(view.slices[0].set, tmp_path / "cache")
    assert np.array_equal(first.hashes, again.hashes)
    assert np.array_equal(first.exact, again.exact)
    assert table.stat().st_mtime_ns == times
    table.write_bytes(b"damaged")
    assert np.array_equal(contents_of(view.slices[0].set, tmp_path / "cache").hashes, first.hashes)
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


def test_table_of_hashes_needs_no_writable_cache(tmp_path: Path) -> None:
    view = write(tmp_path / "a", draw_pictures(4, 6))
    (tmp_path / "cache").write_text("a file where the cache should be")
    assert len(contents_of(view.slices[0].set, tmp_path / "cache").exact) == 4


@pytest.mark.long
def test_rendered_people_of_other_domains_and_seeds_are_not_near(tmp_path: Path) -> None:
    few = " videos=1 frames=1 species=print"
    lines = ("O subjects=3 size=48", "O subjects=3 size=48 seed=1", "C subjects=3 size=48")
    hashes = []
    for number, line in enumerate(lines):
        synthesise(parse_synthesis(line + few), tmp_path / str(number), workers=1)
        hashes.append(compute_contents(PreparedSet.open(tmp_path / str(number)).images).hashes)
    for one, other in combinations(hashes, 2):
        assert np.bitwise_count(one[:, None] ^ other).sum(axis=2, dtype=int).min() > NEAR


def test_counts_of_copies_equal_a_full_comparison(tmp_path: Path) -> None:
    rng, images = np.random.default_rng(8), draw_pictures(15, 8)
    # Five sites share one set, other places have any pictures of it, some several times.
    shared = write(tmp_path / "shared", images)
    places = {f"site {n}": [shared] for n in range(5)}
    places |= {f"other {n}": [write(tmp_path / str(n), images[rng.integers(0, 15, 6)])] for n in range(3)}
    pairs, anywhere = find_copies(places, tmp_path / "cache")
    contents = {
        name: [picture.tobytes() for picture in views[0].slices[0].set.images] for name, views in places.items()
    }
    expected = {
        (place, other): sum(picture in contents[other] for picture in contents[place])
        for place in places
        for other in places
        if place != other
    }
    counts = {(pair.place, pair.other): pair.exact for pair in pairs}
    assert counts == {pair: count for pair, count in expected.items() if count}
    for place in places:
        elsewhere = {picture for other in places if other != place for picture in contents[other]}
        assert anywhere[place].exact == sum(picture in elsewhere for picture in contents[place])
    assert all(one.near == 0 for one in pairs)
