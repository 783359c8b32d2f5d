"""How well a gallery finds its people, and strangers pass: TPIR at stated FPIR, on pictures that say whose they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedvisage.errors import UserError
from fedvisage.gallery.door import face_to_enrol
from fedvisage.gallery.engine import Engine, Image, model_of
from fedvisage.gallery.search import Gallery
from fedvisage.metrics.similarity import Faces, Features, measurable, unit

FPIRS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Figures:
    """What searching for every picture's face showed. Pictures that are not judged are counted, and no searches."""

    collection: str
    people: int
    mated: int
    unmated: int
    not_judged: dict[str, int]
    rank_one: float
    tpir_at_fpir: dict[float, float]
    threshold_at_fpir: dict[float, float]
    threshold: float
    """The model's own, and what comes of it:"""
    tpir: float
    fpir: float | None

    def as_values(self) -> dict[str, Any]:
        """Return all as plain values, for programs."""
        rates = {name: {f"{rate:g}": value for rate, value in asdict(self)[name].items()}
                 for name in ("tpir_at_fpir", "threshold_at_fpir")}  # fmt: skip
        return {**asdict(self), **rates}

    def lines(self) -> list[str]:
        """Return all as lines, for people."""
        false = "" if self.fpir is None else f", and of {self.fpir:.2%} of searches for strangers somebody"
        return [
            f"{self.people} people in {self.collection}; {self.mated} searches for them, {self.unmated} for strangers",
            *(f"not judged: {count} ({reason})" for reason, count in sorted(self.not_judged.items())),
            f"the right person is first: {self.rank_one:.2%}",
            f"at the model's threshold {self.threshold:+.4f}: finds {self.tpir:.2%}{false}",
            *(
                f"TPIR at FPIR {rate:g}: {value:.2%} (threshold {self.threshold_at_fpir[rate]:+.4f})"
                for rate, value in self.tpir_at_fpir.items()
            ),
        ]


def evaluate(gallery: Gallery, engine: Engine, collection: str, pictures: Iterable[tuple[str, Image]]) -> Figures:
    """Search for the face of every picture, which comes with its person's name; names that nobody has are strangers."""
    embeddings, names, refused = list[Features](), list[str](), Counter[str]()
    for name, image in pictures:
        found = face_to_enrol(engine, image)
        if isinstance(found, str):
            refused[found] += 1
        elif (embedding := found.embedding) is not None:
            embeddings.append(embedding)
            names.append(name)
    if not embeddings:
        raise UserError("probes", f"no picture shows a face that can be searched for ({dict(refused)})")
    return figures_of(gallery, engine, collection, unit(np.stack(embeddings)), names, dict(refused))


def figures_of(
    gallery: Gallery, engine: Engine, collection: str, faces: Features, names: list[str], refused: dict[str, int]
) -> Figures:
    """Return the figures of faces (a row each) with their people's names."""
    # Here, because it loads what only judging needs.
    from fedvisage.metrics.identification import identify
    from fedvisage.metrics.identification import search as search_all

    model = model_of(engine)
    loaded = gallery.load(collection, model.digest, faces.shape[1])
    ids, vectors = loaded.index.everybody()
    number = {loaded.names[one]: place for place, one in enumerate(ids)}
    strangers = {name: len(number) + place for place, name in enumerate(sorted(set(names) - number.keys()))}
    enrolled = Faces(vectors, np.arange(len(ids), dtype=np.int64))
    asked = np.stack([loaded.form.asked(one) for one in faces])
    probes = Faces(asked, np.array([(number | strangers)[name] for name in names], np.int64))
    found = search_all(enrolled, probes)
    if not found.mated.any():
        raise UserError("probes", f"nobody of {collection} is on them; name folders as the people")
    mate, rival = (
        np.array([loaded.form.similarity(float(one)) for one in values[found.mated]])
        for values in (found.mate, found.rival)
    )
    first = mate > rival
    unmated = [loaded.form.similarity(float(one)) for one in found.rival[~found.mated]]
    rates = measurable(FPIRS, len(unmated)) if unmated else ()
    (said,) = identify([enrolled], probes, rates, "nist") if rates else (None,)
    return Figures(
        collection=collection, people=len(ids), mated=int(found.mated.sum()), unmated=len(unmated),
        not_judged=refused, rank_one=float(first.mean()),
        tpir_at_fpir={} if said is None else said.tpir,
        threshold_at_fpir={} if said is None else {
            rate: loaded.form.similarity(value) for rate, value in said.threshold.items()
        },
        threshold=model.threshold, tpir=float((first & (mate >= model.threshold)).mean()),
        fpir=float(np.mean(np.array(unmated) >= model.threshold)) if unmated else None,
    )  # fmt: skip
