"""The content of kits, jobs and parcels."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from nvflare.apis.fl_constant import ConfigVarName
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from tests.refusals import failed, refused
from tests.toy import Sets, recipe_of, tree

from fedvisage.base.errors import UserError
from fedvisage.federation.wire.message import Order
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.nvflare import transport
from fedvisage.nvflare.authority import FederationFile, read_federation
from fedvisage.nvflare.job import Job, read_job, weights_at_server, without_local_parts, write_job
from fedvisage.nvflare.kits import CONTROLLER, EXECUTOR, SERVER_CLASS, SERVER_WATCH, SITE_CLASS, SITE_WATCH, open_kit
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.owner.submission import NotReady
from fedvisage.nvflare.preparation import prepare_server, prepare_site
from fedvisage.nvflare.rehearsal import free_port
from fedvisage.recipe import tree_of


def description(**changes: Any) -> dict[str, Any]:
    return {
        "server": {"host": "localhost", "port": free_port()},
        "operator": {"email": "operator@example.org"},
        "sites": {"bank": {"organisation": "bank"}},
        **changes,
    }


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kits")
    (directory / "federation.yaml").write_text(yaml.safe_dump(description()))
    provision(read_federation(directory / "federation.yaml"), directory / "made")
    return directory / "made"


def texts(value: Any) -> Iterator[str]:
    """Return all texts in a tree of plain values."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for entry in value:
            yield from texts(entry)
    elif isinstance(value, str):
        yield value


OURS = {
    "server": (SERVER_CLASS, CONTROLLER, SERVER_WATCH),
    "sites/bank": (SITE_CLASS, EXECUTOR, SITE_WATCH),
}


@pytest.mark.parametrize("kit", OURS)
def test_kits_allow_three_classes_and_send_no_logs(kits: Path, kit: str) -> None:
    resources = json.loads((kits / kit / "local" / "resources.json").read_text())
    assert sorted(resources["class_allow_list"]) == sorted(OURS[kit])
    assert resources["allow_log_streaming"] is False
    assert not any("log" in component["id"] for component in resources["components"])


@pytest.mark.parametrize("kit", ["server", "sites/bank"])
def test_no_role_may_bring_code_or_open_a_shell(kits: Path, kit: str) -> None:
    roles = json.loads((kits / kit / "local" / "authorization.json").read_text())["permissions"]
    for rights in roles.values():
        assert isinstance(rights, dict), "each right is named"
        assert rights["byoc"] == rights["shell_commands"] == rights["operate"] == "none"
    assert not (kits / kit / "local" / "authorization.json.default").exists(), "NVFlare's own rights are gone"


def test_key_of_the_authority_is_in_no_kit(kits: Path) -> None:
    secret = (kits / "authority" / "root.key").read_text()
    assert secret.startswith("-----BEGIN RSA PRIVATE KEY-----")
    for kit in (kits / "server", kits / "operator", kits / "sites"):
        assert not any(secret in path.read_text(errors="ignore") for path in kit.rglob("*") if path.is_file())


def test_kits_and_updates_with_keys_are_accessible_to_their_owner_alone(tmp_path: Path) -> None:
    federation = FederationFile.model_validate(description())
    provision(federation, tmp_path)
    provision(federation, tmp_path, revoke=["bank"], renew=["bank"])
    for kit in ("server", "operator", "sites/bank", "updates/bank"):
        paths = [tmp_path / kit, *(tmp_path / kit).rglob("*")]
        assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
        assert [path.stat().st_mode & 0o777 for path in paths if path.suffix == ".key"] == [0o600]


def test_stores_of_a_server_are_in_its_kit(kits: Path) -> None:
    kit = open_kit(kits / "server", "server")
    prepare_server(kit)
    found = set(texts(json.loads((kit.path / "local" / "resources.json").read_text())))
    assert not any(text.startswith("/tmp/nvflare") for text in found)
    assert {str(kit.path / "jobs"), str(kit.path / "snapshots")} <= found


def test_restarted_kit_has_one_watch(kits: Path, sets: Sets) -> None:
    kit = open_kit(kits / "sites" / "bank", "site")
    for _ in range(2):
        prepare_site(kit, str(sets["A"]))
    components = json.loads((kit.path / "local" / "resources.json").read_text())["components"]
    assert [part["path"] for part in components].count(SITE_WATCH) == 1


@pytest.mark.parametrize(
    ("kit", "commands"),
    [
        ("server", ["fedvisage server KIT"]),
        ("sites/bank", ["fedvisage site KIT --data DIR"]),
        ("operator", ["fedvisage run RECIPE --on nvflare --kit KIT", "fedvisage status --kit KIT"]),
    ],
)
def test_readme_of_a_kit_has_its_commands_and_no_scripts_remain(kits: Path, kit: str, commands: list[str]) -> None:
    assert [path.name for path in (kits / kit).rglob("readme*")] == ["readme.txt"]
    text = (kits / kit / "readme.txt").read_text()
    assert all(command in text for command in commands)
    assert not [path for path in (kits / kit).rglob("*") if path.suffix in (".sh", ".ipynb")]


