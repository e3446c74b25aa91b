"""Acknowledgements of amqtt that wait until the gateway has stored the message.

amqtt puts each message that a client publishes into its session's `delivered_message_queue`, and sends PUBACK (QoS 1)
or PUBCOMP (QoS 2) when the queue has taken it. So a session gets a queue whose `put` ends when the message is stored.
Subscribers of the broker get the message at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from amqtt.session import ApplicationMessage, Session

HandOver: TypeAlias = Callable[["HandoverQueue", ApplicationMessage], Coroutine[Any, Any, None]]


class HandoverQueue(asyncio.Queue[ApplicationMessage]):
    """The queue of one session (`amqtt.session.Session.delivered_message_queue`)."""

    def __init__(
        self, session: Session, hand_over: HandOver, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        super().__init__()
        self.session = session
        self.order = asyncio.Lock()  # held while a message is given to the connection: the next one comes behind it
        self._hand_over = hand_over
        self._spawn = spawn

    def put_nowait(self, item: ApplicationMessage) -> None:
        """Takes a message. At QoS 0 it has no acknowledgement."""
        super().put_nowait(item)
        if not item.qos:
            self._spawn(self._hand_over(self, item))

    async def put(self, item: ApplicationMessage) -> None:
        """Takes a message, and waits until it is stored."""
        await super().put(item)
        if item.qos:
            await self._hand_over(self, item)
