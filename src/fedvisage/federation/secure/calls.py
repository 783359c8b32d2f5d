"""The site's end of a secure sum: five calls, declared, checked and recorded like all others.

The sum is that of a round's training, or the one before training that ``evaluation.shortcuts`` asks for.

``secure-keys`` and ``secure-shares`` precede training, ``train`` returns masked numbers instead of weights,
``secure-consistency`` signs the list of survivors, and ``secure-unmask`` reveals the shares that unmask their sum. A
site executes each call once per sum, in this order. Its secrets stay in memory until the end of the round.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedvisage.base.streams import numpy_rng
from fedvisage.federation.method import BEFORE_TRAINING, Call
from fedvisage.federation.protections.compatible import weighs_by_examples
from fedvisage.federation.record.attendance import select_sites
from fedvisage.federation.secure import protocol
from fedvisage.federation.secure.protocol import KEY, Public, Secrets
from fedvisage.federation.secure.trust import CREDENTIAL, keys_statement, survivors_statement
from fedvisage.federation.site import Site, TrainingFailed
from fedvisage.federation.wire.message import Message, digest_of
from fedvisage.federation.wire.schema import SUMMED, RefusedMessage, Schema, Upload, check
from fedvisage.metrics.operating_point import LEAST_SITES
from fedvisage.recipe import Recipe, Secure

logger = logging.getLogger("fedvisage.site")

KEYS, SHARES, CONSISTENCY, UNMASK = "secure-keys", "secure-shares", "secure-consistency", "secure-unmask"
WITHOUT_NETWORK = (KEYS, SHARES, CONSISTENCY, UNMASK)
"""The calls that need no network."""

PLACE = "secure"
"""Key of a site's secrets in its scratch."""

DONE = "summed"
"""Value under that key after the sum of a round, because a round has one sum."""

NO_UPLOAD = (
    "training failed, or its result exceeds the limits of a secure sum; a lower learning rate or clip_norm may help; "
    "the site's log has the details"
)
"""A site's reason for a missing upload, whatever the cause: a name or number would describe this single upload."""


@dataclass
class SumState:
    """A site's state between the calls of one sum."""

    secrets: Secrets
    names: tuple[str, ...] = ()
    roster: list[Public] = field(default_factory=list)
    own: int = 0
    envelopes: dict[int, bytes] = field(default_factory=dict)
    lent: str = ""
    """Digest of the model that the server lent for this sum."""
    survivors: tuple[int, ...] = ()
    last: str = KEYS
    """The last executed call."""

    def names_of(self, indices: Sequence[int]) -> tuple[str, ...]:
        """Return the names of sites of the roster."""
        return tuple(self.names[index] for index in indices)


Layout = Mapping[str, Tensor]
"""The summed tensors, in order, as empty examples of their types and shapes."""


def layout_of(schema: Schema) -> Layout:
    """Return the part of an averaging method's upload that is summed: the weights without the statistics."""
    return {
        name: torch.empty(expected.shape, dtype=expected.dtype)
        for name, expected in schema.tensors.items()
        if expected.kind != "statistic"
    }


def with_secure_sum(calls: Mapping[str, Call], schema: Schema, recipe: Recipe, summed: str = SUMMED) -> dict[str, Call]:
    """Return calls with secure aggregation of the summed one, whose plain upload has this ``schema``."""
    plain, derived = calls[summed], settings_of(recipe).entropy == "derived"
    promise = "in a sum only" + (", but masks follow from the run's seed" if derived else "")
    last_round = plain.last_round if recipe.federation.secure is None else None
    step = partial(Call, first_round=plain.first_round, last_round=last_round)
    most = protocol.MOST_SITES
    # The fields of keys, shares and lists in both directions.
    public = Upload("public", "key", shape=(3, KEY), dtype="uint8")
    signature = Upload("signature", "key", shape=(CREDENTIAL,), dtype="uint8")
    sealed = Upload("sealed", "share", shape=(-1, protocol.ENVELOPE), dtype="uint8", most=most * protocol.ENVELOPE)
    shares = Upload("shares", "share", shape=(-1, protocol.SHARE), dtype="uint8", most=most * protocol.SHARE)
    roster = Upload("roster", "key", shape=(-1, 3, KEY), dtype="uint8", most=most * 3 * KEY)
    signatures = Upload("signatures", "key", shape=(-1, CREDENTIAL), dtype="uint8", most=most * CREDENTIAL)
    members, present, survivors, signers = (
        Upload(name, "statistic", shape=(-1,), dtype="int64", most=most)
        for name in ("members", "present", "survivors", "signers")
    )
    size = (protocol.size_of(layout_of(schema)),)
    hidden = Upload("masked", "masked", shape=size, dtype="int64", guarantee=promise)
    return {
        **calls,
        KEYS: step(_keys, (public, signature)),
        SHARES: step(_shares, (sealed,), takes=lambda _: (members, roster, signatures)),
        summed: step(
            lambda site, message: _mask_upload(site, message, plain, schema),
            (hidden,),
            takes=lambda recipe: (*plain.takes(recipe), present, sealed),
            last_round=plain.last_round,
        ),
        CONSISTENCY: step(_agree, (signature,), takes=lambda _: (survivors,)),
        UNMASK: step(_unmask, (shares,), takes=lambda _: (survivors, signers, signatures)),
    }


