"""Dead letters: events that a sink will not take, stored at an address of their own."""

import asyncio
from typing import Final

import msgspec

from gateway.domain.errors import Refusal
from gateway.domain.principal import principal_of
from gateway.port.adapter import Outcome, Publish, Token
from gateway.push.context import PushContext
from gateway.push.outbox import Attempt
from gateway.push.spec import SubscriptionRecord
from store.api.message import Message
from store.base import logs

REASON_CHARS_MAX: Final = 256
_OURS: Final = frozenset(
    {"deadletteraddress", "deadletterattempts", "deadletterreason", "deadlettersubscription"}
)  # properties that a dead letter has

log = logs.get(__name__)


class PushDeadLetters:
    """The dead letters of one subscription (`gateway.publishing.publishing.PublishSource`)."""

    protocol = "http"

    def __init__(self, record: SubscriptionRecord, context: PushContext) -> None:
        self.principal = principal_of(record.identity)  # the owner of a topic that a dead letter makes
        self._record = record
        self._context = context
        self._tokens = 0
        self._waiting: dict[Token, asyncio.Future[Outcome]] = {}

    async def store(self, one: Attempt) -> bool:
        """Stores a dead letter; returns whether it is durable."""
        message = self._letter(one)
        try:
            self._context.check_publisher(self._record.identity, message)
            outcome = await self._publish(message)
            refusal = outcome.error or outcome.refused.get(0)
        except Refusal as error:
            refusal = error
        if refusal is not None:
            log.warning(
                "a dead letter was not stored; its event is delivered again",
                subscription=self._record.id,
                address=message.address,
                error=str(refusal),
            )
        return refusal is None

    def _letter(self, one: Attempt) -> Message:
        message, record = one.message, self._record
        address = record.spec.protocolsettings.deadletter
        assert address is not None
        said = (
            ("deadletteraddress", message.address),
            ("deadletterattempts", str(one.attempts)),
            ("deadletterreason", one.error[:REASON_CHARS_MAX]),
            ("deadlettersubscription", record.id),
        )
        properties = (*(pair for pair in message.properties if pair[0] not in _OURS), *said)
        return msgspec.structs.replace(
            message, address=address, properties=properties, retain=False, deliver_at_ms=None, expires_at_ms=None
        )

    async def _publish(self, message: Message) -> Outcome:
        self._tokens += 1
        token = Token(self._tokens)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[token] = outcome
        self._context.publish(self, Publish([message], token), len(message.body))
        return await outcome

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        """See `PublishSource`."""
        waiting = self._waiting.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)
