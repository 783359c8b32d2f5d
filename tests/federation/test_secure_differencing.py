"""Attacks of an operator or a lying server on secure sums: other members, other keys, other survivors.

The sites' ends are those of a real federation, with kits and memories, on a transport within this process.
``test_differing_sums.py`` has sums over the same members that differ in something else.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federation.kit_sites import KitTransport, open_trust, provision_kits, uploads_of
from tests.federation.wires import Wire
from tests.refusals import failed, refused
from tests.toy import SITES, Sets, recipe_of, run_toy, tree, weights

from fedvisage.base.errors import RunFailed
from fedvisage.federation.protections.compatible import check_protection, check_real
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.secure.calls import CONSISTENCY, KEYS, SHARES, UNMASK
from fedvisage.federation.secure.memory import PLAIN, RunMemory
from fedvisage.federation.secure.protocol import Secrets
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.federation.wire.message import Message, Order, Reply
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.methods import METHODS
from fedvisage.nvflare.kits import REQUIRE_SECURE, ROSTERS, open_kit, own_settings
from fedvisage.nvflare.node import start_site
from fedvisage.nvflare.preparation import as_setting, prepare_site
from fedvisage.nvflare.terminal import Terminal
from fedvisage.recipe import Secure


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_kits(tmp_path_factory.mktemp("federation") / "kits")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another federation with the same names."""
    return provision_kits(tmp_path_factory.mktemp("foreign") / "kits")


@pytest.fixture
def wire(kits: Path, tmp_path: Path) -> partial[KitTransport]:
    """Return the transport of a run named ``first``, at sites with an empty memory."""
    return partial(KitTransport, kits=kits, memory=tmp_path)


def secure_recipe(sets: Sets, sites: Sequence[str] = SITES, colluders: int = 0, **changes: Any) -> Any:
    changes = {"training__rounds": 1, "evaluation__every": 0, "federation__give_up_after": 1, **changes}
    own = {name: str(sets[name]) for name in sites}
    return tree(sets, data__sites=own, federation__secure={"colluders": colluders}, **changes)


# An operator who follows the protocol, and starts runs with and without a site.


@pytest.mark.long
def test_two_sums_that_differ_by_one_site_show_its_upload(sets: Sets, tmp_path: Path) -> None:
    run_toy(secure_recipe(sets), tmp_path / "with")
    run_toy(secure_recipe(sets, "AB"), tmp_path / "without")
    seen: dict[str, Message] = {}
    plain = secure_recipe(sets, federation={})

    def keep_first(name: str, _: Order, message: Message) -> None:
        seen.setdefault(name, message)

    run_toy(plain, tmp_path / "plain", wire=partial(Wire, record=keep_first))
    whole, rest = (load_file(tmp_path / name / "model.safetensors") for name in ("with", "without"))
    errors = [
        float((3 * whole[name].double() - 2 * rest[name].double() - seen["C"][name].double()).abs().max())
        for name in whole
        if whole[name].is_floating_point() and name in seen["C"]
    ]
    moved = max(
        float((seen["C"][name].double() - rest[name].double()).abs().max()) for name in rest if name in seen["C"]
    )
    assert max(errors) < 2e-6 < moved / 1000, "simulations remember nothing; docs/protections.md has the figure"


@pytest.mark.parametrize(
    ("first", "second", "keywords", "new_sites"),
    [("ABC", "AB", ("without C", "--allow-roster A,B"), []), ("AB", "ABC", ("with C",), ["C"])],
    ids=["without one site", "with one more site"],
)
def test_a_second_run_with_other_sites_is_refused(
    first: str,
    second: str,
    keywords: Sequence[str],
    new_sites: list[str],
    wire: partial[KitTransport],
    sets: Sets,
    tmp_path: Path,
) -> None:
    run_toy(secure_recipe(sets, first), tmp_path / "one", wire=wire)
    with failed(RunFailed, "run 'first'", *keywords):
        run_toy(secure_recipe(sets, second), tmp_path / "two", wire=partial(wire, run="second"))
    assert uploads_of(tmp_path / "one", "masked") == list(first)
    assert uploads_of(tmp_path / "two", "public") == new_sites, "not even a key leaves a site of the first run"


