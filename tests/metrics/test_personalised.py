"""FedFR's personalised protocol on few people, counted by hand."""

import numpy as np
from tests.metrics.faces import join_faces, tied_faces
from tests.refusals import refused

from fedvisage.metrics.identification import enrol_means, figures_of_site, identify, identify_site
from fedvisage.metrics.similarity import label_features

TRAINING = label_features([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], [5, 5, 2])


def test_the_gallery_is_the_mean_training_feature_of_each_identity() -> None:
    gallery = enrol_means(TRAINING)
    assert gallery.identity.tolist() == [2, 5]
    length = np.hypot(0.9, 0.3)
    np.testing.assert_allclose(gallery.features, np.array([[0.0, 1.0], [0.9 / length, 0.3 / length]]), atol=1e-6)
    expected = np.array([[0.0, 1.0], [0.9, 0.3]])
    np.testing.assert_allclose(enrol_means(TRAINING, unit_length=False).features, expected, atol=1e-6)


def test_with_a_raw_gallery_people_whose_images_agree_score_higher() -> None:
    """Strangers are nearer to person 5 (0.98) than the probe to person 2 (0.95); but 5's mean is 0.95 long, 2's 1."""
    test, strangers = label_features([[0.3, 0.954]], [2]), label_features([[0.99, 0.141]] * 2, [9, 9])
    for unit_length, actual in ((True, 0.0), (False, 1.0)):
        site = figures_of_site(TRAINING, test, strangers, (), (0.5,), "nist", unit_length=unit_length)
        assert site.tpir == {0.5: actual}, unit_length


def test_local_and_foreign_probes_search_the_local_gallery() -> None:
    training, test = tied_faces(0, [0, 1, 2], 8), tied_faces(0, [0, 1, 2], 4)
    others = tied_faces(1, list(range(5, 15)), 4)
    for mode in ("published", "nist"):
        actual = identify_site(enrol_means(training), test, others, [0.1], mode)
        assert actual == identify([enrol_means(training)], join_faces(test, others), [0.1], mode)[0]
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
