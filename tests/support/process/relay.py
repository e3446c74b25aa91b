"""A relay of TCP connections that can be cut, held up and let go: a network that fails when told to."""

import asyncio
import contextlib


class Relay:
    """Listens on a port of its own and passes bytes on to `port`."""

    def __init__(self, port):
        self.to = port
        self.port = 0
        self._server = None
        self._writers = set()
        self._tasks = set()
        self._there, self._back = asyncio.Event(), asyncio.Event()  # set while bytes flow that way
        self.resume()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut()
        self.resume()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def target(self):
        return f"127.0.0.1:{self.port}"

    def cut(self):
        """Breaks all connections at once, as a pulled cable does."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self, *, back=True):
        """Holds back in silence all bytes of both directions; with `back` False, only those that clients send."""
        self._there.clear()
        if back:
            self._back.clear()

    def resume(self):
        """Passes on the bytes that were held back, and all that follow."""
        self._there.set()
        self._back.set()

    async def _accepted(self, reader, writer):
        self._tasks.add(task := asyncio.current_task())
        task.add_done_callback(self._tasks.discard)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        await asyncio.gather(
            self._pass(reader, there_writer, self._there), self._pass(there_reader, writer, self._back)
        )
        self._writers -= {writer, there_writer}

    async def _pass(self, reader, writer, flowing):
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(1 << 16):
                await flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