@pytest.mark.long
def test_the_same_members_may_run_again(wire: partial[KitTransport], sets: Sets, tmp_path: Path) -> None:
    run_toy(secure_recipe(sets), tmp_path / "one", wire=wire)
    run_toy(secure_recipe(sets), tmp_path / "two", wire=partial(wire, run="second"))
    assert weights(tmp_path / "one") == weights(tmp_path / "two")


@pytest.mark.long
def test_each_sites_administrator_can_allow_another_roster(
    wire: partial[KitTransport], sets: Sets, tmp_path: Path
) -> None:
    run_toy(secure_recipe(sets), tmp_path / "with", wire=wire)
    run_toy(
        secure_recipe(sets, "AB"), tmp_path / "without", wire=partial(wire, run="second", allowed=[frozenset("AB")])
    )
    assert uploads_of(tmp_path / "without", "masked") == ["A", "B"]


@pytest.mark.long
def test_a_round_repeated_with_fewer_sites_is_refused(wire: partial[KitTransport], sets: Sets, tmp_path: Path) -> None:
    run_toy(secure_recipe(sets), tmp_path / "one", wire=wire)
    with failed(RunFailed, "run 'first'", "round 1", "without B"):
        run_toy(secure_recipe(sets), tmp_path / "again", wire=partial(wire, lost="train"))
    assert uploads_of(tmp_path / "again", "shares") == [], "no site revealed a share"


class Dying(KitTransport):
    """A server that ends when it has all signatures of a round."""

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        if any(order.call == UNMASK for order in orders.values()):
            raise KeyboardInterrupt
        return super().call(orders)


@pytest.mark.long
def test_after_a_restart_a_round_can_only_be_summed_over_the_same_survivors(
    wire: partial[KitTransport], sets: Sets, tmp_path: Path
) -> None:
    run_toy(secure_recipe(sets), tmp_path / "whole")
    killed = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        run_toy(secure_recipe(sets), killed, wire=partial(Dying, **wire.keywords))
    with failed(RunFailed, "run 'first'", "round 1"):
        run_toy(secure_recipe(sets), killed, resume=True, wire=partial(wire, lost="train"))
    run_toy(secure_recipe(sets), killed, resume=True, wire=wire)
    assert weights(killed) == weights(tmp_path / "whole")


# A server that lies.


def failure_of_a(run: Path) -> str:
    failed: Mapping[str, str] = read_lines(run / "rounds.jsonl")[0]["failed"]
    return next(reason for name, reason in failed.items() if name.startswith("A"))


def substitute_keys(message: Message) -> None:
    """Put keys of the server's own in the place of B's and C's."""
    roster = message["roster"].clone()
    for place in (1, 2):
        public = Secrets.draw(np.random.default_rng(place).bytes).public()
        rows = np.frombuffer(public.sealing + public.masking + public.seed_hash, np.uint8).reshape(3, 32)
        roster[place] = torch.from_numpy(rows.copy())
    message["roster"] = roster


def swap_credentials(message: Message) -> None:
    message["roster"], message["signatures"] = (message[key][[0, 2, 1]] for key in ("roster", "signatures"))


@pytest.mark.long
@pytest.mark.parametrize("change", [substitute_keys, swap_credentials])
def test_keys_without_the_signature_of_their_site_are_refused(
    change: Callable[[Message], None], wire: partial[KitTransport], sets: Sets, tmp_path: Path
) -> None:
    class Lying(KitTransport):
        """Changes the keys that the server sends site A."""

        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            if "A" in orders and orders["A"].call == SHARES:
                change(orders["A"].message)
            return super().call(orders)

    run_toy(secure_recipe(sets), tmp_path / "run", wire=partial(Lying, **wire.keywords))
    assert failure_of_a(tmp_path / "run").startswith("secure: a message of site B is not signed")
    assert uploads_of(tmp_path / "run", "masked") == ["B", "C"]


