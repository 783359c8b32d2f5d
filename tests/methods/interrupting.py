"""Methods whose runs are interrupted after a round."""

from collections.abc import Iterator
from dataclasses import replace

from fedvisage.federation.method import Method
from fedvisage.federation.server import Server


class Interrupted(Exception):
    """A simulated crash."""


def stop_after(method: Method, after: int) -> Method:
    """Return a method whose server program raises once the checkpoint of a round is written."""

    def server(s: Server) -> Iterator[None]:
        for _ in method.server(s):
            yield
            if s.round >= after:
                raise Interrupted

    return replace(method, server=server)
