"""Dead letters of lease groups: messages that were delivered too often, published at another address."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from gateway.domain.errors import Cause, Refusal
from gateway.groups.state import GroupRecord
from gateway.publishing.moving import Mover
from gateway.publishing.publishing import FRAME_PAYLOAD_BYTES, FRAME_ROWS
from gateway.publishing.routing.placing import Parts, Source
from gateway.publishing.routing.router import UnknownTopicError
from gateway.queues.leaving.reading import Letter
from store.api.message import Message
from store.base import logs
from store.base.errors import LeaseLost
from store.format.frame import QueueNumber, QueueOffset

_AMQP: Final = "amqp"
KEPT_BACK_MS: Final = 30_000  # a message whose dead letter is refused
_OURS: Final = frozenset({"deadletteraddress", "deadletterattempts", "deadletterreason", "deadlettergroup"})

log = logs.get(__name__)


class LeaseLetters:
    """Publishes dead letters, in the frame that settles their sources where both lie in one store group."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._store, self._controller, self._router = mover.store, mover.controller, mover.router

    def check(self, topic: str, address: str) -> None:
        """Raises `Refusal` for an address that nothing may be published to, or of the topic that a group reads itself.

        The group would lease its own dead letters.
        """
        if self._router.topic_of(address) == topic:
            raise Refusal(Cause.CONFLICT, f"dead_letter: {address!r} is an address of the group's own topic {topic!r}")
        with suppress(UnknownTopicError):  # it may be made with the first dead letter
            self._router.resolve(address)

    async def move(
        self, name: str, record: GroupRecord, queue: QueueNumber, owner: int, letters: Sequence[Letter]
    ) -> None:
        """Publishes the dead letters of messages that an owner leases, and settles these.

        Keeps back those whose dead letters are refused. Raises `StoreError`: then they come back in time.
        """
        here = self._controller.group_of_queue(queue) or 0
        parts, offsets = self._mover.parts(here), list[QueueOffset]()
        for letter in letters:
            try:
                await self._add(parts, name, record, letter.message, (queue, record.leases, letter.offset))
            except Refusal as refusal:
                log.warning(
                    "a dead letter was refused; its message is kept back",
                    group=name,
                    queue=queue,
                    error=refusal.detail,
                )
                self._store.leases.requeue(
                    queue, owner, [letter.offset], delivered=False, delay_ms=KEPT_BACK_MS, group=record.leases
                )
                continue
            offsets.append(letter.offset)
            if parts.size_bytes >= FRAME_PAYLOAD_BYTES or parts.rows_count >= FRAME_ROWS:
                await self._store_all(parts, record, queue, owner, offsets)
                parts, offsets = self._mover.parts(here), []
        if offsets:
            await self._store_all(parts, record, queue, owner, offsets)

    async def _add(self, parts: Parts, name: str, record: GroupRecord, message: Message, source: Source) -> None:
        """Adds the dead letter of a message. Raises `Refusal` and `StoreError`."""
        terms = record.terms
        assert terms is not None
        assert terms.dead_letter is not None
        self.check(record.topic, terms.dead_letter)  # routes are configured anew with every start
        said = (
            ("deadletteraddress", message.address),
            ("deadletterattempts", str(terms.attempts)),
            ("deadletterreason", f"not acknowledged after {terms.attempts} deliveries"),
            ("deadlettergroup", name),
        )
        properties = (*(pair for pair in message.properties if pair[0] not in _OURS), *said)
        letter = msgspec.structs.replace(
            message,
            address=terms.dead_letter,
            properties=properties,
            retain=False,
            deliver_at_ms=None,
            expires_at_ms=None,
            native=_native(message),
        )
        route = await self._mover.route(letter.address, creator=record.creator)
        parts.add(letter, route, self._router.named(letter, route), source)

    async def _store_all(
        self, parts: Parts, record: GroupRecord, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset]
    ) -> None:
        try:
            await self._mover.move(parts, queue, owner, offsets, group=record.leases)
        except LeaseLost:
            return  # their time was over meanwhile: another receiver meets them


def _native(message: Message) -> dict[str, Any] | None:
    """Returns a message's native data, without AMQP's bytes, which know of no dead letter, and its copies."""
    kept = {name: value for name, value in (message.native or {}).items() if name != _AMQP}
    return kept or None