def test_kit_of_another_kind_is_refused(kits: Path, sets: Sets) -> None:
    with refused("made/sites/bank", "site", "server"):
        open_kit(kits / "sites" / "bank", "server")
    with pytest.raises(UserError):
        prepare_site(open_kit(kits / "sites" / "bank", "site"), "nowhere")
    prepare_site(open_kit(kits / "sites" / "bank", "site"), str(sets["A"]))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"server": {"host": "a b"}}, "server.host"),
        ({"server": {"host": "a", "port": 0}}, "server.port"),
        ({"sites": {}}, "sites"),
        ({"sites": {"../x": {"organisation": "x"}}}, "sites"),
        ({"sites": {"server": {"organisation": "x"}}}, "sites"),
        ({"operator": {"email": "nobody"}}, "operator.email"),
        ({"operator": []}, "operator"),
        ({"more": 1}, "more"),
    ],
)
def test_mistake_in_the_description_names_its_place(changes: dict[str, Any], place: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.yaml"
    path.write_text(yaml.safe_dump(description(**changes)))
    with pytest.raises(UserError) as error:
        read_federation(path)
    assert place in error.value.place


def test_job_is_four_files_without_local_paths(sets: Sets, tmp_path: Path) -> None:
    recipe = recipe_of(tree(sets))
    write_job(tmp_path / "job", Job("first", without_local_parts(recipe)), ("A", "B"))
    files = sorted(path for path in (tmp_path / "job").rglob("*") if path.is_file())
    assert [path.suffix for path in files] == [".json"] * 4
    known = set().union(*(set(texts(json.loads(path.read_text()))) for path in files))
    assert not any(str(path) in known for path in sets.values())
    assert read_job(tmp_path / "job" / "app" / "config") == Job("first", without_local_parts(recipe))


def test_benchmarks_do_not_travel(sets: Sets) -> None:
    recipe = recipe_of(tree(sets, "fedavg", data__benchmarks={"lfw": str(sets["U"])}))
    assert recipe.data.benchmarks is not None
    assert without_local_parts(recipe).data.benchmarks is None


def test_tensor_timeout_follows_the_deadline(sets: Sets, tmp_path: Path) -> None:
    write_job(
        tmp_path / "job", Job("first", without_local_parts(recipe_of(tree(sets, federation__deadline=60.0)))), ("A",)
    )
    for side in ("server", "client"):
        config = json.loads((tmp_path / "job" / "app" / "config" / f"config_fed_{side}.json").read_text())
        assert config[f"{TensorDecomposer().config_var_prefix}{ConfigVarName.STREAMING_PER_REQUEST_TIMEOUT}"] == 15.0


@pytest.mark.parametrize(("count", "pause"), [(1, 0.1), (3, 0.3), (50, 5.0), (1000, 10.0)])
def test_sites_of_a_job_ask_for_work_ten_times_per_second_in_all(
    count: int, pause: float, sets: Sets, tmp_path: Path
) -> None:
    """The server keeps each answer for a while: twenty sites that asked ten times each took a gibibyte."""
    names = [f"site-{number}" for number in range(count)]
    write_job(tmp_path / "job", Job("first", without_local_parts(recipe_of(tree(sets)))), names)
    config = json.loads((tmp_path / "job" / "app" / "config" / "config_fed_server.json").read_text())
    assert config["server"]["task_request_interval"] == pytest.approx(pause)


@pytest.mark.parametrize("run", ["", "../x", "A", "a/b", "a" * 64, 3, None])
def test_job_with_an_invalid_name_is_refused(run: object, sets: Sets, tmp_path: Path) -> None:
    write_job(tmp_path / "job", Job("first", without_local_parts(recipe_of(tree(sets)))), ("A",))
    path = tmp_path / "job" / "app" / "config" / "recipe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": run}))
    with refused("recipe.json: run", "name"):
        read_job(path.parent)


def test_recipe_that_only_a_simulation_can_run_is_refused(sets: Sets) -> None:
    for changes, place in (
        ({"method": "pooled"}, "recipe.method.name"),
        ({"evaluation__features": 3}, "recipe.evaluation.features"),
        ({"evaluation__snapshots": 1}, "recipe.evaluation.snapshots"),
    ):
        with refused(place, "--on local"):
            without_local_parts(recipe_of(tree(sets, **changes)))


