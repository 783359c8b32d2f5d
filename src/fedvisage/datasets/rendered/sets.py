"""From a specification to a prepared set on disk.

The unit of work is a subject; subjects are filmed by any number of processes and written in order, so the bytes do
not depend on how many there are.
"""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from fedvisage.data.prepared import Writer
from fedvisage.datasets.rendered.specification import RENDERER_VERSION, Synthesis, parse_synthesis
from fedvisage.faces.synthetic.domain import Attack, Domain
from fedvisage.faces.synthetic.domains import find_domain
from fedvisage.faces.synthetic.filming import Frames, Video, film
from fedvisage.streams import derive, numpy_rng
from fedvisage.workers.spread import Progress, spread

__all__ = ["RENDERER_VERSION", "Synthesis", "parse_synthesis", "plan_videos", "synthesise"]

BATCH = 16
"""Images that are rendered together: more only costs memory traffic."""


def synthesise(spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None) -> None:
    """Render the set that the specification names into a prepared set at the destination."""
    plan = plan_videos(spec)
    total, done = sum(video.frames for videos in plan for video in videos), 0
    heldout = heldout_subjects(spec, [videos[0].subject for videos in plan])
    work = partial(film_subject, domain=find_domain(spec.domain), size=spec.size)
    with (
        Writer(
            destination,
            name=spec.domain,
            size=spec.size,
            source=f"synthetic {spec.digest_text}",
            depth=True,
            points=True,
        ) as out,
        closing(spread(work, plan, workers)) as films,
    ):
        for videos, filmed in zip(plan, films, strict=True):
            _write(out, videos, filmed, "heldout" if videos[0].subject in heldout else "train")
            done += len(filmed.images)
            if progress:
                progress(done, total)


def plan_videos(spec: Synthesis) -> list[list[Video]]:
    """Return every subject's videos: bona fide ones, then attacks, going round the domain's instruments."""
    domain = find_domain(spec.domain)
    attacks = [attack for attack in domain.attacks if spec.species is None or attack.species in spec.species]
    bonafide = spec.videos or domain.videos
    attacked = max(1, round(bonafide * domain.ratio))
    return [
        _plan_subject(spec, domain, attacks, number, bonafide, attacked)
        for number in range(spec.subjects or domain.subjects)
    ]


def _plan_subject(
    spec: Synthesis, domain: Domain, attacks: Sequence[Attack], number: int, bonafide: int, attacked: int
) -> list[Video]:
    subject = f"{domain.name}-{number + 1:04d}"
    person = derive(spec.seed, "person", domain.name, number)
    kinds: list[Attack | None] = [None] * bonafide
    kinds += [attacks[(number * attacked + turn) % len(attacks)] for turn in range(attacked)]
    videos = []
    for turn, attack in enumerate(kinds):
        name = f"{subject}-{turn + 1:02d}-{attack.species if attack else 'bonafide'}"
        seed = derive(spec.seed, "video", domain.name, number, turn)
        cameras = domain.attack_cameras if attack else domain.cameras
        camera = cameras[derive(seed, "which camera") % len(cameras)]
        videos.append(Video(name, subject, person, seed, spec.frames, camera, attack))
    return videos


def heldout_subjects(spec: Synthesis, subjects: Sequence[str]) -> set[str]:
    """Return the subjects that are kept for evaluation: a share of them, drawn by the seed, never all."""
    count = min(round(spec.heldout * len(subjects)), len(subjects) - 1)
    if spec.heldout > 0 and len(subjects) > 1:
        count = max(count, 1)
    order = numpy_rng(spec.seed, "heldout", spec.domain).permutation(len(subjects))
    return {subjects[index] for index in order[:count]}


def film_subject(videos: Sequence[Video], domain: Domain, size: int) -> Frames:
    """Film all videos of one subject, batched by species, and return their frames in the order of the videos."""
    filmed: dict[str, Frames] = {}
    for species in dict.fromkeys(video.species for video in videos):
        same = [video for video in videos if video.species == species]
        step = max(1, BATCH // same[0].frames)
        for start in range(0, len(same), step):
            batch = same[start : start + step]
            filmed |= zip((video.name for video in batch), film(batch, domain, size).split(batch), strict=True)
    return Frames.joined([filmed[video.name] for video in videos])


def _write(out: Writer, videos: Sequence[Video], filmed: Frames, split: str) -> None:
    rows = [(video, frame) for video in videos for frame in range(video.frames)]
    out.add(
        filmed.images,
        label=[int(video.attack is None) for video, _ in rows],
        species=[video.species for video, _ in rows],
        subject=[video.subject for video, _ in rows],
        video=[video.name for video, _ in rows],
        frame=[frame for _, frame in rows],
        split=[split] * len(rows),
        item=[f"{video.subject}/{video.name}/{frame:03d}" for video, frame in rows],
        depth=filmed.depth,
        points=filmed.points,
    )
