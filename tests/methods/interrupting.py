"""Methods and reporters that interrupt a run after a round."""

from collections.abc import Iterator
from dataclasses import replace

from tests.toy import quiet_reporter

from fedvisage.base.progress import Reporter
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


class InterruptingReporter(Reporter):
    """A reporter that interrupts the run at the end of a round, before its checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(quiet_reporter().console)
        self.number = number

    def advance(self, done: int, total: int, note: str) -> None:
        if done == self.number:
            raise KeyboardInterrupt
