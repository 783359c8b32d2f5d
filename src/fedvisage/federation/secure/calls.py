"""The site's end of a secure sum: four calls of the house, declared, checked and recorded like any other.

``secure-keys`` and ``secure-shares`` come before training, ``train`` answers with a masked sum in place of weights, and
``secure-unmask`` reveals what takes the masks off the sum. Secrets live in the site's memory until the round is over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedvisage.federation.compatible import weighs_by_examples
from fedvisage.federation.declared import Call
from fedvisage.federation.participation import asked
from fedvisage.federation.secure import fixed_point, protocol, shamir
from fedvisage.federation.secure.keys import KEY
from fedvisage.federation.secure.protocol import Public, Secrets
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import Refused, Schema, check
from fedvisage.federation.wire.upload import SUMMED, Upload
from fedvisage.recipe import Recipe, Secure
from fedvisage.streams import numpy_rng

KEYS, SHARES, UNMASK = "secure-keys", "secure-shares", "secure-unmask"
AT_THE_DESK = (KEYS, SHARES, UNMASK)
"""The calls that need no network."""

PLACE = "secure"
"""Where a site's secrets stand in its scratch."""


@dataclass
class State:
    """What a site remembers from call to call of one sum."""

    secrets: Secrets
    roster: list[Public] = field(default_factory=list)
    own: int = 0
    envelopes: dict[int, bytes] = field(default_factory=dict)


Layout = Mapping[str, Tensor]
"""The tensors that are summed, in order, as empty examples of their types and shapes."""


def layout_of(schema: Schema) -> Layout:
    """Return what of an averaging method's upload is summed: the weights, without the statistics beside them."""
    return {
        name: torch.empty(expected.shape, dtype=expected.dtype)
        for name, expected in schema.tensors.items()
        if expected.kind != "statistic"
    }


def secured(calls: Mapping[str, Call], schema: Schema, recipe: Recipe) -> dict[str, Call]:
    """Return a method's calls, the summed one securely aggregated; ``schema`` is what that one would have uploaded."""
    derived = recipe.federation.secure is not None and recipe.federation.secure.entropy == "derived"
    promise = "in a sum only" + (", but masks follow from the run's seed" if derived else "")
    most = fixed_point.MOST_SITES
    public = Upload("public", "key", shape=(3, KEY), dtype="uint8")
    sealed = Upload("sealed", "share", shape=(-1, protocol.ENVELOPE), dtype="uint8", most=most * protocol.ENVELOPE)
    shares = Upload("shares", "share", shape=(-1, shamir.SHARE), dtype="uint8", most=most * shamir.SHARE)
    roster = Upload("roster", "key", shape=(-1, 3, KEY), dtype="uint8", most=most * 3 * KEY)
    own = Upload("own", "statistic", dtype="int64")
    present, survivors = (
        Upload(name, "statistic", shape=(-1,), dtype="int64", most=most) for name in ("present", "survivors")
    )
    size = (fixed_point.size_of(layout_of(schema)),)
    hidden = Upload("masked", "masked", shape=size, dtype="int64", guarantee=promise)
    return {
        **calls,
        KEYS: Call(_keys, (public,)),
        SHARES: Call(_shares, (sealed,), takes=lambda _: (roster, own)),
        SUMMED: Call(
            lambda site, message: _masked(site, message, calls[SUMMED], schema),
            (hidden,),
            takes=lambda recipe: (*calls[SUMMED].takes(recipe), present, sealed),
        ),
        UNMASK: Call(_unmask, (shares,), takes=lambda _: (survivors,)),
    }


def settings_of(recipe: Recipe) -> Secure:
    """Return the section of a recipe that has one."""
    assert recipe.federation.secure is not None
    return recipe.federation.secure


def threshold_of(recipe: Recipe, round_number: int) -> int:
    """Return how many sites must take part to the end: the recipe's share of those that a round asks, two at least."""
    names = asked(sorted(recipe.data.sites), recipe.federation, recipe.runtime.seed, round_number)
    return settings_of(recipe).needed(len(names))


