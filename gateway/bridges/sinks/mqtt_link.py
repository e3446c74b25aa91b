"""One connection to a broker of MQTT that events are published on."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, Self

from gateway.bridges.shared.machine_driver import MachineDriver
from gateway.bridges.sinks.connections import READ_BYTES
from gateway.domain.errors import ProtocolError
from gateway.port.bridge import BrokerAnswer, BrokerPublisher
from gateway.push.guard import SinkUnreachable
from store.api.message import Message
from store.base import logs
from store.base.streams import until_one_ends

LAST_WORDS_S: Final = 1.0  # for DISCONNECT, and the end of the connection

log = logs.get(__name__)
_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class MqttLink:
    """The connection, until its end."""

    def __init__(self, stream: _Stream, publisher: BrokerPublisher, now_ms: Callable[[], int]) -> None:
        self._reader, self._writer = stream
        self._publisher = publisher
        self._now_ms = now_ms
        self._driver = MachineDriver(publisher, self._write, now_ms)
        self._waiting: dict[int, asyncio.Future[BrokerAnswer]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots = asyncio.Semaphore(0)
        self._why = ""  # it has ended
        self._running: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, stream: _Stream, publisher: BrokerPublisher, now_ms: Callable[[], int]) -> Self:
        """Returns the connection when the broker has accepted it. Raises `SinkUnreachable`."""
        link = cls(stream, publisher, now_ms)
        publisher.connected(now_ms())
        link._running = asyncio.create_task(link._run())
        try:
            await link._ready
        except BaseException:
            await link.close()
            raise
        return link

    @property
    def is_ended(self) -> bool:
        """See `AnyLink`."""
        return bool(self._why)

    async def publish(self, topic: str, message: Message) -> BrokerAnswer | None:
        """Publishes a message; returns the broker's answer, None where the message has been there before.

        Raises `Refusal` for a message that cannot be published, `SinkUnreachable`.
        """
        async with self._slots:
            if self._why:
                raise SinkUnreachable(self._why)
            number = self._publisher.publish(topic, message, self._now_ms())
            if number is None:
                return None
            answer: asyncio.Future[BrokerAnswer] = asyncio.get_running_loop().create_future()
            if number:
                self._waiting[number] = answer
            try:
                await self._driver.flush()
            except OSError as error:
                self.lose(str(error) or type(error).__name__)
                raise SinkUnreachable(self._why) from error
            return await answer if number else BrokerAnswer(0)

    def lose(self, why: str) -> None:
        """Ends the connection, which is of no use any more."""
        if self._running is not None and not self._why:
            self._end(why)
            self._running.cancel()

    async def close(self) -> None:
        """See `AnyLink`."""
        if not self._why:
            self._publisher.leave()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._driver.flush()
            self._end("the subscription stops here")
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    # ---- inside

    async def _run(self) -> None:
        """Runs the connection to its end."""
        publisher = self._publisher
        try:
            await self._driver.flush()
            await until_one_ends(self._reading(), self._driver.tick())
        except ProtocolError as error:
            if (number := publisher.message_at_fault(error)) is not None:
                self._answered(BrokerAnswer(number, str(error), of_message=True))
            self._end(str(error))
        except OSError as error:
            self._end(str(error) or type(error).__name__)
        except Exception:  # our own bug: senders that wait see an end, and try again
            log.exception("a connection to a sink failed")
        finally:
            self._end("the connection has ended")
            self._writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._writer.wait_closed()

    def _end(self, why: str) -> None:
        """Notes the end, for everybody who waits for an answer."""
        self._why = self._why or why
        waiting, self._waiting = self._waiting, {}
        some: list[asyncio.Future[Any]] = [self._ready, *waiting.values()]
        for answer in some:
            if not answer.done():
                answer.set_exception(SinkUnreachable(self._why))
                answer.exception()  # it may have no waiter, and is no unseen error

    async def _reading(self) -> None:
        publisher = self._publisher
        while True:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise OSError("the sink has closed the connection")
            try:
                publisher.receive(data, self._now_ms())
            finally:
                for one in publisher.answers():
                    self._answered(one)
            if publisher.ready and not self._ready.done():
                self._slots = asyncio.Semaphore(publisher.in_flight_max)
                self._ready.set_result(None)
            await self._driver.flush()

    def _answered(self, one: BrokerAnswer) -> None:
        answer = self._waiting.pop(one.number, None)
        if answer is not None and not answer.done():
            answer.set_result(one)

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
