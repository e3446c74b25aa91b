"""Asking a client not to publish for a while: RabbitMQ's connection.blocked and connection.unblocked.

Only a connection whose client has announced the capability gets it. Pressure on the gateway begins ahead of refusals,
and blocks a connection when it next publishes, as in RabbitMQ: one that only consumes is never told, and its client's
timeout for blocked connections does not begin. A refusal blocks too, for as long as it says.
"""

from typing import TYPE_CHECKING, Final

from pamqp.commands import Connection as Methods

from adapters.amqp.codec.wire import SHORT_BYTES_MAX, method_frame
from adapters.amqp.keepalive import Keepalive
from gateway.domain.errors import Refusal

if TYPE_CHECKING:
    from adapters.amqp.connection_output import ConnectionOutput

BLOCKED_MS: Final = 1_000  # how long a refusal blocks unless the gateway hints otherwise


class Blocking:
    """The state of one connection: the reason for which it is blocked, and whether its client has been told."""

    __slots__ = ("_keepalive", "_output", "_pressure", "told", "understood")

    def __init__(self, output: "ConnectionOutput", keepalive: Keepalive) -> None:
        self._output = output
        self._keepalive = keepalive  # its `blocked_until_ms`: a refusal blocks until then
        self.understood = False  # the client has announced that it understands
        self._pressure = ""  # the gateway is low on this
        self.told = False  # of it, and not yet that it is over

    def published(self) -> None:
        """Notes that the client has published, which is when it is told of pressure."""
        if self._pressure:
            self._notify(self._pressure)

    def pressed(self, why: str) -> None:
        """Notes the resource that the gateway is low on; "": none any more."""
        self._pressure = why
        if not why:
            self._untell()

    def refused(self, refusal: Refusal, now_ms: int) -> None:
        """Tells the client to stop publishing after a refusal that a later attempt may not meet."""
        if self.understood:
            self._notify(refusal.detail)
            self._keepalive.blocked_until_ms = now_ms + max(BLOCKED_MS, refusal.retry_after_ms)

    def tick(self, now_ms: int) -> None:
        """Unblocks the connection when the time that a refusal named is over."""
        until_ms = self._keepalive.blocked_until_ms
        if until_ms is not None and until_ms <= now_ms:
            self._keepalive.blocked_until_ms = None
            self._untell()

    def _notify(self, why: str) -> None:
        if self.understood and not self.told:
            self.told = True
            text = why.encode("utf-8", "replace")[:SHORT_BYTES_MAX].decode("utf-8", "ignore")
            self._output.write(method_frame(0, Methods.Blocked, text))

    def _untell(self) -> None:
        if self.told and not self._pressure and self._keepalive.blocked_until_ms is None:
            self.told = False
            self._output.write(method_frame(0, Methods.Unblocked))
