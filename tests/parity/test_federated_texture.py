"""Federated colour texture: its scaler is that of the merged data, to the last digits that sums have."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.preprocessing import StandardScaler
from tests.toy import Sets, run_toy, tree

from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.record.ledger import read_lines
from fedvisage.methods.pad.federated_texture import LEAST_SCALE, scaler_of
from fedvisage.nn.inputs import prepare
from fedvisage.nn.texture import ColourTexture


def test_moments_of_parts_give_the_scaler_of_the_whole() -> None:
    values = np.random.default_rng(0).normal(3, 2, (50, 354))
    values[:, 7] = 1.5
    replies = [
        {
            "examples": torch.tensor(len(part)),
            "total": torch.from_numpy(part.sum(0)),
            "squares": torch.from_numpy((part**2).sum(0)),
        }
        for part in (values[:9], values[9:30], values[30:])
    ]
    actual, whole = scaler_of(replies), StandardScaler().fit(values)
    np.testing.assert_allclose(actual["scaler.mean"].numpy(), whole.mean_, rtol=1e-6)
    scale = np.where(np.arange(354) == 7, LEAST_SCALE, np.sqrt(whole.var_))
    np.testing.assert_allclose(actual["scaler.scale"].numpy(), scale, rtol=1e-4)


def test_a_run_scales_by_the_images_of_all_sites_and_sends_moments_once(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "federated_texture", training__rounds=2, training__augment={}), tmp_path / "run")
    features = []
    for site in "ABC":
        actual = PreparedSet.open(sets[site])
        images = torch.from_numpy(np.array(actual.images[actual.select("train")])).permute(0, 3, 1, 2)
        features.append(ColourTexture()(prepare(images, "rgb", torch.device("cpu"))).double().numpy())
    scaler = StandardScaler().fit(np.concatenate(features))
    kept = load_file(tmp_path / "run" / "model.safetensors")
    np.testing.assert_allclose(kept["scaler.mean"].numpy(), scaler.mean_, atol=1e-5)
    np.testing.assert_allclose(kept["scaler.scale"].numpy(), np.sqrt(scaler.var_).clip(LEAST_SCALE), atol=1e-4)
    lines = read_lines(tmp_path / "run" / "ledger.jsonl")
    sent = [row for row in lines if row["field"] == "total"]
    assert [row["round"] for row in sent] == [1, 1, 1]