@pytest.mark.long
def test_list_of_survivors_without_signatures_reveals_nothing(
    wire: partial[KitTransport], sets: Sets, tmp_path: Path
) -> None:
    class TwoLists(KitTransport):
        """Names A and B to A, and all three to the others, with the signatures that it got."""

        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            for name, order in orders.items():
                if order.call in (CONSISTENCY, UNMASK) and name == "A":
                    order.message["survivors"] = torch.tensor([0, 1])
                if order.call == UNMASK:
                    signers = [0, 1] if name == "A" else [1, 2]
                    signatures = order.message["signatures"][signers]
                    order.message.update(signers=torch.tensor(signers), signatures=signatures)
            return super().call(orders)

    run_toy(secure_recipe(sets), tmp_path / "run", wire=partial(TwoLists, **wire.keywords))
    assert "message of site B is not signed" in failure_of_a(tmp_path / "run")
    assert uploads_of(tmp_path / "run", "shares") == ["B", "C"]


@pytest.mark.long
@pytest.mark.parametrize("call", ["train", CONSISTENCY, SHARES, UNMASK])
def test_each_step_of_a_sum_runs_once(call: str, wire: partial[KitTransport], sets: Sets, tmp_path: Path) -> None:
    answers: list[str] = []

    class Twice(KitTransport):
        """A server that asks again: two uploads under the same masks would show their difference."""

        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            copies = {name: Order(o.call, o.round, dict(o.message), o.visit, o.ticket) for name, o in orders.items()}
            yield from super().call(orders)
            if any(order.call == call for order in orders.values()):
                answers.extend(reply.failure for reply in super().call(copies))

    run_toy(secure_recipe(sets), tmp_path / "run", wire=partial(Twice, **wire.keywords))
    assert answers == [f"order: requests '{call}' again in round 1"] * 3


def test_a_round_has_one_sum(sets: Sets, tmp_path: Path) -> None:
    answers: list[str] = []

    class Again(LocalTransport):
        """A server that begins another sum in the same round."""

        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            yield from super().call(orders)
            if any(order.call == UNMASK for order in orders.values()):
                again = {name: Order(KEYS, order.round, {}, 99, "again") for name, order in orders.items()}
                answers.extend(reply.failure for reply in super().call(again))

    run_toy(secure_recipe(sets), tmp_path / "run", wire=Again)
    assert answers == [f"order: requests '{KEYS}' again in round 1"] * 3


def test_one_colluder_among_three_sites_prevents_sums_of_two(
    wire: partial[KitTransport], sets: Sets, tmp_path: Path
) -> None:
    content = secure_recipe(sets, colluders=1)
    with failed(RunFailed, "2 sites", "3 needed", "B"):
        run_toy(content, tmp_path / "run", wire=partial(wire, lost="train"))


# The pieces.


def test_a_signature_holds_for_one_site_one_run_and_one_statement(kits: Path, tmp_path: Path) -> None:
    ours, theirs = open_trust(kits, "A", tmp_path), open_trust(kits, "B", tmp_path)
    credential = theirs.sign(b"text")
    ours.verify("B", b"text", credential)
    flipped = bytes([*credential[:900], credential[900] ^ 1, *credential[901:]])
    for reader, site, text, shown in [
        (ours, "C", b"text", credential),
        (ours, "B", b"another", credential),
        (open_trust(kits, "A", tmp_path, run="s"), "B", b"text", credential),
        (ours, "B", b"text", flipped),
        (ours, "B", b"text", bytes(len(credential))),
        (ours, "B", b"text", b"\xff" * len(credential)),
    ]:
        with failed(RefusedMessage, "secure", f"site {site}", "certificate"):
            reader.verify(site, text, shown)


def test_server_certificate_and_foreign_kits_cannot_sign_for_a_site(kits: Path, foreign: Path, tmp_path: Path) -> None:
    ours = open_trust(kits, "A", tmp_path)
    for stranger in (open_trust(kits, "localhost", tmp_path), open_trust(foreign, "B", tmp_path)):
        with failed(RefusedMessage, "secure", "site B", "certificate"):
            ours.verify("B", b"text", stranger.sign(b"text"))


def memory_of(
    directory: Path,
    roster: Sequence[str] = SITES,
    run: str = "first",
    images: Sequence[int] = (1, 2, 3),
    **changes: Any,
) -> RunMemory:
    """Open the memory of a site in a run."""
    changes = {"data__sites": dict.fromkeys(roster, "elsewhere"), "federation__secure": True, **changes}
    elsewhere = dict.fromkeys((*SITES, "U"), Path("target"))
    return RunMemory(directory, recipe_of(tree(elsewhere, **changes)), run, np.array(images, np.uint64))


