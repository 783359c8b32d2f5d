"""A site's private state goes back to the generation that the server's checkpoint names."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.refusals import failed, refused

from fedvisage.base.errors import RunFailed
from fedvisage.federation.record.store import ROOM, Checkpoints, Owner, Progress, SiteStore, StateCache, write_sealed


def store_with_generations(directory: Path) -> SiteStore:
    """Return a store with generations 1, 2 and 3, each holding its number."""
    store = SiteStore(directory)
    for number in (1, 2, 3):
        commit_number(store, number)
    return store


def commit_number(store: SiteStore, number: int) -> None:
    """Commit a generation that holds its number."""
    store.save({"number": torch.tensor(number)})
    assert store.commit(number) == number


def number_in(store: SiteStore) -> int:
    return int(store.load()["number"])


def test_a_site_without_private_state_writes_nothing(tmp_path: Path) -> None:
    store = SiteStore(tmp_path / "site")
    assert store.load() == {}
    assert store.commit(5) == 0
    assert not (tmp_path / "site").exists()


def test_the_last_two_generations_are_kept_and_either_can_be_restored(tmp_path: Path) -> None:
    store_with_generations(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "generation-000002.safetensors",
        "generation-000003.safetensors",
    ]
    for generation in (3, 2):
        again = SiteStore(tmp_path)
        again.restore(generation)
        assert number_in(again) == generation


def test_restoring_a_generation_drops_later_ones(tmp_path: Path) -> None:
    store = store_with_generations(tmp_path)
    store.save({"number": torch.tensor(4)})
    store.restore(2)
    assert number_in(store) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["generation-000002.safetensors"]


@pytest.mark.parametrize("room", [0, 1000])
def test_a_generation_of_another_process_becomes_the_current_one(tmp_path: Path, room: int) -> None:
    sender, receiver = store_with_generations(tmp_path / "sender"), SiteStore(tmp_path / "receiver", StateCache(room))
    for generation in (1, 2):
        receiver.receive(generation, (tmp_path / "sender" / "generation-000002.safetensors").read_bytes())
    receiver.save({"number": torch.tensor(9)})
    receiver.receive(3, sender.committed_content())
    assert (number_in(receiver), receiver.generation, receiver.uncommitted) == (3, 3, False)
    assert sorted(path.name for path in (tmp_path / "receiver").iterdir()) == [
        "generation-000002.safetensors",
        "generation-000003.safetensors",
    ]
    assert receiver.committed_content() == sender.committed_content()


@pytest.mark.parametrize("room", [0, 10, 1000])
def test_state_is_the_same_in_memory_and_in_a_file(tmp_path: Path, room: int) -> None:
    """No room, room for one of two sites, room for both; changes of a loaded copy are not stored."""
    cache = StateCache(room)
    stores = [SiteStore(tmp_path / name, cache) for name in "AB"]
    for value, store in enumerate(stores):
        store.save({"number": torch.tensor(value), "mask": torch.tensor([True])})
    for value, store in enumerate(stores):
        for _ in range(2):
            assert number_in(store) == value
            store.load()["number"].add_(5)
    files = {path.parent.name for path in tmp_path.rglob("working*")}
    assert files == {0: {"A", "B"}, 10: {"B"}, 1000: set()}[room]
    for value, store in enumerate(stores):
        assert store.commit(1) == 1
        again = SiteStore(tmp_path / "AB"[value])
        again.restore(1)
        assert number_in(again) == number_in(store) == value
        store.save({"number": torch.tensor(7)})
        store.restore(1)
        assert number_in(store) == value


def test_a_commit_has_the_same_bytes_from_memory_and_from_a_file(tmp_path: Path) -> None:
    state, contents = {"number": torch.arange(5), "mask": torch.tensor([True])}, []
    for room in (0, 1000):
        store = SiteStore(tmp_path / str(room), StateCache(room))
        store.save(state)
        assert [path.name for path in (tmp_path / str(room)).iterdir()] == (["working.safetensors"] if not room else [])
        store.commit(1)
        (path,) = (tmp_path / str(room)).iterdir()
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.long
@pytest.mark.parametrize(("free", "in_files"), [(4, 0), (3, 3)])
def test_large_states_stay_in_memory_if_the_machine_has_enough(tmp_path: Path, free: int, in_files: int) -> None:
    size = ROOM // 2 + 8
    cache = StateCache(free=lambda: free * size)
    state = {"large": torch.zeros(size, dtype=torch.uint8)}
    for number in range(4):
        SiteStore(tmp_path / str(number), cache).save(state)
    assert len(list(tmp_path.rglob("working*"))) == in_files


def test_state_stored_by_another_process_uses_a_file_only_without_memory(tmp_path: Path) -> None:
    state = {"weights": torch.arange(4.0)}
    alone = SiteStore(tmp_path / "alone")
    alone.save(state)
    alone.commit(1)
    for room, files in ((16, 0), (0, 1)):
        store = SiteStore(tmp_path / str(room), StateCache(room), stored_elsewhere=True)
        store.save(state)
        assert store.commit(1) == 1
        assert store.committed_content() == alone.committed_content()
        assert torch.equal(store.load()["weights"], state["weights"])
        assert len(list(store.directory.iterdir())) == files


def test_state_of_many_sites_is_stored_in_files_for_any_memory(tmp_path: Path) -> None:
    cache, state = StateCache(free=lambda: 1 << 40), {"large": torch.zeros(ROOM // 3, dtype=torch.uint8)}
    for number in range(6):
        SiteStore(tmp_path / str(number), cache).save(state)
    assert {path.parent.name for path in tmp_path.rglob("working*")} == {"4", "5"}


@pytest.mark.parametrize(("free", "fitting"), [(32, 2), (31, 1), (15, 0)])
def test_the_states_on_a_device_take_a_quarter_of_its_free_memory(free: int, fitting: int) -> None:
    """State without room on the device, here ``meta``, would move to the CPU, which has no room."""
    cache = StateCache(0, free_on_device=lambda device: free)
    for owner in range(2):
        state = {"first": torch.zeros(4, dtype=torch.uint8, device="meta")}
        fits = [cache.put(Path(str(owner)), state) for _ in range(2)]
        assert fits == 2 * [owner < fitting], "it does not count the state that it replaces"
        store_with_generations = cache.get(Path(str(owner)))
        assert (store_with_generations is not None) == fits[0]
        assert store_with_generations is None or store_with_generations["first"].device.type == "meta"


def test_state_is_copied_to_the_cpu_if_its_device_has_no_memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, state = StateCache(), {"weights": torch.arange(4.0)}
    assert cache.put(Path("A"), state)

    def refuse(tensor: torch.Tensor, **options: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.Tensor, "clone", refuse)
    copy = cache.get(Path("A"))
    assert copy is not None
    assert torch.equal(copy["weights"], state["weights"])


def test_each_tensor_of_a_state_stays_on_its_own_device(tmp_path: Path) -> None:
    """A large state of another site on the CPU does not move this one to a file."""
    cache = StateCache(free=lambda: 1 << 40, free_on_device=lambda device: 1 << 40)
    SiteStore(tmp_path / "A", cache).save({"large": torch.zeros(ROOM + 8, dtype=torch.uint8)})
    store = SiteStore(tmp_path / "B", cache)
    store.save({"moment": torch.zeros(ROOM, device="meta"), "step": torch.tensor(3.0)})
    state = store.load()
    assert (state["moment"].device.type, state["step"].item()) == ("meta", 3.0)
    assert not list(tmp_path.rglob("working*"))


def test_a_site_that_did_not_take_part_stays_at_its_generation(tmp_path: Path) -> None:
    store = store_with_generations(tmp_path)
    assert store.commit(4) == 3
    assert store.commit(5) == 3
    assert number_in(store) == 3


def test_missing_generation_is_an_error(tmp_path: Path) -> None:
    store_with_generations(tmp_path)
    with failed(RunFailed, "generation 1", "private state"):
        SiteStore(tmp_path).restore(1)


def test_restoring_the_start_clears_all_state(tmp_path: Path) -> None:
    store = store_with_generations(tmp_path)
    store.restore(0)
    assert store.load() == {}
    assert not list(tmp_path.iterdir())


DIGESTS = {"ledger.jsonl": "0" * 64}


def test_checkpoints_round_trip_and_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "digest")
    assert checkpoints.latest() is None
    for number in (1, 2, 3):
        progress = Progress(number, {"A": number - 1}, 10 * number, 20 * number, {"stopped": False}, DIGESTS)
        checkpoints.write({"w": torch.full((2,), float(number))}, progress)
    actual = checkpoints.latest()
    assert actual is not None
    assert actual[0]["w"].tolist() == [3.0, 3.0]
    assert actual[1] == Progress(3, {"A": 2}, 30, 60, {"stopped": False}, DIGESTS)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["000002", "000003"]


def test_the_checkpoint_of_another_round_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "digest")
    for number in (1, 2):
        checkpoints.write({}, Progress(number))
    shutil.copyfile(tmp_path / "000001.safetensors", tmp_path / "000002.safetensors")
    with refused("000002.safetensors", "round 1", "delete"):
        checkpoints.latest()


def test_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "digest")
    checkpoints.write({}, Progress(1))
    with refused("000001.safetensors", "digests", "delete"):
        checkpoints.latest()


OWNER = Owner("bank", "run-1", "recipe-1", unnamed=False)


@pytest.mark.parametrize("room", [0, 1000])
@pytest.mark.parametrize(
    ("change", "keyword"),
    [({"site": "border"}, "border"), ({"run": "run-2"}, "run-2"), ({"recipe": "recipe-2"}, "recipe-2")],
)
def test_the_state_of_another_site_run_or_recipe_is_refused_by_name(
    change: dict[str, Any], keyword: str, room: int, tmp_path: Path
) -> None:
    for place, owner in (("own", OWNER), ("other", replace(OWNER, **change))):
        commit_number(SiteStore(tmp_path / place, StateCache(room), owner), 1)
    path = tmp_path / "own" / "generation-000001.safetensors"
    again = SiteStore(tmp_path / "own", owner=OWNER)
    again.restore(1)
    assert number_in(again) == 1
    shutil.copyfile(tmp_path / "other" / path.name, path)
    for use in (again.load, lambda: again.restore(1)):
        with refused(path, keyword, "restore"):
            use()


@pytest.mark.parametrize("room", [0, 1000])
def test_an_older_generation_under_the_number_of_a_newer_one_is_refused(room: int, tmp_path: Path) -> None:
    store = SiteStore(tmp_path, StateCache(room), OWNER)
    for number in (1, 2):
        commit_number(store, number)
    newest = tmp_path / "generation-000002.safetensors"
    shutil.copyfile(tmp_path / "generation-000001.safetensors", newest)
    with refused(newest, "generation", "000001", "000002"):
        SiteStore(tmp_path, owner=OWNER).restore(2)


def test_state_without_names_is_accepted_only_in_a_run_of_an_earlier_version(tmp_path: Path) -> None:
    write_sealed(tmp_path / "generation-000001.safetensors", {"number": torch.tensor(4)}, {})
    store = SiteStore(tmp_path, owner=replace(OWNER, unnamed=True))
    store.restore(1)
    assert number_in(store) == 4
    with refused("generation-000001.safetensors", "earlier version", "000001"):
        SiteStore(tmp_path, owner=OWNER).restore(1)


def test_names_that_a_header_was_given_afterwards_are_refused(tmp_path: Path) -> None:
    """The header is as long as before, and so the file is valid."""
    commit_number(SiteStore(tmp_path, owner=replace(OWNER, site="cafe")), 1)
    path = tmp_path / "generation-000001.safetensors"
    path.write_bytes(path.read_bytes().replace(b"cafe", b"bank"))
    with refused(path, "digest", "private state"):
        SiteStore(tmp_path, owner=OWNER).restore(1)


def test_the_state_of_another_run_is_taken_over_under_the_own_name(tmp_path: Path) -> None:
    trained, own = replace(OWNER, run="trained"), replace(OWNER, recipe="fused")
    commit_number(SiteStore(tmp_path / "trained", owner=trained), 3)
    taker = SiteStore(tmp_path / "own", owner=own)
    with refused("trained/generation-000003.safetensors", "border"):
        taker.take_over(tmp_path / "trained", replace(trained, site="border"), 3)
    taker.take_over(tmp_path / "trained", trained, 3)
    again = SiteStore(tmp_path / "own", owner=own)
    again.restore(3)
    assert number_in(taker) == number_in(again) == 3


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path, "one").write({}, Progress(1))
    with refused("000001.safetensors", "recipe"):
        Checkpoints(tmp_path, "two").latest()
