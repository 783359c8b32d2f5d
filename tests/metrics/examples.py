"""Scores for the tests of metrics: hand-made ones and random ones."""

import numpy as np
from hypothesis import strategies as st

from fedvisage.metrics.scores import Scores, from_columns


def scores_of(bona_fide: list[float], attacks: dict[str, list[float]], subjects: int = 4) -> Scores:
    """Build scores from logits of bona fide and of each attack species, subjects taking turns."""
    live = [*bona_fide, *(value for values in attacks.values() for value in values)]
    species = [""] * len(bona_fide) + [name for name, values in attacks.items() for _ in values]
    names = [f"{index:04d}" for index in range(len(live))]
    return from_columns(
        live,
        [int(name == "") for name in species],
        item=names,
        video=[f"v{name}" for name in names],
        subject=[f"s{index % subjects}" for index in range(len(live))],
        species=species,
        site="U",
    )


def random_scores(seed: int, count: int = 300, subjects: int = 20, distance: float = 1.5) -> Scores:
    """Return overlapping normal scores, rounded so that ties occur."""
    rng = np.random.default_rng(seed)
    bona_fide = np.round(rng.normal(distance, 1, count // 2), 1).tolist()
    attack = np.round(rng.normal(0, 1, count // 2), 1).tolist()
    third = len(attack) // 3
    return scores_of(bona_fide, {"print": attack[:third], "replay": attack[third:]}, subjects)


logits = st.floats(-25, 25).map(lambda value: round(value, 2))
two_class_scores = st.builds(
    scores_of,
    st.lists(logits, min_size=1, max_size=30),
    st.fixed_dictionaries(
        {
            "print": st.lists(logits, min_size=1, max_size=20),
            "mask": st.lists(logits, min_size=1, max_size=10),
        }
    ),
)
