"""FedFR's personalised protocol on few people, counted by hand."""

import numpy as np
import pytest
from tests.metrics.faces import tied_faces
from tests.refusals import refused

from fedvisage.metrics.identification import enrol_means, figures_of_site, identify, identify_site, mean_over_sites
from fedvisage.metrics.similarity import Faces, label_features
from fedvisage.metrics.verification import verify_against

TRAINING = label_features([[1, 0], [0.8, 0.6], [0, 1]], [5, 5, 2])


def test_the_gallery_is_the_mean_training_feature_of_each_identity() -> None:
    gallery = enrol_means(TRAINING)
    assert gallery.identity.tolist() == [2, 5]
    length = np.hypot(0.9, 0.3)
    np.testing.assert_allclose(gallery.features, [[0, 1], [0.9 / length, 0.3 / length]], atol=1e-6)
    np.testing.assert_allclose(enrol_means(TRAINING, unit_length=False).features, [[0, 1], [0.9, 0.3]], atol=1e-6)


def test_with_a_raw_gallery_people_whose_images_agree_score_higher() -> None:
    """Strangers are nearer to person 5 (0.98) than the probe to person 2 (0.95); but 5's mean is 0.95 long, 2's 1."""
    test, strangers = label_features([[0.3, 0.954]], [2]), label_features([[0.99, 0.141]] * 2, [9, 9])
    for unit_length, actual in ((True, 0.0), (False, 1.0)):
        site = figures_of_site(TRAINING, test, strangers, (), (0.5,), "nist", unit_length=unit_length)
        assert site.tpir == {0.5: actual}, unit_length


def test_local_and_foreign_probes_search_the_local_gallery() -> None:
    training, test = tied_faces(0, [0, 1, 2], 8), tied_faces(0, [0, 1, 2], 4)
    others = tied_faces(1, list(range(5, 15)), 4)
    both = Faces(np.concatenate([test.features, others.features]), np.concatenate([test.identity, others.identity]))
    for mode in ("published", "nist"):
        actual = identify_site(enrol_means(training), test, others, [0.1], mode)
        assert actual == identify([enrol_means(training)], both, [0.1], mode)[0]
        assert (actual.mated, actual.unmated) == (12, 40)


def test_an_identity_at_two_sites_or_without_training_images_is_refused() -> None:
    test, others = tied_faces(0, [2, 5], 2), tied_faces(1, [8], 2)
    with refused("identification", "5", "both sides"):
        identify_site(
            enrol_means(TRAINING), label_features([[1, 0]], [2]), label_features([[1, 0]], [5]), [1.0], "published"
        )
    with refused("gallery", "2", "enrol"):
        identify_site(enrol_means(test.take(test.identity == 5)), test, others, [1.0], "published")
    with refused("gallery", "empty"):
        enrol_means(TRAINING.take(np.zeros(0, np.int64)))


def test_figures_are_means_over_sites() -> None:
    sites = [tied_faces(seed, [10 * seed, 10 * seed + 1], 6) for seed in range(3)]
    verified, identified = [], []
    for index, site in enumerate(sites):
        rest = [other for at, other in enumerate(sites) if at != index]
        others = Faces(np.concatenate([o.features for o in rest]), np.concatenate([o.identity for o in rest]))
        verified.append(verify_against(site, others, [0.01, 0.1]))
        identified.append(identify_site(enrol_means(site), site, others, [0.1], "published"))
    actual = mean_over_sites(verified, identified)
    assert actual.tar == pytest.approx({far: np.mean([one.tar[far] for one in verified]) for far in (0.01, 0.1)})
    assert actual.tpir == pytest.approx({0.1: np.mean([one.tpir[0.1] for one in identified])})
    with pytest.raises(ValueError, match="different rates"):
        mean_over_sites([*verified, verify_against(sites[0], sites[1], [0.5])], identified)