def settings_of(recipe: Recipe) -> Secure:
    """Return the section ``federation.secure`` of a recipe, or its defaults, for a sum before training."""
    return recipe.federation.secure or Secure()


def threshold_of(recipe: Recipe, round_number: int) -> int:
    """Return the number of a round's selected sites that must finish; before training all sites are selected."""
    if round_number == BEFORE_TRAINING:
        return max(LEAST_SITES, settings_of(recipe).sites_needed(len(recipe.data.sites)))
    names = select_sites(sorted(recipe.data.sites), recipe.federation, recipe.runtime.seed, round_number)
    return settings_of(recipe).sites_needed(len(names))


def _draw(site: Site, purpose: str) -> protocol.Draw:
    if settings_of(site.recipe).entropy == "system":
        return os.urandom
    return numpy_rng(site.recipe.runtime.seed, site.name, site.round, purpose).bytes


def _keys(site: Site, message: Message) -> Message:
    """Draw secrets and publish the signed public keys, unless earlier runs on this data forbid the sum."""
    if site.scratch.get(PLACE) == DONE:
        raise RefusedMessage(PLACE, "this round was summed already")
    site.trust.check_use()
    secrets = Secrets.draw(_draw(site, KEYS))
    site.scratch[PLACE] = SumState(secrets)
    public = secrets.public()
    signature = site.trust.sign(keys_statement(site.round, site.name, public))
    return {
        "public": bytes_to_rows([public.sealing, public.masking, public.seed_hash]),
        "signature": bytes_to_rows([signature])[0],
    }


def _shares(site: Site, message: Message) -> Message:
    """Check the roster and its signatures, and share this site's secrets among its members."""
    state, roster = _state(site, KEYS), roster_of(message["roster"])
    signatures, members = rows_to_bytes(message["signatures"]), message["members"].tolist()
    # The roster's positions among the recipe's sites, in ascending order.
    all_names = sorted(site.recipe.data.sites)
    if members != sorted(set(members)) or not set(members) <= set(range(len(all_names))):
        raise RefusedMessage("roster", "names a site twice, or one that is not among the recipe's")
    names = tuple(all_names[member] for member in members)
    state.last = SHARES
    if len(roster) < threshold_of(site.recipe, site.round):
        raise RefusedMessage(
            "roster", f"names {len(roster)} sites, {threshold_of(site.recipe, site.round)} needed for a sum"
        )
    if not len(names) == len(roster) == len(signatures):
        raise RefusedMessage("roster", "does not have one name and one signature per site")
    # The server forwards the roster, so it could have replaced or repeated keys.
    position = names.index(site.name) if site.name in names else -1
    if position < 0 or roster[position] != state.secrets.public():
        raise RefusedMessage("roster", "does not contain this site's keys at its position")
    if len({public.masking for public in roster}) < len(roster):
        raise RefusedMessage("roster", "names a key twice")
    for name, public, signature in zip(names, roster, signatures, strict=True):
        site.trust.verify(name, keys_statement(site.round, name, public), signature)
    state.names, state.roster, state.own = names, roster, position
    try:
        draw = _draw(site, SHARES)
        envelopes = protocol.shares_of(state.secrets, roster, position, threshold_of(site.recipe, site.round), draw)
    except ValueError as error:
        raise RefusedMessage("roster", f"contains an unusable key ({error})") from error
    return {"sealed": bytes_to_rows(envelopes)}


