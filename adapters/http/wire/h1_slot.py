"""One response of HTTP/1.1, as the transport keeps it."""

from adapters.http.wire.transport import Exchange


class Slot:
    """One response in the order of the requests."""

    __slots__ = ("chunked", "complete", "exchange", "head_only", "http_1_1", "keep_alive", "out")

    def __init__(self, exchange: Exchange, *, head_only: bool, keep_alive: bool, http_1_1: bool) -> None:
        self.exchange = exchange
        self.head_only = head_only
        self.keep_alive = keep_alive  # False: the connection ends behind it
        self.http_1_1 = http_1_1
        self.chunked = False
        self.complete = False
        self.out = bytearray()  # output that waits for earlier responses to be complete
