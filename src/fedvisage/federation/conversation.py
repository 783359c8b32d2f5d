"""A conversation of the server with one site: several exchanges in a row, which end where the site is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.federation.exchange import Exchange
from fedvisage.federation.method import Message


class SiteLost(Exception):
    """The site of a conversation stopped answering."""


@dataclass(frozen=True)
class Conversation:
    """Several exchanges with one site in a row: one visit, during which the site keeps its place."""

    name: str
    exchange: Exchange
    device: torch.device
    visit: int

    def ask(self, call: str, message: Message | None = None, *, like: Mapping[str, Tensor] | None = None) -> Message:
        """Ask and wait; a lost site ends the conversation, and so does a field that is not shaped like it must be.

        ``like`` settles what a schema leaves open: a gradient has the shape of what it is the gradient of.
        """
        for reply in self.exchange.run(call, message or {}, to=(self.name,), visit=self.visit):
            if reply.message is None:
                break
            for name, model in (like or {}).items():
                if reply.message[name].shape != model.shape:
                    shapes = f"{tuple(reply.message[name].shape)}, must be {tuple(model.shape)}"
                    self.exchange.note_failure(self.name, f"refused: {name}: has shape {shapes}")
                    raise SiteLost(self.name)
            return {name: value.to(self.device) for name, value in reply.message.items()}
        raise SiteLost(self.name)