def _weight(examples: int, recipe: Recipe) -> float:
    """Return what a site counts: 1, or its share of the most examples that may count."""
    most = settings_of(recipe).most_examples
    return min(examples, most) / most if weighs_by_examples(recipe) else 1.0


def _draw(site: Site, purpose: str) -> shamir.Draw:
    if settings_of(site.recipe).entropy == "system":
        return os.urandom
    return numpy_rng(site.recipe.runtime.seed, site.name, site.round, purpose).bytes


def _keys(site: Site, message: Message) -> Message:
    secrets = Secrets.drawn(_draw(site, KEYS))
    site.scratch[PLACE] = State(secrets)
    public = secrets.public()
    return {"public": bytes_to_rows([public.sealing, public.masking, public.seed_hash])}


def _shares(site: Site, message: Message) -> Message:
    state, own, roster = _state(site), int(message["own"]), roster_of(message["roster"])
    if len(roster) < threshold_of(site.recipe, site.round):
        raise Refused("roster", f"names {len(roster)} sites, {threshold_of(site.recipe, site.round)} needed for a sum")
    if not 0 <= own < len(roster) or roster[own] != state.secrets.public():
        raise Refused("roster", "does not hold this site's keys in its place")
    if len({public.masking for public in roster}) < len(roster):
        raise Refused("roster", "names a key twice")
    state.roster, state.own = roster, own
    try:
        draw = _draw(site, SHARES)
        envelopes = protocol.shares_of(state.secrets, roster, own, threshold_of(site.recipe, site.round), draw)
    except ValueError as error:
        raise Refused("roster", f"holds a key with which none can be agreed ({error})") from error
    return {"sealed": bytes_to_rows(envelopes)}


def _masked(site: Site, message: Message, plain: Call, schema: Schema) -> Message:
    """Train, check the values here, as the server no longer can, and send them under masks."""
    state = _state(site)
    present, envelopes = message.pop("present").tolist(), rows_to_bytes(message.pop("sealed"))
    if (
        len(present) < threshold_of(site.recipe, site.round)
        or state.own not in present
        or len(envelopes) != len(present)
    ):
        raise Refused("present", "names too few sites, or leaves this one out")
    if len(set(present)) < len(present) or not set(present) <= set(range(len(state.roster))):
        raise Refused("present", "names a site twice, or one that is not in the roster")
    reply = plain.run(site, message)
    check({name: value.detach().cpu() for name, value in reply.items()}, schema)
    tensors = {name: reply[name].detach().cpu() for name in layout_of(schema)}
    numbers = fixed_point.encode_all(tensors, _weight(int(reply["examples"]), site.recipe), reply["loss"].cpu())
    state.envelopes = dict(zip(present, envelopes, strict=True))
    protocol.mask(numbers, state.secrets, state.roster, state.own, present)
    return {"masked": torch.from_numpy(numbers.view(np.int64))}


def _unmask(site: Site, message: Message) -> Message:
    """Reveal one share for each site, once: whatever is asked after that, the secrets are gone."""
    state = _state(site)
    del site.scratch[PLACE]
    survivors = set(message["survivors"].tolist())
    if len(survivors) < threshold_of(site.recipe, site.round) or not survivors <= state.envelopes.keys():
        raise Refused("survivors", "are too few for a sum, or did not all share their keys")
    rows = protocol.revealed(state.secrets, state.roster, state.own, state.envelopes, survivors)
    return {"shares": bytes_to_rows(rows)}


def _state(site: Site) -> State:
    state = site.scratch.get(PLACE)
    if not isinstance(state, State):
        raise Refused(PLACE, "was asked out of turn; the sum has to start anew")
    return state


def bytes_to_rows(rows: list[bytes]) -> Tensor:
    """Return byte strings of one length as a tensor."""
    return torch.from_numpy(np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1).copy())


def rows_to_bytes(rows: Tensor) -> list[bytes]:
    """Return the byte strings of a tensor's rows."""
    return [row.cpu().numpy().tobytes() for row in rows]


def roster_of(publics: Tensor) -> list[Public]:
    """Return the roster from its tensor."""
    return [Public(*rows_to_bytes(row)) for row in publics]