def test_file_of_weights_travels_as_its_digest(sets: Sets, tmp_path: Path) -> None:
    file = tmp_path / "secret-weights.safetensors"
    file.write_bytes(b"weights")
    digest = f"sha256:{hashlib.sha256(b'weights').hexdigest()}"
    start = without_local_parts(recipe_of(tree(sets, training__start=str(file))))
    network = tree(sets, "fedsis")
    network["method"]["network"]["weights"] = str(file)
    transformer = without_local_parts(recipe_of(network))
    assert start.training.start == digest
    assert tree_of(transformer)["method"]["network"]["weights"] == digest
    for recipe in (start, transformer):
        assert "secret" not in str(tree_of(recipe))
        with failed(NotReady, digest, "--weights"):
            weights_at_server(recipe, {})
        assert weights_at_server(recipe, {"weights": str(file)}) == {digest: file}


def test_missing_file_of_weights_is_reported(sets: Sets, tmp_path: Path) -> None:
    with refused("recipe.training.start", str(tmp_path / "nowhere")):
        without_local_parts(recipe_of(tree(sets, training__start=str(tmp_path / "nowhere"))))


def test_job_with_a_path_of_the_server_is_refused(sets: Sets, tmp_path: Path) -> None:
    write_job(tmp_path / "job", Job("first", recipe_of(tree(sets, training__start="/etc/passwd"))), ("A",))
    with refused("recipe.training.start", "path", "digest"):
        read_job(tmp_path / "job" / "app" / "config")


def test_order_is_unchanged_after_packing() -> None:
    weight = torch.nn.Parameter(torch.randn(3, 4).t())
    order = Order("train", 3, {"a.weight": weight, "n": torch.tensor(7)}, 2, "ticket")
    found = transport.unpack_order(transport.pack_order(order))
    assert (found.call, found.round, found.visit, found.ticket) == ("train", 3, 2, "ticket")
    assert type(found.message["a.weight"]) is torch.Tensor
    assert found.message["a.weight"].is_contiguous()
    assert torch.equal(found.message["a.weight"], weight)
    assert int(found.message["n"]) == 7


@pytest.mark.parametrize(
    "parcel",
    [
        None,
        [],
        {},
        {"words": {}, "tensors": None},
        {"words": None, "tensors": {}},
        {"words": {"ticket": 3}, "tensors": {}},
        {"words": {"ticket": "t"}, "tensors": {1: torch.zeros(1)}},
        {"words": {"ticket": "t"}, "tensors": {"a": [1.0]}},
        {"words": {"ticket": "t"}, "tensors": {"a" * 10_000: torch.zeros(1)}},
        {"words": {"ticket": "t", "more": 1}, "tensors": {}},
        {"words": {"ticket": "t"}, "tensors": {}, "more": {}},
        {"words": {"ticket": "t"}, "tensors": {"a": torch.eye(2).to_sparse()}},
        {"words": {"ticket": "t"}, "tensors": {"a": torch.zeros(1, device="meta")}},
    ],
)
def test_malformed_reply_is_refused(parcel: object) -> None:
    reply = transport.unpack_reply("A", parcel)
    assert reply.message is None
    assert reply.failure.startswith("refused")


WORDS = {"call": "train", "round": 1, "visit": 1, "ticket": "t"}


@pytest.mark.parametrize(
    "parcel",
    [
        None,
        {"words": WORDS},
        {"words": WORDS | {"more": 1}, "tensors": {}},
        {"words": WORDS | {"round": "1"}, "tensors": {}},
        {"words": WORDS | {"round": True}, "tensors": {}},
        {"words": {"call": "train"}, "tensors": {}},
        {"words": WORDS, "tensors": {"a": [1.0]}},
    ],
)
def test_malformed_order_is_refused(parcel: object) -> None:
    with pytest.raises(RefusedMessage):
        transport.unpack_order(parcel)
    assert transport.ticket_of(parcel) in ("", "t")


def test_spent_budget_differs_from_a_lost_site() -> None:
    assert transport.unpack_reply("A", transport.pack_failure("no more", "ticket", spent=True)).spent
    assert not transport.unpack_reply("A", transport.pack_failure("no more", "ticket")).spent
    reply = {"words": {"ticket": "ticket", "failure": "no more", "spent": "yes"}, "tensors": {}}
    assert not transport.unpack_reply("A", reply).spent


def test_long_reason_is_truncated() -> None:
    assert len(transport.unpack_reply("A", transport.pack_failure("x" * 10_000)).failure) <= 300


def test_command_for_operators_and_viewers_names_both_kinds_of_kits(own_kits: Path) -> None:
    with refused(own_kits / "sites" / "bank", "kit of a site", "operator", "viewer"):
        open_kit(own_kits / "sites" / "bank", "viewer")
