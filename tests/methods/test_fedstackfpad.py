"""Fed-StackFPAD: the two calls to a site, and the same result as plain logistic regressions."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tests.toy import SITES, Sets, recipe_of, run_toy, tree

from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.record.ledger import read_lines
from fedvisage.methods import find
from fedvisage.methods.pad import fedstackfpad
from fedvisage.nn.stacking import logistic, normalise_features


def test_the_model_is_the_stack_of_plain_regressions_on_frozen_features(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedstackfpad", training__rounds=1, input__colour="rgb", method__penalty=0.04)
    run_toy(content, tmp_path / "run")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    recipe = recipe_of(content)
    with seed_global_rng(recipe.runtime.seed, "initial weights"):
        body = find(recipe.method).network(recipe)["body"].eval()
    planes, known = {}, {}
    for site in SITES:
        view = View.of(PreparedSet.open(sets[site]), "train")
        with torch.no_grad():
            features = body(view.batch(np.arange(len(view))).images.float() / 255)
        known[site] = normalise_features(features), torch.from_numpy(view.labels.astype(int)), view.subjects
        planes[site] = logistic(*known[site][:2], 0.04)
    for row, site in enumerate(SITES):
        torch.testing.assert_close(actual["heads.weight"][row].double(), planes[site].weight, rtol=1e-3, atol=1e-4)
    stacks = []
    for own, site in enumerate(SITES):
        features, labels, subjects = known[site]
        logits = torch.stack([planes[other].logits(features.double()) for other in SITES], dim=1)
        half = torch.from_numpy(np.unique(subjects, return_inverse=True)[1] % 2 == 0)
        for one, other in ((half, ~half), (~half, half)):
            logits[one, own] = logistic(features[other], labels[other], 0.04).logits(features[one].double())
        stacks.append(logistic(torch.cat([logits, logits.mean(1, keepdim=True)], dim=1), labels, 1e-2))
    expected = torch.stack([plane.weight for plane in stacks]).mean(0)
    torch.testing.assert_close(actual["stack.weight"][0].double(), expected, rtol=1e-2, atol=1e-3)


def test_mean_classifier_takes_the_place_of_a_missing_one() -> None:
    sent = {name: np.random.default_rng(seed).normal(size=6) for seed, name in enumerate("AC")}
    replies = {
        name: {"head.weight": torch.from_numpy(row[None, :5]), "head.bias": torch.from_numpy(row[5:])}
        for name, row in sent.items()
    }
    heads = fedstackfpad.join_classifiers(("A", "B", "C"), replies)
    rows = np.stack([sent["A"], (sent["A"] + sent["C"]) / 2, sent["C"]])
    np.testing.assert_allclose(heads["heads.weight"].numpy(), rows[:, :5])
    np.testing.assert_allclose(heads["heads.bias"].numpy(), rows[:, 5])


def test_site_gets_two_calls_and_sends_two_classifiers(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "fedstackfpad", training__rounds=1), tmp_path / "run")
    rows = read_lines(tmp_path / "run" / "ledger.jsonl")
    sent = {(row["call"], row["bytes"]) for row in rows if row["direction"] == "up" and row["field"] == "weights"}
    width = load_file(tmp_path / "run" / "model.safetensors")["heads.weight"].shape[1]
    assert sent == {("fit", 4 * (width + 1)), ("stack", 4 * (len(SITES) + 2))}
