"""Sets with the lists of benchmarks: pairs of two groups, and templates."""

from pathlib import Path

import numpy as np
from tests.toy import SIZE

from fedvisage.data.lists import TemplateLists, write_lists
from fedvisage.data.writer import Writer

RACES = ("north", "south")


def write_set(
    path: Path,
    names: list[str],
    who: list[str],
    groups: list[str],
    splits: list[str] | None = None,
    **further: list[str],
) -> Path:
    rng, count = np.random.default_rng(sum(map(ord, path.name))), len(names)
    with Writer(path, name=path.name, size=SIZE, source="noise", identities=True, further=tuple(further)) as out:
        images = rng.integers(0, 255, (count, SIZE, SIZE, 3)).astype(np.uint8)
        out.add(
            images,
            label=[1] * count,
            species=["bonafide"] * count,
            subject=who,
            video=names,
            frame=[0] * count,
            split=splits or ["test"] * count,
            item=names,
            group=groups,
            further=further,
        )
    return path


def write_listed(root: Path) -> Path:
    """Write a set of two groups with a list of pairs per group, as the import of RFW does."""
    people = [f"{race}-{person}" for race in RACES for person in "abcd"]
    names = [f"{who}/{who}_{number:04d}.png" for who in people for number in (1, 2)]
    owners = [who for who in people for _ in (1, 2)]
    path = write_set(root / "listed", names, owners, [who.partition("-")[0] for who in owners])
    for race in RACES:
        lines = [f"{race}-{one}\t1\t2\n{race}-{one}\t1\t{race}-{other}\t2\n" for one, other in ("ab", "bc", "cd", "da")]
        path.with_name(f"listed-pairs-{race}.txt").write_text("".join(lines))
    return path


def write_templates(root: Path, people: int = 8) -> Path:
    """Write a set with two templates per person: three images of two media, and one image."""
    rows = [(person, 2 * person + (image == 3), image // 2) for person in range(people) for image in range(4)]
    names = [f"loose_crop/{number}.jpg" for number in range(len(rows))]
    path = write_set(
        root / "ijb",
        names,
        [f"ijb/{person}" for person, _, _ in rows],
        ["all"] * len(rows),
        template=[str(template) for _, template, _ in rows],
        media=[str(medium) for _, _, medium in rows],
        confidence=[f"0.{5 + number % 5}" for number in range(len(rows))],
    )
    pairs = [(2 * first, 2 * second + 1, int(first == second)) for first in range(people) for second in range(people)]
    enrolled = np.array([(2 * person, 100 + person) for person in range(people)], np.int32)
    probes = np.array([(2 * person + 1, 100 + person) for person in range(people)], np.int32)
    galleries = {"g1": enrolled[::2], "g2": enrolled[1::2]}
    write_lists(path, TemplateLists(np.array(pairs, np.int32), galleries, probes))
    return path
