"""Files of one machine in runs through a federation: releases of sites, and weights at the server."""

import json
from pathlib import Path

import pytest
from tests.distributed.faults import Scene, Witness
from tests.distributed.federations import comparable_files, run_through
from tests.methods.combining import combined
from tests.refusals import failed
from tests.toy import Sets, run_toy, tree

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import write_json
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.releases import CHARGES
from fedvisage.nvflare.kits import Kit, own_settings
from fedvisage.nvflare.rehearsal import Rehearsal

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]

ROUND = 6.0
"""The cost of a round of these runs: ε of the method's option, with one release per round."""


def test_run_with_a_spent_budget_ends_with_its_last_model(
    people_federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    content = tree(sets, "privacyface", training__rounds=4, method__epsilon=ROUND)
    content["privacy"] |= {"epsilon": 2 * ROUND}
    here = run_toy(content, tmp_path / "here")
    assert here["rounds"] == 2
    run_through(people_federation, content, tmp_path / "through-nvflare")
    assert comparable_files(tmp_path / "through-nvflare") == comparable_files(tmp_path / "here")


def test_resubmitted_run_sends_stored_releases_again(people_federation: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    """The job is killed before the first checkpoint, so all rounds are repeated."""
    content = tree(sets, "privacyface", training__rounds=12, method__epsilon=ROUND, runtime__checkpoint_every=12)
    content |= {"privacy": content["privacy"] | {"noise": "system"}, "evaluation": {"resamples": 0}}
    out, values = tmp_path / "run", dict[Path, bytes]()
    place = Scene(people_federation, None)  # type: ignore[arg-type]  # nothing is cut

    def strike() -> None:
        place.kill_job("server")
        for kit in people_federation.sites.values():
            values.update({path: path.read_bytes() for path in release_directory(kit, out).glob("*.safetensors")})

    witness = Witness(strike)
    run_through(people_federation, content, out, reporter=witness)
    assert any("submitting the run again" in text for text in witness.lines)
    assert len(values) >= 3, "each site has released a value"
    assert all(path.read_bytes() == before for path, before in values.items()), "nothing was drawn again"
    for kit in people_federation.sites.values():
        charged = [row["release"] for row in read_lines(release_directory(kit, out) / CHARGES)]
        assert sorted(charged) == sorted(set(charged)), "nothing was charged twice"
        assert sum(name.endswith("sums") for name in charged) == 12


def release_directory(kit: Kit, out: Path) -> Path:
    """Return the directory of a site's releases in a run."""
    name = str(json.loads((out / "federation.json").read_text())["run"])
    return Path(own_settings(kit.path)["state"]) / name / "releases"


def test_training_starts_from_the_servers_own_copy_of_a_file_of_weights(
    federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    run_toy(tree(sets, training__rounds=1), tmp_path / "before")
    start = tmp_path / "before" / "model.safetensors"
    content = tree(sets, training__rounds=1, training__start=str(start))
    run_toy(content, tmp_path / "here")
    with failed(RunFailed, "weights", "--weights"):
        run_through(federation, content, tmp_path / "refused")
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(start.read_bytes())
    own = own_settings(federation.server.path)
    try:
        write_json(federation.server.own, own | {"weights": str(copy)})
        run_through(federation, content, tmp_path / "through-nvflare")
    finally:
        write_json(federation.server.own, own)
    assert comparable_files(tmp_path / "through-nvflare") == comparable_files(tmp_path / "here")


def test_frozen_weights_are_read_at_every_machine_and_never_sent(
    federation: Rehearsal, sets: Sets, transformer_weights: Path, tmp_path: Path
) -> None:
    named = {"method__network__weights": str(transformer_weights), "input__colour": "rgb", "training__rounds": 1}
    content = combined(sets, "fedavg", "adapters", **named)
    run_toy(content, tmp_path / "here")
    kits = [federation.server, *federation.sites.values()]
    before = {kit.path: own_settings(kit.path) for kit in kits}
    try:
        for kit in kits:
            write_json(kit.own, before[kit.path] | {"weights": str(transformer_weights)})
        run_through(federation, content, tmp_path / "through-nvflare")
    finally:
        for kit in kits:
            write_json(kit.own, before[kit.path])
    assert comparable_files(tmp_path / "through-nvflare") == comparable_files(tmp_path / "here")
