"""The number of people in the densest cap of each site, on which the verdict on PrivacyFace's clusters depends."""

from pathlib import Path

import numpy as np
from benchmarks.densest_caps import count_members
from benchmarks.real.people import embed

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.tasks.finished_model import open_model

MARGIN = 0.9


def test_count_is_the_largest_number_of_people_around_one_of_them(recognition_run: Path) -> None:
    model = open_model(recognition_run)
    expected = []
    for path in model.recipe.data.sites.values():
        people = View.of(PreparedSet.open(Path(path)), "train")
        features = embed(model, people).astype(float)
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        means = [features[people.subjects == name].mean(axis=0) for name in people.identities]
        unit = [mean / np.linalg.norm(mean) for mean in means]
        angles = np.arccos(np.clip(np.inner(unit, unit), -1, 1))
        expected.append(int((angles <= MARGIN).sum(axis=1).max()))
    assert count_members(recognition_run, [MARGIN]) == {MARGIN: expected}
    assert max(expected) > 1
    assert count_members(recognition_run, [1e-3])[1e-3] == [1] * len(expected)
