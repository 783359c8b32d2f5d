"""A transport on which messages of one site change, and every reply may be recorded."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message, Order, Reply


class Wire(LocalTransport):
    """Changes orders to site B (``down``) and its replies (``up``; None loses a reply), and records all replies."""

    def __init__(
        self,
        site_workers: Sequence[SiteWorker],
        down: Callable[[Order], Order] = lambda order: order,
        up: Callable[[Order, Message], Message | None] = lambda order, message: message,
        record: Callable[[str, Order, Message], object] = lambda site, order, message: None,
    ) -> None:
        super().__init__(site_workers)
        self.down, self.up, self.record = down, up, record

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        changed = {name: self.down(order) if name == "B" else order for name, order in orders.items()}
        for reply in super().call(changed):
            if reply.message is not None:
                self.record(reply.site, orders[reply.site], reply.message)
            if reply.site == "B" and reply.message is not None:
                message = self.up(orders["B"], reply.message)
                yield Reply("B", message, "" if message is not None else "lost", reply.ticket)
            else:
                yield reply
