"""The plug-in: it gives each session its queue, and hands over what the broker lets clients publish."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.plugins.manager import get_plugin_manager
from amqtt.session import ApplicationMessage, Session

from amqtt_headgate.handover import HandoverQueue
from amqtt_headgate.link import Link, Refused
from gateway.domain.errors import Refusal
from gateway.domain.filters import check_filter, matches

AGAIN_S: Final = 1.0  # until a message is sent again that the gateway could not store
STOP_S: Final = 5.0  # that messages have to be stored when the broker shuts down
NAMESPACE: Final = "amqtt.broker.plugins"  # of amqtt's plug-in managers


class HeadgatePlugin(BaseAuthPlugin):  # type: ignore[misc]  # amqtt is not typed
    """Hands what clients publish to a Headgate gateway, and lets amqtt acknowledge it when it is stored.

    amqtt asks plug-ins whether a client may connect before it reads anything more from it: that is when a session gets
    its queue. This one has no opinion on the question.
    """

    @dataclass
    class Config:
        """The settings of the plug-in."""

        host: str
        port: int = 1883
        client_id: str = "amqtt"  # by which the gateway knows this broker: each broker has its own
        username: str | None = None
        password_file: str | None = None
        tls: bool = False
        ca_file: str | None = None
        cert_file: str | None = None
        key_file: str | None = None
        topics: list[str] = field(default_factory=lambda: ["#"])  # the filters of the messages that are handed over
        to: str = "{topic}"  # the address at the gateway
        held_count_max: int = 10_000  # messages that are not stored yet
        held_bytes_max: int = 64 << 20
        namespace: str = NAMESPACE  # `plugin_namespace` of the broker

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)
        self._settings = cast("HeadgatePlugin.Config", context.config)
        _check(self._settings)
        self._logger = context.logger
        self._link: Link | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()  # set while it holds no message
        self._idle.set()
        self.held_count = self.held_bytes = 0
        self.stored = self.refused = self.dropped = 0

    # ---- what amqtt calls

    async def on_broker_pre_start(self) -> None:
        """Connects to the gateway; the broker starts without waiting for that."""
        settings = self._settings
        link = Link(client_id=settings.client_id, loop=asyncio.get_running_loop(), logger=self._logger)
        if settings.tls:
            link.secure(_path(settings.ca_file), _path(settings.cert_file), _path(settings.key_file))
        if settings.username is not None:
            password = None
            if settings.password_file is not None:
                password = Path(settings.password_file).read_text("utf-8").rstrip("\r\n")  # noqa: ASYNC240 - at the start
            link.log_in(settings.username, password)
        link.start(settings.host, settings.port)
        self._link = link

    async def authenticate(self, *, session: Session) -> bool | None:
        """Gives a session its queue before anything is read from its client. Returns no opinion.

        Refuses the client where its messages could not be handed over.
        """
        manager = get_plugin_manager(self._settings.namespace)
        if self._link is None or manager is None or self not in manager.plugins:
            self._logger.error("messages cannot be handed over: one broker a process, with its plugin_namespace")
            return False
        if not isinstance(session.delivered_message_queue, HandoverQueue):
            session.delivered_message_queue = HandoverQueue(session, self._hand_over, self._spawn)
        return None

    async def close(self) -> None:
        """Waits a while for messages that are not stored yet, and disconnects."""
        try:
            async with asyncio.timeout(STOP_S):
                await self._idle.wait()
        except TimeoutError:
            self._logger.warning("%d messages were not stored, and not acknowledged", self.held_count)
        for task in self._tasks:
            task.cancel()
        if self._link is not None:
            await asyncio.to_thread(self._link.stop)

    # ---- messages

    async def _hand_over(self, queue: HandoverQueue, message: ApplicationMessage) -> None:
        """Waits until a message is stored; returns at once for one that is not to be."""
        topic = message.topic or ""
        if not self._wanted(topic):
            return
        settings = self._settings
        size = len(message.data or b"")
        if self.held_count >= settings.held_count_max or self.held_bytes + size > settings.held_bytes_max:
            self.dropped += 1
            self._logger.warning("too much is not stored yet: a message is not handed over, nor acknowledged")
            if message.qos:
                raise asyncio.CancelledError  # ends amqtt's exchange: its client sends the message again
            return
        self.held_count += 1
        self.held_bytes += size
        self._idle.clear()
        try:
            await self._store(queue, message)
        finally:
            self.held_count -= 1
            self.held_bytes -= size
            if not self.held_count:
                self._idle.set()

    async def _store(self, queue: HandoverQueue, message: ApplicationMessage) -> None:
        topic = message.topic or ""
        async with queue.order:
            if not await self._may_publish(queue.session, topic):
                return
            stored = self._publish(queue, message)
        while True:
            try:
                await stored
            except Refused as refused:
                if not refused.again:
                    self.refused += 1
                    self._logger.warning("a message at %r is not stored: %s", topic, refused)
                    return
                self._logger.warning("a message at %r is not stored yet: %s", topic, refused)
            else:
                self.stored += 1
                return
            await asyncio.sleep(AGAIN_S)
            stored = self._publish(queue, message)

    def _publish(self, queue: HandoverQueue, message: ApplicationMessage) -> "asyncio.Future[None]":
        assert self._link is not None
        address = self._settings.to.replace("{topic}", message.topic or "")
        client_id = queue.session.client_id or ""
        return self._link.publish(address, bytes(message.data or b""), retain=bool(message.retain), client_id=client_id)

    def _wanted(self, topic: str) -> bool:
        """Returns whether a topic is handed over; for those that amqtt forbids it ends the connection."""
        if not topic or topic.startswith("$") or "#" in topic or "+" in topic:
            return False
        return any(matches(pattern, topic) for pattern in self._settings.topics)

    async def _may_publish(self, session: Session, topic: str) -> bool:
        """Returns whether the broker lets a client publish to a topic: the answer of its plug-ins for topics."""
        manager = get_plugin_manager(self._settings.namespace)
        assert manager is not None
        if not manager.is_topic_filtering_enabled():
            return True
        answers = await manager.map_plugin_topic(session=session, topic=topic, action=Action.PUBLISH)
        return all(answers.values())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check(settings: HeadgatePlugin.Config) -> None:
    """Raises ValueError for settings that make no sense."""
    rest = settings.to.replace("{topic}", "")
    if "{" in rest or "}" in rest or "#" in rest or "+" in rest or settings.to.startswith("$"):
        raise ValueError(f"to: {settings.to!r} makes no address; write {{topic}}, or levels before it")
    for pattern in settings.topics:
        try:
            check_filter(pattern)
        except Refusal as refusal:
            raise ValueError(f"topics: {refusal}; write filters of topics") from refusal
    if settings.held_count_max < 1 or settings.held_bytes_max < 1:
        raise ValueError("held_count_max and held_bytes_max are positive numbers")


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