def _mask_upload(site: Site, message: Message, plain: Call, schema: Schema) -> Message:
    """Run the call, check its values here because the server cannot, and return them masked.

    Once per sum, because two uploads under the same masks would reveal their difference.
    """
    state = _state(site, SHARES)
    state.last = SUMMED
    present, envelopes = message.pop("present").tolist(), rows_to_bytes(message.pop("sealed"))
    if (
        len(present) < threshold_of(site.recipe, site.round)
        or state.own not in present
        or len(envelopes) != len(present)
    ):
        raise RefusedMessage("present", "names too few sites, or leaves this one out")
    if len(set(present)) < len(present) or not set(present) <= set(range(len(state.roster))):
        raise RefusedMessage("present", "names a site twice, or one that is not in the roster")
    state.lent = digest_of(message)
    site.trust.remember_use()  # before training, because a missing upload reveals something of the data, too
    try:
        reply = plain.run(site, message)
        check({name: value.detach().cpu() for name, value in reply.items()}, schema)
        tensors = {name: reply[name].detach().cpu() for name in layout_of(schema)}
        # The site's weight: 1, or its number of images relative to the largest number that counts.
        most = settings_of(site.recipe).most_examples
        by_examples = "examples" in reply and weighs_by_examples(site.recipe)
        weight = min(int(reply["examples"]), most) / most if by_examples else 1.0
        numbers = protocol.encode_all(tensors, weight, reply.get("loss", torch.zeros(())).cpu())
    except (RefusedMessage, TrainingFailed) as error:
        if site.round == BEFORE_TRAINING:
            raise  # the only reason for a missing answer is a fixed one
        logger.error("round %d, no upload: %s", site.round, error)
        raise TrainingFailed(NO_UPLOAD) from error
    state.envelopes = dict(zip(present, envelopes, strict=True))
    protocol.mask_numbers(numbers, state.secrets, state.roster, state.own, present)
    return {"masked": torch.from_numpy(numbers.view(np.int64))}


def _agree(site: Site, message: Message) -> Message:
    """Sign the list of survivors: one list per round, also after a restart."""
    state, survivors = _state(site, SUMMED), tuple(message["survivors"].tolist())
    state.last = CONSISTENCY
    if len(survivors) < threshold_of(site.recipe, site.round) or not set(survivors) <= state.envelopes.keys():
        raise RefusedMessage("survivors", "are too few for a sum, or did not all share their keys")
    if survivors != tuple(sorted(set(survivors))) or state.own not in survivors:
        raise RefusedMessage("survivors", "name a site twice, or leave this one out")
    site.trust.remember_survivors(site.round, state.names_of(survivors))
    state.survivors = survivors
    statement = _statement_of(site, state)
    return {"signature": bytes_to_rows([site.trust.sign(statement)])[0]}


def _statement_of(site: Site, state: SumState) -> bytes:
    """Return the statement about a sum that its survivors sign."""
    return survivors_statement(site.round, state.names, state.roster, state.names_of(state.survivors), state.lent)


def _unmask(site: Site, message: Message) -> Message:
    """Reveal one share per site, once, if enough survivors have signed the list that this site signed.

    Any two groups of the required size share an honest site, and an honest site signs one list. So no party can make
    different honest sites reveal different shares of one site.
    """
    state = _state(site, CONSISTENCY)
    site.scratch[PLACE] = DONE
    if tuple(message["survivors"].tolist()) != state.survivors:
        raise RefusedMessage("survivors", "are not those that this site signed")
    signers, signatures = message["signers"].tolist(), rows_to_bytes(message["signatures"])
    if len(signers) != len(signatures) or not set(signers) <= set(state.survivors):
        raise RefusedMessage("signers", "are not survivors with one signature each")
    needed = threshold_of(site.recipe, site.round)
    if len(set(signers)) < max(needed, len(signers)):
        raise RefusedMessage("signers", f"are {len(set(signers))} different sites; {needed} are needed, each once")
    statement = _statement_of(site, state)
    for signer, signature in zip(signers, signatures, strict=True):
        site.trust.verify(state.names[signer], statement, signature)
    rows = protocol.shares_to_reveal(state.secrets, state.roster, state.own, state.envelopes, set(state.survivors))
    return {"shares": bytes_to_rows(rows)}


def _state(site: Site, last: str) -> SumState:
    """Return the state of a sum whose last call was ``last``."""
    state = site.scratch.get(PLACE)
    if not isinstance(state, SumState) or state.last != last:
        raise RefusedMessage(PLACE, "was requested out of order; the sum has to start again")
    return state


def bytes_to_rows(rows: list[bytes]) -> Tensor:
    """Return byte strings of equal length as a tensor."""
    return torch.from_numpy(np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1).copy())


def rows_to_bytes(rows: Tensor) -> list[bytes]:
    """Return the byte strings of a tensor's rows."""
    return [row.cpu().numpy().tobytes() for row in rows]


def roster_of(publics: Tensor) -> list[Public]:
    """Return the roster from its tensor."""
    return [Public(*rows_to_bytes(row)) for row in publics]