@pytest.mark.parametrize(
    ("images", "is_refused"),
    [([1, 2, 3], True), ([1, 2, 3, 4, 5], True), ([3], True), ([3, 9], True), ([4, 5], False), ([], False)],
)
def test_data_are_the_same_if_they_share_an_image(images: Sequence[int], is_refused: bool, tmp_path: Path) -> None:
    memory_of(tmp_path).remember_use()
    with failed(RefusedMessage, "run 'first'", "without C") if is_refused else nullcontext():
        memory_of(tmp_path, "AB", "third", images).check_use()


def test_differences_of_two_sites_are_refused_as_well(tmp_path: Path) -> None:
    memory_of(tmp_path, "ABCD").remember_use()
    for roster in ("AB", "ABEF", "ACE"):
        with failed(RefusedMessage, "run 'first'", "without"):
            memory_of(tmp_path, roster, "second").check_use()


def test_damaged_memory_refuses_every_sum(tmp_path: Path) -> None:
    memory_of(tmp_path).remember_use()
    (record,) = tmp_path.glob("*.json")
    record.write_text("{")
    with refused(record.name, "JSON"):
        memory_of(tmp_path, run="second").check_use()


@pytest.mark.parametrize("sites", range(2, 40))
def test_any_two_groups_that_could_unmask_share_more_sites_than_collude(sites: int) -> None:
    for colluders in range(sites - 1):
        needed = Secure(colluders=colluders).sites_needed(sites)
        assert 2 * needed - sites > colluders
        assert 3 * needed >= 2 * sites
        assert needed <= sites


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"participation": 0.7}, "recipe.federation.participation"),
        ({"secure": {"threshold": 0.65}}, "recipe.federation.secure.threshold"),
        ({"secure": {"colluders": 3}}, "recipe.federation.secure.colluders"),
    ],
)
def test_recipes_with_separable_sums_are_refused(changes: dict[str, Any], place: str, sets: Sets) -> None:
    recipe = recipe_of(tree(sets, federation={"secure": True, **changes}))
    with refused(place):
        check_protection(recipe, METHODS["fedpad"])
    with refused(place):
        check_real(recipe)


@pytest.mark.parametrize(("key", "value"), [("joins", {"C": 2}), ("offline", 0.5)])
def test_federation_recipe_cannot_leave_a_site_out_of_a_sum(key: str, value: Any, sets: Sets) -> None:
    recipe = recipe_of(tree(sets, federation={"secure": True, key: value}))
    check_protection(recipe, METHODS["fedpad"])
    with refused(f"recipe.federation.{key}", "federation.secure"):
        check_real(recipe)


@pytest.mark.parametrize("roster", ["", "A", "A,A", "A,", "A, B", "A,../B"])
def test_allowed_roster_has_at_least_two_sites(roster: str) -> None:
    assert as_setting(["A,B", "A,B,C", PLAIN]) == "A,B A,B,C plain"
    with refused("--allow-roster", "A,B,C"):
        as_setting([roster])


def test_permission_for_plain_runs_excludes_their_refusal(kits: Path, sets: Sets) -> None:
    terminal, kit = Terminal(print, print), kits / "sites" / "A"
    with refused("--require-secure", "--allow-roster plain"):
        start_site(kit, sets["A"], None, None, terminal, verbose=False, rosters=["plain"], require_secure=True)


def test_allowed_roster_ends_with_the_next_start(kits: Path, sets: Sets, tmp_path: Path) -> None:
    kit = open_kit(Path(shutil.copytree(kits / "sites" / "A", tmp_path / "kit")), "site")
    prepare_site(kit, str(sets["A"]), rosters=["A,B", "A,C"], require_secure=True)
    assert (own_settings(kit.path)[ROSTERS], own_settings(kit.path)[REQUIRE_SECURE]) == ("A,B A,C", "yes")
    prepare_site(kit, str(sets["A"]))
    assert (own_settings(kit.path)[ROSTERS], own_settings(kit.path)[REQUIRE_SECURE]) == ("", "no")
