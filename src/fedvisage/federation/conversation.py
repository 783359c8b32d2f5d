"""A conversation of the server with one site: several exchanges in a row, which end where the site is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from fedvisage.federation.exchange import Exchange
from fedvisage.federation.wire.message import Message


class SiteLost(Exception):
    """The site of a conversation stopped answering, or said what cannot be."""

    def __init__(self, site: str, reason: str) -> None:
        """Remember which site, and why."""
        super().__init__(site, reason)
        self.reason = reason


@dataclass(frozen=True)
class Conversation:
    """Several exchanges with one site in a row: one visit, during which the site keeps its place."""

    name: str
    """The site's name."""
    exchange: Exchange
    """Orders and replies."""
    device: torch.device
    """Where replies are put."""
    visit: int
    """The visit's number, by which the site knows that it goes on."""

    def ask(self, call: str, message: Message | None = None, *, like: Mapping[str, Tensor] | None = None) -> Message:
        """Ask and wait; a lost site ends the conversation, and so does a field that is not shaped like it must be.

        ``like`` settles what a schema leaves open: a gradient has the shape of what it is the gradient of.
        """
        for reply in self.exchange.run(call, message or {}, to=(self.name,), visit=self.visit):
            if reply.message is None:
                raise SiteLost(self.name, reply.failure)
            for name, model in (like or {}).items():
                if reply.message[name].shape != model.shape:
                    shapes = f"{tuple(reply.message[name].shape)}, must be {tuple(model.shape)}"
                    self.refuse(name, f"has shape {shapes}")
            return {name: value.to(self.device) for name, value in reply.message.items()}
        raise SiteLost(self.name, "did not answer")

    def refuse(self, field: str, reason: str) -> NoReturn:
        """End the conversation over something that the declaration allows and the method does not."""
        why = f"refused: {field}: {reason}"
        self.exchange.note_failure(self.name, why)
        raise SiteLost(self.name, why)
